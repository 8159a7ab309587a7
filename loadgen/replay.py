"""Replay: shots are fired at their due times, whatever became of those before them.

One event loop. Due times are absolute and never re-anchored: a late shot is sent at once and
its lag is in its record. Requests are built ahead of their due time, a bounded number of them, so
that neither the schedule waits for them nor memory grows with the trace. It knows neither HTTP nor
files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from loadgen.alarm import Alarm
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
        self.is_draining = False
        self._is_cutting = False
        self._replays: set[Replay[Any]] = set()

    def drain(self) -> None:
        self.is_draining = True
        for replay in self._replays:
            replay.on_drain()

    def cut(self) -> None:
        self._is_cutting = True
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


class Replay(Generic[Prepared]):
    """One target's turn: `prepare` builds a shot's request, `fire` sends it and keeps its record.

    `fire` gets the shot, its request and its absolute due time; where it raises (a full disk, say),
    the replay drains and raises that. `drop` is told of shots that were due but never sent, because
    the run was stopped while they waited under a cap.
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
        self._max_concurrency = max_concurrency
        self._in_flight: set[asyncio.Future[None]] = set()
        self._ahead: deque[tuple[Shot, Prepared]] = deque()
        self._alarm: Alarm
        self._failure: BaseException | None = None

    async def run(self, shots: Iterable[Shot], on_due: Callable[[], None]) -> None:
        """Fire all shots, which come in the order of their due times, and wait for the last answer.

        Due times count from the moment when the first requests have been built.
        """
        unbuilt = iter(shots)
        while len(self._ahead) < AHEAD and self._build_one(unbuilt):
            pass
        origin_s = monotonic()
        self._alarm = Alarm()
        try:
            with self._stop.tells(self):
                await self._fire_all(unbuilt, origin_s, on_due)
                while self._in_flight:
                    await asyncio.wait(self._in_flight)
        finally:
            self._alarm.close()
        if self._failure is not None:
            raise self._failure

    async def _fire_all(
        self, unbuilt: Iterator[Shot], origin_s: float, on_due: Callable[[], None]
    ) -> None:
        while self._ahead or self._build_one(unbuilt):
            shot, request = self._ahead[0]
            due_s = origin_s + shot.due_s
            await self._wait_until_due(due_s, unbuilt)
            if not self._stop.is_draining:
                on_due()
                await self._wait_for_place()
            if self._stop.is_draining:
                self._drop_overdue(unbuilt, origin_s)
                return
            self._ahead.popleft()
            task = asyncio.ensure_future(self._fire(shot, request, due_s))
            self._in_flight.add(task)
            task.add_done_callback(self._on_ended)

    async def _wait_until_due(self, due_s: float, unbuilt: Iterator[Shot]) -> None:
        """Wait, and use the time to build requests; returns early when the run is stopped."""
        while not self._stop.is_draining:
            left_s = due_s - monotonic()
            if left_s <= 0:
                return
            if left_s > _SLACK_S and len(self._ahead) < AHEAD and self._build_one(unbuilt):
                await asyncio.sleep(0)  # answers come in meanwhile
            else:
                await self._alarm.until(due_s)

    async def _wait_for_place(self) -> None:
        """Wait for a place under the cap; returns early when the run is stopped."""
        if self._max_concurrency is None:
            return
        while len(self._in_flight) >= self._max_concurrency and not self._stop.is_draining:
            await self._alarm.until_rung()

    def _on_ended(self, task: asyncio.Future[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._stop.drain()
        if self._max_concurrency is not None:
            self._alarm.ring()

    def _build_one(self, unbuilt: Iterator[Shot]) -> bool:
        shot = next(unbuilt, None)
        if shot is None:
            return False
        self._ahead.append((shot, self._prepare(shot)))
        return True

    def _drop_overdue(self, unbuilt: Iterator[Shot], origin_s: float) -> None:
        now_s = monotonic()
        waiting = [shot for shot, _ in self._ahead]
        self._ahead.clear()
        for shots in (waiting, unbuilt):
            for shot in shots:
                if origin_s + shot.due_s > now_s:
                    return
                self._drop(shot, origin_s + shot.due_s)

    def on_drain(self) -> None:
        self._alarm.ring()

    def on_cut(self) -> None:
        # Not at once: a task that has not begun would end without a record.
        asyncio.get_running_loop().call_soon(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._in_flight:
            task.cancel()
