"""Servers that are scripted byte by byte, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest


@dataclass
class Peer:
    """One accepted connection, as the server's script sees it."""

    number: int
    """Which connection of the server it is, from 0."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request, head and body; raises IncompleteReadError at the end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head + await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Runs its script on each connection and closes the connection when the script returns."""

    script: Script
    port: int = 0
    peers: list[Peer] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(self.peers), reader, writer)
        self.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.script(peer)
        except asyncio.CancelledError:
            writer.transport.abort()
            return
        writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def accepted(self) -> int:
        return len(self.peers)


Serve = Callable[..., AbstractAsyncContextManager[ScriptedServer]]


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Each test marked `anyio` runs on both event loops."""
    return request.param


@pytest.fixture
def serve() -> Serve:
    """`async with serve(script) as server`: a TCP or TLS server on a free port of the loopback."""

    @asynccontextmanager
    async def serving(
        script: Script, *, host: str = "127.0.0.1", ssl_context: ssl.SSLContext | None = None
    ) -> AsyncIterator[ScriptedServer]:
        scripted = ScriptedServer(script)
        server = await asyncio.start_server(scripted.accept, host, 0, ssl=ssl_context, backlog=1024)
        scripted.port = server.sockets[0].getsockname()[1]
        try:
            yield scripted
        finally:
            server.close()
            for task in scripted.tasks:
                task.cancel()
            if scripted.tasks:
                await asyncio.wait(scripted.tasks)

    return serving
