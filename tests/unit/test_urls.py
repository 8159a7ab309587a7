"""An endpoint's URL from whatever base a user has at hand."""

from __future__ import annotations

import pytest

from loadgen.client.client import Client, url_of
from loadgen.client.openai import CHAT, COMPLETIONS
from loadgen.client.wire import Wire
from loadgen.config import RequestConfig, TargetConfig
from loadgen.live import LiveCounters


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/models", "http://h:1/v1/chat/completions"),
        ("http://h/prefix", "http://h/prefix/v1/chat/completions"),
        ("http://h/openai/v1", "http://h/openai/v1/chat/completions"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4/chat/completions"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        ("http://[::1]:8/v1", "http://[::1]:8/v1/chat/completions"),
        ("http://u:p@h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1?api-version=1&a=b", "http://h/v1/chat/completions?api-version=1&a=b"),
        ("http://h?a=b", "http://h/v1/chat/completions?a=b"),
        ("http://h/v1#part", "http://h/v1/chat/completions"),
    ],
)
def test_the_url_of_an_endpoint(base: str, expected: str) -> None:
    """With or without a version, an endpoint or a query, the base gives the endpoint's URL."""
    assert url_of(base, CHAT) == expected
    assert url_of(base, COMPLETIONS) == expected.replace("/chat/completions", "/completions")


@pytest.mark.parametrize(
    ("base", "header", "expected"),
    [
        ("http://us%40er:p%3Aw@h/v1", {}, b"Basic dXNAZXI6cDp3"),
        ("http://token@h/v1", {}, b"Basic dG9rZW46"),
        ("http://u:p@h/v1", {"Authorization": "Bearer own"}, b"Bearer own"),
        ("http://h/v1", {}, b"Bearer sk-of-the-environment"),
        ("http://h/v1", {"AUTHORIZATION": "Bearer own"}, b"Bearer own"),
    ],
)
def test_who_asks_is_told_once(
    base: str, header: dict[str, str], expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that was given, else the URL's user and password, else the key: in every request."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    client = Client(TargetConfig(base_url=base), RequestConfig(header=header), LiveCounters())
    for body in (b"{}", b"[]"):
        wire = client.prepare(CHAT, body)
        assert isinstance(wire, Wire)
        lines = wire.data.lower().split(b"\r\n")
        told = [line for line in lines if line.startswith(b"authorization:")]
        assert told == [b"authorization: " + expected.lower()]
        assert b"@" not in wire.data
