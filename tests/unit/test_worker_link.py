"""The link between a run and a worker: whole messages, no waiting, and an end that is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from loadgen.link import Frames, Link

MESSAGES = [0, "", b"x" * 70_000, {"a": (1.5, None)}, b"y" * 16_385]
LARGE = b"z" * 3_000_000
"""More than a socket takes while nobody reads."""

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test on each event loop, which would not wait for ever."""
    run_on: Callable[[Coroutine[Any, Any, None]], None] = request.param
    return lambda test: run_on(asyncio.wait_for(test, 20))


def links() -> tuple[Link, Link]:
    ours, theirs = socket.socketpair()
    return Link(ours), Link(theirs)


def taken(frames: Frames) -> list[Any]:
    """All messages that have come whole."""
    found = []
    while (message := frames.take()) is not None:
        found.append(message)
    return found


@given(cuts=st.lists(st.integers(0, 90_000), max_size=12))
def test_any_split_gives_the_same_messages(cuts: list[int]) -> None:
    """However the bytes are cut or joined, the messages are those that were sent, in order."""
    data = b"".join(map(Frames.made_of, MESSAGES))
    frames, found = Frames(), []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        frames.feed(data[start:end])
        found += taken(frames)
    assert found == MESSAGES


def test_a_byte_at_a_time() -> None:
    """A message is there with its last byte, and not before."""
    frames = Frames()
    *most, last = Frames.made_of("order")
    for byte in most:
        frames.feed(bytes([byte]))
        assert frames.take() is None
    frames.feed(bytes([last]) + Frames.made_of("next")[:5])
    assert taken(frames) == ["order"]


def test_what_is_sent_leaves_at_once(run: Run) -> None:
    """An order is on the socket when `send` returns: no turn of the event loop lies between."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        link = Link(ours)
        link.send("go")
        assert not link.is_full
        frames = Frames()
        frames.feed(theirs.recv(1000))
        assert frames.take() == "go"
        link.close()
        theirs.close()

    run(test())


def test_nobody_waits_for_a_reader(run: Run) -> None:
    """While the other side does not read, `send` returns, `is_full` is true, nothing is lost."""

    async def test() -> None:
        here, there = links()
        for message in (LARGE, "ready", "done"):
            here.send(message)
            assert here.is_full
        await asyncio.sleep(0)
        assert here.is_full
        assert [await there.receive() for _ in range(3)] == [LARGE, "ready", "done"]
        await here.sent()
        assert not here.is_full
        here.send("again")
        assert await there.receive() == "again"
        here.close()
        there.close()

    run(test())


def test_both_sides_may_be_full(run: Run) -> None:
    """Two sides that send much to each other before they read do not hold each other up."""

    async def test() -> None:
        here, there = links()
        here.send(LARGE)
        there.send(LARGE)
        assert await asyncio.gather(here.receive(), there.receive()) == [LARGE, LARGE]
        here.close()
        there.close()

    run(test())


def test_the_end_comes_after_what_was_sent(run: Run) -> None:
    """Who reads gets what the other side had sent, even after a write failed, and then the end."""

    async def test() -> None:
        here, there = links()
        there.send("why it failed")
        there.close()
        here.send("an order")
        here.send("another")
        assert not here.is_full
        assert await here.receive() == "why it failed"
        for _ in range(2):
            with pytest.raises(EOFError):
                await here.receive()
        here.close()

    run(test())


@pytest.mark.parametrize("is_torn", [False, True], ids=["between messages", "within one"])
def test_the_end_wakes_who_reads(run: Run, is_torn: bool) -> None:
    """A read that waits is told at once, also where a message was cut off."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        link = Link(ours)
        if is_torn:
            theirs.send(Frames.made_of("order")[:-1])
        reading = asyncio.create_task(link.receive())
        await asyncio.sleep(0)
        theirs.close()
        with pytest.raises(EOFError):
            await reading
        link.close()

    run(test())


def test_the_end_wakes_who_writes(run: Run) -> None:
    """Waiting until all is sent ends when the other side does."""

    async def test() -> None:
        here, there = links()
        here.send(LARGE)
        waiting = asyncio.create_task(here.sent())
        await asyncio.sleep(0)
        there.close()
        await waiting
        here.close()

    run(test())


def test_closing_a_full_link_ends_it(run: Run) -> None:
    """What was not taken is given up, and the other side gets the end."""

    async def test() -> None:
        here, there = links()
        here.send(LARGE)
        here.close()
        assert not here.is_full
        with pytest.raises(EOFError):
            await there.receive()
        there.close()

    run(test())
