"""The workers of a run, as the parent sees them: start, turns, stops, and what they tell.

Each is a process of its own (`python -m loadgen.worker`), joined by a socket that carries orders
one way and answers the other. A worker that dies leaves its finished records on disk; the
run then ends early and says so. It knows nothing of schedules or targets.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Final, TypeVar

from loadgen.clock import monotonic
from loadgen.errors import LoadgenError
from loadgen.live import LiveCounters, Vitals
from loadgen.record import WorkerHealth
from loadgen.worker import (
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
"""A worker that was told to leave, and does not, is killed after this."""


class WorkerLostError(LoadgenError):
    """A worker ended before its shard did."""


class Workers:
    """All workers of one run; use it as an async context manager."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._members = [_Member(assignment) for assignment in assignments]
        for member, assignment in zip(self._members, assignments, strict=True):
            member.order(assignment)

    async def __aenter__(self) -> Workers:
        for member in self._members:
            member.listen()
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
        for member in self._members:
            await member.expect(Ready)

    async def take_turn(self, on_go: Callable[[float], None]) -> list[WorkerHealth]:
        """Let all begin at one moment, which `on_go` is told, and wait until all have ended."""
        origin_s = monotonic() + _HEAD_START_S
        for member in self._members:
            member.order(Go(origin_s))
        on_go(origin_s)
        done = [await member.expect(Done) for member in self._members]
        return [answer.health for answer in done]

    def drain(self) -> None:
        """Send nothing more."""
        for member in self._members:
            member.order(Drain())

    def cut(self) -> None:
        """End what is in flight."""
        for member in self._members:
            member.order(Cut())

    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members]


class _Member:
    """One worker's process and the parent's end of its link."""

    def __init__(self, assignment: Assignment) -> None:
        ours, theirs = socket.socketpair()
        self.live = LiveCounters()
        self.vitals = Vitals(assignment.worker)
        self._name = f"worker {assignment.worker}"
        self._answers: asyncio.Queue[Answered | None] = asyncio.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._link = Connection(ours.detach())

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._link.fileno(), self._take_answers)

    def order(self, order: Order | Assignment) -> None:
        try:
            self._link.send(order)
        except (BrokenPipeError, ConnectionResetError, OSError):
            self._answers.put_nowait(None)

    async def expect(self, kind: type[Kind]) -> Kind:
        answer = await self._answers.get()
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Failed):
            raise LoadgenError(answer.text)
        raise WorkerLostError(f"{self._name} ended unexpectedly; its finished records are kept")

    def _take_answers(self) -> None:
        try:
            while self._link.poll():
                answer: Answered = self._link.recv()
                if isinstance(answer, Progressed):
                    self.live, self.vitals = answer.live, answer.vitals
                    continue
                if isinstance(answer, Done):
                    self.live, self.vitals = answer.live, Vitals(self.vitals.worker)
                self._answers.put_nowait(answer)
        except (EOFError, ConnectionResetError):
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            self._answers.put_nowait(None)

    def hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._link.close()

    async def leave(self) -> None:
        deadline_s = monotonic() + _LEAVE_S
        while self.process.poll() is None:
            if monotonic() > deadline_s:
                self.process.kill()
            await asyncio.sleep(0.01)
