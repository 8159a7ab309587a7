"""Requests after the first are filled into its form, and are what httpx would have built."""

from __future__ import annotations

import pytest

from loadgen.client.client import Client
from loadgen.client.openai import CHAT, COMPLETIONS
from loadgen.client.wire import Form, Origin, Wire
from loadgen.config import RequestConfig, TargetConfig
from loadgen.live import LiveCounters

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Nothing here depends on the loop."""
    return "asyncio"


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("body", [b"{}", b"x" * 9, b"x" * 10, b"content-length: 5\r\n\r\n"])
async def test_a_filled_form_is_the_request_that_httpx_builds(endpoint: str, body: bytes) -> None:
    """Head, length and body are byte for byte those of a request that was built from nothing."""
    target = TargetConfig(base_url="http://127.0.0.1:9/v1?api-version=1")
    config = RequestConfig(header={"X-Content-Length": "7", "A": "b"})
    async with Client(target, config, LiveCounters()) as fresh:
        built = fresh.prepare(endpoint, body)
    async with Client(target, config, LiveCounters()) as client:
        client.prepare(endpoint, b"another body")
        filled = client.prepare(endpoint, body)
    assert isinstance(built, Wire)
    assert filled == built
    assert filled.data.endswith(body)


def test_a_request_without_a_length_has_no_form() -> None:
    """What cannot be filled is refused, not sent with a wrong length."""
    with pytest.raises(ValueError, match="Content-Length"):
        Form.of(Wire(Origin("http", "h", 80), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
