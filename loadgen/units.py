"""Units of resampling: requests near each other share a queue, and are drawn together. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from loadgen.columns import Ints

MOST: Final = 20
FEWEST_PER_UNIT: Final = 8


def stretches(count: int, most: int = MOST) -> Ints:
    """The unit, from 0 on, of each of `count` consecutive requests; shape (count,).

    At most `most` units, nearly of a size; of FEWEST_PER_UNIT requests unless there is one alone.
    """
    units = max(1, min(most, count // FEWEST_PER_UNIT))
    return np.arange(count) * units // max(count, 1)
