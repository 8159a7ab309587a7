"""An httpx transport on plain sockets, which stamps time where the bytes arrive.

`exchange` is the hot way in: bytes that were serialised ahead go out, and what comes back is pushed
into a sink from within the socket's read. `handle_async_request` is httpx's own API on top of it.
`connection.py` speaks HTTP/1.1. It knows neither SSE nor OpenAI, follows no redirect, and retries
one thing only: a connection kept alive that the server had closed before a byte of the answer came.
Pools have no limit: what is due is sent. Nothing that ends leaves a reference cycle, because the
garbage collector is off during a run.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine
from typing import Final

from loadgen.client.allowed import Allowed
from loadgen.client.connection import Connection
from loadgen.client.http import httpx
from loadgen.client.sink import ByteSink
from loadgen.client.wire import Headers, Origin, Timeouts, Wire, serialise
from loadgen.clock import monotonic

MAX_BUFFERED_BYTES: Final = 256 * 1024
"""A pulled answer stops reading from the socket when more than this waits for its reader."""
PASS_OVER_S: Final = 0.5
"""How long an address may take when there is another to try, as RFC 8305 asks."""


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
        self._allowed = Allowed.here()
        self._idle: dict[Origin, OrderedDict[Connection, None]] = {}  # the one used last is last
        self._open: set[Connection] = set()
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
        """As `wire.serialise`; the TLS context is made now, where it is needed, and not later."""
        if request.url.scheme == "https" and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        return serialise(request)

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
        self, connection: Connection, wire: Wire, sink: ByteSink, timeouts: Timeouts
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

    def _take_idle(self, origin: Origin) -> Connection | None:
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

    def _close_old(self, idle: OrderedDict[Connection, None], now_s: float) -> None:
        while idle:
            oldest = next(iter(idle))
            if now_s - oldest.idle_since_s <= self._max_idle_s:
                return
            del idle[oldest]
            oldest.abort()

    def _made(self, connection: Connection) -> None:
        """A connection stands."""
        self._open.add(connection)
        self.new_connections += 1

    def _lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        self._idle.get(connection.origin, OrderedDict()).pop(connection, None)
        if not self._open:
            self._all_lost.set()

    async def _connect(self, origin: Origin, timeout_s: float | None) -> Connection:
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

    async def _open_to(self, origin: Origin, address: str) -> Connection:
        is_tls = origin.scheme == "https"
        connection = Connection(origin, self._made, self._lost)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address,
                origin.port,
                ssl=self._ssl_context if is_tls else None,
                server_hostname=origin.host if is_tls else None,
            )
        except BaseException:
            connection.connection_lost(None)  # uvloop closes one that had just stood, untold
            raise
        return connection

    async def _open_to_any(self, origin: Origin) -> Connection:
        """Try addresses in order, the last one for as long as it takes; keep to what stood."""
        addresses = self._addresses.get(origin.host) or await self._resolve(origin.host)
        if self._allowed is not None and (
            problem := self._allowed.problem(origin.host, origin.port, addresses)
        ):
            raise OSError(problem)
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
        self.connection: Connection | None = None
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


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a task's exception, so that nobody is warned of one that nobody awaits."""
    if not task.cancelled():
        task.exception()
