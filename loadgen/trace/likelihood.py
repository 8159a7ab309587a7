"""Estimators by maximum likelihood, for values with weights.

Log-normal: mean and deviation of the logarithms. Two log-normals: expectation and maximisation.
Gamma: Newton on the shape (Minka, Estimating a Gamma distribution, 2002). Weibull: bisection on the
shape. It does not know what the values are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.trace.laws import Gamma, LogNormal, Mixture, Weibull
from loadgen.trace.special import Floats, digamma, trigamma

_MOST_POINTS: Final = 4_000
_EM_STEPS: Final = 500
_CLAMP_STEPS: Final = 20_000
_NEWTON_STEPS: Final = 100
_NARROWEST: Final = 0.05
"""Least sigma of a mixture's component: one on a single popular value would grow without bound."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Positive values with weights, as large samples are fitted."""

    value: Floats
    weight: Floats
    """Sums to 1."""

    @staticmethod
    def of(values: Floats) -> Sample:
        """Distinct values; where they are many, the geometric means of runs of sorted ones."""
        value, counts = np.unique(values, return_counts=True)
        weight = counts / counts.sum()
        if len(value) > _MOST_POINTS:
            cells = np.minimum((np.cumsum(weight) * _MOST_POINTS).astype(np.int64), _MOST_POINTS)
            total = np.bincount(cells, weight)
            means = np.bincount(cells, weight * np.log(value)) / np.maximum(total, 1e-300)
            value, weight = np.exp(means[total > 0]), total[total > 0]
        return Sample(value, weight)

    def mean(self, of: Floats) -> float:
        return float(self.weight @ of)


def fit_lognormal(sample: Sample) -> LogNormal:
    """Mean and standard deviation of ln x."""
    logs = np.log(sample.value)
    mu = sample.mean(logs)
    return LogNormal(mu, math.sqrt(sample.mean((logs - mu) ** 2)))


def fit_clamped(sample: Sample, low: int, high: int) -> LogNormal:
    """The log-normal whose values, rounded and clamped to [low, high], are the sample (EM).

    What stands at an end may have been anything beyond it, so it counts with the moments of a
    normal law cut off there.
    """
    logs = np.log(sample.value)
    is_low, is_high = sample.value <= low, sample.value >= high
    inner = ~(is_low | is_high)
    share = float(sample.weight[inner].sum())
    first = float(sample.weight[inner] @ logs[inner])
    second = float(sample.weight[inner] @ logs[inner] ** 2)
    ends = (
        (float(sample.weight[is_low].sum()), math.log(low + 0.5), -1.0),
        (float(sample.weight[is_high].sum()), math.log(high - 0.5), 1.0),
    )
    start = fit_lognormal(sample)
    mu, sigma = start.mu, max(start.sigma, 1e-3)
    for _ in range(_CLAMP_STEPS):
        total_1, total_2 = first, second
        for weight, cut, side in ends:
            z = side * (cut - mu) / sigma
            hazard = _hazard(z)
            mean = mu + side * sigma * hazard
            total_1 += weight * mean
            total_2 += weight * (sigma**2 * (1 + z * hazard - hazard**2) + mean**2)
        better = math.sqrt(max(total_2 - total_1**2, 1e-12))
        is_done = abs(total_1 - mu) + abs(better - sigma) < 1e-10
        mu, sigma = total_1, better
        if is_done:
            break
    return LogNormal(mu, sigma) if share > 0 else start


def _hazard(z: float) -> float:
    """Density over upper tail of the standard normal; about z far out."""
    tail = math.erfc(z / math.sqrt(2)) / 2
    if tail < 1e-290:
        return z + 1 / z
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / tail


def fit_lognormal_of_mean(sample: Sample, mean: float) -> LogNormal:
    """The likeliest log-normal among those of that mean.

    With y = ln(x / mean) and mu = -v / 2 the derivative by v = sigma^2 of the log-likelihood is 0
    where v^2 + 4 v - 4 E y^2 = 0.
    """
    y = np.log(sample.value / mean)
    variance = -2 + 2 * math.sqrt(1 + sample.mean(y * y))
    return LogNormal(math.log(mean) - variance / 2, math.sqrt(variance))


def fit_gamma(sample: Sample) -> Gamma:
    """The shape solves ln(shape) - digamma(shape) = ln(mean) - mean of ln x; the mean stays."""
    mean = sample.mean(sample.value)
    gap = max(math.log(mean) - sample.mean(np.log(sample.value)), 1e-12)
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(_NEWTON_STEPS):
        error = math.log(shape) - digamma(shape) - gap
        inverse = 1 / shape + error / (shape**2 * (1 / shape - trigamma(shape)))
        better = 1 / inverse if inverse > 0 else shape / 2
        is_done = abs(better - shape) <= 1e-12 * shape
        shape = better
        if is_done:
            break
    return Gamma(shape, mean / shape)


def fit_weibull(sample: Sample) -> Weibull:
    """The shape k solves E(x^k ln x) / E(x^k) - 1 / k = E(ln x), whose left side grows with k."""
    logs = np.log(sample.value)
    middle = sample.mean(logs)
    centred = logs - logs.max()
    low, high = 1e-3, 1e3
    for _ in range(_NEWTON_STEPS):
        shape = math.sqrt(low * high)
        powers = sample.weight * np.exp(shape * centred)
        if float(powers @ logs) / float(powers.sum()) - 1 / shape < middle:
            low = shape
        else:
            high = shape
    scale = math.exp(logs.max()) * sample.mean(np.exp(shape * centred)) ** (1 / shape)
    return Weibull(shape, scale)


def fit_mixture(sample: Sample) -> Mixture:
    """Two log-normals by expectation and maximisation, from several starts; the likeliest."""
    logs = np.log(sample.value)
    order = np.argsort(logs)
    ranks = np.cumsum(sample.weight[order])
    best: tuple[float, Floats] | None = None
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        cut = logs[order][np.searchsorted(ranks, share).clip(0, len(logs) - 1)]
        start = (logs > cut).astype(np.float64) * 0.9 + 0.05
        found = _em(logs, sample.weight, start)
        if best is None or found[0] > best[0]:
            best = found
    assert best is not None
    weight, mu_1, sigma_1, mu_2, sigma_2 = best[1].tolist()
    if weight > 0.5:  # the second component is the smaller one
        weight, mu_1, sigma_1, mu_2, sigma_2 = 1 - weight, mu_2, sigma_2, mu_1, sigma_1
    return Mixture(weight, LogNormal(mu_1, sigma_1), LogNormal(mu_2, sigma_2))


def _em(logs: Floats, weight: Floats, second: Floats) -> tuple[float, Floats]:
    """(mean log-likelihood of ln x, [share, mu, sigma, mu, sigma]) from memberships."""
    last = -math.inf
    found = np.zeros(5)
    for _ in range(_EM_STEPS):
        share = min(max(float(weight @ second), 1e-6), 1 - 1e-6)
        parts = []
        for members, total in ((1 - second, 1 - share), (second, share)):
            owned = weight * members
            mu = float(owned @ logs) / total
            variance = float(owned @ (logs - mu) ** 2) / total
            parts += [mu, max(math.sqrt(max(variance, 0.0)), _NARROWEST)]
        found = np.array([share, *parts])
        ones = math.log(1 - share) + _log_normal(logs, parts[0], parts[1])
        twos = math.log(share) + _log_normal(logs, parts[2], parts[3])
        both = np.logaddexp(ones, twos)
        second = np.exp(twos - both)
        now = float(weight @ both)
        if now - last < 1e-10:
            break
        last = now
    return now, found


def _log_normal(x: Floats, mu: float, sigma: float) -> Floats:
    return -0.5 * ((x - mu) / sigma) ** 2 - math.log(sigma) - 0.5 * math.log(2 * math.pi)


def with_mean(mixture: Mixture, mean: float) -> Mixture:
    shift = math.log(mean / mixture.mean)
    return Mixture(
        mixture.weight,
        LogNormal(mixture.first.mu + shift, mixture.first.sigma),
        LogNormal(mixture.second.mu + shift, mixture.second.sigma),
    )
