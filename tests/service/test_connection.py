"""Connections that nobody uses, or whose client does not read, end; idle ones shut nobody out."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from loadgen.service.connection import Connection

pytestmark = pytest.mark.slow


class Quick(Connection):
    """The same with short times and low numbers."""

    FIRST_S = 0.4
    NEXT_S = 0.8
    TAKEN_S = 0.4
    MOST_OF_A_PEER = 5


ended: list[float] = []


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers at once; below /endless it sends for as long as the client is there."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/endless":
        gone = asyncio.create_task(_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        ended.append(time.monotonic())
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    await send({"type": "http.response.body", "body": b"done"})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(app, http=Quick, lifespan="off", log_config=None, timeout_keep_alive=30)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        yield connection


def ends_within(connection: socket.socket, limit_s: float) -> bool:
    """Whether the server ends it; what it sends before is thrown away."""
    connection.settimeout(limit_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "said", [b"", b"GET", HEAD, b"\r\n\r\n"], ids=["-", "word", "head", "ends"]
)
def test_a_request_must_come(port: int, said: bytes) -> None:
    """A connection that brings no whole headers ends, also when it drips."""
    with connected(port) as connection:
        began_s = time.monotonic()
        connection.sendall(said)
        while time.monotonic() - began_s < 0.3 and said == HEAD:
            connection.sendall(b"x-a: 1\r\n")
            time.sleep(0.05)
        assert ends_within(connection, 2)
        assert time.monotonic() - began_s >= 0.3


def test_the_next_request_must_come(port: int) -> None:
    """After an answer the time counts anew, whatever drips in between."""
    with connected(port) as connection:
        connection.sendall(HEAD + b"\r\n")
        time.sleep(0.5)  # longer than the first may take
        connection.sendall(b"\r\n")
        assert ends_within(connection, 2)


def test_a_slow_answer_is_waited_for(port: int) -> None:
    """While a request is answered no time runs out."""
    assert httpx.get(f"http://127.0.0.1:{port}/slow").text == "done"


def test_a_client_that_does_not_read_is_let_go(port: int) -> None:
    """What waits for it is thrown away, and its request ends."""
    ended.clear()
    with connected(port) as connection:
        connection.sendall(HEAD.replace(b"/ ", b"/endless ") + b"\r\n")
        deadline_s = time.monotonic() + 10
        while not ended:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_idle_connections_shut_nobody_out(port: int) -> None:
    """The one that has waited the longest makes room; one that is being answered stays."""
    with connected(port) as busy:
        busy.sendall(HEAD.replace(b"/ ", b"/slow ") + b"\r\n")
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/").text == "done"
            busy.settimeout(5)
            told = b""
            while b"done" not in told:
                told += busy.recv(1000)
        finally:
            for connection in idle:
                connection.close()
