"""A server whose timing is known: `python -m loadgen.truth --port P --ttft-ms T --itl-ms I`.

It answers OpenAI's completions and chat completions. Chunks are due at absolute times, with no
drift, and each event carries `sent_s`, the monotonic time right before it was handed to the socket,
so that a client's error is known event by event, however late the event was. With `--slots N` its
capacity is known too: N / (ttft + (n - 1) itl) answers of n tokens a second; others wait. What it
says, and how it misbehaves when a request asks for it, stands in `truth_faults.py`. It has no
model: tokens are words, and a prompt's words are its tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import heapq
import itertools
import math
import os
import random
import signal
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import orjson
import uvloop

from loadgen.clock import monotonic
from loadgen.http1 import EVENT_STREAM, Connection, Refusal, Request
from loadgen.truth_faults import (
    SAMPLE,
    Ending,
    Fault,
    FaultError,
    Fields,
    Shape,
    json_template,
    stream_wires,
)

DISTRIBUTIONS: Final = ("constant", "lognormal", "exponential")
USAGES: Final = ("asked", "never", "last", "continuous")
STAMPS: Final = ("field", "text", "none")
FAR_S: Final = 1e9  # a timer must be set to something


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthConfig:
    """What the server does; a request may ask for a fault of its own by its field `x_fault`."""

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "truth"
    ttft_ms: float = 100.0
    itl_ms: float = 20.0
    ttft_dist: str = "constant"
    ttft_cv: float = 0.5
    itl_dist: str = "constant"
    itl_cv: float = 0.5
    seed: int = 0
    tokens: int = 64
    """Output tokens where the request has no limit."""
    tokens_per_chunk: int = 1
    usage: str = "asked"
    stamp: str = "field"
    max_model_len: int = 131_072
    api_key: str | None = field(default=None, repr=False)
    reject: frozenset[str] = frozenset()
    """Request fields that get a 400, as a server does that does not know them; dots nest."""
    ignore: frozenset[str] = frozenset()
    """Request fields that are taken and not acted upon."""
    eos_after: int | None = None
    """Answers end by themselves after so many tokens, unless the request forbids it."""
    special_tokens: int = 0
    """Counted in with every prompt that comes as text."""
    template_tokens: int = 0
    """Counted in with every chat, and `message_tokens` with each of its messages."""
    message_tokens: int = 0
    chars_per_token: float | None = None
    """A text's tokens are its characters over this, rounded up; without it, its words."""
    fault: Fault | None = None
    """For every request from number `fault_from` on that asks for none itself."""
    fault_from: int = 0
    tick_ms: float = 0.5
    """Chunks due within one tick are sent in one go: the price of a wake-up is shared."""
    slots: int | None = None
    """Answers under way at once; other requests wait in the order in which they came."""
    queue: int = 10_000
    """Requests that may wait for a slot; one more gets a 503."""


class TruthServer:
    """`async with TruthServer(config) as server: server.base_url`, on the running loop."""

    def __init__(self, config: TruthConfig, ssl_context: ssl.SSLContext | None = None) -> None:
        self.config = config
        self.requests = 0
        self.events = 0
        """Chunks of streams that have ended."""
        self.connections: set[_Connection] = set()
        self.timeline: _Timeline
        self.slots: _Slots
        self._ssl_context = ssl_context
        self._random = random.Random(config.seed)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.timeline = _Timeline(loop, self.config.tick_ms / 1000)
        self.slots = _Slots(self.config.slots, self.config.queue)
        self._server = await loop.create_server(
            lambda: _Connection(self),
            self.config.host,
            self.config.port,
            ssl=self._ssl_context,
            backlog=4096,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.timeline.close()
        for connection in tuple(self.connections):
            connection.transport.abort()
        await self._server.wait_closed()

    @property
    def base_url(self) -> str:
        """Without `/v1`."""
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if self._ssl_context is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def draw_ttft_s(self) -> float:
        config = self.config
        return self._draw_s(config.ttft_dist, config.ttft_ms / 1000, config.ttft_cv)

    def draw_gap_s(self) -> float:
        """From one chunk to the next: the time between tokens, for each token of a chunk."""
        config = self.config
        mean_s = config.itl_ms / 1000 * config.tokens_per_chunk
        return self._draw_s(config.itl_dist, mean_s, config.itl_cv)

    def _draw_s(self, dist: str, mean_s: float, cv: float) -> float:
        if dist == "constant" or mean_s <= 0.0:
            return mean_s
        if dist == "exponential":
            return self._random.expovariate(1.0 / mean_s)
        variance = math.log1p(cv * cv)  # of the logarithm
        return self._random.lognormvariate(math.log(mean_s) - variance / 2, math.sqrt(variance))

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "events": self.events,
            "connections": len(self.connections),
            "waiting": self.slots.waiting,
            "cpu_s": time.process_time(),
        }


class _Timeline:
    """Calls what is due, from one timerfd: an event loop's own timers count whole milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._due: list[tuple[float, int, _Stream]] = []  # a heap
        self._numbers = itertools.count()
        self._armed_s = math.inf
        libc = ctypes.CDLL(None, use_errno=True)
        self._timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._settime = libc.timerfd_settime
        self._spec = (ctypes.c_long * 4)()  # itimerspec: no interval, then seconds, nanoseconds
        self._set_arguments = (self._timer, 1, ctypes.byref(self._spec), None)  # 1: absolute
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._timer, self._tick)

    def add(self, due_s: float, stream: _Stream) -> None:
        heapq.heappush(self._due, (due_s, next(self._numbers), stream))
        if due_s < self._armed_s:
            self._arm(due_s)

    def close(self) -> None:
        self._loop.remove_reader(self._timer)
        os.close(self._timer)
        self._due.clear()

    def _arm(self, at_s: float) -> None:
        """Setting it also clears what had expired, so it is never read."""
        self._armed_s = at_s
        spec = self._spec
        spec[2], spec[3] = divmod(int(at_s * 1e9) + 1, 1_000_000_000)
        self._settime(*self._set_arguments)

    def _tick(self) -> None:
        due = self._due
        now_s = monotonic()
        while due and due[0][0] <= now_s:
            _, number, stream = due[0]
            next_s = stream.send()
            if next_s is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (next_s, number, stream))
        if due:
            self._arm(max(due[0][0], monotonic() + self._tick_s))
        else:
            self._arm(FAR_S)


class _Slots:
    """At most so many answers under way; others wait, first come, first served."""

    def __init__(self, slots: int | None, most_waiting: int) -> None:
        self._free = math.inf if slots is None else slots
        self._most_waiting = most_waiting
        self._waiting: deque[_Stream] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._free < 1 and len(self._waiting) >= self._most_waiting

    def take(self, stream: _Stream, at_s: float) -> None:
        if self._free >= 1:
            self._free -= 1
            stream.begin(at_s)
        else:
            self._waiting.append(stream)

    def give_back(self, at_s: float) -> None:
        """A slot is free since `at_s`, which is when an answer was due to end and not when that was
        seen: what the server is late by does not add up, and its capacity is exact."""
        while self._waiting:
            stream = self._waiting.popleft()
            if stream.is_wanted:
                stream.begin(at_s)
                return
        self._free += 1


class _Stream:
    """One answer, waiting or under way: a streamed one, or a whole one that is due at its end."""

    __slots__ = (
        *("_connection", "_due_s", "_ending", "_fields", "_first_after_s", "_gap_s", "_index"),
        *("_opening", "_wires"),
    )

    def __init__(
        self,
        connection: _Connection,
        wires: Sequence[bytes],
        ending: Ending,
        first_after_s: float,
        fields: Fields,
        opening: bytes = b"",
    ) -> None:
        server = connection.server
        self._connection = connection
        self._wires = wires
        self._ending = ending
        self._first_after_s = first_after_s
        self._due_s = 0.0
        self._fields = fields
        self._opening = opening
        self._index = 0
        self._gap_s = None if server.config.itl_dist != "constant" else server.draw_gap_s()

    @property
    def is_wanted(self) -> bool:
        return self._connection.stream is self

    def begin(self, at_s: float) -> None:
        """It has a slot from `at_s` on: send the opening, and set the time of the first wire."""
        connection = self._connection
        if self._opening:
            self._fields[b"at"] = at_s
            connection.transport.write(self._opening % self._fields)
        self._due_s = at_s + self._first_after_s
        connection.server.timeline.add(self._due_s, self)

    def send(self) -> float | None:
        """Send what is due; the time of what is due next, or None if nothing is.

        Then its slot goes to the next, which is due no earlier: the timeline's first stays first.
        """
        connection, wires, index = self._connection, self._wires, self._index
        slots = connection.server.slots
        if connection.stream is not self:  # the client has gone
            slots.give_back(monotonic())
            return None
        wire = wires[index]
        if wire:
            fields = self._fields
            fields[b"at"] = monotonic()
            connection.transport.write(wire % fields)
        self._index = index = index + 1
        if index == len(wires):
            connection.end_stream(index, self._ending)
            slots.give_back(self._due_s)
            return None
        gap_s = self._gap_s
        self._due_s += connection.server.draw_gap_s() if gap_s is None else gap_s
        return self._due_s


class _Connection(Connection):
    """One client's connection."""

    server_name = b"loadgen-truth"

    def __init__(self, server: TruthServer) -> None:
        super().__init__()
        self.server = server
        self.stream: _Stream | None = None

    @property
    def is_busy(self) -> bool:
        return self.stream is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.stream = None
        self.server.connections.discard(self)

    def answer(self, request: Request) -> None:
        config, path = self.server.config, request.path
        key = config.api_key
        if key is not None and request.authorization != b"Bearer " + key.encode():
            raise Refusal(401, "a bearer token is needed, and the right one")
        if path in (b"/v1/completions", b"/v1/chat/completions"):
            if request.method != b"POST":
                raise Refusal(405, "POST it")
            is_chat = path.endswith(b"chat/completions")
            self._generate(_Ask.read(request.body, config, is_chat=is_chat))
        elif path == b"/v1/models":
            model = {"id": config.model, "object": "model", "created": 0, "owned_by": "loadgen"}
            model["max_model_len"] = config.max_model_len
            self.send_json({"object": "list", "data": [model]})
        elif path == b"/health":
            self.send_json({})
        elif path == b"/stats":
            self.send_json(self.server.stats())
        else:
            raise Refusal(404, "no such path")

    def _generate(self, ask: _Ask) -> None:
        server = self.server
        arrived_s = monotonic()
        number, server.requests = server.requests, server.requests + 1
        fault = ask.fault
        if fault is None and number >= server.config.fault_from:
            fault = server.config.fault
        is_stream = ask.is_stream
        match fault.kind if fault else None:
            case "hang_headers":
                self.stream = _Stream(self, (), Ending.OPEN, 0.0, ask.fields)
                return
            case "hang_up":
                self.transport.close()
                return
            case "garbage":
                self.transport.write(b"\x15\x03\x01\x00\x02\x02 this is not HTTP\r\n\r\n")
                self.transport.close()
                return
            case "redirect":
                raise Refusal(307, "elsewhere", {b"location": b"/v1/elsewhere"})
            case "status":
                assert fault is not None
                retry = fault.retry_after
                headers = {} if retry is None else {b"retry-after": str(retry).encode("ascii")}
                raise Refusal(fault.status, "as was asked for", headers)
            case "json_body":
                is_stream = False
        shape = fault.reshape(ask.shape) if fault else ask.shape
        if server.slots.is_full:
            raise Refusal(503, "too many requests wait")
        first_after_s, head = server.draw_ttft_s(), b""
        if is_stream:
            opening, wires, ending = stream_wires(shape, fault)
            head = self.head(200, None, EVENT_STREAM) + opening
        else:
            template = json_template(shape)
            wires = (self.head(200, len(template % SAMPLE)) + template,)
            ending = Ending.END
            chunks = -(-shape.tokens // shape.tokens_per_chunk)
            first_after_s += sum(server.draw_gap_s() for _ in range(chunks - 1))
        self.stream = _Stream(self, wires, ending, first_after_s, ask.fields, head)
        if wires:
            server.slots.take(self.stream, arrived_s)
        elif head:  # nothing but headers, and then silence
            ask.fields[b"at"] = arrived_s
            self.transport.write(head % ask.fields)

    def end_stream(self, chunks: int, ending: Ending) -> None:
        self.stream = None
        self.server.events += chunks
        if ending is Ending.RESET:
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        elif ending is Ending.CLOSE or (ending is Ending.END and not self.keeps_alive):
            self.transport.close()
        elif ending is Ending.OPEN:
            self.stream = _Stream(self, (), ending, 0.0, Fields())  # for ever


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a request asks for."""

    shape: Shape
    is_stream: bool
    fields: Fields
    fault: Fault | None

    @staticmethod
    def read(body: bytes, config: TruthConfig, *, is_chat: bool) -> _Ask:
        """From a request's JSON; raises Refusal."""
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"not JSON: {error}") from None
        if not isinstance(asked, dict):
            raise Refusal(400, "not a JSON object")
        for name in sorted(config.reject):
            if _has(asked, name):
                raise Refusal(400, f"Unrecognized request argument supplied: {name}")
        asked = {name: value for name, value in asked.items() if name not in config.ignore}
        tokens = asked.get("max_completion_tokens") if is_chat else None
        tokens = asked.get("max_tokens") if tokens is None else tokens
        tokens = config.tokens if tokens is None else tokens
        if not isinstance(tokens, int) or tokens < 1:
            raise Refusal(400, "max_tokens is a whole number from 1 on")
        prompt_tokens = _count_prompt(asked.get("messages" if is_chat else "prompt"), config)
        if prompt_tokens + tokens > config.max_model_len:
            raise Refusal(400, f"no more than max_model_len={config.max_model_len} tokens in all")
        is_stream = asked.get("stream") is True
        usage = config.usage
        if usage == "asked":
            options = asked.get("stream_options") or {}
            if not isinstance(options, dict):
                raise Refusal(400, "stream_options is an object")
            is_continuous = options.get("continuous_usage_stats")
            usage = "continuous" if is_continuous else "own"
            if is_stream and not options.get("include_usage"):
                usage = "never"
        try:
            fault = Fault.read(asked["x_fault"]) if "x_fault" in asked else None
        except FaultError as error:
            raise Refusal(400, str(error)) from None
        end = _natural_end(asked, config)
        finish = "length" if end is None or end >= tokens else "stop"
        tokens = tokens if end is None else min(tokens, end)
        shape = Shape(
            config.model, is_chat, tokens, config.tokens_per_chunk, usage, config.stamp, finish
        )
        fields = Fields({b"id": os.urandom(8).hex().encode(), b"prompt": prompt_tokens})
        return _Ask(shape, is_stream, fields, fault)


def _has(asked: Mapping[str, Any], name: str) -> bool:
    first, _, rest = name.partition(".")
    value = asked.get(first)
    return first in asked and (not rest or (isinstance(value, dict) and _has(value, rest)))


def _natural_end(asked: Mapping[str, Any], config: TruthConfig) -> int | None:
    """After how many tokens an answer ends by itself, if it does."""
    if config.eos_after is None or asked.get("ignore_eos") is True:
        return None
    fewest = asked.get("min_tokens") or 0
    if not isinstance(fewest, int):
        raise Refusal(400, "min_tokens is a whole number")
    return max(config.eos_after, fewest)


def _count_prompt(prompt: object, config: TruthConfig) -> int:
    """Tokens of a text, of token ids, or of messages; raises Refusal."""
    if isinstance(prompt, str):
        return config.special_tokens + _count_text(prompt, config)
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return len(prompt)
        if all(isinstance(message, dict) for message in prompt):
            texts = [str(message.get("content", "")) for message in prompt]
            added = config.template_tokens + config.message_tokens * len(texts)
            return added + sum(_count_text(text, config) for text in texts)
        if len(prompt) == 1:
            return _count_prompt(prompt[0], config)
    raise Refusal(400, "one prompt or some messages are needed")


def _count_text(text: str, config: TruthConfig) -> int:
    if config.chars_per_token is None:
        return len(text.split())
    return math.ceil(len(text) / config.chars_per_token)


async def serve(config: TruthConfig) -> None:
    """Serve until SIGTERM or SIGINT; says where on standard output."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with TruthServer(config) as server:
        print(server.base_url, flush=True)
        await stop.wait()


def read_arguments(arguments: Sequence[str] | None = None) -> TruthConfig:
    """The configuration that a command line asks for."""
    default = TruthConfig()
    parser = argparse.ArgumentParser(
        prog="python -m loadgen.truth", description=__doc__.partition("\n")[0]
    )
    add = parser.add_argument
    add("--host", default=default.host)
    add("--port", type=int, default=default.port, help="0 takes a free one, which is printed")
    add("--model", default=default.model)
    add("--ttft-ms", type=float, default=default.ttft_ms)
    add("--itl-ms", type=float, default=default.itl_ms, help="between tokens")
    for name in ("ttft", "itl"):
        add(f"--{name}-dist", choices=DISTRIBUTIONS, default="constant")
        add(f"--{name}-cv", type=float, default=0.5, help="of a lognormal")
    add("--seed", type=int, default=default.seed)
    add("--tokens", type=int, default=default.tokens, help="where the request has no limit")
    add("--tokens-per-chunk", type=int, default=default.tokens_per_chunk)
    add("--usage", choices=USAGES, default=default.usage)
    add("--stamp", choices=STAMPS, default=default.stamp, help="where the send time stands")
    add("--max-model-len", type=int, default=default.max_model_len)
    add("--api-key", default=default.api_key)
    add("--reject", default="", help="fields to refuse, by comma: stream_options,ignore_eos")
    add("--ignore", default="", help="fields to take and not to act upon, by comma")
    add("--eos-after", type=int, help="tokens after which answers end by themselves")
    add("--special-tokens", type=int, default=0, help="counted in with a prompt of text")
    add("--template-tokens", type=int, default=0, help="counted in with a chat")
    add("--message-tokens", type=int, default=0, help="counted in with each message of a chat")
    add("--chars-per-token", type=float, help="count texts by characters and not by words")
    add("--fault", type=_fault_argument, help='for every request: {"kind": "stall"}')
    add("--fault-from", type=int, default=default.fault_from, help="the first that has it")
    add("--tick-ms", type=float, default=default.tick_ms)
    add("--slots", type=int, help="answers at once; other requests wait their turn")
    add("--queue", type=int, default=default.queue, help="how many may wait; more get a 503")
    values = vars(parser.parse_args(arguments))
    for name in ("reject", "ignore"):
        values[name] = frozenset(filter(None, values[name].split(",")))
    return TruthConfig(**values)


def _fault_argument(text: str) -> Fault:
    try:
        return Fault.read(orjson.loads(text))
    except ValueError as error:  # FaultError and JSONDecodeError are ones
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> None:
    config = read_arguments()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config))


if __name__ == "__main__":
    main()
