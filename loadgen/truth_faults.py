"""What the truth server says, chunk by chunk, and the ways in which it can be asked to misbehave.

A script is what a stream sends at each of its due times, as templates: `%(id)b`, `%(at)15.6f`,
`%(prompt)7d` and `%(prompt+N)7d` are filled in when they are sent, at constant width, so that the
sizes of HTTP's chunks are known beforehand (JSON allows the padding). A fault is a function from
script to script. It knows neither sockets nor time. The chunks are shaped as vLLM's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from loadgen.http1 import LAST_CHUNK

DONE: Final = b"data: [DONE]\n\n"
CREATED: Final = 1795960050
"""Wall-clock time is no business of this server's: a constant is sent where OpenAI has one."""
PING: Final = b": ping\n\n"
WORDS: Final = tuple("the a of and to in that is was for on with as by at from".split())

Burst = tuple[bytes, ...]
"""Events that are sent together, one HTTP chunk each."""


class Ending(StrEnum):
    """What follows the last burst."""

    END = "end"  # the chunk that ends the body
    CLOSE = "close"  # the connection closes without it
    RESET = "reset"
    OPEN = "open"  # nothing, for ever


@dataclass(frozen=True, slots=True)
class Shape:
    """What a stream looks like; equal shapes have equal scripts."""

    model: str
    is_chat: bool
    tokens: int
    tokens_per_chunk: int = 1
    usage: str = "never"
    """`never`; `own`, an event of its own; `last`, on the last chunk; `continuous`, on each."""
    stamp: str = "field"
    """Where the send time stands: the `field` sent_s, the `text` itself, or `none`."""
    finish_reason: str = "length"


@dataclass(frozen=True, slots=True)
class Script:
    """What a stream sends: `opening` with the headers, then a burst at each due time."""

    bursts: tuple[Burst, ...]
    opening: Burst = ()
    ending: Ending = Ending.END


def write_script(shape: Shape) -> Script:
    """The script of a stream that goes well."""
    bursts: list[list[bytes]] = []
    for sent in range(0, max(shape.tokens, 1), shape.tokens_per_chunk):
        tokens = min(shape.tokens_per_chunk, shape.tokens - sent)
        is_last = sent + tokens >= shape.tokens
        with_usage = shape.usage == "continuous" or (shape.usage == "last" and is_last)
        finish = shape.finish_reason if is_last else None
        burst = [event(shape, words(shape, sent, tokens), sent + tokens, finish, with_usage)]
        if sent == 0 and shape.is_chat:
            burst.insert(0, event(shape, None, 0, None, shape.usage == "continuous"))
        bursts.append(burst)
    if shape.usage in ("own", "continuous"):
        bursts[-1].append(event(shape, "", shape.tokens, None, True, choices=False))
    bursts[-1].append(DONE)
    return Script(tuple(tuple(burst) for burst in bursts))


@functools.lru_cache(maxsize=1024)
def json_template(shape: Shape) -> bytes:
    """The template of a whole answer's body."""
    text = words(shape, 0, shape.tokens)
    choice: dict[str, Any] = {"index": 0, "finish_reason": shape.finish_reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if shape.is_chat else {}
    choice |= {} if shape.is_chat else {"text": text}
    answer = {
        "id": ("chatcmpl-" if shape.is_chat else "cmpl-") + "%(id)b",
        "object": "chat.completion" if shape.is_chat else "text_completion",
        "created": CREATED,
        "model": shape.model.replace("%", "%%"),
        "choices": [choice],
    }
    return fill_in(answer, shape, shape.tokens if shape.usage != "never" else None)


def words(shape: Shape, first: int, count: int) -> str:
    """`count` tokens of text from token `first` on, one word each."""
    if shape.stamp == "text" and count:
        return " %(at)15.6f" + " tok" * (count - 1)
    return "".join(" " + WORDS[index % len(WORDS)] for index in range(first, first + count))


def event(
    shape: Shape,
    text: str | None,
    tokens: int,
    finish_reason: str | None,
    with_usage: bool,
    *,
    choices: bool = True,
) -> bytes:
    """One event's template; `text` None is the chunk that only names the role."""
    choice: dict[str, Any] = {"index": 0}
    if shape.is_chat:
        delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
        choice |= {"delta": delta, "logprobs": None, "finish_reason": finish_reason}
        choice |= {"token_ids": None}
    else:
        choice |= {"text": text, "logprobs": None, "finish_reason": finish_reason}
        choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    chunk: dict[str, Any] = {
        "id": ("chatcmpl-" if shape.is_chat else "cmpl-") + "%(id)b",
        "object": "chat.completion.chunk" if shape.is_chat else "text_completion",
        "created": CREATED,
        "model": shape.model.replace("%", "%%"),
        "choices": [choice] if choices else [],
    }
    return b"data: " + fill_in(chunk, shape, tokens if with_usage else None) + b"\n\n"


def fill_in(answer: Mapping[str, Any], shape: Shape, tokens: int | None) -> bytes:
    """An answer's template, with usage unless `tokens` is None, and with the stamp."""
    data = orjson.dumps(answer)[:-1]
    if tokens is not None:
        data += b',"usage":{"prompt_tokens":%(prompt)7d,'
        data += b'"total_tokens":%%(prompt+%d)7d,"completion_tokens":%d}' % (tokens, tokens)
    if shape.stamp == "field":
        data += b',"sent_s":%(at)15.6f'
    return data + b"}"


class Fields(dict[bytes, Any]):
    """What fills a template; `prompt+N` is reckoned from `prompt`."""

    def __missing__(self, key: bytes) -> int:
        return int(self[b"prompt"]) + int(key.removeprefix(b"prompt+"))


SAMPLE: Final = Fields({b"id": bytes(16), b"at": 0.0, b"prompt": 0})


class FaultError(ValueError):
    """A fault that is asked for in a way that cannot be read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A misbehaviour, as a request's `x_fault` or the command line asks for it."""

    kind: str
    after_tokens: int = 0
    """Where in the stream it strikes, for those that do."""
    status: int = 500
    retry_after: str | None = None

    @staticmethod
    def read(value: object) -> Fault:
        """From JSON's object; raises FaultError."""
        known = {field.name for field in fields(Fault)}
        if not isinstance(value, dict) or not value.keys() <= known:
            raise FaultError(f"a fault is an object of {', '.join(sorted(known))}")
        if value.get("kind") not in KINDS:
            raise FaultError(f"no such kind of fault; there are {', '.join(sorted(KINDS))}")
        fault = Fault(**value)
        if not (isinstance(fault.after_tokens, int) and fault.after_tokens >= 0):
            raise FaultError("after_tokens is a whole number from 0 on")
        if not (isinstance(fault.status, int) and 200 <= fault.status <= 599):
            raise FaultError("status is a whole number from 200 to 599")
        if not isinstance(fault.retry_after, str | None):
            raise FaultError("retry_after is a text, as the header has it")
        return fault

    def reshape(self, shape: Shape) -> Shape:
        """The shape of an answer that stops early: fewer tokens, and the server says it is done."""
        if self.kind in ("short", "empty"):
            tokens = min(self.after_tokens, shape.tokens) if self.kind == "short" else 0
            return replace(shape, tokens=tokens, finish_reason="stop")
        return shape

    def rewrite(self, script: Script, shape: Shape) -> Script:
        """What is sent in place of `script`."""
        rewrite = STREAM_FAULTS.get(self.kind)
        after_chunks = -(-self.after_tokens // shape.tokens_per_chunk)
        return script if rewrite is None else rewrite(script, after_chunks)


def _cut(ending: Ending, *last: bytes) -> Callable[[Script, int], Script]:
    def rewrite(script: Script, after: int) -> Script:
        bursts = script.bursts[:after] + ((last,) if last else ())
        return replace(script, bursts=bursts, ending=ending)

    return rewrite


def _each_event(change: Callable[[bytes], bytes]) -> Callable[[Script, int], Script]:
    def rewrite(script: Script, after: int) -> Script:
        bursts = tuple(tuple(change(event) for event in burst) for burst in script.bursts)
        return replace(script, bursts=bursts)

    return rewrite


def _malformed(script: Script, after: int) -> Script:
    broken = (b'data: {"id":"cmpl-%(id)b","choices":[{"index":0,"te\n\n',)
    return replace(script, bursts=(*script.bursts[:after], broken, *script.bursts[after:]))


def _no_done(script: Script, after: int) -> Script:
    last = tuple(event for event in script.bursts[-1] if event != DONE)
    return replace(script, bursts=(*script.bursts[:-1], last))


def _buffered(script: Script, after: int) -> Script:
    everything = tuple(event for burst in script.bursts for event in burst)
    return replace(script, bursts=((),) * (len(script.bursts) - 1) + (everything,))


def _early_role(script: Script, after: int) -> Script:
    first = script.bursts[0]
    if b'"role"' not in first[0]:  # not a chat
        return script
    return replace(script, opening=first[:1], bursts=(first[1:], *script.bursts[1:]))


def _pings(script: Script, after: int) -> Script:
    bursts = tuple((PING, *burst) for burst in script.bursts)
    return replace(script, opening=(PING,), bursts=bursts)


ERROR_EVENT: Final = (
    b'data: {"error":{"message":"the engine died","type":"InternalServerError",'
    b'"param":null,"code":500}}\n\n'
)

STREAM_FAULTS: Final[Mapping[str, Callable[[Script, int], Script]]] = {
    "hang_first_token": lambda script, after: replace(script, bursts=(), ending=Ending.OPEN),
    "stall": _cut(Ending.OPEN),
    "truncate": _cut(Ending.CLOSE),
    "truncate_clean": _cut(Ending.END),
    "reset": _cut(Ending.RESET),
    "error_event": _cut(Ending.END, ERROR_EVENT, DONE),
    "malformed": _malformed,
    "no_done": _no_done,
    "no_finish": _each_event(
        lambda event: re.sub(rb'"finish_reason":"\w+"', b'"finish_reason":null', event)
    ),
    "buffered": _buffered,
    "early_role": _early_role,
    "pings": _pings,
    "no_space": _each_event(lambda event: event.replace(b"data: ", b"data:")),
    "crlf": _each_event(lambda event: event.replace(b"\n", b"\r\n")),
}
"""Faults of a stream; `after` counts chunks. `buffered` is a proxy that holds all until the end."""

KINDS: Final = frozenset(STREAM_FAULTS) | {
    "short",  # it stops after `after_tokens`, and says so
    "empty",  # a stream without a token
    "status",  # an HTTP error, with `status` and `retry_after`
    "hang_headers",
    "hang_up",  # the connection closes without an answer
    "garbage",  # an answer that is not HTTP
    "redirect",
    "json_body",  # one JSON answer, though a stream was asked for
}


@functools.lru_cache(maxsize=1024)
def stream_wires(shape: Shape, fault: Fault | None) -> tuple[bytes, tuple[bytes, ...], Ending]:
    """What follows the headers at once, what is sent at each due time, and what ends it."""
    script = write_script(shape)
    if fault is not None:
        script = fault.rewrite(script, shape)
    wires = [_frame(burst) for burst in script.bursts]
    if script.ending is Ending.END:
        wires = [*wires[:-1], (wires[-1] if wires else b"") + LAST_CHUNK]
    elif script.ending is not Ending.OPEN:
        wires.append(b"")  # it happens when the next chunk would be due
    return _frame(script.opening), tuple(wires), script.ending


def _frame(burst: Burst) -> bytes:
    """HTTP's chunks; their sizes hold because every field has its width."""
    return b"".join(b"%x\r\n%b\r\n" % (len(event % SAMPLE), event) for event in burst)
