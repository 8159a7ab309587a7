"""When each iteration ended, kept as stretches: iterations alike are one stretch.

Times of tokens are derived from it, since a token's time is its iteration's end. A stretch of
iterations whose context grows steadily is an arithmetic series, so that four numbers hold it. It
knows iterations, and no requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Timeline:
    """Appended to as time goes on; times of iterations are asked for afterwards."""

    def __init__(self) -> None:
        self._first = array("q")  # number of each stretch's first iteration
        self._start_s = array("d")
        self._first_s = array("d")
        self._growth_s = array("d")

    def add(self, iteration: int, start_s: float, first_s: float, growth_s: float) -> None:
        """A stretch from `iteration` on: the first takes `first_s`, each later one more."""
        self._first.append(iteration)
        self._start_s.append(start_s)
        self._first_s.append(first_s)
        self._growth_s.append(growth_s)

    def ends_s(self, iterations: NDArray[np.int64]) -> Floats:
        """When these iterations ended, shape (n,)."""
        first = np.frombuffer(self._first, dtype=np.int64)
        at = np.searchsorted(first, iterations, side="right") - 1
        k = iterations - first[at]
        ends_s: Floats = (
            np.frombuffer(self._start_s)[at]
            + (k + 1) * np.frombuffer(self._first_s)[at]
            + np.frombuffer(self._growth_s)[at] * (k * (k + 1) // 2)
        )
        return ends_s

    def tokens_s(self, spans: Sequence[tuple[int, int]]) -> Floats:
        """Ends of all iterations of `spans`, each (first iteration, how many), in their order."""
        if not spans:
            return np.empty(0)
        return self.ends_s(numbers_in(spans))


def numbers_in(spans: Sequence[tuple[int, int]] | NDArray[np.int64]) -> NDArray[np.int64]:
    """The iterations of spans, shape (n, 2): (3, 2), (9, 1) are 3, 4, 9."""
    first, counts = np.asarray(spans, dtype=np.int64).T
    ends = np.cumsum(counts)
    numbers: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(first - (ends - counts), counts)
    return numbers
