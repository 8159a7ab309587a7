"""The socket transport against servers that are scripted byte by byte, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import struct
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn

from loadgen.client import transport as transport_module
from loadgen.client.connection import MAX_HEAD_BYTES, Connection
from loadgen.client.http import httpx
from loadgen.client.transport import SocketTransport
from loadgen.client.wire import Wire
from loadgen.clock import monotonic

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Recorder:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.connected_s: list[float] = []
        self.sent_s: list[float] = []
        self.status = 0
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.first_byte_s = 0.0
        self.pieces: list[tuple[bytes, float]] = []
        self.news = asyncio.Event()

    def connected(self, at_s: float) -> None:
        self.connected_s.append(at_s)

    def sent(self, at_s: float) -> None:
        self.sent_s.append(at_s)
        self.news.set()

    def response(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], first_byte_s: float
    ) -> None:
        assert self.status == 0, "one response an exchange"
        self.status, self.headers, self.first_byte_s = status, headers, first_byte_s
        self.news.set()

    def body(self, data: bytes, at_s: float) -> None:
        self.pieces.append((data, at_s))
        self.news.set()

    @property
    def text(self) -> bytes:
        return b"".join(data for data, _ in self.pieces)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def transports(**options: Any) -> AsyncIterator[SocketTransport]:
    transport = SocketTransport(**options)
    try:
        yield transport
    finally:
        await transport.aclose()
        assert transport.open_connections == 0


def wire(transport: SocketTransport, url: str, method: str = "POST", body: bytes = b"hi") -> Wire:
    content = None if method in ("GET", "HEAD") else body
    return transport.serialise(httpx.Request(method, url, content=content))


async def ask(transport: SocketTransport, url: str, method: str = "POST") -> Recorder:
    recorder = Recorder()
    async with asyncio.timeout(10):
        await transport.exchange(wire(transport, url, method), recorder)
    return recorder


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


def answering(*answers: bytes) -> Callable[[Any], Awaitable[None]]:
    """A script: one answer to each request of a connection, then the end of it."""

    async def script(peer: Any) -> None:
        for answer in answers:
            await peer.request()
            await peer.send(answer)

    return script


async def always_ok(peer: Any) -> None:
    while True:
        await peer.request()
        await peer.send(OK)


def reset(peer: Any) -> None:
    """Close with a RST."""
    raw = peer.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


# What is told, and when.


async def test_bytes_are_pushed_as_they_come_with_the_time_of_their_read(serve: Any) -> None:
    """Each chunk reaches the sink before the next is sent, with stamps in the order of events."""
    go_on = asyncio.Event()

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for piece in (b"5\r\nfirst\r\n", b"6\r\nsecond\r\n0\r\n\r\n"):
            await go_on.wait()
            go_on.clear()
            await peer.send(piece)

    async with serve(script) as server, transports() as transport:
        recorder = Recorder()
        begun_s = monotonic()
        task = asyncio.create_task(transport.exchange(wire(transport, server.url), recorder))
        await recorder.until(lambda: recorder.status == 200)
        go_on.set()
        await recorder.until(lambda: len(recorder.pieces) == 1)
        between_s = monotonic()
        go_on.set()
        await task
        (connected_s,), (sent_s,) = recorder.connected_s, recorder.sent_s
        (first, first_s), (second, second_s) = recorder.pieces
        assert (first, second) == (b"first", b"second")
        order = [begun_s, connected_s, sent_s, recorder.first_byte_s, first_s, between_s, second_s]
        assert order == sorted(order)
        assert second_s <= monotonic()


async def test_pieces_of_one_read_have_one_stamp(serve: Any) -> None:
    """Chunks that arrive together carry the same time: the clock is read once a read."""
    answer = CHUNKED + b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    async with serve(answering(answer)) as server, transports() as transport:
        recorder = await ask(transport, server.url)
        assert [data for data, _ in recorder.pieces] == [b"a", b"b"]
        assert {at_s for _, at_s in recorder.pieces} == {recorder.first_byte_s}


async def test_the_request_is_sent_as_httpx_built_it(serve: Any) -> None:
    """Method, target with its query, headers and body go out byte for byte, Host included."""
    got: list[bytes] = []

    async def script(peer: Any) -> None:
        got.append(await peer.request())
        await peer.send(OK)

    async with serve(script) as server, transports() as transport:
        request = httpx.Request(
            "POST", server.url + "/v1/x?a=b%20c", headers={"X-Key": "v"}, content=b'{"a":1}'
        )
        await transport.exchange(transport.serialise(request), Recorder())
    head, _, body = got[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/x?a=b%20c HTTP/1.1"
    assert set(lines[1:]) == {
        b"Host: 127.0.0.1:%d" % server.port,
        b"X-Key: v",
        b"Content-Length: 7",
    }
    assert body == b'{"a":1}'


# How an answer is framed.

FRAMINGS = [
    pytest.param("POST", OK, 200, b"ok", True, id="content-length"),
    pytest.param("POST", CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", 200, b"abc", True, id="chunked"),
    pytest.param(
        "POST",
        CHUNKED + b'3;name=value;q="a"\r\nabc\r\n0;last\r\nX-Trailer: 1\r\nY: 2\r\n\r\n',
        200,
        b"abc",
        True,
        id="chunk-extensions-and-trailers",
    ),
    pytest.param("POST", b"HTTP/1.1 200 OK\r\n\r\nall of it", 200, b"all of it", False, id="close"),
    pytest.param("POST", b"HTTP/1.0 200 OK\r\n\r\nold", 200, b"old", False, id="http-1.0"),
    pytest.param(
        "POST", OK.replace(b"1.1", b"1.0"), 200, b"ok", False, id="http-1.0-content-length"
    ),
    pytest.param(
        "POST",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        False,
        id="connection-close",
    ),
    pytest.param("POST", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True, id="204"),
    pytest.param(
        "GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True, id="304"
    ),
    pytest.param("HEAD", OK[:-2], 200, b"", True, id="head"),
    pytest.param("HEAD", CHUNKED, 200, b"", True, id="head-chunked"),
    pytest.param(
        "POST",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        200,
        b"ok",
        True,
        id="informational",
    ),
    pytest.param(
        "POST",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nfail",
        500,
        b"fail",
        True,
        id="an-error-status-is-an-answer",
    ),
    pytest.param("POST", OK + OK, 200, b"ok", False, id="an-answer-too-many"),
    pytest.param("POST", OK + b"\x00", 200, b"ok", False, id="garbage-after-the-answer"),
    pytest.param("HEAD", OK, 200, b"", False, id="head-with-a-body"),
]


@pytest.mark.parametrize("split", [pytest.param(False, id="whole"), pytest.param(True, id="bytes")])
@pytest.mark.parametrize(("method", "answer", "status", "body", "is_kept"), FRAMINGS)
async def test_every_framing_gives_its_body(
    serve: Any, method: str, answer: bytes, status: int, body: bytes, is_kept: bool, split: bool
) -> None:
    """Status and body are right however the bytes are cut, and the connection is kept if it may."""

    async def script(peer: Any) -> None:
        while True:
            await peer.request()
            for piece in [bytes([byte]) for byte in answer] if split else [answer]:
                await peer.send(piece)
            if b"Content-Length" not in answer and b"chunked" not in answer and status != 204:
                return

    async with serve(script) as server, transports() as transport:
        recorder = await ask(transport, server.url, method)
        assert (recorder.status, recorder.text) == (status, body)
        assert all(name not in (b"X-Trailer", b"Link") for name, _ in recorder.headers)
        if is_kept or not split:  # what follows an answer byte by byte may come after its end
            again = await ask(transport, server.url, method)
            assert (again.status, again.text) == (status, body)
            assert server.accepted == (1 if is_kept else 2)
            assert bool(again.connected_s) is not is_kept


FAULTS = [
    pytest.param(b"", id="no-answer"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-", id="cut-in-the-head"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", id="cut-in-content-length"),
    pytest.param(CHUNKED + b"5\r\nhello\r\n", id="cut-between-chunks"),
    pytest.param(CHUNKED + b"5\r\nhe", id="cut-in-a-chunk"),
    pytest.param(CHUNKED + b"5\r\nhello\r\n0\r\n", id="cut-before-the-last-line"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="informational-only"),
    pytest.param(b"\x16\x03\x01garbage", id="garbage"),
    pytest.param(CHUNKED + b"zz\r\n", id="bad-chunk-size"),
    pytest.param(CHUNKED + b"2\r\nabc\r\n", id="chunk-longer-than-announced"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", id="two-lengths"
    ),
    pytest.param(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        id="unasked-upgrade",
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\n" + b"X: %b\r\n" % (b"a" * 999) * (MAX_HEAD_BYTES // 999),
        id="endless-headers",
    ),
    pytest.param(b"HTTP/1.1 103 Hint\r\n\r\n" * (MAX_HEAD_BYTES // 20), id="endless-informational"),
]


@pytest.mark.parametrize("answer", FAULTS)
async def test_a_broken_answer_is_a_protocol_error(serve: Any, answer: bytes) -> None:
    """What is not HTTP, or ends too early, raises RemoteProtocolError, unretried and unleaked."""
    async with serve(answering(answer)) as server, transports() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, server.url)
        assert server.accepted == 1
        await eventually(lambda: transport.open_connections == 0)


async def test_a_reset_is_a_read_error(serve: Any) -> None:
    """A connection that is reset in the middle of a body raises ReadError."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.reader.readexactly(1)

    async with serve(script) as server, transports() as transport:
        recorder = Recorder()
        task = asyncio.create_task(transport.exchange(wire(transport, server.url), recorder))
        await recorder.until(lambda: recorder.text == b"a")
        reset(server.peers[0])
        with pytest.raises(httpx.ReadError):
            await task


async def test_an_answer_may_come_before_the_request_is_sent(serve: Any) -> None:
    """An early answer ends the exchange; `sent` is not told and the connection is not kept."""

    async def script(peer: Any) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await asyncio.Event().wait()

    async with serve(script) as server, transports() as transport:
        recorder = Recorder()
        await transport.exchange(wire(transport, server.url, body=bytes(64 << 20)), recorder)
        assert (recorder.status, recorder.text, recorder.sent_s) == (413, b"big", [])
        await eventually(lambda: transport.open_connections == 0)


async def test_a_server_that_hangs_up_on_a_long_request_is_a_write_error(serve: Any) -> None:
    """A reset while the request is still being sent raises WriteError."""

    async def script(peer: Any) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        reset(peer)

    async with serve(script) as server, transports() as transport:
        with pytest.raises(httpx.WriteError):
            await transport.exchange(wire(transport, server.url, body=bytes(64 << 20)), Recorder())


# Which connections are kept.


async def test_connections_are_taken_last_in_first_out_without_limit(serve: Any) -> None:
    """As many stand as are asked for at once, and the one used last is used next."""
    everyone_is_here = asyncio.Event()

    async def script(peer: Any) -> None:
        await peer.request()
        if len(server.peers) == 300:
            everyone_is_here.set()
        await everyone_is_here.wait()
        await peer.send(OK)
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n%4d" % peer.number)

    async with serve(script) as server, transports() as transport:
        await asyncio.gather(*(ask(transport, server.url) for _ in range(300)))
        assert transport.open_connections == transport.new_connections == 300
        numbers = {(await ask(transport, server.url)).text for _ in range(10)}
        assert len(numbers) == 1
        assert transport.new_connections == 300


async def test_a_kept_connection_that_died_is_replaced_once(serve: Any) -> None:
    """A kept connection closed before a byte of the answer is retried on a new one, unnoticed."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        if peer.number > 0:
            await peer.send(OK)

    async with serve(script) as server, transports() as transport:
        await ask(transport, server.url)
        recorder = await ask(transport, server.url)
        assert recorder.text == b"ok"
        assert len(recorder.sent_s) == 2
        assert len(recorder.connected_s) == 1
        assert server.accepted == transport.new_connections == 2


async def test_a_kept_connection_that_was_reset_is_replaced(serve: Any) -> None:
    """A RST in answer to a request on a kept connection is the same race, and is retried."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        reset(peer)

    async with serve(script) as server, transports() as transport:
        await ask(transport, server.url)
        assert (await ask(transport, server.url)).text == b"ok"
        assert server.accepted == 2


async def test_a_server_that_hangs_up_on_a_request_is_a_failure(serve: Any) -> None:
    """On a kept connection, too: what took the request and then hung up is not asked again."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await asyncio.sleep(0.3)

    async with serve(script) as server, transports() as transport:
        await ask(transport, server.url)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, server.url)
        assert server.accepted == 1


async def test_the_replacement_is_not_replaced(serve: Any) -> None:
    """A new connection that dies without an answer is a failure, also after a stale one."""

    async def script(peer: Any) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(OK)
            await peer.request()

    async with serve(script) as server, transports() as transport:
        await ask(transport, server.url)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, server.url)
        assert server.accepted == 2


async def test_nothing_is_retried_once_a_byte_has_come(serve: Any) -> None:
    """A kept connection that dies within the answer is a failure: the request may have run."""
    async with serve(answering(OK, b"H")) as server, transports() as transport:
        await ask(transport, server.url)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(transport, server.url)
        assert server.accepted == 1


async def test_a_connection_idle_for_too_long_is_not_used(serve: Any) -> None:
    """Beyond the bound a connection is closed, and a new one made."""
    async with serve(always_ok) as server, transports(max_idle_s=0.0) as transport:
        await ask(transport, server.url)
        await ask(transport, server.url)
        assert server.accepted == 2
        await eventually(lambda: transport.open_connections == 1)


async def test_a_close_while_idle_is_noticed(serve: Any) -> None:
    """A server's FIN takes an idle connection out of the pool before anyone uses it."""
    async with serve(answering(OK)) as server, transports() as transport:
        await ask(transport, server.url)
        await eventually(lambda: transport.open_connections == 0)
        recorder = await ask(transport, server.url)
        assert len(recorder.sent_s) == 1


async def test_data_while_idle_close_the_connection(serve: Any) -> None:
    """Bytes that nobody asked for would be taken for the next answer: the connection goes."""
    speak = asyncio.Event()

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(OK)
        await speak.wait()
        await peer.send(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.reader.read()

    async with serve(script) as server, transports() as transport:
        await ask(transport, server.url)
        assert transport.open_connections == 1
        speak.set()
        await eventually(lambda: transport.open_connections == 0)
        assert (await ask(transport, server.url)).status == 200


# Cancelling, closing, and what is left behind.


@pytest.mark.parametrize(
    "said", [pytest.param(b"", id="before-headers"), pytest.param(CHUNKED, id="within-the-body")]
)
async def test_cancelling_closes_the_connection(serve: Any, said: bytes) -> None:
    """A cancelled exchange's connection is closed, and the server sees it."""
    seen = asyncio.Event()

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(said)
        with contextlib.suppress(ConnectionError):
            assert await peer.reader.read() == b""
        seen.set()

    async with serve(script) as server, transports() as transport:
        recorder = Recorder()
        task = asyncio.create_task(transport.exchange(wire(transport, server.url), recorder))
        await recorder.until(lambda: bool(recorder.status if said else recorder.sent_s))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: transport.open_connections == 0)
        await asyncio.wait_for(seen.wait(), 10)


async def test_closing_while_a_name_is_looked_up(serve: Any) -> None:
    """`aclose` ends an exchange that still waits for the name service, as a ConnectError."""

    class Slow(SocketTransport):
        async def _look_up(self, host: str) -> None:
            await asyncio.Event().wait()

    transport = Slow()
    task = asyncio.create_task(transport.exchange(wire(transport, "http://model.test"), Recorder()))
    await eventually(lambda: bool(transport._lookups))
    await transport.aclose()
    with pytest.raises(httpx.ConnectError):
        await task


async def test_cancelling_a_connect_leaves_nothing(serve: Any) -> None:
    """An exchange cancelled within the TLS handshake leaves no connection open."""
    hello, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Any) -> None:
        await peer.reader.read(1)
        hello.set()
        await peer.reader.read()
        gone.set()

    async with serve(script) as server, transports() as transport:
        url = server.url.replace("http", "https")
        task = asyncio.create_task(transport.exchange(wire(transport, url), Recorder()))
        await hello.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 10)
        assert transport.open_connections == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_cancelling_as_a_connection_stands_leaves_nothing(
    serve: Any, authority: trustme.CA, scheme: str
) -> None:
    """An exchange cancelled between the connection's standing and its own next step leaves no
    connection: the server sees it closed, and `aclose` has nothing to wait for."""
    gone = asyncio.Event()

    class CancelsAsItStands(SocketTransport):
        def _made(self, connection: Connection) -> None:
            super()._made(connection)
            task.cancel()

    async def script(peer: Any) -> None:
        with contextlib.suppress(ConnectionError):
            assert await peer.reader.read() == b""
        gone.set()

    tls = server_context(authority, "127.0.0.1") if scheme == "https" else None
    async with serve(script, ssl_context=tls) as server:
        transport = CancelsAsItStands(ssl_context=client_context(authority))
        url = f"{scheme}://127.0.0.1:{server.port}"
        task = asyncio.create_task(transport.exchange(wire(transport, url), Recorder()))
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 10)
        await asyncio.wait_for(transport.aclose(), 10)
        assert (transport.new_connections, transport.open_connections) == (1, 0)


async def test_closing_the_transport_ends_what_is_in_flight(serve: Any) -> None:
    """`aclose` fails exchanges with ReadError, closes idle connections, and allows no new ones."""

    async def script(peer: Any) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(OK)
        await peer.reader.read()

    async with serve(script) as server:
        transport = SocketTransport()
        await ask(transport, server.url)
        recorders = [Recorder(), Recorder()]
        tasks = [
            asyncio.create_task(transport.exchange(wire(transport, server.url), recorder))
            for recorder in recorders
        ]
        for recorder in recorders:
            await recorder.until(lambda recorder=recorder: bool(recorder.sent_s))  # type: ignore[misc]
        await eventually(lambda: server.accepted == 2)
        await transport.aclose()
        assert transport.open_connections == 0
        for task in tasks:
            with pytest.raises(httpx.TransportError):
                await task
        with pytest.raises(httpx.ConnectError):
            await ask(transport, server.url)


async def test_no_reference_cycle_is_left(serve: Any) -> None:
    """With the garbage collector off, a connection and its exchange go when they have ended."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(
            OK if peer.number else OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
        )

    async with serve(script) as server, transports() as transport:
        gc.collect()
        gc.disable()
        try:
            left: list[weakref.ref[object]] = []

            async def exchange_once() -> None:
                recorder = Recorder()
                target = wire(transport, server.url)
                task = asyncio.create_task(transport.exchange(target, recorder))
                await recorder.until(lambda: bool(recorder.sent_s))
                left.extend(weakref.ref(connection) for connection in transport._open)
                await task
                left.extend((weakref.ref(recorder), weakref.ref(task)))

            for _ in range(2):
                await exchange_once()
                await eventually(lambda: transport.open_connections == 0)
            await asyncio.sleep(0)
            assert [ref() for ref in left if ref() is not None] == []
            assert len(left) == 6
        finally:
            gc.enable()


async def test_a_fault_of_the_sink_is_told_as_it_is(serve: Any) -> None:
    """An exception from the sink is our own mistake and comes out unchanged, not as httpx's."""

    class Broken(Recorder):
        def body(self, data: bytes, at_s: float) -> None:
            raise ZeroDivisionError("ours")

    async with serve(always_ok) as server, transports() as transport:
        with pytest.raises(ZeroDivisionError, match="ours"):
            await transport.exchange(wire(transport, server.url), Broken())
        await eventually(lambda: transport.open_connections == 0)


# Connecting.


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that is bound and not listened on: connecting to it is refused."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextmanager
def silent_port(host: str, port: int = 0) -> Iterator[int]:
    """A port whose backlog is full: connecting to it hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_refused_connection_is_a_connect_error() -> None:
    """Nobody listens: ConnectError, which is not one of TLS."""
    async with transports() as transport:
        with reserved_port() as port, pytest.raises(httpx.ConnectError) as caught:
            await ask(transport, f"http://127.0.0.1:{port}")
        assert not isinstance(caught.value.__cause__, ssl.SSLError)
        assert transport.new_connections == 0


async def test_an_unknown_host_is_a_connect_error() -> None:
    """A name that does not resolve is a ConnectError, and so is one that cannot be a name."""
    async with transports() as transport:
        for host in ("nowhere.invalid", "a" * 70):
            with pytest.raises(httpx.ConnectError):
                await ask(transport, f"http://{host}:1")


async def test_connecting_takes_no_longer_than_it_may() -> None:
    """A connection that does not stand in time is a ConnectTimeout, and is given up."""
    async with transports() as transport:
        with silent_port("127.0.0.1") as port:
            target = wire(transport, f"http://127.0.0.1:{port}")
            with pytest.raises(httpx.ConnectTimeout):
                await transport.exchange(target, Recorder(), connect_timeout_s=0.05)


async def test_a_silent_handshake_is_a_connect_timeout(serve: Any) -> None:
    """The handshake is part of connecting."""

    async def script(peer: Any) -> None:
        await asyncio.Event().wait()

    async with serve(script) as server, transports() as transport:
        target = wire(transport, server.url.replace("http", "https"))
        with pytest.raises(httpx.ConnectTimeout):
            await transport.exchange(target, Recorder(), connect_timeout_s=0.05)


async def test_ipv6_literals(serve: Any) -> None:
    """An address in brackets is connected to as it is."""
    async with serve(always_ok, host="::1") as server, transports() as transport:
        assert (await ask(transport, f"http://[::1]:{server.port}/")).text == b"ok"


class KnowsAddresses(SocketTransport):
    """A transport whose name service gives fixed addresses and counts how often it is asked."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.known = addresses
        self.lookups = 0

    async def _look_up(self, host: str) -> None:
        self.lookups += 1
        await asyncio.sleep(0)
        self._addresses[host] = list(self.known)
        del self._lookups[host]


async def test_names_are_looked_up_once(serve: Any) -> None:
    """Many at once and many after one another ask the name service once in all."""
    closing = answering(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
    async with serve(closing) as server:
        transport = KnowsAddresses("127.0.0.1")
        url = f"http://model.test:{server.port}"
        await asyncio.gather(*(ask(transport, url) for _ in range(5)))
        await ask(transport, url)
        assert (transport.lookups, transport.new_connections) == (1, 6)
        await transport.aclose()


async def test_localhost_is_resolved_for_real(serve: Any) -> None:
    """The machine's own name service is used, and all that it gives is tried."""
    async with serve(always_ok) as server, transports() as transport:
        assert (await ask(transport, f"http://localhost:{server.port}")).text == b"ok"


async def test_the_next_address_is_tried_when_one_refuses(serve: Any) -> None:
    """A host with a dead address is reached by its living one, which is then kept to."""
    async with serve(always_ok) as server:
        transport = KnowsAddresses("127.0.0.2", "127.0.0.1")
        url = f"http://model.test:{server.port}"
        await ask(transport, url)
        assert transport._best == {"model.test": "127.0.0.1"}
        assert transport.open_connections == 1
        await transport.aclose()


async def test_the_next_address_is_tried_when_one_hangs(serve: Any) -> None:
    """An address that does not answer is passed over, and the next one serves."""
    async with serve(always_ok) as server:
        transport = KnowsAddresses("127.0.0.3", "127.0.0.1")
        with silent_port("127.0.0.3", server.port):
            begun_s = monotonic()
            await ask(transport, f"http://model.test:{server.port}")
            took_s = monotonic() - begun_s
        assert transport_module.PASS_OVER_S * 0.9 < took_s < 5
        await transport.aclose()


async def test_when_no_address_stands_it_is_a_connect_error() -> None:
    """All addresses refuse: ConnectError, and the known addresses stay known."""
    transport = KnowsAddresses("127.0.0.1", "127.0.0.2")
    with reserved_port() as port:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await ask(transport, f"http://model.test:{port}")
    assert transport.lookups == 1
    await transport.aclose()


async def test_small_writes_are_not_held_back(serve: Any) -> None:
    """TCP_NODELAY is set."""
    async with serve(always_ok) as server, transports() as transport:
        await ask(transport, server.url)
        (connection,) = transport._open
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# TLS, against a CA of the test's own.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_tls_is_verified_and_kept(serve: Any, authority: trustme.CA) -> None:
    """A certificate of a trusted CA is accepted by name and by address; connections are reused."""
    tls = server_context(authority, "localhost", "127.0.0.1")
    async with (
        serve(always_ok, ssl_context=tls) as server,
        transports(ssl_context=client_context(authority)) as transport,
    ):
        for host in ("localhost", "localhost", "127.0.0.1"):
            recorder = await ask(transport, f"https://{host}:{server.port}")
            assert recorder.text == b"ok"
            assert len(recorder.sent_s) == 1
        assert transport.new_connections == 2


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end", id="close"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\n\r\n", b"a", id="chunked"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 999_999,
            b"x" * 999_999,
            id="long",
        ),
    ],
)
async def test_framings_over_tls(
    serve: Any, authority: trustme.CA, answer: bytes, body: bytes
) -> None:
    """Bodies are whole over TLS too, also those that the close delimits; a long request as well."""
    tls = server_context(authority, "127.0.0.1")
    async with (
        serve(answering(answer), ssl_context=tls) as server,
        transports(ssl_context=client_context(authority)) as transport,
    ):
        recorder = Recorder()
        target = wire(transport, f"https://127.0.0.1:{server.port}", body=bytes(4 << 20))
        await transport.exchange(target, recorder)
        assert recorder.text == body
        assert len(recorder.sent_s) == 1


@pytest.mark.parametrize(
    ("is_trusted", "name"),
    [
        pytest.param(False, "127.0.0.1", id="unknown-authority"),
        pytest.param(True, "elsewhere.test", id="other-name"),
    ],
)
async def test_a_certificate_that_does_not_hold_is_an_error_of_tls(
    serve: Any, authority: trustme.CA, is_trusted: bool, name: str
) -> None:
    """It raises a ConnectError whose cause is an SSLError, and nothing was sent."""
    tls = server_context(authority, name)
    options = {"ssl_context": client_context(authority)} if is_trusted else {}
    async with serve(always_ok, ssl_context=tls) as server, transports(**options) as transport:
        recorder = Recorder()
        target = wire(transport, f"https://127.0.0.1:{server.port}")
        with pytest.raises(httpx.ConnectError) as caught:
            await transport.exchange(target, recorder)
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        assert recorder.sent_s == []
        await eventually(lambda: transport.open_connections == 0)


async def test_a_server_without_tls_is_an_error_of_tls(serve: Any) -> None:
    """https to a server that speaks plainly is a ConnectError whose cause is an SSLError."""

    async def script(peer: Any) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.reader.read()

    async with serve(script) as server, transports() as transport:
        with pytest.raises(httpx.ConnectError) as caught:
            await ask(transport, f"https://127.0.0.1:{server.port}")
        assert isinstance(caught.value.__cause__, ssl.SSLError)


# httpx's own API on top.


async def test_httpx_client_reads_json_and_streams(serve: Any) -> None:
    """An ordinary httpx client works on it: JSON, streamed lines, and connections kept."""
    lines = CHUNKED + b"4\r\na\nb\n\r\n2\r\nc\n\r\n0\r\n\r\n"
    js = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n"
    async with serve(answering(lines, js + b'{"a": 1}')) as server:
        transport = SocketTransport()
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("POST", server.url, json={"q": 1}) as response:
                assert response.status_code == 200
                assert [line async for line in response.aiter_lines()] == ["a", "b", "c"]
            assert (await client.get(server.url)).json() == {"a": 1}
            assert transport.new_connections == 1
        assert transport.open_connections == 0


async def test_httpx_client_pushes_to_a_sink(serve: Any) -> None:
    """With `extensions["sink"]` the bytes go there and the response has status and headers."""
    async with serve(always_ok) as server, httpx.AsyncClient(transport=SocketTransport()) as client:
        recorder = Recorder()
        response = await client.post(server.url, extensions={"sink": recorder})
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-length"] == "2"
        assert (recorder.status, recorder.text) == (200, b"ok")
        assert len(recorder.connected_s) == len(recorder.sent_s) == 1


async def test_httpx_body_of_unknown_length_is_given_one(serve: Any) -> None:
    """A body that httpx would send in chunks is read whole and sent with its length."""
    got: list[bytes] = []

    async def script(peer: Any) -> None:
        got.append(await peer.request())
        await peer.send(OK)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async with serve(script) as server, httpx.AsyncClient(transport=SocketTransport()) as client:
        await client.post(server.url, content=pieces())
    assert got[0].endswith(b"\r\n\r\none two")
    assert b"chunked" not in got[0]


async def test_httpx_errors_within_a_stream_come_after_what_had_come(serve: Any) -> None:
    """A truncated answer gives its bytes and then raises, and names the request."""
    async with (
        serve(answering(CHUNKED + b"3\r\nabc\r\n")) as server,
        httpx.AsyncClient(transport=SocketTransport()) as client,
    ):
        async with client.stream("GET", server.url) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == b"abc"
            with pytest.raises(httpx.RemoteProtocolError) as caught:
                await anext(pieces)
        assert str(caught.value.request.url).startswith(server.url)


@pytest.mark.parametrize(
    ("timeout", "said", "error"),
    [
        pytest.param({"read": 0.05}, b"", "ReadTimeout", id="read-headers"),
        pytest.param({"read": 0.05}, CHUNKED, "ReadTimeout", id="read-body"),
        pytest.param({"write": 0.05}, None, "WriteTimeout", id="write"),
    ],
)
async def test_httpx_timeouts_by_phase(
    serve: Any, timeout: dict[str, float], said: bytes | None, error: str
) -> None:
    """Silence raises ReadTimeout, and a server that does not take the request WriteTimeout."""

    async def script(peer: Any) -> None:
        if said is not None:
            await peer.request()
            await peer.send(said)
        await asyncio.Event().wait()

    body = b"x" if said is not None else bytes(64 << 20)
    async with serve(script) as server:
        transport = SocketTransport()
        async with httpx.AsyncClient(
            transport=transport, timeout=httpx.Timeout(None, **timeout)
        ) as client:
            with pytest.raises(getattr(httpx, error)):
                await client.post(server.url, content=body)
            await eventually(lambda: transport.open_connections == 0)


async def test_read_timeouts_count_silence_and_not_the_whole(serve: Any) -> None:
    """An answer that takes longer than the timeout, with no silence as long, is whole."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(10):
            await asyncio.sleep(0.05)
            await peer.send(b"1\r\na\r\n")
        await peer.send(b"0\r\n\r\n")

    async with (
        serve(script) as server,
        httpx.AsyncClient(
            transport=SocketTransport(), timeout=httpx.Timeout(None, read=0.4)
        ) as client,
    ):
        assert (await client.get(server.url)).content == b"a" * 10


async def test_a_slow_reader_holds_the_server_back(serve: Any) -> None:
    """A pulled answer buffers a bounded part, the rest waits at the server, and all comes."""
    total = 64 << 20
    sent = 0

    async def script(peer: Any) -> None:
        nonlocal sent
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            sent = 0
            while sent < total:
                await peer.send(bytes(1 << 16))
                sent += 1 << 16

    async with serve(script) as server:
        transport = SocketTransport()
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            async with client.stream("GET", server.url) as response:
                (connection,) = transport._open
                await eventually(lambda: connection._is_paused)
                got = 0
                held_back_at = sent
                async for piece in response.aiter_raw():
                    got += len(piece)
            assert got == total
            assert held_back_at < total // 2
            assert len((await client.get(server.url)).content) == total
            assert server.accepted == 1


async def test_leaving_a_stream_early_closes_its_connection(serve: Any) -> None:
    """A streamed response that is not read to its end gives its connection up."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.reader.read()

    async with serve(script) as server:
        transport = SocketTransport()
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("GET", server.url) as response:
                assert response.status_code == 200
            await eventually(lambda: transport.open_connections == 0)


@pytest.mark.parametrize(
    ("headers", "url", "error"),
    [
        pytest.param({b"X": b"a\r\nEvil: b"}, "http://127.0.0.1", "LocalProtocolError", id="crlf"),
        pytest.param({b"X\n": b"a"}, "http://127.0.0.1", "LocalProtocolError", id="name"),
        pytest.param({}, "ftp://127.0.0.1", "UnsupportedProtocol", id="scheme"),
    ],
)
def test_requests_that_must_not_be_sent(headers: dict[bytes, bytes], url: str, error: str) -> None:
    """What would break out of a header, or asks for another protocol, is refused unsent."""
    with pytest.raises(getattr(httpx, error)):
        SocketTransport().serialise(httpx.Request("GET", url, headers=headers))


async def test_uvicorn_is_understood() -> None:
    """A real server's streamed answers come whole, on one kept connection."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for n in range(20):
            await send({"type": "http.response.body", "body": b"%d," % n, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with transports() as transport:
        for _ in range(3):
            recorder = await ask(transport, f"http://127.0.0.1:{port}")
            assert recorder.text == b"".join(b"%d," % n for n in range(20))
        assert transport.new_connections == 1
    server.should_exit = True
    await serving


def test_the_other_httpx_library_works_as_well() -> None:
    """The tests of framing and of httpx's API pass on the httpx library that is not the default."""
    other = "httpx" if httpx.__name__ == "httpx2" else "httpx2"
    if "LOADGEN_HTTPX" in os.environ:
        pytest.skip("already running on a library that was asked for")
    pytest.importorskip(other, reason=f"{other} is not installed")
    here = Path(__file__)
    chosen = "(framing or httpx or broken or tls) and not other_httpx and not bytes"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here), "-k", chosen],
        env={**os.environ, "LOADGEN_HTTPX": other},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
