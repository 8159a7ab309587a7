"""One socket that speaks HTTP/1.1 (RFC 9112) as a client, one exchange after another.

Time is stamped in `data_received`, and what httptools finds in the bytes is pushed into the sink at
once. It knows nothing of pools: who made it is told when it stands and when it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from loadgen.client.http import httpx
from loadgen.client.sink import ByteSink
from loadgen.client.wire import Headers, Origin, Timeouts, Wire
from loadgen.clock import monotonic

MAX_HEAD_BYTES: Final = 64 * 1024
"""Status lines and headers of one answer, informational ones included."""
_CROSSED_S: Final = 0.1
_CROSSED_CONNECTS: Final = 2.0
"""A server's close that crosses a request is seen within a round trip of sending: within so long,
or so many times what connecting took. Later it hung up on the request."""


class Connection(asyncio.Protocol):
    """One socket, and the exchange that it carries, if any."""

    def __init__(
        self,
        origin: Origin,
        on_made: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.origin = origin
        self.asked_s = monotonic()
        self.made_s = self.idle_since_s = 0.0
        self.is_reusable = False
        """It is alive, and its last exchange left it clean."""
        self._on_made = on_made
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._ended: asyncio.Future[None] | None = None  # there while an exchange runs
        self._watch_timer: asyncio.TimerHandle | None = None
        self._was_used = self._is_paused = self._is_lost = self._is_gone = False
        self._loss: Exception | None = None

    async def run(self, wire: Wire, sink: ByteSink, timeouts: Timeouts) -> bool:
        """One exchange; False if it took none: the server had closed the kept connection when the
        request came."""
        is_kept, self._was_used, self.is_reusable = self._was_used, True, False
        self._sink, self._push, self._timeouts = sink, sink.body, timeouts
        self._is_head = wire.is_head
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_body = self._is_complete = self._is_until_close = self._keeps_alive = False
        self._begun_s, self._stamp_s, self._sent_s = monotonic(), 0.0, 0.0
        self._ended = ended = asyncio.get_running_loop().create_future()
        try:
            if self._is_lost:
                raise self._name_loss()
            self._transport.write(wire.data)
            self.resume_writing()
            if timeouts.write_s is not None or timeouts.read_s is not None:
                self._watch()
            await ended
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            crossed_s = max(_CROSSED_S, _CROSSED_CONNECTS * (self.made_s - self.asked_s))
            if is_kept and not self._stamp_s and monotonic() - self._begun_s <= crossed_s:
                return False
            raise
        finally:
            self._ended = None
            del ended, self._sink, self._push  # no cycle through a failure's traceback
            if self._watch_timer is not None:
                self._watch_timer.cancel()
                self._watch_timer = None
            self.resume()
        if self._is_head and not self._is_lost:  # httptools cannot be told that no body follows
            self._parser = httptools.HttpResponseParser(self)
        self.is_reusable = self._keeps_alive and self._sent_s > 0.0 and not self._is_lost
        return True

    def abort(self, failure: Exception | None = None) -> None:
        """Close at once; an exchange under way fails with `failure`."""
        self._lose(failure)
        self._transport.abort()

    def pause(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made_s = monotonic()
        self._transport = cast("asyncio.Transport", transport)
        # `resume_writing` shall tell when the last byte has left: TLS compares with >=, TCP with >.
        self._transport.set_write_buffer_limits(
            high=1 if self.origin.scheme == "https" else 0, low=0
        )
        self._on_made(self)

    def resume_writing(self) -> None:
        if self._ended is None or self._sent_s or self._transport.get_write_buffer_size():
            return
        self._sent_s = monotonic()
        self._sink.sent(self._sent_s)

    def data_received(self, data: bytes) -> None:
        if self._ended is None:  # nobody asked
            self.abort()
            return
        self._stamp_s = monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._parser_failed(error)
        if not self._in_body:
            self._end_or_check_head(len(data))

    def eof_received(self) -> None:
        self._lose(None)  # and the event loop closes the socket

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        self._lose(exc)
        del self._parser  # which refers to this object
        self._on_lost(self)

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second answer to one request
            self._keeps_alive = False
        else:
            self._first_byte_s = self._stamp_s

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else it is a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if self._is_complete or status < 200:
            return
        if self._is_head:
            self._complete()
        else:
            self._in_body = True
            self._is_until_close = status not in (204, 304) and not _has_length(headers)
        self._sink.response(status, headers, self._first_byte_s)

    def on_body(self, data: bytes) -> None:
        self._push(data, self._stamp_s)

    def on_message_complete(self) -> None:
        if self._in_body:  # else it was informational, or the answer to a HEAD
            self._in_body = False
            self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()
        self._push = self._take_excess

    def _take_excess(self, data: bytes, at_s: float) -> None:
        self._keeps_alive = False

    def _end_or_check_head(self, received_bytes: int) -> None:
        self._head_bytes += received_bytes
        if self._is_complete:
            self._end()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._end(httpx.RemoteProtocolError(f"headers of over {MAX_HEAD_BYTES} bytes"))

    def _parser_failed(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
            self._end(error.__context__)  # the sink's own
        elif self._is_complete:  # more than was announced
            self._keeps_alive = False
        elif isinstance(error, httptools.HttpParserUpgrade):
            self._end(httpx.RemoteProtocolError("the server switched protocols, unasked"))
        else:
            self._end(httpx.RemoteProtocolError(f"not HTTP/1.1: {error}"))

    def _lose(self, loss: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost, self.is_reusable, self._loss = True, False, loss
        if self._ended is not None:
            is_end = self._in_body and self._is_until_close and loss is None
            self._end(None if is_end else self._name_loss())

    def _name_loss(self) -> Exception:
        loss = self._loss
        if isinstance(loss, httpx.TransportError):
            return loss
        if loss is not None:
            text = str(loss) or type(loss).__name__
            return httpx.ReadError(text) if self._sent_s else httpx.WriteError(text)
        if self._in_body:
            return httpx.RemoteProtocolError("the connection ended before the answer did")
        return httpx.RemoteProtocolError("the server hung up without an answer")

    def _end(self, failure: BaseException | None = None) -> None:
        ended, self._ended = self._ended, None
        if ended is None or ended.done():
            return
        if failure is None:
            ended.set_result(None)
        else:
            ended.set_exception(failure)

    def _watch(self) -> None:
        """End the exchange if its phase has taken too long, else look again when it may have."""
        if self._ended is None:
            return
        now_s = monotonic()
        if self._sent_s:
            limit_s, since_s = self._timeouts.read_s, max(self._sent_s, self._stamp_s)
        else:
            limit_s, since_s = self._timeouts.write_s, self._begun_s
        if limit_s is None or self._is_paused:
            limit_s, since_s = limit_s or self._timeouts.read_s or 1.0, now_s
        if now_s - since_s >= limit_s:
            kind = httpx.ReadTimeout if self._sent_s else httpx.WriteTimeout
            self._end(kind(f"nothing for {limit_s:g} s"))
            return
        loop = asyncio.get_running_loop()
        self._watch_timer = loop.call_later(since_s + limit_s - now_s + 0.001, self._watch)


def _has_length(headers: Headers) -> bool:
    """Whether the headers say where the body ends (RFC 9112, section 6.3); else it is the close."""
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            return True
        if lower == b"transfer-encoding":
            return value.lower().endswith(b"chunked")
    return False
