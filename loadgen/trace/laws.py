"""Laws of positive quantities: gaps and lengths are drawn from them, fitted and compared with them.

Each law tells its density, distribution and mean, and draws from a seeded generator. Formulas:
https://en.wikipedia.org/wiki/Log-normal_distribution, .../Gamma_distribution,
.../Weibull_distribution. A law does not know whether it is one of seconds or of tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from loadgen.trace.special import Floats, gamma_cdf, normal_cdf, weibull_cv, weibull_shape

_LOG_ROOT_2_PI: Final = 0.5 * math.log(2 * math.pi)


class Law(Protocol):
    """A law of a positive quantity."""

    @property
    def mean(self) -> float: ...
    @property
    def cv(self) -> float: ...
    def draw(self, n: int, rng: np.random.Generator) -> Floats: ...
    def cdf(self, x: Floats) -> Floats: ...
    def log_density(self, x: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln X is normal with mean `mu` and standard deviation `sigma`."""

    mu: float
    sigma: float

    @staticmethod
    def of_mean_cv(mean: float, cv: float) -> LogNormal:
        """Matched by moments: sigma^2 = ln(1 + CV^2), mu = ln mean - sigma^2 / 2."""
        variance = math.log1p(cv**2)
        return LogNormal(math.log(mean) - variance / 2, math.sqrt(variance))

    @staticmethod
    def of_mean_median(mean: float, median: float) -> LogNormal:
        """mu = ln median, sigma^2 = 2 ln(mean / median)."""
        return LogNormal(math.log(median), math.sqrt(2 * math.log(mean / median)))

    @property
    def mean(self) -> float:
        return math.exp(min(self.mu + self.sigma**2 / 2, 700.0))

    @property
    def cv(self) -> float:
        return math.sqrt(math.expm1(min(self.sigma**2, 700.0)))

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.lognormal(self.mu, self.sigma, n)

    def cdf(self, x: Floats) -> Floats:
        logs = _logs(x)
        if self.sigma == 0:
            return (logs >= self.mu).astype(np.float64)
        return normal_cdf((logs - self.mu) / self.sigma)

    def log_density(self, x: Floats) -> Floats:
        logs = _logs(x)
        z = (logs - self.mu) / self.sigma
        return -0.5 * z * z - logs - math.log(self.sigma) - _LOG_ROOT_2_PI


@dataclass(frozen=True, slots=True)
class Mixture:
    """The second law with probability `weight`, the first otherwise."""

    weight: float
    first: LogNormal
    second: LogNormal

    @staticmethod
    def of_mean(mean: float, cv: float, weight: float, ratio: float, cv_2: float) -> Mixture:
        """Two components by CV, the second's mean `ratio` times the first's; `mean` of both."""
        first = mean / (1 - weight + weight * ratio)
        return Mixture(
            weight, LogNormal.of_mean_cv(first, cv), LogNormal.of_mean_cv(first * ratio, cv_2)
        )

    @property
    def mean(self) -> float:
        return (1 - self.weight) * self.first.mean + self.weight * self.second.mean

    @property
    def cv(self) -> float:
        square = (1 - self.weight) * self.first.mean**2 * (1 + self.first.cv**2)
        square += self.weight * self.second.mean**2 * (1 + self.second.cv**2)
        return math.sqrt(max(square / self.mean**2 - 1, 0.0))

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        is_second = rng.random(n) < self.weight
        mu = np.where(is_second, self.second.mu, self.first.mu)
        sigma = np.where(is_second, self.second.sigma, self.first.sigma)
        return np.exp(mu + sigma * rng.standard_normal(n))

    def cdf(self, x: Floats) -> Floats:
        return (1 - self.weight) * self.first.cdf(x) + self.weight * self.second.cdf(x)

    def log_density(self, x: Floats) -> Floats:
        return np.logaddexp(
            math.log1p(-self.weight) + self.first.log_density(x),
            math.log(self.weight) + self.second.log_density(x),
        )


@dataclass(frozen=True, slots=True)
class Gamma:
    """Density proportional to x^(shape - 1) exp(-x / scale)."""

    shape: float
    scale: float

    @staticmethod
    def of_mean_cv(mean: float, cv: float) -> Gamma:
        shape = 1.0 / cv**2
        return Gamma(shape, mean / shape)

    @property
    def mean(self) -> float:
        return self.shape * self.scale

    @property
    def cv(self) -> float:
        return 1 / math.sqrt(self.shape)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.gamma(self.shape, self.scale, n)

    def cdf(self, x: Floats) -> Floats:
        return gamma_cdf(self.shape, np.asarray(x, dtype=np.float64) / self.scale)

    def log_density(self, x: Floats) -> Floats:
        front = -math.lgamma(self.shape) - self.shape * math.log(self.scale)
        return front + (self.shape - 1) * _logs(x) - x / self.scale


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(X > x) = exp(-(x / scale)^shape)."""

    shape: float
    scale: float

    @staticmethod
    def of_mean_cv(mean: float, cv: float) -> Weibull:
        return Weibull.of_mean_shape(mean, weibull_shape(cv))

    @staticmethod
    def of_mean_shape(mean: float, shape: float) -> Weibull:
        return Weibull(shape, math.exp(math.log(mean) - math.lgamma(1 + 1 / shape)))

    @property
    def mean(self) -> float:
        return math.exp(math.log(self.scale) + math.lgamma(1 + 1 / self.shape))

    @property
    def cv(self) -> float:
        return weibull_cv(self.shape)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return self.scale * rng.weibull(self.shape, n)

    def cdf(self, x: Floats) -> Floats:
        return -np.expm1(-self._power(x))

    def log_density(self, x: Floats) -> Floats:
        front = math.log(self.shape) - self.shape * math.log(self.scale)
        return front + (self.shape - 1) * _logs(x) - self._power(x)

    def _power(self, x: Floats) -> Floats:
        logs = self.shape * (_logs(x) - math.log(self.scale))
        power: Floats = np.exp(np.minimum(logs, 700.0))
        return power


@dataclass(frozen=True, slots=True)
class Exponential:
    """P(X > x) = exp(-x / mean): the gaps of a Poisson process."""

    mean: float

    @property
    def cv(self) -> float:
        return 1.0

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.exponential(self.mean, n)

    def cdf(self, x: Floats) -> Floats:
        return -np.expm1(-np.maximum(x, 0.0) / self.mean)

    def log_density(self, x: Floats) -> Floats:
        return -x / self.mean - math.log(self.mean)


@dataclass(frozen=True, slots=True)
class Constant:
    """One value."""

    mean: float

    @property
    def cv(self) -> float:
        return 0.0

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return np.full(n, self.mean)

    def cdf(self, x: Floats) -> Floats:
        return (np.asarray(x) >= self.mean).astype(np.float64)

    def log_density(self, x: Floats) -> Floats:
        return np.where(np.asarray(x) == self.mean, math.inf, -math.inf)


@dataclass(frozen=True, slots=True)
class UniformTokens:
    """Each whole number from `low` to `high`, both included, with the same probability."""

    low: int
    high: int

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def cv(self) -> float:
        return math.sqrt(((self.high - self.low + 1) ** 2 - 1) / 12) / self.mean

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.integers(self.low, self.high + 1, n).astype(np.float64)

    def cdf(self, x: Floats) -> Floats:
        whole = np.floor(np.asarray(x, dtype=np.float64))
        return np.clip((whole - self.low + 1) / (self.high - self.low + 1), 0.0, 1.0)

    def log_density(self, x: Floats) -> Floats:
        inside = (np.asarray(x) >= self.low) & (np.asarray(x) <= self.high)
        return np.where(inside, -math.log(self.high - self.low + 1), -math.inf)


@dataclass(frozen=True, slots=True)
class Empirical:
    """The values of a sample, drawn with replacement."""

    values: Floats
    """Sorted."""

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def cv(self) -> float:
        return float(self.values.std()) / self.mean

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return self.values[rng.integers(0, len(self.values), n)]

    def cdf(self, x: Floats) -> Floats:
        return np.searchsorted(self.values, x, side="right") / len(self.values)

    def log_density(self, x: Floats) -> Floats:
        share = self.cdf(x) - np.searchsorted(self.values, x, side="left") / len(self.values)
        with np.errstate(divide="ignore"):
            return np.log(share)


def ks_distance(sample: Floats, law: Law) -> float:
    """Kolmogorov and Smirnov's distance between a sample and a law: the largest gap of the two
    distribution functions, as scipy.stats.kstest has it for a law without atoms.
    """
    values, counts = np.unique(np.asarray(sample, dtype=np.float64), return_counts=True)
    upto = np.cumsum(counts) / counts.sum()
    before = np.concatenate(([0.0], upto[:-1]))
    expected = law.cdf(values)
    return float(max(np.max(upto - expected), np.max(expected - before), 0.0))


def _logs(x: Floats) -> Floats:
    """ln x, and -inf at 0 without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, dtype=np.float64))
