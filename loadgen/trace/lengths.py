"""Prompt and output lengths: a law, rounded to whole tokens and clamped to a range.

An unclamped log-normal invents prompts that no model takes, so every law has a smallest and a
largest length, and what clamping does to the mean is told. It knows nothing of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.config import GeneratorConfig, LengthLaw
from loadgen.trace.laws import (
    Constant,
    Exponential,
    Gamma,
    Law,
    LogNormal,
    Mixture,
    UniformTokens,
    Weibull,
)
from loadgen.trace.special import Floats

_GRID: Final = 20_000
_LEAST_SHARE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class TokenLaw:
    """A law of lengths as it is drawn: rounded, and clamped to [low, high]."""

    law: Law
    low: int
    high: int

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.clip(np.rint(self.law.draw(n, rng)), self.low, self.high).astype(np.int64)

    def cdf(self, tokens: Floats) -> Floats:
        """P(length <= tokens), for whole numbers."""
        inside = self.law.cdf(np.asarray(tokens, dtype=np.float64) + 0.5)
        return np.where(tokens >= self.high, 1.0, np.where(tokens < self.low, 0.0, inside))

    def log_probability(self, tokens: Floats) -> Floats:
        """ln P(length = tokens), for whole numbers in [low, high].

        Far out, where the difference of two distribution functions is lost, the density stands in.
        """
        share = self.cdf(tokens) - self.cdf(tokens - 1)
        with np.errstate(divide="ignore"):
            far = self.law.log_density(tokens)
            return np.where(share > _LEAST_SHARE, np.log(np.maximum(share, _LEAST_SHARE)), far)

    def percentile(self, share: float) -> int:
        """The smallest length with at least that share at or below it."""
        low, high = self.low, self.high
        while low < high:
            middle = (low + high) // 2
            if self.cdf(np.array([float(middle)]))[0] >= share:
                high = middle
            else:
                low = middle + 1
        return low

    def moments(self) -> tuple[float, float]:
        """Mean and CV of the clamped law.

        E X = low + the sum of P(X > k), and E X^2 = low^2 + the sum of (2 k + 1) P(X > k), for k
        from low to high - 1; for a wide range the integrals of the law before it is rounded.
        """
        if self.high - self.low <= _GRID:
            k = np.arange(self.low, self.high, dtype=np.float64)
            above = 1 - self.cdf(k)
            first, second = float(above.sum()), float(((2 * k + 1) * above).sum())
        else:
            k = np.geomspace(self.low, self.high, _GRID)
            above = 1 - self.law.cdf(k)
            first = float(np.trapezoid(above, k))
            second = float(np.trapezoid(2 * k * above, k))
        mean = self.low + first
        variance = max(self.low**2 + second - mean**2, 0.0)
        return mean, variance**0.5 / mean

    def ks_distance(self, tokens: NDArray[np.int64]) -> float:
        """The largest gap between the distribution functions of a sample and of this law."""
        values, counts = np.unique(tokens, return_counts=True)
        upto = np.cumsum(counts) / counts.sum()
        before = np.concatenate(([0.0], upto[:-1]))
        at = np.abs(upto - self.cdf(values.astype(np.float64)))
        below = np.abs(before - self.cdf(values.astype(np.float64) - 1))
        return float(max(at.max(), below.max()))


def token_law(config: GeneratorConfig, side: str) -> TokenLaw:
    """The law of one side ("input" or "output") of a generator's configuration."""
    fixed = getattr(config, f"{side}_len")
    if fixed is not None:
        return TokenLaw(Constant(float(fixed)), fixed, fixed)
    low, high = getattr(config, f"{side}_min"), getattr(config, f"{side}_max")
    return TokenLaw(_law(config, side, low, high), low, high)


def _law(config: GeneratorConfig, side: str, low: int, high: int) -> Law:
    kind = getattr(config, f"{side}_law")
    mean, cv = getattr(config, f"{side}_mean"), getattr(config, f"{side}_cv")
    if kind is LengthLaw.UNIFORM:
        return UniformTokens(low, high)
    if kind is LengthLaw.EXPONENTIAL:
        return Exponential(mean)
    if kind is LengthLaw.GAMMA:
        return Gamma.of_mean_cv(mean, cv)
    if kind is LengthLaw.WEIBULL:
        return Weibull.of_mean_cv(mean, cv)
    if mean is None:
        law = LogNormal(getattr(config, f"{side}_mu"), getattr(config, f"{side}_sigma"))
    elif cv is not None:
        law = LogNormal.of_mean_cv(mean, cv)
    else:
        law = LogNormal.of_mean_median(mean, getattr(config, f"{side}_median"))
    mix = getattr(config, f"{side}_mix")
    return law if mix is None else Mixture(mix[0], law, LogNormal(mix[1], mix[2]))


def draw_lesson1_tokens(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(prompt, output) lengths of the batching lesson, from NumPy's legacy generator.

    For seed 42: n = 100 gives 3,748 output tokens, n = 64 gives 2,435.
    """
    legacy = np.random.RandomState(seed)
    prompt = legacy.lognormal(3.5, 1.0, n).astype(int) + 10
    output = legacy.lognormal(3.0, 0.8, n).astype(int) + 10
    return (
        np.clip(prompt, 10, 1024).astype(np.int64),
        np.clip(output, 10, 1024).astype(np.int64),
    )


def coupled(
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    correlation: float,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same lengths put in the order of correlated normal scores (a Gaussian copula).

    Each side keeps its values, so its law stays; Spearman's rank correlation becomes about
    6 / pi * asin(correlation / 2).
    """
    first = rng.standard_normal(len(inputs))
    noise = rng.standard_normal(len(inputs))
    second = correlation * first + (1 - correlation**2) ** 0.5 * noise
    return _in_order(inputs, first), _in_order(outputs, second)


def _in_order(values: NDArray[np.int64], scores: Floats) -> NDArray[np.int64]:
    result = np.empty_like(values)
    result[np.argsort(scores, kind="stable")] = np.sort(values)
    return result
