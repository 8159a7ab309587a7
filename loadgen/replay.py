"""Replay: shots are fired at their due times, whatever became of those before them.

One event loop. Due times are absolute and never re-anchored: a late shot is sent at once and
its lag is in its record. Requests are built ahead of their due time, a bounded number
of them, so that neither the schedule waits for them nor memory grows with the trace. It knows
neither HTTP nor files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from loadgen.clock import monotonic
from loadgen.schedule import Shot

Prepared = TypeVar("Prepared")

AHEAD: Final = 1024
"""Requests built ahead of their due time, at most."""
_SLACK_S: Final = 0.002
"""No request is built when the next shot is due within this."""


class Stop:
    """Asks a replay to end: `drain` sends nothing more, `cut` ends what is in flight as well."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.cutting = asyncio.Event()

    def drain(self) -> None:
        self.draining.set()

    def cut(self) -> None:
        self.draining.set()
        self.cutting.set()


class Replay(Generic[Prepared]):
    """One target's turn: `prepare` builds a shot's request, `fire` sends it and keeps its record.

    `fire` gets the shot, its request and its absolute due time, and never raises. `drop` is told of
    shots that were due but never sent, because the run was stopped while they waited under a cap.
    """

    def __init__(
        self,
        prepare: Callable[[Shot], Prepared],
        fire: Callable[[Shot, Prepared, float], Awaitable[None]],
        drop: Callable[[Shot, float], None],
        *,
        stop: Stop,
        max_concurrency: int | None = None,
    ) -> None:
        self._prepare = prepare
        self._fire = fire
        self._drop = drop
        self._stop = stop
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self, shots: Sequence[Shot], on_due: Callable[[], None]) -> None:
        """Fire all shots, the earliest first, and wait for the last answer.

        Due times count from the moment when the first requests have been built.
        """
        ahead: deque[Prepared] = deque(self._prepare(shot) for shot in shots[:AHEAD])
        origin_s = monotonic()
        cutter = asyncio.create_task(self._cut_when_asked())
        try:
            for index, shot in enumerate(shots):
                due_s = origin_s + shot.due_s
                if not await self._wait_until(due_s, shots, index, ahead):
                    self._drop_overdue(shots[index:], origin_s)
                    break
                on_due()
                if self._slots is not None and not await self._take_slot():
                    self._drop_overdue(shots[index:], origin_s)
                    break
                request = ahead.popleft() if ahead else self._prepare(shot)
                task = asyncio.create_task(self._fire_one(shot, request, due_s))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
            while self._in_flight:
                await asyncio.wait(self._in_flight)
        finally:
            cutter.cancel()

    async def _wait_until(
        self, due_s: float, shots: Sequence[Shot], index: int, ahead: deque[Prepared]
    ) -> bool:
        """Wait for `due_s`, building further requests meanwhile; False when the run is stopped."""
        while not self._stop.draining.is_set():
            left_s = due_s - monotonic()
            if left_s <= 0:
                return True
            next_unbuilt = index + len(ahead)
            if left_s > _SLACK_S and len(ahead) < AHEAD and next_unbuilt < len(shots):
                ahead.append(self._prepare(shots[next_unbuilt]))
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(self._stop.draining.wait(), left_s)
            except TimeoutError:
                continue
        return False

    async def _take_slot(self) -> bool:
        """Wait for a place under the cap; False when the run is stopped first."""
        assert self._slots is not None
        if not self._slots.locked():
            await self._slots.acquire()
            return True
        slot = asyncio.ensure_future(self._slots.acquire())
        stopped = asyncio.ensure_future(self._stop.draining.wait())
        await asyncio.wait((slot, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if slot.done():
            return True
        slot.cancel()
        return False

    async def _fire_one(self, shot: Shot, request: Prepared, due_s: float) -> None:
        try:
            await self._fire(shot, request, due_s)
        finally:
            if self._slots is not None:
                self._slots.release()

    def _drop_overdue(self, shots: Sequence[Shot], origin_s: float) -> None:
        now_s = monotonic()
        for shot in shots:
            if origin_s + shot.due_s > now_s:
                break
            self._drop(shot, origin_s + shot.due_s)

    async def _cut_when_asked(self) -> None:
        await self._stop.cutting.wait()
        for task in self._in_flight:
            task.cancel()
