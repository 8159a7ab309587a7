"""Replay: shots are fired when they are due, whatever became of those before them.

One event loop. In an open loop due times are absolute and never re-anchored: a late shot is sent at
once and its lag is in its record. Closed loops and gangs are due when their place is free. Requests
are built ahead of their due time, a bounded number of them, so that neither the schedule waits for
them nor memory grows with the trace. It knows neither HTTP nor files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from loadgen.alarm import Alarm
from loadgen.clock import monotonic
from loadgen.config import Pace
from loadgen.schedule import Shot

Prepared = TypeVar("Prepared")

AHEAD: Final = 1024
"""Requests built ahead of their due time, at most."""
IN_A_ROW: Final = 8
"""Shots that are fired before the event loop has its turn, when many are due at once."""
SLACK_S: Final = 0.002
"""No request is built when the next shot is due within this."""


class Stop:
    """Asks a replay to end: `drain` sends nothing more, `cut` ends what is in flight as well."""

    def __init__(self) -> None:
        self.is_draining = False
        self._replays: set[Replay[Any]] = set()

    def drain(self) -> None:
        self.is_draining = True
        for replay in self._replays:
            replay.on_drain()

    def cut(self) -> None:
        self.drain()
        for replay in self._replays:
            replay.on_cut()

    @contextmanager
    def tells(self, replay: Replay[Any]) -> Iterator[None]:
        """Within the context, `replay` is told of a stop."""
        self._replays.add(replay)
        try:
            yield
        finally:
            self._replays.discard(replay)


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds shots back."""

    pace: Pace = Pace.OPEN
    places: int | None = None
    """In flight at once: the cap of an open loop, or the width of a closed one."""
    ramp_up_s: float = 0.0
    """A closed loop's places become free one by one over this time."""


class Replay(Generic[Prepared]):
    """One target's turn: `prepare` builds a shot's request, `fire` sends it and keeps its record.

    `fire` gets the shot, its request and its absolute due time, and returns when its answer ended;
    where it raises (a full disk, say),
    the replay drains and raises that. `drop` is told of shots that were due but never sent, because
    the run was stopped while they waited under a cap.
    """

    def __init__(
        self,
        prepare: Callable[[Shot], Prepared],
        fire: Callable[[Shot, Prepared, float], Awaitable[float]],
        drop: Callable[[Shot, float], None],
        *,
        stop: Stop,
        limits: Limits = Limits(),
    ) -> None:
        self._prepare = prepare
        self._fire = fire
        self._drop = drop
        self._stop = stop
        self._limits = limits
        self._in_flight: set[asyncio.Future[float]] = set()
        self._ahead: deque[tuple[Shot, Prepared]] = deque()
        self._unbuilt: Iterator[Shot] = iter(())
        self._alarm: Alarm
        self._origin_s = 0.0
        self._gang: int | None = None
        self._gang_due_s = 0.0
        self._failure: BaseException | None = None

    def build_ahead(self, shots: Iterable[Shot]) -> None:
        """Take the shots, in the order of their due times, and build the first requests."""
        self._unbuilt = iter(shots)
        while len(self._ahead) < AHEAD and self._build_one():
            pass

    async def run(self, origin_s: float, on_due: Callable[[], None]) -> None:
        """Fire all shots and wait for the last answer; due times count from `origin_s`."""
        self._origin_s = origin_s
        self._alarm = Alarm()
        try:
            with self._stop.tells(self):
                await self._fire_all(on_due)
                while self._in_flight:
                    await asyncio.wait(self._in_flight)
        finally:
            self._alarm.close()
        if self._failure is not None:
            raise self._failure

    async def _fire_all(self, on_due: Callable[[], None]) -> None:
        due_of = {
            Pace.OPEN: self._due_by_trace,
            Pace.CLOSED: self._due_by_place,
            Pace.GANG: self._due_by_gang,
        }[self._limits.pace]
        in_a_row = 0
        while self._ahead or self._build_one():
            shot, request = self._ahead[0]
            due_s = await due_of(shot)
            if due_s is None:
                self._drop_overdue()
                return
            on_due()
            if self._limits.pace is Pace.OPEN and not await self._place_is_free():
                self._drop_overdue()
                return
            self._ahead.popleft()
            self._launch(shot, request, due_s)
            in_a_row += 1
            if in_a_row >= IN_A_ROW or not self._ahead:
                in_a_row = 0
                await asyncio.sleep(0)  # what was fired is sent, and answers come in

    def _launch(self, shot: Shot, request: Prepared, due_s: float) -> asyncio.Future[float]:
        task = asyncio.ensure_future(self._fire(shot, request, due_s))
        self._in_flight.add(task)
        task.add_done_callback(self._on_ended)
        return task

    async def _due_by_trace(self, shot: Shot) -> float | None:
        """Wait for the shot's own time, which is returned; None when the run is stopped."""
        due_s = self._origin_s + shot.due_s
        while not self._stop.is_draining:
            left_s = due_s - monotonic()
            if left_s <= 0:
                return due_s
            await self._build_or_sleep_until(due_s)
        return None

    async def _due_by_place(self, shot: Shot) -> float | None:
        """Wait until a place is free, which is when the shot is due; None when stopped."""
        if not await self._place_is_free():
            return None
        return monotonic()

    async def _due_by_gang(self, shot: Shot) -> float | None:
        """Wait until the gang before has ended; all of a gang is due at once. None when stopped."""
        if shot.gang != self._gang:
            while self._in_flight and not self._stop.is_draining:
                await self._alarm.until_rung()
            self._gang, self._gang_due_s = shot.gang, monotonic()
        return None if self._stop.is_draining else self._gang_due_s

    async def _build_or_sleep_until(self, at_s: float) -> None:
        has_time = at_s - monotonic() > SLACK_S
        if has_time and len(self._ahead) < AHEAD and self._build_one():
            await asyncio.sleep(0)  # answers come in meanwhile
        else:
            await self._alarm.until(at_s)

    async def _place_is_free(self) -> bool:
        """Wait for a place; False when the run is stopped."""
        places, ramp_s = self._limits.places, self._limits.ramp_up_s
        while places is not None and not self._stop.is_draining:
            in_flight = len(self._in_flight)
            opens_s = self._origin_s + ramp_s * in_flight / places  # when this place opens
            if in_flight >= places:
                await self._alarm.until_rung()
            elif opens_s > monotonic():
                await self._alarm.until(opens_s)
            else:
                break
        return not self._stop.is_draining

    def _on_ended(self, task: asyncio.Future[float]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._stop.drain()
        if self._limits.places is not None or self._limits.pace is Pace.GANG:
            self._alarm.ring()

    def _build_one(self) -> bool:
        shot = next(self._unbuilt, None)
        if shot is None:
            return False
        self._ahead.append((shot, self._prepare(shot)))
        return True

    def _drop_overdue(self) -> None:
        if self._limits.pace is not Pace.OPEN:
            return
        overdue_s = monotonic() - self._origin_s
        waiting = [shot for shot, _ in self._ahead]
        self._ahead.clear()
        for shots in (waiting, self._unbuilt):
            for shot in shots:
                if shot.due_s > overdue_s:
                    return
                self._drop(shot, self._origin_s + shot.due_s)

    def on_drain(self) -> None:
        self._alarm.ring()

    def on_cut(self) -> None:
        # Not at once: a task that has not begun would end without a record.
        asyncio.get_running_loop().call_soon(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._in_flight:
            task.cancel()
