"""Special functions that NumPy lacks, for arrays: the normal and gamma laws need them.

Incomplete gamma: series below a + 1, Lentz's continued fraction above (Numerical Recipes, 6.2;
https://dlmf.nist.gov/8.9 and 8.11). Digamma and trigamma: recurrence, then the asymptotic series
(https://dlmf.nist.gov/5.11). It knows nothing of traces.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ERFC: Final = np.frompyfunc(math.erfc, 1, 1)
_TINY: Final = 1e-300
_STEPS: Final = 20_000
_SMALL: Final = 1e-16


def normal_cdf(z: Floats) -> Floats:
    """P(Z <= z) for a standard normal Z."""
    return np.asarray(_ERFC(-np.asarray(z, dtype=np.float64) / math.sqrt(2)), dtype=np.float64) / 2


def gamma_cdf(shape: float, x: Floats) -> Floats:
    """P(X <= x) for a gamma law of that shape and scale 1."""
    x = np.maximum(np.asarray(x, dtype=np.float64), 0.0)
    result = np.zeros_like(x)
    low = (x > 0) & (x < shape + 1)
    high = x >= shape + 1
    result[low] = _lower_series(shape, x[low])
    result[high] = 1 - _upper_fraction(shape, x[high])
    return np.clip(result, 0.0, 1.0)


def _front(shape: float, x: Floats) -> Floats:
    return np.exp(shape * np.log(x) - x - math.lgamma(shape))


def _lower_series(shape: float, x: Floats) -> Floats:
    term = np.full_like(x, 1 / shape)
    total = term.copy()
    for step in range(1, _STEPS):
        term *= x / (shape + step)
        total += term
        if not (term > total * _SMALL).any():
            break
    return total * _front(shape, x)


def _upper_fraction(shape: float, x: Floats) -> Floats:
    b = x + 1 - shape
    c = np.full_like(x, 1 / _TINY)
    d = 1 / np.where(b == 0, _TINY, b)
    h = d.copy()
    for step in range(1, _STEPS):
        a = -step * (step - shape)
        b = b + 2
        d = a * d + b
        d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
        c = b + a / c
        c = np.where(np.abs(c) < _TINY, _TINY, c)
        change = c * d
        h *= change
        if not (np.abs(change - 1) > _SMALL * 10).any():
            break
    return h * _front(shape, x)


def digamma(x: float) -> float:
    """d/dx ln Gamma(x), for x > 0."""
    shift = 0.0
    while x < 10:
        shift -= 1 / x
        x += 1
    y = 1 / (x * x)
    tail = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return shift + math.log(x) - 1 / (2 * x) - tail


def trigamma(x: float) -> float:
    """d2/dx2 ln Gamma(x), for x > 0."""
    shift = 0.0
    while x < 10:
        shift += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    tail = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66)))) / x
    return shift + 1 / x + y / 2 + tail


def weibull_shape(cv: float) -> float:
    """The shape of the Weibull law with that coefficient of variation, by bisection.

    1 + CV^2 = Gamma(1 + 2/k) / Gamma(1 + 1/k)^2, which falls as k grows.
    """
    if cv < 1e-4:  # beyond this the two logarithms cancel; the law is all but constant
        return math.pi / (math.sqrt(6) * cv)
    wanted = math.log1p(cv * cv)
    low, high = 1e-3, 1e5
    for _ in range(200):
        middle = math.sqrt(low * high)
        if math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def weibull_cv(shape: float) -> float:
    """The coefficient of variation of a Weibull law of that shape."""
    return math.sqrt(math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))
