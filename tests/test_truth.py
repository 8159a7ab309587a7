"""The truth server: its own timing, what it says, and that each of its faults can be seen."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, pstdev
from typing import Any

import pytest
import uvloop

from loadgen.client.http import httpx
from loadgen.client.transport import SocketTransport
from loadgen.clock import monotonic
from loadgen.truth import TruthConfig, TruthServer, read_arguments
from loadgen.truth_faults import KINDS, Fault

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASK = {"max_tokens": 5, "stream": True}


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Each test marked `anyio` runs on both event loops."""
    return request.param


@dataclass
class Seen:
    """A sink: what a request's answer was, raw."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[tuple[bytes, float]] = field(default_factory=list)
    headers_s: float = 0.0
    error: BaseException | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def connected(self, at_s: float) -> None:
        pass

    def sent(self, at_s: float) -> None:
        pass

    def response(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], first_byte_s: float
    ) -> None:
        self.status, self.headers, self.headers_s = status, dict(headers), first_byte_s
        self.news.set()

    def body(self, data: bytes, at_s: float) -> None:
        self.pieces.append((data, at_s))
        self.news.set()

    @property
    def text(self) -> bytes:
        return b"".join(data for data, _ in self.pieces)

    @property
    def data(self) -> list[bytes]:
        """The data of each event."""
        return [
            block.removeprefix(b"data: ")
            for block in self.text.split(b"\n\n")
            if block.startswith(b"data: ")
        ]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON of each event but [DONE]."""
        return [json.loads(data) for data in self.data if data != b"[DONE]"]

    @property
    def words(self) -> list[str]:
        """The text of each chunk that has some."""
        return [word for event in self.events if (word := word_of(event))]

    @property
    def finish_reasons(self) -> list[str]:
        choices = [choice for event in self.events for choice in event["choices"]]
        return [reason for choice in choices if (reason := choice["finish_reason"])]

    async def until(self, count: int) -> None:
        """Wait for `count` pieces, or with 0 for the headers."""
        while not self.status or len(self.pieces) < count:
            self.news.clear()
            await self.news.wait()


def word_of(event: dict[str, Any]) -> str:
    if not event.get("choices"):
        return ""
    (choice,) = event["choices"]
    return str(choice["delta"]["content"] if "delta" in choice else choice["text"])


class Asker:
    """Asks one server."""

    def __init__(self, url: str, transport: SocketTransport) -> None:
        self.url = url
        self.transport = transport

    async def send(
        self, seen: Seen, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        prompt = {"messages": [{"role": "user", "content": "three little words"}]}
        whole = (prompt if path == CHAT else {"prompt": [7, 8, 9, 10]}) | body
        request = httpx.Request("POST", self.url + path, json=whole, headers=headers)
        await self.transport.exchange(self.transport.serialise(request), seen)

    async def ask(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Seen:
        """The answer, or as much as came of it before an error, which is kept."""
        seen = Seen()
        async with asyncio.timeout(20):
            try:
                await self.send(seen, path, ASK | body, headers)
            except httpx.TransportError as error:
                seen.error = error
        return seen


@asynccontextmanager
async def truth(**options: Any) -> AsyncIterator[Asker]:
    config = TruthConfig(**{"ttft_ms": 5.0, "itl_ms": 1.0, **options})
    async with TruthServer(config) as server:
        transport = SocketTransport()
        try:
            yield Asker(server.base_url, transport)
        finally:
            await transport.aclose()


# Timing.


async def test_chunks_are_due_at_absolute_times() -> None:
    """Lateness of one chunk does not move the next: 100 gaps take 100 times one gap."""
    async with truth(ttft_ms=50.0, itl_ms=10.0) as asker:
        begun_s = monotonic()
        seen = await asker.ask(COMPLETIONS, max_tokens=101)
        stamps = [event["sent_s"] for event in seen.events]
        assert len(stamps) == 101
        assert stamps == sorted(stamps)
        assert 0.050 <= stamps[0] - begun_s < 0.150
        # Only the ends' own lateness may differ, however late the chunks between them were.
        assert stamps[-1] - stamps[0] == pytest.approx(1.0, abs=0.05)
        lateness = [at_s - (stamps[0] + 0.010 * index) for index, at_s in enumerate(stamps)]
        assert sorted(lateness)[50] < 0.005


async def test_stamps_are_taken_before_the_send_on_the_clock_that_the_client_reads() -> None:
    """No chunk arrives before its stamp, and half of them come within some milliseconds of it."""
    async with truth() as asker:
        seen = await asker.ask(COMPLETIONS, max_tokens=50)
        delays = []
        for data, at_s in seen.pieces:
            if b"sent_s" in data:
                delays.append(at_s - json.loads(data[6:])["sent_s"])
        assert len(delays) == 50
        assert min(delays) > -1e-6
        assert sorted(delays)[25] < 0.005


async def test_many_streams_share_one_timer() -> None:
    """Streams that begin at once each keep their own times and their own text."""
    async with truth(ttft_ms=30.0, itl_ms=5.0) as asker:
        answers = await asyncio.gather(
            *(asker.ask(COMPLETIONS, max_tokens=tokens) for tokens in range(1, 41))
        )
        assert [len(seen.words) for seen in answers] == list(range(1, 41))
        assert len({seen.events[0]["id"] for seen in answers}) == 40
        last = [event["sent_s"] for event in answers[-1].events]
        assert last[-1] - last[0] == pytest.approx(39 * 0.005, abs=0.05)


async def test_a_whole_answer_comes_when_its_last_token_is_due() -> None:
    """Without streaming the answer is one JSON object, with usage, after TTFT and all gaps."""
    async with truth(ttft_ms=20.0, itl_ms=10.0) as asker:
        begun_s = monotonic()
        seen = await asker.ask(COMPLETIONS, stream=False, max_tokens=6)
        answer = json.loads(seen.text)
        assert 0.070 <= answer["sent_s"] - begun_s < 0.2
        assert len(answer["choices"][0]["text"].split()) == 6
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"] == {
            "prompt_tokens": 4,
            "total_tokens": 10,
            "completion_tokens": 6,
        }
        chat = json.loads((await asker.ask(CHAT, stream=False)).text)
        assert len(chat["choices"][0]["message"]["content"].split()) == 5


@pytest.mark.parametrize(
    ("dist", "cv"),
    [
        pytest.param("constant", 0.0, id="constant"),
        pytest.param("exponential", 1.0, id="exponential"),
        pytest.param("lognormal", 0.4, id="lognormal"),
    ],
)
def test_times_follow_the_asked_law(dist: str, cv: float) -> None:
    """TTFT and gaps have the asked mean and coefficient of variation, and the seed decides them."""
    config = TruthConfig(
        ttft_ms=80.0, ttft_dist=dist, ttft_cv=0.4, itl_ms=20.0, itl_dist=dist, itl_cv=0.4
    )
    for draw in ("draw_ttft_s", "draw_gap_s"):
        server, twin = TruthServer(config), TruthServer(config)
        drawn = [getattr(server, draw)() for _ in range(20_000)]
        assert mean(drawn) == pytest.approx(0.080 if "ttft" in draw else 0.020, rel=0.03)
        assert pstdev(drawn) / mean(drawn) == pytest.approx(cv, abs=0.04)
        assert drawn[:9] == [getattr(twin, draw)() for _ in range(9)]


async def test_random_gaps_are_sent_as_drawn() -> None:
    """With a law other than the constant one, the gaps between stamps differ."""
    async with truth(itl_ms=4.0, itl_dist="exponential", seed=3) as asker:
        stamps = [event["sent_s"] for event in (await asker.ask(COMPLETIONS, max_tokens=40)).events]
        gaps = [later - earlier for earlier, later in pairwise(stamps)]
        assert max(gaps) > 2 * mean(gaps)


# What it says.


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_is_shaped_as_vllms(path: str) -> None:
    """One HTTP chunk an event: a role (chat), a token each, the finish on the last, then [DONE]."""
    async with truth() as asker:
        seen = await asker.ask(path)
        assert seen.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert all(data.startswith(b"data: ") and data.endswith(b"\n\n") for data, _ in seen.pieces)
        assert len(seen.words) == 5
        assert all(word.startswith(" ") and len(word.split()) == 1 for word in seen.words)
        assert seen.finish_reasons == ["length"]
        assert seen.data[-1] == b"[DONE]"
        assert len(seen.pieces) == len(seen.data) == (7 if path == CHAT else 6)
        if path == CHAT:
            assert seen.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("server", "options", "has_usage"),
    [
        pytest.param("asked", None, "", id="not-asked"),
        pytest.param("asked", {"include_usage": True}, "own", id="asked"),
        pytest.param(
            "asked",
            {"include_usage": True, "continuous_usage_stats": True},
            "each",
            id="asked-continuous",
        ),
        pytest.param("never", {"include_usage": True}, "", id="never"),
        pytest.param("last", None, "last", id="last"),
        pytest.param("continuous", None, "each", id="continuous"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_modes(
    path: str, server: str, options: dict[str, bool] | None, has_usage: str
) -> None:
    """Usage is absent, an event of its own, on the last chunk, or on each, with right counts."""
    async with truth(usage=server) as asker:
        events = (await asker.ask(path, stream_options=options)).events
        prompt = 3 if path == CHAT else 4
        usages = [event.get("usage") for event in events]
        counts = [usage and usage["completion_tokens"] for usage in usages]
        role = [0] if path == CHAT else []
        nothing = [None] * len(role)
        assert (
            counts
            == {
                "": [*nothing, None, None, None, None, None],
                "own": [*nothing, None, None, None, None, None, 5],
                "last": [*nothing, None, None, None, None, 5],
                "each": [*role, 1, 2, 3, 4, 5, 5],
            }[has_usage]
        )
        for usage in filter(None, usages):
            assert usage["prompt_tokens"] == prompt
            assert usage["total_tokens"] == prompt + usage["completion_tokens"]
        assert (events[-1]["choices"] == []) is (has_usage in ("own", "each"))


async def test_several_tokens_a_chunk() -> None:
    """Seven tokens in chunks of three are three chunks, 3 gaps of a token apart."""
    async with truth(tokens_per_chunk=3, itl_ms=10.0, usage="continuous") as asker:
        seen = await asker.ask(COMPLETIONS, max_tokens=7)
        assert [len(word.split()) for word in seen.words] == [3, 3, 1]
        chunks = seen.events[:3]
        assert [event["usage"]["completion_tokens"] for event in chunks] == [3, 6, 7]
        assert chunks[2]["sent_s"] - chunks[0]["sent_s"] == pytest.approx(0.06, abs=0.03)


async def test_output_length_is_the_asked_one() -> None:
    """`max_completion_tokens` comes before `max_tokens`, and the server's own where neither is."""
    async with truth(tokens=9) as asker:
        cases: list[tuple[dict[str, Any], int]] = [
            ({"max_completion_tokens": 3, "max_tokens": 8}, 3),
            ({"max_tokens": 4, "ignore_eos": True, "min_tokens": 4}, 4),
            ({"max_tokens": None}, 9),
        ]
        for body, tokens in cases:
            assert len((await asker.ask(CHAT, **body)).words) == tokens


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 3),
        ({"ignore_eos": True}, 8),
        ({"min_tokens": 5}, 5),
        ({"min_tokens": 1}, 3),
        ({"max_tokens": 2}, 2),
    ],
    ids=["free", "ignore_eos", "min_tokens", "too few", "limit"],
)
async def test_answers_may_end_by_themselves(body: dict[str, Any], tokens: int) -> None:
    """With --eos-after an answer stops there, unless a field forbids it, and says why."""
    async with truth(eos_after=3) as asker:
        seen = await asker.ask(CHAT, **{"max_tokens": 8} | body)
        assert len(seen.words) == tokens
        last = [event for event in seen.events if event["choices"]][-1]
        asked = body.get("max_tokens", 8)
        wanted = "length" if tokens == asked else "stop"
        assert last["choices"][0]["finish_reason"] == wanted


async def test_fields_can_be_ignored() -> None:
    """A field that the server is told to ignore is taken and changes nothing."""
    async with truth(eos_after=3, ignore=frozenset({"ignore_eos"})) as asker:
        assert len((await asker.ask(CHAT, max_tokens=8, ignore_eos=True)).words) == 3
        assert len((await asker.ask(CHAT, max_tokens=8, min_tokens=8)).words) == 8


async def test_a_server_may_count_more_than_the_text() -> None:
    """Special tokens, a template's, those of each message, and tokens that are not words."""
    async with truth(special_tokens=2, template_tokens=10, message_tokens=4) as asker:
        chat = {"messages": [{"role": "user", "content": "a b"}, {"content": "c"}]}
        cases: list[tuple[str, dict[str, Any], int]] = [
            (COMPLETIONS, {"prompt": "a b c"}, 5),
            (COMPLETIONS, {"prompt": [1, 2, 3]}, 3),
            (CHAT, chat, 10 + 2 * 4 + 3),
        ]
        for path, prompt, tokens in cases:
            answer = json.loads((await asker.ask(path, stream=False, **prompt)).text)
            assert answer["usage"]["prompt_tokens"] == tokens
    async with truth(chars_per_token=4.0) as asker:
        answer = json.loads((await asker.ask(COMPLETIONS, stream=False, prompt="time year")).text)
        assert answer["usage"]["prompt_tokens"] == 3


async def test_prompts_are_counted() -> None:
    """Token ids by their number, texts and messages by their words."""
    async with truth() as asker:
        cases: list[tuple[str, dict[str, Any], int]] = [
            (COMPLETIONS, {"prompt": "one two  three"}, 3),
            (COMPLETIONS, {"prompt": ["one two"]}, 2),
            (COMPLETIONS, {"prompt": [[1, 2, 3, 4, 5]]}, 5),
            (CHAT, {"messages": [{"role": "system", "content": "a b"}, {"content": "c"}]}, 3),
        ]
        for path, prompt, tokens in cases:
            answer = json.loads((await asker.ask(path, stream=False, **prompt)).text)
            assert answer["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize("stamp", ["text", "none"])
async def test_the_stamp_may_stand_elsewhere(stamp: str) -> None:
    """In the text, so that chunks have vLLM's very keys, or nowhere."""
    async with truth(stamp=stamp) as asker:
        seen = await asker.ask(CHAT)
        assert all("sent_s" not in event for event in seen.events)
        if stamp == "text":
            assert 0 <= monotonic() - float(seen.words[-1]) < 20


async def test_models_health_and_counts() -> None:
    """The paths beside the two that generate."""
    async with (
        truth(model="100%-tiny", max_model_len=512) as asker,
        httpx.AsyncClient(base_url=asker.url, transport=SocketTransport()) as client,
    ):
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("100%-tiny", 512)
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.get(CHAT)).status_code == 405
        seen = await asker.ask(CHAT)
        assert seen.events[0]["model"] == "100%-tiny"
        stats = (await client.get("/stats")).json()
        assert (stats["requests"], stats["events"]) == (1, 5)


# What it refuses.


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"max_tokens": 0}, id="max-tokens"),
        pytest.param({"max_tokens": "9"}, id="max-tokens-text"),
        pytest.param({"prompt": None}, id="no-prompt"),
        pytest.param({"prompt": [1, 2], "max_tokens": 999_999}, id="too-long"),
        pytest.param({"stream_options": [1]}, id="stream-options"),
        pytest.param({"x_fault": {"kind": "nonsense"}}, id="fault-kind"),
        pytest.param({"x_fault": {"kind": "stall", "x": 1}}, id="fault-key"),
        pytest.param({"x_fault": {"kind": "stall", "after_tokens": -1}}, id="fault-after"),
        pytest.param({"x_fault": {"kind": "status", "status": 1}}, id="fault-status"),
        pytest.param({"x_fault": {"kind": "status", "retry_after": []}}, id="fault-retry"),
    ],
)
async def test_a_wrong_request_is_a_400(body: dict[str, Any]) -> None:
    """A client's mistake gets 400 and OpenAI's error JSON, and the connection goes on."""
    async with truth() as asker:
        seen = await asker.ask(COMPLETIONS, **body)
        assert seen.status == 400
        assert json.loads(seen.text)["error"]["message"]
        assert (await asker.ask(COMPLETIONS)).status == 200
        assert asker.transport.new_connections == 1


async def test_what_is_not_json_is_a_400() -> None:
    """A body that is no JSON object is refused."""
    async with truth() as asker, httpx.AsyncClient(transport=SocketTransport()) as client:
        for body in (b"", b"{", b"[]"):
            assert (await client.post(asker.url + CHAT, content=body)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [{"ignore_eos": True}, {"stream_options": {"continuous_usage_stats": True}}],
    ids=["field", "nested"],
)
async def test_fields_can_be_made_unknown(body: dict[str, Any]) -> None:
    """A field that the server is told to reject gets a 400 that names it, as OpenAI's does."""
    reject = frozenset({"ignore_eos", "stream_options.continuous_usage_stats"})
    async with truth(reject=reject) as asker:
        seen = await asker.ask(CHAT, **body)
        assert seen.status == 400
        assert b"Unrecognized request argument supplied: " in seen.text
        kept = await asker.ask(CHAT, stream_options={"include_usage": True})
        assert kept.status == 200


async def test_the_key_is_asked_for() -> None:
    """With a key set, requests without it or with another get 401."""
    async with truth(api_key="sesame") as asker:
        assert (await asker.ask(CHAT)).status == 401
        assert (await asker.ask(CHAT, {"authorization": "Bearer x"})).status == 401
        assert (await asker.ask(CHAT, {"authorization": "Bearer sesame"})).status == 200
    assert "sesame" not in repr(TruthConfig(api_key="sesame"))


# Faults.


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
async def test_fault_status(status: int) -> None:
    """An HTTP error as it was asked for, with Retry-After."""
    async with truth() as asker:
        fault = {"kind": "status", "status": status, "retry_after": "7"}
        seen = await asker.ask(CHAT, x_fault=fault)
        assert (seen.status, seen.headers[b"retry-after"]) == (status, b"7")
        assert json.loads(seen.text)["error"]["code"] == status


@pytest.mark.parametrize(
    ("fault", "words", "finish", "is_done", "error"),
    [
        ({"kind": "truncate", "after_tokens": 2}, 2, [], False, "RemoteProtocolError"),
        ({"kind": "truncate_clean", "after_tokens": 2}, 2, [], False, None),
        ({"kind": "truncate_clean"}, 0, [], False, None),
        ({"kind": "reset", "after_tokens": 2}, 2, [], False, "ReadError"),
        ({"kind": "no_done"}, 5, ["length"], False, None),
        ({"kind": "no_finish"}, 5, [], True, None),
        ({"kind": "short", "after_tokens": 3}, 3, ["stop"], True, None),
        ({"kind": "empty"}, 0, ["stop"], True, None),
        ({"kind": "hang_up"}, 0, [], False, "RemoteProtocolError"),
        ({"kind": "garbage"}, 0, [], False, "RemoteProtocolError"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_faults_that_end_an_answer(
    path: str,
    fault: dict[str, Any],
    words: int,
    finish: list[str],
    is_done: bool,
    error: str | None,
) -> None:
    """So many tokens come, then the end, with or without finish reason, [DONE] and framing."""
    async with truth() as asker:
        seen = await asker.ask(path, x_fault=fault)
        assert len(seen.words) == words
        assert seen.finish_reasons == finish
        assert (b"[DONE]" in seen.data) is is_done
        assert (type(seen.error).__name__ if seen.error else None) == error
        assert (await asker.ask(path)).error is None


@pytest.mark.parametrize(
    ("fault", "pieces"),
    [
        ({"kind": "hang_headers"}, None),
        ({"kind": "hang_first_token"}, 0),
        ({"kind": "stall", "after_tokens": 2}, 2),
    ],
    ids=["hang_headers", "hang_first_token", "stall"],
)
async def test_faults_that_hang(fault: dict[str, Any], pieces: int | None) -> None:
    """No headers, no first token, or no further one: then nothing, until the client goes."""
    async with truth() as asker:
        seen = Seen()
        task = asyncio.create_task(asker.send(seen, COMPLETIONS, ASK | {"x_fault": fault}))
        if pieces is not None:
            await asyncio.wait_for(seen.until(pieces), 10)
        done, _ = await asyncio.wait([task], timeout=0.1)
        assert not done
        assert len(seen.pieces) == (pieces or 0)
        assert bool(seen.status) is (pieces is not None)
        task.cancel()
        await asyncio.wait([task])
        assert (await asker.ask(COMPLETIONS)).status == 200


async def test_fault_error_event() -> None:
    """An error inside a 200: some tokens, an error event, and [DONE] all the same."""
    async with truth() as asker:
        seen = await asker.ask(CHAT, x_fault={"kind": "error_event", "after_tokens": 2})
        assert seen.status == 200
        *chunks, error = seen.events
        assert error["error"]["message"] == "the engine died"
        assert len(list(filter(None, map(word_of, chunks)))) == 2
        assert seen.data[-1] == b"[DONE]"


async def test_fault_malformed() -> None:
    """An event whose JSON is cut, between events that are whole."""
    async with truth() as asker:
        seen = await asker.ask(COMPLETIONS, x_fault={"kind": "malformed", "after_tokens": 2})
        with pytest.raises(json.JSONDecodeError):
            json.loads(seen.data[2])
        assert len(seen.data) == 7


async def test_fault_redirect() -> None:
    """A 307 to another path."""
    async with truth() as asker:
        seen = await asker.ask(CHAT, x_fault={"kind": "redirect"})
        assert (seen.status, seen.headers[b"location"]) == (307, b"/v1/elsewhere")


async def test_fault_json_body() -> None:
    """One JSON answer though a stream was asked for."""
    async with truth() as asker:
        seen = await asker.ask(CHAT, x_fault={"kind": "json_body"})
        assert seen.headers[b"content-type"] == b"application/json"
        assert json.loads(seen.text)["object"] == "chat.completion"


async def test_fault_buffered() -> None:
    """As behind a proxy that buffers: every event in one write, when the last is due."""
    async with truth(itl_ms=20.0) as asker:
        begun_s = monotonic()
        seen = await asker.ask(CHAT, x_fault={"kind": "buffered"})
        assert len(seen.words) == 5
        assert len({event["sent_s"] for event in seen.events}) == 1
        assert seen.events[0]["sent_s"] - begun_s >= 0.080
        assert seen.headers_s < seen.events[0]["sent_s"]


async def test_fault_early_role() -> None:
    """The chunk that only names the role comes with the headers, long before the first token."""
    async with truth(ttft_ms=60.0) as asker:
        seen = await asker.ask(CHAT, x_fault={"kind": "early_role"})
        role, first = seen.events[:2]
        assert first["sent_s"] - role["sent_s"] >= 0.05
        assert len(seen.words) == 5
        assert len((await asker.ask(COMPLETIONS, x_fault={"kind": "early_role"})).words) == 5


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        pytest.param("pings", lambda text: text.replace(b": ping\n\n", b""), id="pings"),
        pytest.param("no_space", lambda text: text.replace(b"data:", b"data: "), id="no_space"),
        pytest.param("crlf", lambda text: text.replace(b"\r\n", b"\n"), id="crlf"),
    ],
)
async def test_faults_of_style(kind: str, plain: Any) -> None:
    """Comments, no space after the colon, or CRLF: other bytes that mean the same events."""
    async with truth(stamp="none") as asker:
        usual, other = await asker.ask(CHAT), await asker.ask(CHAT, x_fault={"kind": kind})
        assert other.text != usual.text
        any_id = re.compile(rb"chatcmpl-\w+")
        assert any_id.sub(b"", plain(other.text)) == any_id.sub(b"", usual.text)


async def test_every_request_may_have_the_fault() -> None:
    """The server's own fault strikes from the asked request on, unless a request has its own."""
    fault = Fault("status", status=503)
    async with truth(fault=fault, fault_from=2) as asker:
        got = [(await asker.ask(CHAT)).status for _ in range(4)]
        assert got == [200, 200, 503, 503]
        assert (await asker.ask(CHAT, x_fault={"kind": "no_done"})).status == 200


def test_every_kind_of_fault_is_tested() -> None:
    """No fault can be added without a test that names it."""
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    assert [kind for kind in KINDS if f'"{kind}"' not in text] == []


# The command.


def test_the_command_line_says_it_all() -> None:
    """Every field of the configuration can be given as a flag."""
    line = (
        "--host ::1 --port 1 --model m --ttft-ms 2 --itl-ms 3 --ttft-dist lognormal --ttft-cv .1"
        " --itl-dist exponential --itl-cv .2 --seed 4 --tokens 5 --tokens-per-chunk 6 --usage last"
        " --stamp none --max-model-len 7 --api-key k --reject a,b --fault-from 8 --tick-ms 9"
        " --ignore c --eos-after 10 --special-tokens 11 --template-tokens 12 --message-tokens 13"
        " --chars-per-token 4.5"
    )
    fault = '{"kind": "stall", "after_tokens": 3}'
    got = read_arguments([*line.split(), "--fault", fault])
    assert got == TruthConfig(
        host="::1",
        port=1,
        model="m",
        ttft_ms=2.0,
        itl_ms=3.0,
        ttft_dist="lognormal",
        ttft_cv=0.1,
        itl_dist="exponential",
        itl_cv=0.2,
        seed=4,
        tokens=5,
        tokens_per_chunk=6,
        usage="last",
        stamp="none",
        max_model_len=7,
        api_key="k",
        reject=frozenset({"a", "b"}),
        fault=Fault("stall", after_tokens=3),
        fault_from=8,
        tick_ms=9.0,
        ignore=frozenset({"c"}),
        eos_after=10,
        special_tokens=11,
        template_tokens=12,
        message_tokens=13,
        chars_per_token=4.5,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_as_a_process(number: signal.Signals) -> None:
    """It prints where it listens, serves, and exits cleanly on a signal, with a stream open."""
    command = [sys.executable, "-m", "loadgen.truth", "--ttft-ms", "1", "--itl-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        url = it.stdout.readline().strip()

        async def use() -> None:
            transport = SocketTransport()
            asker = Asker(url, transport)
            assert len((await asker.ask(CHAT)).words) == 5
            hanging = asyncio.create_task(asker.ask(CHAT, x_fault={"kind": "stall"}))
            await asyncio.sleep(0)
            it.send_signal(number)
            await hanging
            await transport.aclose()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())
        assert it.wait(timeout=20) == 0
        assert it.stderr is not None
        assert it.stderr.read() == ""


async def test_slots_make_the_capacity_known() -> None:
    """With 2 slots, 6 answers of 50 ms that come at once end 50, 50, 100, 100, 150, 150 ms later,
    in the order in which they came."""
    async with truth(ttft_ms=30, itl_ms=5, slots=2) as asker:
        began_s = monotonic()
        answers = [asyncio.ensure_future(asker.ask(COMPLETIONS)) for _ in range(6)]
        seen = await asyncio.gather(*answers)
    ends_s = sorted(answer.pieces[-1][1] - began_s for answer in seen)
    for end_s, asked_s in zip(ends_s, [0.05, 0.05, 0.1, 0.1, 0.15, 0.15], strict=True):
        assert asked_s - 0.001 < end_s < asked_s + 0.04


async def test_a_full_queue_refuses() -> None:
    """Beyond --slots and --queue a request gets a 503, and those before it are served."""
    async with truth(ttft_ms=30, itl_ms=5, slots=1, queue=1) as asker:
        answers = [asyncio.ensure_future(asker.ask(COMPLETIONS)) for _ in range(3)]
        seen = await asyncio.gather(*answers)
    assert sorted(answer.status for answer in seen) == [200, 200, 503]


async def test_a_client_that_leaves_gives_its_slot_back() -> None:
    """Neither a waiting request nor one under way holds a slot once its client has gone."""
    async with truth(ttft_ms=30, itl_ms=5, slots=1) as asker:
        gone = [asyncio.ensure_future(asker.ask(COMPLETIONS)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        answer = await asyncio.wait_for(asker.ask(COMPLETIONS), 2)
    assert answer.status == 200
    assert answer.finish_reasons == ["length"]
