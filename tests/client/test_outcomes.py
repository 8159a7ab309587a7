"""Each way in which a target can fail, produced by a real server, and the record that it gives."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
import trustme

from loadgen.client import openai
from loadgen.client.client import Client, Labels
from loadgen.client.openai import BodyOptions, Feature
from loadgen.clock import monotonic
from loadgen.config import RequestConfig, TargetConfig
from loadgen.live import LiveCounters
from loadgen.record import Outcome, RequestRecord, TokenSource
from loadgen.schedule import Shot
from loadgen.truth import TruthConfig, TruthServer

pytestmark = pytest.mark.anyio

TTFT_MS = 20.0
ITL_MS = 5.0
TOKENS = 8
ALL = frozenset(Feature) - {Feature.MAX_COMPLETION_TOKENS}


@pytest.fixture
def anyio_backend() -> object:
    """uvloop, as a run has it."""
    return ("asyncio", {"use_uvloop": True})


async def send(
    base_url: str,
    fault: dict[str, Any] | None = None,
    *,
    chat: bool = False,
    features: frozenset[Feature] = ALL,
    **config: Any,
) -> RequestRecord:
    """The record of one request of 8 tokens."""
    options = BodyOptions(
        endpoint=openai.CHAT if chat else openai.COMPLETIONS,
        model="truth",
        features=features,
        extra_body=None if fault is None else {"x_fault": fault},
    )
    request = RequestConfig(**{"first_token_timeout": 2.0, "total_timeout": 4.0} | config)
    target = TargetConfig(name="t", base_url=base_url)
    async with Client(target, request, LiveCounters()) as client:
        body = openai.build_body(options, "one two three", TOKENS)
        shot = Shot(0, 0.0, 3, TOKENS)
        now_s = monotonic()
        return await client.send(
            shot,
            client.prepare(options.endpoint, body),
            Labels("t", now_s),
            now_s,
            length_is_held=Feature.IGNORE_EOS in features,
        )


def truth(**config: Any) -> TruthServer:
    return TruthServer(TruthConfig(ttft_ms=TTFT_MS, itl_ms=ITL_MS, **config))


FAULTS = [
    pytest.param({"kind": "status", "status": 429, "retry_after": "7"}, "http_429", id="429"),
    pytest.param({"kind": "status", "status": 400}, "http_4xx", id="400"),
    pytest.param({"kind": "status", "status": 404}, "http_4xx", id="404"),
    pytest.param({"kind": "status", "status": 500}, "http_5xx", id="500"),
    pytest.param({"kind": "status", "status": 503}, "http_5xx", id="503"),
    pytest.param({"kind": "redirect"}, "malformed", id="redirect"),
    pytest.param({"kind": "error_event", "after_tokens": 3}, "stream_error", id="error-event"),
    pytest.param({"kind": "truncate", "after_tokens": 3}, "truncated", id="cut-off"),
    pytest.param({"kind": "truncate_clean", "after_tokens": 3}, "truncated", id="ends-early"),
    pytest.param({"kind": "reset", "after_tokens": 3}, "truncated", id="reset"),
    pytest.param({"kind": "hang_up"}, "truncated", id="hang-up"),
    pytest.param({"kind": "garbage"}, "malformed", id="garbage"),
    pytest.param({"kind": "malformed", "after_tokens": 2}, "malformed", id="broken-json"),
    pytest.param({"kind": "empty"}, "empty", id="empty"),
    pytest.param({"kind": "short", "after_tokens": 5}, "short", id="short"),
]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize(("fault", "outcome"), FAULTS)
async def test_a_fault_has_its_outcome(
    fault: dict[str, Any], outcome: str, transport: str, chat: bool
) -> None:
    """A server that misbehaves in this way gives this outcome, with a reason."""
    async with truth() as server:
        record = await send(server.base_url, fault, chat=chat, transport=transport)
    assert record.outcome == outcome
    assert record.error
    assert record.end_s >= record.start_s
    assert ("Retry-After 7" in record.error) == ("retry_after" in fault)


@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize(
    ("kind", "limits", "outcome"),
    [
        ("hang_headers", {"first_token_timeout": 0.1}, Outcome.TIMEOUT_FIRST_TOKEN),
        ("hang_first_token", {"first_token_timeout": 0.1}, Outcome.TIMEOUT_FIRST_TOKEN),
        ("stall", {"total_timeout": 0.3}, Outcome.TIMEOUT_TOTAL),
    ],
)
async def test_a_wait_is_bounded(
    kind: str, limits: dict[str, float], outcome: Outcome, transport: str
) -> None:
    """A server that hangs costs the timeout and no more, and the timeout's phase is told."""
    fault = {"kind": kind, "after_tokens": 3}
    async with truth() as server:
        record = await send(server.base_url, fault, transport=transport, **limits)
    assert record.outcome is outcome
    (limit_s,) = limits.values()
    assert limit_s - 0.002 <= record.e2e_s < limit_s + 1.0  # uvloop's timers count milliseconds
    assert len(record.chunk_s) == (3 if kind == "stall" else 0)


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("transport", ["socket", "httpx"])
@pytest.mark.parametrize(
    "kind", [None, "no_done", "no_finish", "early_role", "pings", "no_space", "crlf"]
)
async def test_oddities_that_are_no_failure(kind: str | None, transport: str, chat: bool) -> None:
    """What real servers do and the protocols allow is a success with the right tokens and TTFT."""
    fault = None if kind is None else {"kind": kind}
    async with truth() as server:
        record = await send(server.base_url, fault, transport=transport, chat=chat)
    assert record.outcome is Outcome.OK, record.error
    assert record.output_tokens_served == TOKENS
    assert record.token_source is TokenSource.CONTINUOUS_USAGE
    assert record.chunk_tokens == (1,) * TOKENS
    assert record.prompt_tokens_served == 3
    assert record.ttft_s is not None
    assert TTFT_MS / 1000 <= record.ttft_s < TTFT_MS / 1000 + 0.5
    assert record.sent_s is not None
    assert record.first_byte_s is not None
    assert record.start_s <= record.sent_s <= record.first_byte_s <= record.chunk_s[0]


@pytest.mark.parametrize("transport", ["socket", "httpx"])
async def test_a_json_body_where_a_stream_was_asked(transport: str) -> None:
    """It is a good answer without a TTFT: tokens by its usage, and no chunk times."""
    async with truth() as server:
        record = await send(server.base_url, {"kind": "json_body"}, transport=transport)
    assert record.outcome is Outcome.OK
    assert record.output_tokens_served == TOKENS
    assert record.ttft_s is None
    assert record.chunk_s == ()


@pytest.mark.parametrize(
    ("usage", "source", "chunk_tokens"),
    [
        ("continuous", TokenSource.CONTINUOUS_USAGE, (3, 3, 2)),
        ("last", TokenSource.USAGE, None),
        ("asked", TokenSource.CONTINUOUS_USAGE, (3, 3, 2)),
        ("never", TokenSource.CHUNKS, None),
    ],
)
async def test_a_chunk_is_not_a_token(
    usage: str, source: TokenSource, chunk_tokens: tuple[int, ...] | None
) -> None:
    """Three tokens a chunk are counted as three where the server tells, and said to be guessed
    where it does not."""
    async with truth(tokens_per_chunk=3, usage=usage) as server:
        record = await send(server.base_url)
    assert record.outcome is Outcome.OK, record.error
    assert record.token_source is source
    assert record.chunk_tokens == chunk_tokens
    assert record.output_tokens_served == (3 if usage == "never" else TOKENS)
    assert len(record.chunk_s) == 3


@pytest.mark.parametrize("transport", ["socket", "httpx"])
async def test_nobody_listens(transport: str) -> None:
    """A refused connection is `connect`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        record = await send(f"http://127.0.0.1:{probe.getsockname()[1]}", transport=transport)
    assert record.outcome is Outcome.CONNECT
    assert record.connected_s is None
    assert record.http_status is None


@pytest.mark.parametrize("transport", ["socket", "httpx"])
async def test_an_accept_queue_that_is_full(transport: str) -> None:
    """A connect that never comes about is `timeout_connect`."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = []
        for _ in range(4):  # the backlog's one place and those that the kernel adds
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            held.append(client)
        record = await send(f"http://127.0.0.1:{port}", transport=transport, connect_timeout=0.2)
        for client in held:
            client.close()
    assert record.outcome is Outcome.TIMEOUT_CONNECT


@pytest.mark.parametrize("transport", ["socket", "httpx"])
async def test_a_certificate_that_nobody_vouches_for(transport: str) -> None:
    """It is `tls`; with --insecure the same server is served."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    config = TruthConfig(ttft_ms=TTFT_MS, itl_ms=ITL_MS)
    async with TruthServer(config, ssl_context=context) as server:
        refused = await send(server.base_url, transport=transport)
        accepted = await send(server.base_url, transport=transport, insecure=True)
    assert refused.outcome is Outcome.TLS
    assert accepted.outcome is Outcome.OK


async def test_a_cancelled_request_keeps_what_had_come() -> None:
    """Cutting a run off gives `cancelled`, with the chunks that had come."""
    async with truth() as server:
        task = asyncio.create_task(send(server.base_url, {"kind": "stall", "after_tokens": 3}))
        while server.requests == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep((TTFT_MS + 6 * ITL_MS) / 1000)
        task.cancel()
        record = await task
    assert record.outcome is Outcome.CANCELLED
    assert len(record.chunk_s) == 3


async def test_keys_are_struck_out_of_error_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that repeats the key in its error does not bring it into a record."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-0123456789")
    async with truth(api_key="another") as server:
        record = await send(server.base_url)
    assert record.outcome is Outcome.HTTP_4XX
    assert record.error
    assert "canary" not in record.error
