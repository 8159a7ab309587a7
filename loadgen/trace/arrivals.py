"""Gaps between arrivals, drawn from a law whose mean is exactly 1 / rate.

Log-normal gaps are matched by moments, sigma^2 = ln(1 + CV^2) and mu = -ln(rate) - sigma^2 / 2:
a maximum-likelihood fit keeps the shape and loses the rate. It knows nothing of lengths or load.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loadgen.config import ArrivalLaw


def draw_arrivals_ms(
    n: int, rate: float, law: ArrivalLaw, cv: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """n arrival times in ms, the first at 0, `rate` a second; an infinite rate puts all at 0."""
    arrivals = np.zeros(n)
    if math.isfinite(rate) and n > 1:
        arrivals[1:] = np.cumsum(draw_gaps_s(n - 1, rate, law, cv, rng)) * 1000.0
    return arrivals


def draw_gaps_s(
    n: int, rate: float, law: ArrivalLaw, cv: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """n gaps in seconds with mean 1 / rate; `cv` shapes the log-normal and the gamma law."""
    mean_s = 1.0 / rate
    if law is ArrivalLaw.CONSTANT:
        return np.full(n, mean_s)
    if law is ArrivalLaw.EXPONENTIAL:
        return rng.exponential(mean_s, n)
    if law is ArrivalLaw.GAMMA:
        shape = 1.0 / cv**2
        return rng.gamma(shape, mean_s / shape, n)
    variance = math.log1p(cv**2)
    return rng.lognormal(math.log(mean_s) - variance / 2, math.sqrt(variance), n)
