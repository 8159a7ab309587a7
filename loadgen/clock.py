"""Where time comes from.

Every duration is measured on one monotonic clock, in seconds. On Linux `time.monotonic` reads
CLOCK_MONOTONIC, which all processes of a machine share, so stamps of several workers (and of the
truth server) may be subtracted. It knows nothing of wall time: the run header takes that, once.
"""

from __future__ import annotations

import time
from typing import Protocol

monotonic = time.monotonic


class Clock(Protocol):
    """What a caller may ask of time: the present moment, in seconds since an arbitrary origin."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return monotonic()


class VirtualClock:
    """A clock that moves only when it is told to; the simulator and pure tests use it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance_to(self, at_s: float) -> None:
        """Move to `at_s`; raises ValueError for a step back."""
        if at_s < self._now_s:
            raise ValueError(f"time runs forward: {at_s} < {self._now_s}")
        self._now_s = at_s
