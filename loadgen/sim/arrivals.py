"""When requests come: at the trace's times, all at once, or when others have ended.

The shots are those of `schedule.py`, so that a simulation and a run ask for the same.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from loadgen.schedule import Shot


class Arrivals(Protocol):
    """A stream of requests that may depend on the answers."""

    @property
    def due_s(self) -> float:
        """When the next one is due; inf: none is, or none before something ends."""

    @property
    def follow_ends(self) -> bool:
        """Whether ends may cause arrivals."""

    def take(self) -> Shot:
        """The next one, due at `due_s`."""

    def ended(self, shot: Shot, end_s: float) -> None:
        """An answer is whole."""


class OpenLoop:
    """Shots in the order of their due times; a session's later turns follow their answers."""

    def __init__(self, shots: Iterable[Shot], *, has_sessions: bool = False) -> None:
        self._shots: Iterator[Shot] = iter(shots)
        self._next = next(self._shots, None)
        self._later: list[tuple[float, int, Shot]] = []
        self._numbers = itertools.count()
        self.follow_ends = has_sessions

    @property
    def due_s(self) -> float:
        due_s = math.inf if self._next is None else self._next.due_s
        return min(due_s, self._later[0][0]) if self._later else due_s

    def take(self) -> Shot:
        if self._later and (self._next is None or self._later[0][0] < self._next.due_s):
            return heapq.heappop(self._later)[2]
        shot = self._next
        assert shot is not None
        self._next = next(self._shots, None)
        return shot

    def ended(self, shot: Shot, end_s: float) -> None:
        if (later := shot.follow_up) is not None:
            due_s = end_s + later.due_s
            heapq.heappush(self._later, (due_s, next(self._numbers), replace(later, due_s=due_s)))


class ClosedLoop:
    """So many in flight: one that ends lets the next one go."""

    follow_ends = True

    def __init__(self, shots: Iterable[Shot], width: int) -> None:
        self._shots = iter(shots)
        self._next = next(self._shots, None)
        self._free_s = [0.0] * width  # a heap: when each free place became free

    @property
    def due_s(self) -> float:
        return math.inf if self._next is None or not self._free_s else self._free_s[0]

    def take(self) -> Shot:
        shot = self._next
        assert shot is not None
        heapq.heappop(self._free_s)
        self._next = next(self._shots, None)
        return shot

    def ended(self, shot: Shot, end_s: float) -> None:
        heapq.heappush(self._free_s, end_s)


class Gangs:
    """A gang goes when all of the one before have ended."""

    follow_ends = True

    def __init__(self, shots: Iterable[Shot]) -> None:
        self._shots = iter(shots)
        self._next = next(self._shots, None)
        self._gang = 0
        self._in_flight = 0
        self._free_s = 0.0

    @property
    def due_s(self) -> float:
        if self._next is None or (self._next.gang != self._gang and self._in_flight):
            return math.inf
        return self._free_s

    def take(self) -> Shot:
        shot = self._next
        assert shot is not None
        assert shot.gang is not None
        self._gang = shot.gang
        self._in_flight += 1
        self._next = next(self._shots, None)
        return shot

    def ended(self, shot: Shot, end_s: float) -> None:
        self._in_flight -= 1
        self._free_s = max(self._free_s, end_s)
