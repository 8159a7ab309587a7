"""Laws against scipy, which knows nothing of us: distributions, densities, moments, estimators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special as scipy_special
from scipy import stats

from loadgen.trace.arrivals import GapMix, gap_law
from loadgen.trace.config import ArrivalLaw
from loadgen.trace.laws import (
    Constant,
    Empirical,
    Exponential,
    Gamma,
    Law,
    LogNormal,
    Mixture,
    UniformTokens,
    Weibull,
    ks_distance,
)
from loadgen.trace.lengths import TokenLaw
from loadgen.trace.likelihood import (
    Sample,
    fit_clamped,
    fit_gamma,
    fit_lognormal,
    fit_mixture,
    fit_weibull,
)
from loadgen.trace.special import (
    digamma,
    gamma_cdf,
    normal_cdf,
    trigamma,
    weibull_cv,
    weibull_shape,
)

X = np.geomspace(1e-3, 1e4, 300)
PAIRS: list[tuple[Law, Any]] = [
    (LogNormal(3.5, 1.0), stats.lognorm(1.0, scale=math.exp(3.5))),
    (LogNormal(-2.0, 0.1), stats.lognorm(0.1, scale=math.exp(-2.0))),
    (Gamma(0.23, 1.7), stats.gamma(0.23, scale=1.7)),
    (Gamma(1.0, 5.0), stats.gamma(1.0, scale=5.0)),
    (Gamma(250.0, 4.0), stats.gamma(250.0, scale=4.0)),
    (Weibull(0.42, 0.13), stats.weibull_min(0.42, scale=0.13)),
    (Weibull(3.0, 700.0), stats.weibull_min(3.0, scale=700.0)),
    (Exponential(20.0), stats.expon(scale=20.0)),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[repr(ours) for ours, _ in PAIRS])
def test_a_law_is_scipys(ours: Law, theirs: Any) -> None:
    """Distribution, density, mean and CV are those of scipy."""
    assert ours.cdf(X) == pytest.approx(theirs.cdf(X), abs=1e-12, rel=1e-9)
    assert ours.log_density(X) == pytest.approx(theirs.logpdf(X), rel=1e-9, abs=1e-9)
    assert ours.mean == pytest.approx(theirs.mean(), rel=1e-9)
    assert ours.cv == pytest.approx(theirs.std() / theirs.mean(), rel=1e-9)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[repr(ours) for ours, _ in PAIRS])
def test_a_law_draws_from_itself(ours: Law, theirs: Any) -> None:
    """A drawn sample lies as near to scipy's law as a sample of it does."""
    drawn = ours.draw(20_000, np.random.default_rng(3))
    assert stats.kstest(drawn, theirs.cdf).pvalue > 1e-3


def test_a_mixture_by_hand() -> None:
    """A mixture's distribution, density, mean and draws are the weighted ones of its parts."""
    one, two = LogNormal(0.0, 0.5), LogNormal(3.0, 0.2)
    both = Mixture(0.3, one, two)
    assert both.cdf(X) == pytest.approx(0.7 * one.cdf(X) + 0.3 * two.cdf(X))
    density = 0.7 * np.exp(one.log_density(X)) + 0.3 * np.exp(two.log_density(X))
    assert np.exp(both.log_density(X)) == pytest.approx(density)
    assert both.mean == pytest.approx(0.7 * one.mean + 0.3 * two.mean)
    drawn = both.draw(400_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(both.mean, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(both.cv, rel=0.01)
    assert ks_distance(drawn, both) < 1.95 / math.sqrt(len(drawn))


@settings(deadline=None, max_examples=40)
@given(
    mean=st.floats(1e-6, 1e6),
    cv=st.floats(1e-3, 1000),
    law=st.sampled_from(list(ArrivalLaw)),
    mix=st.none() | st.tuples(st.floats(0.01, 0.99), st.floats(1e-3, 1e3), st.floats(0.01, 10)),
)
def test_the_mean_gap_is_exact(mean: float, cv: float, law: ArrivalLaw, mix: Any) -> None:
    """Whatever law, CV and mixture: the law's own mean is the one asked for."""
    made = gap_law(mean, law, cv, None if mix is None else GapMix(*mix))
    assert made.mean == pytest.approx(mean, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(cv=st.floats(0.01, 100))
def test_the_cv_is_exact(cv: float) -> None:
    """Laws that are shaped by a CV have it."""
    for law in (ArrivalLaw.LOGNORMAL, ArrivalLaw.GAMMA, ArrivalLaw.WEIBULL):
        assert gap_law(2.0, law, cv).cv == pytest.approx(cv, rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(cv=st.floats(1e-3, 500))
def test_weibulls_shape_and_cv_are_inverse(cv: float) -> None:
    """The shape that is found for a CV has that CV."""
    assert weibull_cv(weibull_shape(cv)) == pytest.approx(cv, rel=1e-4)


def test_special_functions() -> None:
    """Normal and gamma distribution, digamma and trigamma agree with scipy's, far out too."""
    z = np.linspace(-35, 8, 500)
    assert normal_cdf(z) == pytest.approx(scipy_special.ndtr(z), rel=1e-9, abs=0)
    for shape in (1e-3, 0.3, 1.0, 7.5, 400.0, 20_000.0):
        x = shape * np.linspace(0.0, 4.0, 400)
        assert gamma_cdf(shape, x) == pytest.approx(scipy_special.gammainc(shape, x), abs=1e-10)
    for x in (1e-3, 0.2, 1.0, 3.3, 50.0, 1e6):
        assert digamma(x) == pytest.approx(scipy_special.digamma(x), rel=1e-12)
        assert trigamma(x) == pytest.approx(scipy_special.polygamma(1, x), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_the_ks_distance_is_scipys(values: list[float]) -> None:
    """Ties or none: the distance is that of scipy.stats.kstest."""
    ours = ks_distance(np.array(values), Exponential(3.0))
    theirs = stats.kstest(values, stats.expon(scale=3.0).cdf, method="asymp")
    assert ours == pytest.approx(theirs.statistic)


def test_lognormals_of_figures() -> None:
    """Mean and CV, and mean and median, give back what they were made of."""
    law = LogNormal.of_mean_cv(2048.0, 0.96)
    assert (law.mean, law.cv) == (pytest.approx(2048.0), pytest.approx(0.96))
    other = LogNormal.of_mean_median(2048.0, 1400.0)
    assert other.mean == pytest.approx(2048.0)
    assert math.exp(other.mu) == pytest.approx(1400.0)


def test_laws_with_atoms() -> None:
    """Constant, uniform and empirical laws: distribution, mean and CV by hand."""
    assert Constant(3.0).cdf(np.array([2.9, 3.0])).tolist() == [0.0, 1.0]
    uniform = UniformTokens(1, 4)
    assert uniform.cdf(np.array([0.0, 1.0, 2.5, 4.0])).tolist() == [0.0, 0.25, 0.5, 1.0]
    assert (uniform.mean, uniform.cv) == (2.5, pytest.approx(math.sqrt(1.25) / 2.5))
    drawn = uniform.draw(5000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {1.0, 2.0, 3.0, 4.0}
    empirical = Empirical(np.array([1.0, 1.0, 5.0, 9.0]))
    assert empirical.cdf(np.array([0.0, 1.0, 5.0, 9.0])).tolist() == [0.0, 0.5, 0.75, 1.0]
    assert empirical.mean == 4.0
    assert set(empirical.draw(100, np.random.default_rng(0)).tolist()) == {1.0, 5.0, 9.0}


@pytest.mark.parametrize(
    "law",
    [
        LogNormal(3.0, 0.8),
        Gamma(0.9, 300.0),
        UniformTokens(5, 90),
        Empirical(np.array([3.0, 9.0])),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("low", "high"), [(10, 64), (1, 30_000)])
def test_moments_of_clamped_lengths(law: Law, low: int, high: int) -> None:
    """Mean, CV and percentiles of a clamped law are those of a large sample of it."""
    tokens = TokenLaw(law, low, high)
    drawn = tokens.draw(400_000, np.random.default_rng(5))
    mean, cv = tokens.moments()
    assert mean == pytest.approx(drawn.mean(), rel=0.01)
    assert cv == pytest.approx(drawn.std() / drawn.mean(), rel=0.02)
    for share in (0.5, 0.9):
        at = tokens.percentile(share)
        assert (drawn <= at).mean() >= share - 0.005
        assert (drawn < at).mean() <= share + 0.005
    assert tokens.ks_distance(drawn) < 1.95 / math.sqrt(len(drawn))


def sample_of(law: Law, n: int = 50_000) -> tuple[np.ndarray, Sample]:
    drawn = law.draw(n, np.random.default_rng(11))
    return drawn, Sample.of(drawn)


def test_estimators_are_scipys() -> None:
    """Log-normal, gamma and Weibull by maximum likelihood: scipy finds the same parameters."""
    drawn, sample = sample_of(LogNormal(5.0, 1.2), 3000)
    shape, _, scale = stats.lognorm.fit(drawn, floc=0)
    fit = fit_lognormal(sample)
    assert (fit.mu, fit.sigma) == (pytest.approx(math.log(scale)), pytest.approx(shape))
    drawn, sample = sample_of(Gamma(0.7, 30.0), 3000)
    shape, _, scale = stats.gamma.fit(drawn, floc=0)
    gamma = fit_gamma(sample)
    assert (gamma.shape, gamma.scale) == (
        pytest.approx(shape, rel=1e-4),
        pytest.approx(scale, rel=1e-4),
    )
    drawn, sample = sample_of(Weibull(0.6, 30.0), 3000)
    shape, _, scale = stats.weibull_min.fit(drawn, floc=0)
    weibull = fit_weibull(sample)
    assert (weibull.shape, weibull.scale) == (
        pytest.approx(shape, rel=1e-3),
        pytest.approx(scale, rel=1e-3),
    )


def test_the_clamped_estimator_sees_past_the_clamps() -> None:
    """A fifth of the sample at either end: the law before clamping is found, a plain fit is not."""
    drawn = TokenLaw(LogNormal(4.0, 1.0), 24, 126).draw(50_000, np.random.default_rng(2))
    sample = Sample.of(drawn.astype(float))
    fit = fit_clamped(sample, 24, 126)
    assert fit.mu == pytest.approx(4.0, abs=0.02)
    assert fit.sigma == pytest.approx(1.0, abs=0.02)
    assert fit_lognormal(sample).sigma < 0.8


def test_the_clamped_estimator_is_the_likeliest() -> None:
    """No neighbour of the parameters that EM finds has a higher likelihood of clamped tokens."""
    drawn = TokenLaw(LogNormal(3.0, 0.8), 10, 60).draw(20_000, np.random.default_rng(4))
    value, counts = np.unique(drawn, return_counts=True)
    fit = fit_clamped(Sample.of(drawn.astype(float)), 10, 60)

    def likely(mu: float, sigma: float) -> float:
        law = TokenLaw(LogNormal(mu, sigma), 10, 60)
        return float(counts @ law.log_probability(value.astype(float)))

    best = likely(fit.mu, fit.sigma)
    for step in (-0.02, 0.02):
        assert likely(fit.mu + step, fit.sigma) < best
        assert likely(fit.mu, fit.sigma + step) < best


def test_a_mixture_is_found() -> None:
    """EM finds both components, whichever was drawn first, from many distinct values too."""
    law = Mixture(0.3, LogNormal(6.0, 0.35), LogNormal(3.0, 0.8))
    _, sample = sample_of(law, 60_000)
    assert len(sample.value) <= 4_001
    fit = fit_mixture(sample)
    assert fit.weight == pytest.approx(0.3, abs=0.02)
    assert (fit.first.mu, fit.first.sigma) == (
        pytest.approx(6.0, abs=0.02),
        pytest.approx(0.35, abs=0.02),
    )
    assert (fit.second.mu, fit.second.sigma) == (
        pytest.approx(3.0, abs=0.05),
        pytest.approx(0.8, abs=0.05),
    )
