"""Fits: what was drawn is found again, and the printed flags draw it once more."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import pytest

from loadgen.cli import build_parser
from loadgen.config import GeneratorConfig
from loadgen.flags import take, validate
from loadgen.trace import Trace
from loadgen.trace.fit import Fit, TraceFit, fit_gaps, fit_lengths, fit_trace, ranked
from loadgen.trace.generate import Source, distances, generate
from loadgen.trace.laws import Exponential, LogNormal

N = 20_000
DRAWN: dict[str, dict[str, Any]] = {
    "defaults": {"request_rate": 8},
    "exponential": {"arrival": "exponential", "request_rate": 3},
    "gamma": {"burstiness": 0.5, "request_rate": 3},
    "weibull": {"arrival": "weibull", "arrival_cv": 3.0, "request_rate": 50},
    "constant": {"arrival": "constant", "request_rate": 4},
    "two kinds of gaps": {"arrival_cv": 0.4, "arrival_mix": "0.2:40:0.3", "request_rate": 2},
    "one lognormal": {"input_mean": 900, "input_cv": 0.8, "input_min": 1, "input_max": 100_000},
    "clamped hard": {"input_mu": 6.0, "input_sigma": 1.0, "input_min": 300, "input_max": 700},
    "two lognormals": {
        "output_mu": 6.0,
        "output_sigma": 0.3,
        "output_mix": "0.3:3.0:0.6",
        "output_min": 1,
        "output_max": 5000,
    },
    "gamma lengths": {
        "input_law": "gamma", "input_mean": 600, "input_cv": 0.6, "input_min": 1,
        "input_max": 20_000,
    },
    "weibull lengths": {
        "output_law": "weibull", "output_mean": 600, "output_cv": 0.5, "output_min": 1,
        "output_max": 20_000,
    },
    "exponential lengths": {
        "output_law": "exponential", "output_mean": 300, "output_min": 1, "output_max": 20_000,
    },
    "fixed": {"input_len": 512, "output_len": 1},
    "correlated": {"length_correlation": 0.6},
    "at once": {"request_rate": math.inf},
}  # fmt: skip
EXPECTED = {
    "exponential": ("gaps", "exponential"),
    "gamma": ("gaps", "gamma"),
    "weibull": ("gaps", "weibull"),
    "two kinds of gaps": ("gaps", "lognormal-2"),
    "defaults": ("gaps", "lognormal"),
    "clamped hard": ("input_tokens", "lognormal-clamped"),
    "two lognormals": ("output_tokens", "lognormal-2"),
    "gamma lengths": ("input_tokens", "gamma"),
    "weibull lengths": ("output_tokens", "weibull"),
}


def config_of(flags: list[str]) -> GeneratorConfig:
    """What the real command line makes of printed flags."""
    arguments: argparse.Namespace = build_parser().parse_args(
        ["trace", "generate", *flags, "-o", "x.jsonl"]
    )
    return validate(GeneratorConfig, take(GeneratorConfig, arguments))


@pytest.fixture(scope="module", params=DRAWN)
def drawn(request: pytest.FixtureRequest) -> tuple[str, Trace, TraceFit]:
    config = GeneratorConfig.model_validate({"num_prompts": N, "seed": 5, **DRAWN[request.param]})
    trace = generate(config)
    return request.param, trace, fit_trace(trace)


def test_flags_draw_the_laws_again(drawn: tuple[str, Trace, TraceFit]) -> None:
    """Generate, fit, generate by the printed flags: the first sample lies as near to the second
    law as samples of that law do, or within 1.5 % for laws of many parts.
    """
    name, trace, fit = drawn
    source = Source.of(config_of(fit.flags))
    again = source.draw()
    assert len(again) == len(trace)
    for what, distance in distances(source, trace).items():
        assert distance is None or distance < 0.015, (name, what)
    if trace.duration_s:
        rate = (len(trace) - 1) / trace.duration_s
        assert source.arrivals.asked_rate(N) == pytest.approx(rate, rel=1e-5)
    for column in ("input_length", "output_length"):
        first, second = (getattr(each, column) for each in (trace, again))
        assert second.mean() == pytest.approx(first.mean(), rel=0.03)
        assert (second.min(), second.max()) <= (second.min(), first.max())
    spearman = fit.figures["length_correlation"]
    if name == "correlated":
        assert spearman == pytest.approx(6 / math.pi * math.asin(0.3), abs=0.02)
        correlation = config_of(fit.flags).length_correlation
        assert correlation == pytest.approx(0.6, abs=0.03)


def test_the_law_is_recognised(drawn: tuple[str, Trace, TraceFit]) -> None:
    """Where the laws differ enough, the best fit is of the family that was drawn from."""
    name, _, fit = drawn
    if name not in EXPECTED:
        return
    column, family = EXPECTED[name]
    assert getattr(fit, column)[0].name == family


def test_every_fit_of_gaps_but_the_free_ones_keeps_the_rate() -> None:
    """The mean gap of each law is the sample's, and a log-normal fitted freely loses it."""
    gaps = np.random.default_rng(2).gamma(0.3, 1.0, 20_000) + 1e-6
    for fit in fit_gaps(gaps):
        is_same = fit.law.mean == pytest.approx(gaps.mean(), rel=1e-6)
        assert is_same == fit.keeps_mean
    free = next(fit for fit in fit_gaps(gaps) if fit.name == "lognormal-free")
    assert free.law.mean > 2 * gaps.mean()
    assert fit_gaps(gaps)[-1].keeps_mean is False


def test_gaps_of_a_coarse_clock() -> None:
    """Zero gaps do not break a fit; how many there are is told."""
    times = np.repeat(np.arange(200) * 3000.0, 10)
    trace = Trace(times, np.arange(2000) % 7 + 1, np.arange(2000) % 5 + 1)
    fit = fit_trace(trace)
    assert fit.zero_gaps == pytest.approx(1800 / 1999)
    assert fit.gaps == []  # all others are of one length
    uneven = Trace(np.repeat(np.cumsum(np.arange(200)) * 10.0, 10), *[np.ones(2000, np.int64)] * 2)
    assert all(math.isfinite(each.log_likelihood) for each in fit_trace(uneven).gaps)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows(n: int) -> None:
    """A trace of one to three rows is fitted without an error, and its flags are taken."""
    fit = fit_trace(generate(GeneratorConfig(num_prompts=n)))
    assert config_of(fit.flags).num_prompts == n


def test_one_length() -> None:
    """Lengths that are all the same are no law: a fixed length."""
    assert fit_lengths(np.full(10, 7)) == []
    trace = Trace(np.arange(10) * 1.0, np.full(10, 7), np.arange(10) + 1)
    flags = fit_trace(trace).flags
    assert flags[flags.index("--input-len") + 1] == "7"


def test_the_best_is_near_and_simple() -> None:
    """The lowest AIC among the laws near the sample; what loses the mean is never first."""

    def fit(name: str, ks: float, likely: float, keeps_mean: bool = True) -> Fit:
        return Fit(name, Exponential(1.0), 2, likely, ks, keeps_mean)

    fits = [
        fit("spiky", 0.30, 900.0),
        fit("near", 0.100, 10.0),
        fit("nearer", 0.102, 20.0),
        fit("free", 0.01, 9999.0, keeps_mean=False),
    ]
    assert [each.name for each in ranked(fits, 10_000)] == ["nearer", "near", "spiky", "free"]


def test_a_fit_tells_what_it_found() -> None:
    """As JSON a fit holds its parameters, figures and criteria."""
    found = Fit("lognormal", LogNormal(1.0, 0.5), 2, -10.0, 0.1).as_json()
    assert found["parameters"] == {"mu": 1.0, "sigma": 0.5}
    assert found["aic"] == 24.0
    assert found["mean"] == pytest.approx(math.exp(1.125))
