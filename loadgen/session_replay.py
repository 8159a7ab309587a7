"""Replay of sessions: a later turn is due a think time after the end of the turn before it.

First turns have the trace's own due times, as in `replay.py`. A turn whose parent failed is sent
all the same, since its history is scripted: the load does not shrink where a server fails. After a
stop, turns that were due are dropped with a word, and those not yet due are simply not sent.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

from loadgen.clock import monotonic
from loadgen.replay import IN_A_ROW, SLACK_S, Prepared, Replay
from loadgen.schedule import Shot


class SessionReplay(Replay[Prepared]):
    """As Replay in an open loop, of shots that may have a `follow_up`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: list[
            tuple[float, int, Shot]
        ] = []  # a heap of follow-ups whose time is known
        self._unbuilt_follow_ups: dict[int, Shot] = {}
        self._built: dict[int, Prepared] = {}
        self._expected = 0  # shots in flight that have a follow-up

    async def _fire_all(self, on_due: Callable[[], None]) -> None:
        in_a_row = 0
        while not self._stop.is_draining:
            due_s = self._next_due_s()
            if due_s is None:
                if not self._expected:
                    return
                await self._build_or_wait()
                continue
            if due_s > monotonic():
                await self._build_or_sleep_until(due_s)
                continue
            on_due()
            if not await self._place_is_free():
                break
            self._launch(*self._take_next())
            in_a_row += 1
            if in_a_row >= IN_A_ROW or not self._ahead:
                in_a_row = 0
                await asyncio.sleep(0)
        self._drop_overdue()

    def _next_due_s(self) -> float | None:
        """When the next shot is due, if any is known to be."""
        due_s = None
        if self._ahead or self._build_one():
            due_s = self._origin_s + self._ahead[0][0].due_s
        if self._waiting and (due_s is None or self._waiting[0][0] < due_s):
            return self._waiting[0][0]
        return due_s

    def _take_next(self) -> tuple[Shot, Prepared, float]:
        """The shot that is due first, its request and its due time."""
        due_s = self._origin_s + self._ahead[0][0].due_s if self._ahead else None
        if self._waiting and (due_s is None or self._waiting[0][0] < due_s):
            follow_up_due_s, seq, shot = heapq.heappop(self._waiting)
            if self._unbuilt_follow_ups.pop(seq, None) is not None:  # there was no time before
                return shot, self._prepare(shot), follow_up_due_s
            return shot, self._built.pop(seq), follow_up_due_s
        assert due_s is not None
        return *self._ahead.popleft(), due_s

    def _launch(self, shot: Shot, request: Prepared, due_s: float) -> asyncio.Future[float]:
        task = super()._launch(shot, request, due_s)
        if shot.follow_up is not None:
            self._expected += 1
            self._unbuilt_follow_ups[shot.follow_up.seq] = shot.follow_up
            task.add_done_callback(partial(self._on_parent_ended, shot.follow_up))
        return task

    def _on_parent_ended(self, shot: Shot, parent: asyncio.Future[float]) -> None:
        self._expected -= 1
        if not parent.cancelled() and parent.exception() is None:
            heapq.heappush(self._waiting, (parent.result() + shot.due_s, shot.seq, shot))
        self._alarm.ring()

    def _build_follow_up(self) -> None:
        seq = next(iter(self._unbuilt_follow_ups))
        self._built[seq] = self._prepare(self._unbuilt_follow_ups.pop(seq))

    async def _build_or_wait(self) -> None:
        """Nothing is known to be due before some answer has ended."""
        if self._unbuilt_follow_ups:
            self._build_follow_up()
            await asyncio.sleep(0)
        else:
            await self._alarm.until_rung()

    async def _build_or_sleep_until(self, at_s: float) -> None:
        if self._unbuilt_follow_ups and at_s - monotonic() > SLACK_S:
            self._build_follow_up()
            await asyncio.sleep(0)
        else:
            await super()._build_or_sleep_until(at_s)

    def _drop_overdue(self) -> None:
        super()._drop_overdue()
        now_s = monotonic()
        for due_s, _, shot in sorted(self._waiting):
            if due_s <= now_s:
                self._drop(shot, due_s)
