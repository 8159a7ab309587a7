"""Least squares with few coefficients, all from 0 on, and a fit that outliers do not bend.

Every set of coefficients that may be above 0 is tried: exact, and quick for four. Robustness is
Huber's, by reweighting (Huber, Robust Statistics, 1981). It knows not what is fitted.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HUBER: Final = 1.345
"""In standard deviations: 95 % efficient where the noise is normal."""
_ROUNDS: Final = 30


def nnls(features: Floats, target: Floats) -> Floats:
    """The x >= 0 with the least |features x - target|^2; shapes (n, k), (n,) and (k,)."""
    count = features.shape[1]
    best, best_error = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in map(list, itertools.combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(features[:, chosen], target)
            if (found < 0).any():
                continue
            off = features[:, chosen] @ found - target
            error = float(off @ off)
            if error < best_error * (1 - 1e-12):
                best, best_error = np.zeros(count), error
                best[chosen] = found
    return best


def robust_nnls(features: Floats, target: Floats) -> Floats:
    """As `nnls`, with the weight of what lies far off bounded."""
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    scaled = features / scale
    found = nnls(scaled, target)
    for _ in range(_ROUNDS):
        off = np.abs(scaled @ found - target)
        limit = _HUBER * 1.4826 * float(np.median(off))
        if limit == 0:
            break
        weight = np.sqrt(np.minimum(1.0, limit / np.maximum(off, 1e-300)))
        before, found = found, nnls(scaled * weight[:, None], target * weight)
        if np.allclose(before, found, rtol=1e-6, atol=0):
            break
    unscaled: Floats = found / scale
    return unscaled
