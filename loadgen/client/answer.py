"""One answer as it comes: bytes and their times in, the answer's half of a record out.

A `ByteSink`: transports push into it from within the socket's read. It knows SSE and OpenAI's
deltas, and neither sockets nor schedules. It decides how an answer that *ended* turned out;
failures of the connection and timeouts are the caller's to name (`client.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from loadgen.client import openai
from loadgen.client.sse import EventTooLong, SSEParser
from loadgen.client.template import ChunkTemplate
from loadgen.live import LiveCounters
from loadgen.record import Outcome, TokenSource

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
_LESSONS: Final = 8
"""A stream whose chunks have no template is not searched for one for ever."""
_LEARNS_FROM: Final = 3
"""Shorter answers end before a template would pay."""


class Answer:
    """What has come of one answer so far. Times are absolute `clock.monotonic` seconds."""

    __slots__ = (
        "_body",
        "_due_s",
        "_gap",
        "_is_over",
        "_keep_text",
        "_lessons_left",
        "_live",
        "_parser",
        "_start_s",
        "_template",
        "_tokens_seen",
        "_whole_answer_has_content",
        "chunk_s",
        "chunk_tokens",
        "connected_s",
        "done_s",
        "error",
        "fault",
        "finish_reason",
        "first_byte_s",
        "first_token_s",
        "headers",
        "is_stream",
        "output_tokens",
        "prompt_tokens",
        "saw_done",
        "sent_s",
        "status",
        "text",
        "usage_events",
    )

    def __init__(
        self,
        live: LiveCounters,
        *,
        keep_text: bool = False,
        start_s: float = math.nan,
        due_s: float = math.nan,
    ) -> None:
        """`start_s` and `due_s` are the live view's: when the request was taken up, and was due."""
        self._live = live
        self._gap = live.itl_s.pending.append
        self._start_s = start_s
        self._due_s = due_s
        self._keep_text = keep_text
        self._parser = SSEParser()
        self._template: ChunkTemplate | None = None
        self._lessons_left = _LESSONS
        self._body = bytearray()
        self._is_over = False  # [DONE] came, or what cannot be read: the rest is not looked at
        self._whole_answer_has_content = False
        self._tokens_seen = 0  # by continuous usage, up to the last chunk with content
        self.connected_s: float | None = None
        self.sent_s: float | None = None
        self.status: int | None = None
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.is_stream = False
        self.first_byte_s: float | None = None
        self.first_token_s: float | None = None
        self.chunk_s: list[float] = []
        self.chunk_tokens: list[int] = []
        self.saw_done = False
        self.done_s: float | None = None
        """When [DONE] came, or else the end of the body."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.usage_events = 0
        self.finish_reason: str | None = None
        self.text: list[str] = []
        self.fault: Outcome | None = None
        """Set once, by the first thing that makes the answer a failure."""
        self.error: str | None = None

    def connected(self, at_s: float) -> None:
        self.connected_s = at_s

    def sent(self, at_s: float) -> None:
        self.sent_s = at_s

    def response(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], first_byte_s: float
    ) -> None:
        self.status = status
        self.headers = headers
        self.first_byte_s = first_byte_s
        media_type = self.header(b"content-type").lower()
        self.is_stream = status == 200 and media_type.startswith(b"text/event-stream")

    def header(self, name: bytes) -> bytes:
        """A response header's value by its lower-case name, or b""."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return b""

    def body(self, data: bytes, at_s: float) -> None:
        template = self._template  # of a stream, once it is known
        if (
            # One whole event a read is the rule; were there more in it, the template would not fit.
            template is not None
            and self._parser.is_between_events
            and self._take_plain(template, data, at_s)
        ):
            return
        if not self.is_stream:
            limit = MAX_JSON_BYTES if self.status == 200 else MAX_ERROR_BYTES
            self._body += data[: max(0, limit - len(self._body))]
            return
        if self._is_over:
            return
        try:
            events = self._parser.feed(data)
        except EventTooLong as error:
            self._fail(Outcome.MALFORMED, str(error))
            self._is_over, self._template = True, None
            return
        for kind, event in events:
            template = self._template
            if template is not None and self._take_plain(template, b"data: %b\n\n" % event, at_s):
                continue
            if event == openai.DONE:
                self.saw_done = self._is_over = True
                self._template = None
                self.done_s = at_s
                return
            self._take_event(kind, event, at_s)

    def end(self, at_s: float, *, is_whole: bool) -> None:
        """Nothing more will come; `is_whole`: the body came to its own end."""
        if self._tokens_seen > (self.output_tokens or 0):
            self.output_tokens = self._tokens_seen
        if self.status is not None and self.status != 200:
            text = openai.error_text(bytes(self._body))
            if wait := self.header(b"retry-after"):
                text = f"Retry-After {wait.decode('latin-1')}: {text}"
            self._fail(_outcome_of_status(self.status), text)
        elif is_whole and not self.is_stream:
            self._read_json()
        self.done_s = self.done_s or at_s

    def outcome(self, *, asked_tokens: int, length_is_held: bool) -> Outcome:
        """How the answer turned out, once it has ended; `error` says more where there is more.

        `length_is_held`: the request forbade an early stop, so fewer tokens are a fault.
        """
        if self.fault is not None:
            return self.fault
        if self.finish_reason == "error":
            self.error = "the finish reason is `error`"
            return Outcome.STREAM_ERROR
        if self.is_stream and self.finish_reason is None and not self.saw_done:
            self.error = "the stream ended with neither a finish reason nor [DONE]"
            return Outcome.TRUNCATED
        if not self.chunk_s and not self._whole_answer_has_content:
            self.error = "the answer carried no content"
            return Outcome.EMPTY
        served, _ = self.served_tokens(None)
        if length_is_held and self.output_tokens is not None and (served or 0) < asked_tokens:
            self.error = f"{served} of {asked_tokens} tokens, though an early stop was forbidden"
            return Outcome.SHORT
        return Outcome.OK

    def served_tokens(
        self, count_tokens: Callable[[str], int] | None
    ) -> tuple[int | None, TokenSource | None]:
        """Output tokens and where the count comes from, the best source first."""
        if self.output_tokens is not None:
            per_chunk = self.tokens_by_chunk() is not None and self.usage_events > 1
            return self.output_tokens, (
                TokenSource.CONTINUOUS_USAGE if per_chunk else TokenSource.USAGE
            )
        if not self.chunk_s and not self.text:
            return None, None
        if count_tokens is not None and self.text:
            return count_tokens("".join(self.text)), TokenSource.TOKENIZER
        return len(self.chunk_s), TokenSource.CHUNKS

    @property
    def counted_tokens(self) -> int:
        """Output tokens that the live view has been told of so far."""
        return self._tokens_seen if self.chunk_tokens else len(self.chunk_s)

    def tokens_by_chunk(self) -> tuple[int, ...] | None:
        """Tokens in each chunk that carries content, or None where it is not known."""
        if self.chunk_tokens and len(self.chunk_tokens) == len(self.chunk_s):
            return tuple(self.chunk_tokens)
        if self.output_tokens is not None and self.output_tokens == len(self.chunk_s):
            return (1,) * len(self.chunk_s)
        return None

    def _take_plain(self, template: ChunkTemplate, framed: bytes, at_s: float) -> bool:
        """Take an event that the template fits, one token further than the last; else False."""
        tokens = self._tokens_seen + 1
        if not template.fits(framed, tokens):
            return False
        self._gap(at_s - self.chunk_s[-1])
        self.chunk_s.append(at_s)
        if template.tells_tokens:
            self._tokens_seen = tokens
            self.chunk_tokens.append(1)
        live = self._live
        live.chunks += 1
        live.tokens += 1
        if self._keep_text:
            self.text.append(template.text(framed))
        return True

    def _take_event(self, kind: bytes, event: bytes, at_s: float) -> None:
        try:
            delta = openai.decode(event)
        except openai.MalformedAnswer as error:
            if kind == b"error":
                self._fail(Outcome.STREAM_ERROR, openai.error_text(event))
            elif kind in (b"", b"message"):  # events of other kinds may hold what they like
                self._fail(Outcome.MALFORMED, str(error))
            return
        self._take(delta, at_s)
        if delta.has_content and self._lessons_left and len(self.chunk_s) >= _LEARNS_FROM:
            self._lessons_left -= 1
            self._template = ChunkTemplate.learn(event, delta)

    def _take(self, delta: openai.Delta, at_s: float) -> None:
        if delta.error is not None:
            self._fail(Outcome.STREAM_ERROR, delta.error)
            return
        if delta.prompt_tokens is not None:
            self.prompt_tokens = delta.prompt_tokens
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        tokens = delta.completion_tokens
        if tokens is not None:
            self.output_tokens = tokens
            self.usage_events += 1
        if not delta.has_content:
            return
        live = self._live
        gap_s = at_s - self.chunk_s[-1] if self.chunk_s else None
        if self.first_token_s is None:
            self.first_token_s = at_s
            live.ttft_s.observe(at_s - self._start_s)
            live.ttft_from_due_s.observe(at_s - self._due_s)
        if tokens is None:
            live.chunk(1, gap_s)
        else:
            # Chunks before that told no count were taken for a token each.
            new = tokens - self.counted_tokens
            live.chunk(max(0, new), gap_s)
            live.settle(min(0, new))
            self.chunk_tokens.append(max(0, tokens - self._tokens_seen))
            self._tokens_seen = tokens
        self.chunk_s.append(at_s)
        if self._keep_text:
            self.text.append(delta.text)

    def _read_json(self) -> None:
        try:
            delta = openai.decode(bytes(self._body))
        except openai.MalformedAnswer as error:
            self._fail(Outcome.MALFORMED, str(error))
            return
        if delta.error is not None:
            self._fail(Outcome.STREAM_ERROR, delta.error)
            return
        self.finish_reason = delta.finish_reason
        self.prompt_tokens = delta.prompt_tokens
        self.output_tokens = delta.completion_tokens
        self._whole_answer_has_content = delta.has_content
        if self._keep_text:
            self.text.append(delta.text)

    def _fail(self, outcome: Outcome, error: str) -> None:
        if self.fault is None:
            self.fault = outcome
            self.error = error


def _outcome_of_status(status: int) -> Outcome:
    if status == 429:
        return Outcome.HTTP_429
    if status >= 500:
        return Outcome.HTTP_5XX
    if status >= 400:
        return Outcome.HTTP_4XX
    return Outcome.MALFORMED  # a redirect, which is not followed, or a success without an answer
