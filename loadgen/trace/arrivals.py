"""Arrivals: gaps from a law whose mean is exactly 1 / rate, under a rate that may move.

Log-normal gaps are matched by moments, sigma^2 = ln(1 + CV^2) and mu = -ln(rate) - sigma^2 / 2:
a maximum-likelihood fit keeps the shape and loses the rate. Under a profile the gaps are drawn at
rate 1 and their sums mapped through the profile. It knows nothing of lengths or load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.config import ArrivalLaw
from loadgen.trace.laws import Constant, Exponential, Gamma, Law, LogNormal, Mixture, Weibull
from loadgen.trace.profile import Profile


@dataclass(frozen=True, slots=True)
class GapMix:
    """A second log-normal component of the gaps."""

    weight: float
    ratio: float
    """Its mean over that of the first."""
    cv: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What arrivals are drawn from."""

    rate: float
    """A second; infinite: all at the start. Left aside where there is a profile."""
    law: ArrivalLaw
    cv: float
    mix: GapMix | None = None
    profile: Profile | None = None
    is_exact: bool = False
    """Rescale the drawn gaps, so that the sample itself has the asked rate."""

    @property
    def gap_law(self) -> Law:
        """The law of the gaps in seconds; under a profile, of the gaps between unit-rate events."""
        mean = 1.0 if self.profile is not None else 1.0 / self.rate
        return gap_law(mean, self.law, self.cv, self.mix)

    def draw_ms(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """n arrival times in ms, the first at 0."""
        times = np.zeros(n)
        if n == 1 or (self.profile is None and not math.isfinite(self.rate)):
            return times
        law = self.gap_law
        gaps = law.draw(n - 1, rng)
        if self.is_exact:
            gaps *= law.mean * (n - 1) / gaps.sum()
        times[1:] = np.cumsum(gaps)
        if self.profile is not None:
            times = self.profile.time_s(times)
            times -= times[0]
        return times * 1000.0

    def asked_rate(self, n: int) -> float:
        """The mean rate over the time in which n arrivals are expected."""
        if self.profile is None:
            return self.rate
        if n == 1:
            return math.nan
        first_s, last_s = self.profile.time_s(np.array([0.0, n - 1.0]))
        return (n - 1) / float(last_s - first_s)

    def law_gaps(self, timestamp_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gaps of drawn arrivals as `gap_law` has them: with the profile taken out again."""
        times_s = timestamp_ms / 1000.0
        if self.profile is not None:
            start_s = self.profile.time_s(np.array([0.0]))[0]
            times_s = self.profile.expected(times_s + start_s)
        return np.maximum(np.diff(times_s), 0.0)


def gap_law(mean: float, law: ArrivalLaw, cv: float, mix: GapMix | None = None) -> Law:
    """The law of gaps with exactly that mean; `cv` shapes all but exponential and constant gaps."""
    if mix is not None:
        return Mixture.of_mean(mean, cv, mix.weight, mix.ratio, mix.cv)
    if law is ArrivalLaw.CONSTANT:
        return Constant(mean)
    if law is ArrivalLaw.EXPONENTIAL:
        return Exponential(mean)
    if law is ArrivalLaw.GAMMA:
        return Gamma.of_mean_cv(mean, cv)
    if law is ArrivalLaw.WEIBULL:
        return Weibull.of_mean_cv(mean, cv)
    return LogNormal.of_mean_cv(mean, cv)
