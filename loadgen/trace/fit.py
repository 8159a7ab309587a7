"""Laws fitted to a trace's lengths and gaps by maximum likelihood, and told as generator flags.

Log-normal with one component and two, gamma, Weibull and exponential; for lengths also a log-normal
whose ends are clamps. Lengths are judged as they would be drawn: rounded, and clamped to the
sample's range. Laws of gaps keep the mean gap, and so the rate; a log-normal and a Weibull fitted
freely stand beside them, to show what that does to the rate. It prints nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.figures import describe
from loadgen.trace.laws import Exponential, Gamma, Law, LogNormal, Mixture, Weibull, ks_distance
from loadgen.trace.lengths import TokenLaw
from loadgen.trace.likelihood import (
    Sample,
    fit_clamped,
    fit_gamma,
    fit_lognormal,
    fit_lognormal_of_mean,
    fit_mixture,
    fit_weibull,
    with_mean,
)
from loadgen.trace.special import Floats
from loadgen.trace.trace import Trace

_LEAST_CORRELATION: Final = 0.05


@dataclass(frozen=True, slots=True)
class Fit:
    """One law fitted to one column."""

    name: str
    law: Law
    parameters: int
    log_likelihood: float
    """Of the whole sample, in nats."""
    ks: float
    keeps_mean: bool = True
    """Whether a drawn trace would have the sample's rate; without it a fit is never the best."""

    @property
    def aic(self) -> float:
        """Akaike's criterion: lower is better."""
        return 2 * self.parameters - 2 * self.log_likelihood

    def as_json(self) -> dict[str, Any]:
        """Law, parameters and figures."""
        return {
            "law": self.name,
            "parameters": parameters_of(self.law),
            "keeps_mean": self.keeps_mean,
            "mean": self.law.mean,
            "cv": self.law.cv,
            "ks": self.ks,
            "log_likelihood": self.log_likelihood,
            "aic": self.aic,
        }


def parameters_of(law: Law) -> dict[str, float]:
    """A law's parameters by name."""
    if isinstance(law, Mixture):
        first, second = law.first, law.second
        return {
            "weight": law.weight,
            "mu_1": first.mu,
            "sigma_1": first.sigma,
            "mu_2": second.mu,
            "sigma_2": second.sigma,
        }
    return {name: getattr(law, name) for name in law.__dataclass_fields__}  # type: ignore[attr-defined]


def fit_lengths(tokens: NDArray[np.int64]) -> list[Fit]:
    """All laws that can be fitted, the best first. One distinct value gives none."""
    value, counts = np.unique(tokens, return_counts=True)
    if len(value) < 2:
        return []
    low, high = int(value[0]), int(value[-1])
    sample = Sample.of(tokens.astype(np.float64))
    laws: list[tuple[str, Law, int]] = [
        ("lognormal", fit_lognormal(sample), 2),
        ("lognormal-clamped", fit_clamped(sample, low, high), 2),
        ("gamma", fit_gamma(sample), 2),
        ("weibull", fit_weibull(sample), 2),
        ("exponential", Exponential(sample.mean(sample.value)), 1),
        ("lognormal-2", fit_mixture(sample), 5),
    ]
    fits = []
    for name, law, count in laws:
        drawn = TokenLaw(law, low, high)
        likely = float(counts @ drawn.log_probability(value.astype(np.float64)))
        fits.append(Fit(name, law, count, likely, drawn.ks_distance(tokens)))
    return ranked(fits, len(tokens))


def fit_gaps(gaps_s: Floats) -> list[Fit]:
    """All laws that can be fitted, those with the gaps' own mean first, of them the best first.

    Gaps of 0 (arrivals in one tick of the clock) count as half the smallest other gap in the
    likelihood, where they have no density; in the KS distance they are what they are.
    """
    positive = gaps_s[gaps_s > 0]
    if len(positive) < 2 or len(np.unique(positive)) < 2:
        return []
    mean = float(gaps_s.mean())
    values = np.where(gaps_s > 0, gaps_s, positive.min() / 2)
    sample = Sample.of(values)
    weibull = fit_weibull(sample)
    laws: list[tuple[str, Law, int, bool]] = [
        ("lognormal", fit_lognormal_of_mean(sample, mean), 2, True),
        ("gamma", Gamma.of_mean_cv(mean, fit_gamma(sample).cv), 2, True),
        ("weibull", Weibull.of_mean_shape(mean, weibull.shape), 2, True),
        ("exponential", Exponential(mean), 1, True),
        ("lognormal-2", with_mean(fit_mixture(sample), mean), 5, True),
        ("lognormal-free", fit_lognormal(sample), 2, False),
        ("weibull-free", weibull, 2, False),
    ]
    fits = [
        Fit(
            name,
            law,
            count,
            float(law.log_density(values).sum()),
            ks_distance(gaps_s, law),
            keeps_mean,
        )
        for name, law, count, keeps_mean in laws
    ]
    return ranked(fits, len(gaps_s))


def ranked(fits: list[Fit], n: int) -> list[Fit]:
    """The best first: of those as near to the sample as the nearest, the lowest AIC.

    Near is a KS distance within a tenth and 0.5 / sqrt(n) of the smallest, a sample's own noise.
    AIC alone would take a law of many parts for a spike in the sample, far from the rest of it.
    """
    nearest = min(fit.ks for fit in fits if fit.keeps_mean)
    limit = 1.1 * nearest + 0.5 / math.sqrt(n)
    return sorted(fits, key=lambda fit: (not fit.keeps_mean, fit.ks > limit, fit.aic))


def length_flags(side: str, fits: list[Fit], low: int, high: int) -> list[str]:
    """Flags of `trace generate` that draw lengths of the best law, clamped as the sample is."""
    if not fits:
        return [f"--{side}-len", str(low)]
    law = fits[0].law
    flags: list[str] = []
    if isinstance(law, LogNormal | Mixture):
        first = law.first if isinstance(law, Mixture) else law
        flags += [f"--{side}-mu", _told(first.mu), f"--{side}-sigma", _told(first.sigma)]
    if isinstance(law, Mixture):
        parts = (law.weight, law.second.mu, law.second.sigma)
        flags += [f"--{side}-mix", ":".join(map(_told, parts))]
    if isinstance(law, Gamma | Weibull | Exponential):
        flags += [f"--{side}-law", fits[0].name, f"--{side}-mean", _told(law.mean)]
    if isinstance(law, Gamma | Weibull):
        flags += [f"--{side}-cv", _told(law.cv)]
    return [*flags, f"--{side}-min", str(low), f"--{side}-max", str(high)]


def gap_flags(fits: list[Fit], trace: Trace) -> list[str]:
    """Flags of `trace generate` that draw gaps of the best law at the trace's own rate."""
    if trace.duration_s == 0:
        return ["--request-rate", "inf"]
    rate = ["--request-rate", _told((len(trace) - 1) / trace.duration_s)]
    if not fits:
        return [*rate, "--arrival", "constant"]
    law = fits[0].law
    if isinstance(law, Mixture):
        ratio = math.exp(math.log(law.second.mean) - math.log(law.first.mean))
        mix = ":".join(map(_told, (law.weight, ratio, law.second.cv)))
        return [*rate, "--arrival-cv", _told(law.first.cv), "--arrival-mix", mix]
    flags = [*rate, "--arrival", fits[0].name]
    return flags if isinstance(law, Exponential) else [*flags, "--arrival-cv", _told(law.cv)]


def _told(value: float) -> str:
    return f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class TraceFit:
    """All fits of one trace."""

    gaps: list[Fit]
    input_tokens: list[Fit]
    output_tokens: list[Fit]
    zero_gaps: float
    """Share of gaps that are 0."""
    figures: dict[str, Any]
    flags: list[str]
    """Flags of `trace generate` for the best laws."""


def fit_trace(trace: Trace) -> TraceFit:
    """Laws of gaps, prompts and outputs; the flags draw as many rows with the best of each."""
    gaps_s = np.diff(trace.timestamp_ms) / 1000.0
    gaps = fit_gaps(gaps_s) if len(gaps_s) else []
    figures = describe(trace)
    columns = {"input": trace.input_length, "output": trace.output_length}
    sides = {side: fit_lengths(column) for side, column in columns.items()}
    flags = ["--num-prompts", str(len(trace)), *gap_flags(gaps, trace)]
    for side, column in columns.items():
        flags += length_flags(side, sides[side], int(column.min()), int(column.max()))
    ranked = figures["length_correlation"]
    if ranked is not None and abs(ranked) >= _LEAST_CORRELATION:
        score = 2 * math.sin(math.pi * ranked / 6)  # of normal scores with that rank correlation
        flags += ["--length-correlation", _told(max(-1.0, min(1.0, score)))]
    zero = float((gaps_s == 0).mean()) if len(gaps_s) else 0.0
    return TraceFit(gaps, sides["input"], sides["output"], zero, figures, flags)
