"""The workers of a run, as the parent sees them: start, turns, stops, and what they tell.

Each is a process of its own (`python -m loadgen.worker`), joined by a socket that carries orders
one way and answers the other (`link.py`). A worker that dies leaves its finished records on disk;
in a turn that is noticed at once, whatever the others do, and else when the next one begins. It
knows nothing of schedules or targets.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from loadgen.clock import monotonic
from loadgen.errors import LoadgenError
from loadgen.link import Link
from loadgen.live import LiveCounters, Vitals
from loadgen.record import WorkerHealth
from loadgen.verdict import LOST
from loadgen.worker import (
    IGNORED,
    Answered,
    Assignment,
    Begin,
    Cut,
    Done,
    Drain,
    Failed,
    Go,
    Order,
    Progressed,
    Ready,
)

Kind = TypeVar("Kind", Ready, Done)

_HEAD_START_S: Final = 0.02
"""Between the order to go and the first due time: time for the order to arrive."""
_LEAVE_S: Final = 10.0
"""A worker that was told to leave, or to cut off, and has not ended by then, is killed."""


class WorkerLostError(LoadgenError):
    """A worker ended before its shard did."""


async def wait_for_all(waits: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all at once; the first error ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for wait in waits:
                group.create_task(wait)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class Workers:
    """All workers of one run; use it as an async context manager."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._assignments = assignments
        self._members = [_Member(assignment.worker) for assignment in assignments]

    async def __aenter__(self) -> Workers:
        for member, assignment in zip(self._members, self._assignments, strict=True):
            await member.assign(assignment)  # one by one: a trace may be large
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._members:
            member.hang_up()
        await asyncio.gather(*(member.leave() for member in self._members))

    def live(self) -> LiveCounters:
        """The turn's counters, all workers together."""
        return LiveCounters.sum_of(member.live for member in self._members)

    def vitals(self) -> list[Vitals]:
        """How each worker fares, in the order of their numbers."""
        return [member.vitals for member in self._members]

    async def get_ready(self, begin: Begin) -> None:
        """Let all get ready for a turn; raises LoadgenError where one cannot."""
        for member in self._members:
            member.live = LiveCounters()
            member.order(begin)
        await wait_for_all(member.get_ready() for member in self._members)

    async def take_turn(
        self,
        on_go: Callable[[float], None],
        on_done: Callable[[WorkerHealth], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Let all begin at one moment, which `on_go` is told, and wait until all have ended.

        `on_done` is told how each fared as it ends, and `on_lost` at once where one is lost: the
        others go on until they are told to stop. Raises LoadgenError where one cannot go on.
        """
        origin_s = monotonic() + _HEAD_START_S
        for member in self._members:
            member.order(Go(origin_s))
        on_go(origin_s)
        await wait_for_all(member.take_turn(on_done, on_lost) for member in self._members)

    def drain(self) -> None:
        """Send nothing more."""
        for member in self._members:
            member.order(Drain())

    def cut(self) -> None:
        """End what is in flight, and the run: who is there after a while is killed."""
        for member in self._members:
            member.order(Cut())
        asyncio.get_running_loop().call_later(_LEAVE_S, self._kill)

    def _kill(self) -> None:
        for member in self._members:
            member.process.kill()

    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members]


class _Member:
    """One worker's process and the parent's end of its link."""

    def __init__(self, worker: int) -> None:
        ours, theirs = socket.socketpair()
        self.live = LiveCounters()
        self.vitals = Vitals(worker)
        self._name = f"worker {worker}"
        # A worker ignores both, once it has loaded; until then it inherits that they wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadgen.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._link = Link(ours)

    async def assign(self, assignment: Assignment) -> None:
        self._link.send(assignment)
        await self._link.sent()

    def order(self, order: Order) -> None:
        self._link.send(order)

    async def get_ready(self) -> None:
        await self._expect(Ready)

    async def take_turn(
        self, on_done: Callable[[WorkerHealth], None], on_lost: Callable[[str], None]
    ) -> None:
        try:
            done = await self._expect(Done)
        except WorkerLostError as error:
            on_lost(str(error))
            return
        self.live, self.vitals = done.live, Vitals(self.vitals.worker)
        on_done(done.health)

    async def _expect(self, kind: type[Kind]) -> Kind:
        """Its next answer, which must be of this kind, and what it tells until then."""
        try:
            answer: Answered = await self._link.receive()
            while isinstance(answer, Progressed):
                self.live, self.vitals = answer.live, answer.vitals
                answer = await self._link.receive()
        except EOFError:
            text = f"{self._name} {LOST}; its finished records are kept"
            raise WorkerLostError(text) from None
        if isinstance(answer, Failed):
            raise LoadgenError(answer.text)
        assert isinstance(answer, kind)
        return answer

    def hang_up(self) -> None:
        self._link.close()

    async def leave(self) -> None:
        deadline_s = monotonic() + _LEAVE_S
        while self.process.poll() is None:
            if monotonic() > deadline_s:
                self.process.kill()
            await asyncio.sleep(0.01)
