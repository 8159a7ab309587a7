"""An httpx transport on plain sockets, which stamps time where the bytes arrive.

`exchange` is the hot way in: bytes that were serialised ahead go out, and what comes back is pushed
into a sink from within the socket's read. `handle_async_request` is httpx's own API on top of it.
HTTP/1.1 (RFC 9112) is parsed by httptools. It knows neither SSE nor OpenAI, follows no redirect,
and retries one thing only: a connection kept alive that the server had closed before a byte of the
answer came. Pools have no limit: what is due is sent. Nothing that ends leaves a reference cycle,
because the garbage collector is off during a run.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import httptools

from loadgen.client.http import httpx
from loadgen.client.sink import ByteSink
from loadgen.clock import monotonic

MAX_HEAD_BYTES: Final = 64 * 1024
"""Status lines and headers of one answer, informational ones included."""
MAX_BUFFERED_BYTES: Final = 256 * 1024
"""A pulled answer stops reading from the socket when more than this waits for its reader."""
PASS_OVER_S: Final = 0.5
"""How long an address may take when there is another to try, as RFC 8305 asks."""
_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)")
_BREAKS_A_HEAD: Final = re.compile(rb"[\r\n\x00]")

Headers = Sequence[tuple[bytes, bytes]]


class Origin(NamedTuple):
    """Where a connection leads; requests to the same one share connections."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Wire:
    """One request, ready to be sent."""

    origin: Origin
    data: bytes
    is_head: bool = False
    """The answer has no body, whatever its headers say."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each phase may take, as httpx counts them: `read_s` is silence, not a total."""

    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


class Form(NamedTuple):
    """A request without its body: the next one to the same place differs in nothing else."""

    origin: Origin
    before_length: bytes
    after_length: bytes

    @staticmethod
    def of(wire: Wire) -> Form:
        """Of a request with a body; raises ValueError where it tells no length."""
        head, _, _ = wire.data.partition(b"\r\n\r\n")
        length = _LENGTH_LINE.search(head)
        if length is None:
            raise ValueError("no Content-Length in the request's head")
        return Form(wire.origin, head[: length.start(1)], head[length.end(1) :] + b"\r\n\r\n")

    def fill(self, body: bytes) -> Wire:
        data = b"%b%d%b%b" % (self.before_length, len(body), self.after_length, body)
        return Wire(self.origin, data)


class SocketTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over TCP and TLS, for one event loop."""

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle_s: float = 4.0
    ) -> None:
        """`ssl_context` is httpx's own by default, which verifies; vLLM closes idle ones at 5 s."""
        self.new_connections = 0
        """Connections made so far."""
        self._ssl_context = ssl_context
        self._max_idle_s = max_idle_s
        self._idle: dict[Origin, OrderedDict[_Connection, None]] = {}  # the one used last is last
        self._open: set[_Connection] = set()
        self._addresses: dict[str, list[str]] = {}
        self._best: dict[str, str] = {}  # the address that a connection stood to
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False
        self._all_lost = asyncio.Event()

    @property
    def open_connections(self) -> int:
        """Connections that stand now, in use or idle."""
        return len(self._open)

    def serialise(self, request: httpx.Request) -> Wire:
        """The bytes of `request`, whose body must have been read; does no I/O.

        Raises UnsupportedProtocol, and LocalProtocolError for what would break out of the head.
        """
        url = request.url
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"'{url.scheme}' in {url}: use http or https")
        if url.scheme == "https" and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        body = request.content
        head = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), url.raw_path)]
        for name, value in request.headers.raw:
            if name.lower() == b"transfer-encoding":  # the body is whole: its length is known
                name, value = b"Content-Length", b"%d" % len(body)
            head.append(b"%b: %b" % (name, value))
        if any(_BREAKS_A_HEAD.search(line) for line in head):
            raise httpx.LocalProtocolError("a line break or NUL in the request's head")
        port = url.port or (443 if url.scheme == "https" else 80)
        origin = Origin(url.scheme, url.raw_host.decode("ascii"), port)
        return Wire(origin, b"\r\n".join((*head, b"", body)), request.method == "HEAD")

    async def exchange(
        self,
        wire: Wire,
        sink: ByteSink,
        *,
        connect_timeout_s: float | None = None,
        write_timeout_s: float | None = None,
        read_timeout_s: float | None = None,
    ) -> None:
        """Send `wire`, push the answer into `sink`, and return when its body has ended.

        Raises httpx's TransportError family; a failure of TLS is a ConnectError whose `__cause__`
        is an `ssl.SSLError`. Cancelling closes the connection. `sink.sent` may be called twice: a
        kept connection that proves dead is replaced once, and nothing else is told of it.
        """
        await self._exchange(
            wire, sink, Timeouts(connect_timeout_s, write_timeout_s, read_timeout_s)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's API: the response's stream is pulled, and reading waits for its reader.

        With `extensions["sink"]` the body is pushed there; the response comes when it has ended,
        with status and headers and an empty stream.
        """
        await request.aread()
        wire = self.serialise(request)
        asked = request.extensions.get("timeout", {})
        timeouts = Timeouts(asked.get("connect"), asked.get("write"), asked.get("read"))
        sink = request.extensions.get("sink")
        if sink is not None:
            tee = _HeadTee(sink)
            await self._exchange(wire, tee, timeouts)
            return httpx.Response(tee.status, headers=tee.headers, stream=httpx.ByteStream(b""))
        pulled = _PulledBody()
        pulled.start(self._exchange(wire, pulled, timeouts))
        try:
            await pulled.wait_for_head()
        except BaseException:
            await pulled.aclose()
            raise
        return httpx.Response(pulled.status, headers=pulled.headers, stream=pulled)

    async def aclose(self) -> None:
        """Close every connection; exchanges in flight fail with ReadError."""
        self._is_closed = True
        for lookup in self._lookups.values():
            lookup.cancel()
        for connection in tuple(self._open):
            connection.abort(httpx.ReadError("the transport was closed"))
        while self._open:
            self._all_lost.clear()
            await self._all_lost.wait()

    async def _exchange(self, wire: Wire, sink: ByteSink, timeouts: Timeouts) -> None:
        connection = self._take_idle(wire.origin)
        if connection is not None and await self._use(connection, wire, sink, timeouts):
            return
        connection = await self._connect(wire.origin, timeouts.connect_s)
        sink.connected(connection.made_s)
        await self._use(connection, wire, sink, timeouts)

    async def _use(
        self, connection: _Connection, wire: Wire, sink: ByteSink, timeouts: Timeouts
    ) -> bool:
        """Whether the exchange took place: False where a kept connection proved dead."""
        if isinstance(sink, _PulledBody):
            sink.connection = connection
        try:
            took_place = await connection.run(wire, sink, timeouts)
        except BaseException:
            connection.abort()
            raise
        if connection.is_reusable:
            connection.idle_since_s = now_s = monotonic()
            idle = self._idle.setdefault(wire.origin, OrderedDict())
            idle[connection] = None
            self._close_old(idle, now_s)
        else:
            connection.abort()
        return took_place

    def _take_idle(self, origin: Origin) -> _Connection | None:
        """The connection used last, which the server is the least likely to have closed."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        self._close_old(idle, monotonic())
        while idle:
            connection, _ = idle.popitem()
            if connection.is_reusable:
                return connection
        return None

    def _close_old(self, idle: OrderedDict[_Connection, None], now_s: float) -> None:
        while idle:
            oldest = next(iter(idle))
            if now_s - oldest.idle_since_s <= self._max_idle_s:
                return
            del idle[oldest]
            oldest.abort()

    def made(self, connection: _Connection) -> None:
        """A connection stands."""
        self._open.add(connection)
        self.new_connections += 1

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        self._idle.get(connection.origin, OrderedDict()).pop(connection, None)
        if not self._open:
            self._all_lost.set()

    async def _connect(self, origin: Origin, timeout_s: float | None) -> _Connection:
        if self._is_closed:
            raise httpx.ConnectError("the transport was closed")
        try:
            async with asyncio.timeout(timeout_s):
                best = self._best.get(origin.host)
                if best is None:
                    connection = await self._open_to_any(origin)
                else:
                    connection = await self._open_to(origin, best)
        except TimeoutError as error:
            self._best.pop(origin.host, None)
            raise httpx.ConnectTimeout(f"no connection to {origin.host} in time") from error
        except (OSError, UnicodeError) as error:  # SSLError is an OSError; UnicodeError: odd names
            self._best.pop(origin.host, None)
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        if self._is_closed:
            connection.abort()
            raise httpx.ConnectError("the transport was closed")
        return connection

    async def _open_to(self, origin: Origin, address: str) -> _Connection:
        is_tls = origin.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self, origin),
            address,
            origin.port,
            ssl=self._ssl_context if is_tls else None,
            server_hostname=origin.host if is_tls else None,
        )
        return connection

    async def _open_to_any(self, origin: Origin) -> _Connection:
        """Try addresses in order, the last one for as long as it takes; keep to what stood."""
        addresses = self._addresses.get(origin.host) or await self._resolve(origin.host)
        for address in addresses:
            is_last = address == addresses[-1]
            try:
                async with asyncio.timeout(None if is_last else PASS_OVER_S):
                    connection = await self._open_to(origin, address)
                break
            except ssl.SSLError:  # it stood, and the next is no more to be trusted
                raise
            except OSError:
                if is_last:
                    raise
        self._best[origin.host] = address
        return connection

    async def _resolve(self, host: str) -> list[str]:
        """The addresses of `host`, looked up once however many wait; a failure is not kept."""
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.create_task(self._look_up(host))
            lookup.add_done_callback(_retrieve)
        await asyncio.wait([lookup])
        if lookup.cancelled():
            raise OSError("the transport was closed")
        lookup.result()
        return self._addresses[host]

    async def _look_up(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self._addresses[host] = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        finally:
            del self._lookups[host]


class _Connection(asyncio.Protocol):
    """One socket, and the exchange that it carries, if any."""

    def __init__(self, owner: SocketTransport, origin: Origin) -> None:
        self.origin = origin
        self.made_s = self.idle_since_s = 0.0
        self.is_reusable = False
        """It is alive, and its last exchange left it clean."""
        self._owner = owner
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._ended: asyncio.Future[None] | None = None  # there while an exchange runs
        self._watch_timer: asyncio.TimerHandle | None = None
        self._was_used = self._is_lost = self._is_paused = False
        self._loss: Exception | None = None

    async def run(self, wire: Wire, sink: ByteSink, timeouts: Timeouts) -> bool:
        """One exchange; False if the connection was kept and died before a byte came back."""
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
            if is_kept and not self._stamp_s:
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
        self._owner.made(self)

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
        self._lose(exc)
        del self._parser  # which refers to this object
        self._owner.lost(self)

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


class _HeadTee:
    """A sink that keeps the head of what it passes on."""

    def __init__(self, sink: ByteSink) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._sink = sink
        self.connected = sink.connected
        self.sent = sink.sent
        self.body = sink.body

    def response(self, status: int, headers: Headers, first_byte_s: float) -> None:
        self.status, self.headers = status, headers
        self._sink.response(status, headers, first_byte_s)


class _PulledBody(httpx.AsyncByteStream):
    """A sink for httpx's own readers: pieces wait here, and the socket pauses when many do."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.connection: _Connection | None = None
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._exchange: asyncio.Task[None]

    def start(self, exchange: Coroutine[None, None, None]) -> None:
        self._exchange = asyncio.create_task(exchange)
        self._exchange.add_done_callback(self._end)

    async def wait_for_head(self) -> None:
        await self._news.wait()
        if not self.status:
            await self._exchange

    def connected(self, at_s: float) -> None:
        pass

    def sent(self, at_s: float) -> None:
        pass

    def response(self, status: int, headers: Headers, first_byte_s: float) -> None:
        self.status, self.headers = status, headers
        self._news.set()

    def body(self, data: bytes, at_s: float) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MAX_BUFFERED_BYTES and self.connection is not None:
            self.connection.pause()
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._waiting_bytes -= len(piece)
                yield piece
            if self._exchange.done():
                self._exchange.result()
                return
            if self.connection is not None:
                self.connection.resume()
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        self._exchange.cancel()
        await asyncio.wait([self._exchange])

    def _end(self, exchange: asyncio.Task[None]) -> None:
        _retrieve(exchange)
        self._news.set()


def _has_length(headers: Headers) -> bool:
    """Whether the headers say where the body ends (RFC 9112, section 6.3); else it is the close."""
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            return True
        if lower == b"transfer-encoding":
            return value.lower().endswith(b"chunked")
    return False


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a task's exception, so that nobody is warned of one that nobody awaits."""
    if not task.cancelled():
        task.exception()
