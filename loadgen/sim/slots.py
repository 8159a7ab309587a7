"""Who holds which slot, when, and whether anybody gets what is computed there.

The picture of head-of-line blocking: in a static batch, a row that has ended holds its slot until
the longest has. Watches a replica's iterations; it draws nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

from loadgen.sim.policy import Sequence, Step


class Use(StrEnum):
    """What a slot is held for."""

    PREFILL = "prefill"
    DECODE = "decode"
    WASTED = "ended, slot held"


@dataclass(frozen=True, slots=True)
class Hold:
    """A stretch of time in which one request holds one slot."""

    slot: int
    row: int
    use: Use
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Stay:
    slot: int
    sequence: Sequence
    since_s: float
    use: Use = Use.PREFILL


class SlotWatch:
    """Give `watch` to a replica; afterwards `holds` has every stretch, in the order they ended."""

    def __init__(self, slots: int, *, is_static: bool) -> None:
        self._free = list(range(slots))
        self._is_static = is_static
        self._stays: dict[int, _Stay] = {}
        self._now_s = 0.0
        self._holds: list[Hold] = []

    def watch(self, start_s: float, end_s: float, step: Step) -> None:
        """Take one stretch of iterations."""
        for sequence in step.preempted:
            self._leave(self._stays[id(sequence)], start_s)
        is_new_batch = any(id(sequence) not in self._stays for sequence, _ in step.prefill)
        if self._is_static and is_new_batch:
            self._end_batch()
        for sequence, _ in step.prefill:
            if id(sequence) not in self._stays:
                slot = heapq.heappop(self._free)
                self._stays[id(sequence)] = _Stay(slot, sequence, start_s)
        for sequence in step.emitting:
            stay = self._stays[id(sequence)]
            is_now = not any(sequence is other for other, _ in step.prefill)
            if stay.use is Use.PREFILL:
                self._turn(stay, Use.DECODE, start_s if is_now else end_s)
            if not sequence.left:
                self._turn(stay, Use.WASTED, end_s)
                if not self._is_static:
                    self._leave(stay, end_s)
        self._now_s = end_s

    @property
    def holds(self) -> list[Hold]:
        """All stretches so far."""
        if self._is_static:
            self._end_batch()
        return self._holds

    def _turn(self, stay: _Stay, use: Use, now_s: float) -> None:
        if now_s > stay.since_s:
            row = stay.sequence.row
            self._holds.append(Hold(stay.slot, row, stay.use, stay.since_s, now_s))
        stay.use, stay.since_s = use, now_s

    def _leave(self, stay: _Stay, now_s: float) -> None:
        self._turn(stay, stay.use, now_s)
        del self._stays[id(stay.sequence)]
        heapq.heappush(self._free, stay.slot)

    def _end_batch(self) -> None:
        for stay in list(self._stays.values()):
            self._leave(stay, self._now_s)
