"""Our statistics against independent ones: NumPy and scipy, on the lines of a recorded run.

`tests/data/recorded` is a comparison of two truth servers in four blocks, 64 requests each, some of
them truncated. Nothing of loadgen but what is tested computes here.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import made_header
from scipy import stats as scipy_stats

from loadgen.archive import Run
from loadgen.columns import Columns
from loadgen.paired import (
    ALPHA,
    Comparison,
    Effect,
    _bootstrapped,
    _holm,
    compare_paired,
    student_t_cdf,
    student_t_quantile,
)
from loadgen.stats import Summary, summarise

RECORDED = Path(__file__).resolve().parent.parent / "data" / "recorded"
Rows = list[dict[str, Any]]


def rows_of(target: str, *, ok: bool = False) -> Rows:
    """Measured records as the file has them."""
    lines = (RECORDED / "records-0.jsonl").read_bytes().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        row
        for row in rows
        if row["target"] == target
        and row["phase"] == "measured"
        and (row["outcome"] == "ok" or not ok)
    ]


@pytest.fixture(scope="module")
def columns() -> dict[str, Columns]:
    run = Run(RECORDED, made_header("a", "b", requests=64), 0, (), None, False, None)
    return {name: Columns.of(run.of_target(name)) for name in ("a", "b")}


@pytest.fixture(scope="module")
def summaries(columns: dict[str, Columns]) -> dict[str, Summary]:
    return {name: summarise(c) for name, c in columns.items()}


@pytest.fixture(scope="module")
def comparison(columns: dict[str, Columns]) -> Comparison:
    return compare_paired(columns["a"], columns["b"])


def latencies(target: str) -> dict[str, list[float]]:
    """Each latency by its formula in docs/metrics.md, from the file's own numbers."""
    rows = rows_of(target, ok=True)
    gaps = [
        (after - before) / tokens
        for row in rows
        for before, after, tokens in zip(
            row["chunk_s"], row["chunk_s"][1:], row["chunk_tokens"][1:], strict=False
        )
        for _ in range(tokens)
    ]
    return {
        "ttft_s": [row["first_token_s"] - row["start_s"] for row in rows],
        "e2e_s": [row["end_s"] - row["start_s"] for row in rows],
        "e2e_from_due_s": [row["end_s"] - row["due_s"] for row in rows],
        "tpot_s": [
            (row["last_token_s"] - row["first_token_s"]) / (row["output_tokens_served"] - 1)
            for row in rows
            if row["output_tokens_served"] > 1
        ],
        "itl_s": gaps,
    }


@pytest.mark.parametrize("target", ["a", "b"])
def test_latencies(target: str, summaries: dict[str, Summary]) -> None:
    """Count, mean, deviation and percentiles are those of scipy, over successes alone."""
    assert len(rows_of("a", ok=True)) < len(rows_of("a")) == 64
    for name, values in latencies(target).items():
        found = getattr(summaries[target], name)
        told = scipy_stats.describe(values, ddof=0)
        assert found.n == told.nobs
        assert found.mean == pytest.approx(told.mean, rel=1e-12)
        assert found.std == pytest.approx(np.sqrt(told.variance), rel=1e-9)
        assert (found.min, found.max) == pytest.approx(told.minmax, rel=1e-12)
        # alphap = betap = 1 is linear interpolation between ranks: R's type 7.
        shares = [p / 100 for p, _ in found.percentiles]
        theirs = scipy_stats.mstats.mquantiles(values, shares, alphap=1, betap=1)
        assert [value for _, value in found.percentiles] == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("target", ["a", "b"])
def test_throughput(target: str, summaries: dict[str, Summary]) -> None:
    """All tokens over the sum of the blocks' spans, failures included."""
    rows = rows_of(target)
    spans = [
        max(row["end_s"] for row in block) - min(row["start_s"] for row in block)
        for number in range(4)
        for block in ([row for row in rows if row["block"] == number],)
    ]
    tokens = sum(row["output_tokens_served"] or 0 for row in rows)
    assert summaries[target].duration_s == pytest.approx(sum(spans), rel=1e-12)
    assert summaries[target].output_tokens_per_s == pytest.approx(tokens / sum(spans), rel=1e-12)


def pairs(metric: str) -> list[float]:
    """log(b / a) of each request that was ok on both, in the order of the trace."""

    until = "first_token_s" if metric == "ttft_s" else "end_s"
    sides = [
        {row["seq"]: row[until] - row["start_s"] for row in rows_of(name, ok=True)}
        for name in ("a", "b")
    ]
    both = sorted(sides[0].keys() & sides[1].keys())
    return [float(np.log(sides[1][seq] / sides[0][seq])) for seq in both]


def effect(found: Comparison, metric: str) -> Effect:
    (one,) = [effect for effect in found.others if effect.metric == metric]
    return one


@pytest.mark.parametrize("metric", ["ttft_s", "e2e_s"])
def test_paired_ratios(metric: str, comparison: Comparison) -> None:
    """The geometric mean is scipy's, over the same pairs."""
    found = effect(comparison, metric)
    logs = pairs(metric)
    assert found.pairs == len(logs) < 64
    assert found.ratio == pytest.approx(scipy_stats.gmean(np.exp(logs)), rel=1e-12)


def test_the_interval_of_a_rate(comparison: Comparison) -> None:
    """Interval and p over blocks are those of scipy's one-sample t test of the log ratios."""
    rates = []
    for name in ("a", "b"):
        rows = rows_of(name)
        blocks = [[row for row in rows if row["block"] == number] for number in range(4)]
        rates.append(
            [
                sum(row["output_tokens_served"] or 0 for row in block)
                / (max(row["end_s"] for row in block) - min(row["start_s"] for row in block))
                for block in blocks
            ]
        )
    logs = np.log(np.array(rates[1]) / np.array(rates[0]))
    test = scipy_stats.ttest_1samp(logs, 0.0)
    interval = test.confidence_interval(1 - ALPHA)
    found = comparison.primary
    assert found is not None
    assert found.p == pytest.approx(test.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(np.exp(interval), rel=1e-6)


@settings(deadline=None)
@given(t=st.floats(-40, 40), freedom=st.integers(1, 60))
def test_students_t_is_scipys(t: float, freedom: int) -> None:
    """Distribution function and quantile, at any freedom."""
    assert student_t_cdf(t, freedom) == pytest.approx(scipy_stats.t.cdf(t, freedom), abs=1e-8)
    share = 0.5 + abs(t) / 81
    quantile = student_t_quantile(share, freedom)
    assert quantile == pytest.approx(scipy_stats.t.ppf(share, freedom), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_the_bootstrap_is_near_scipys(seed: int) -> None:
    """On 20 equal units: near Student's interval, and around scipy's bootstrap of the same means.

    A studentised interval is a little wider than the percentile one, whose coverage falls short.
    """
    rng = np.random.default_rng(seed)
    units = np.repeat(np.arange(20), 10)
    logs = rng.normal(0.1, 0.2, 20)[units] + rng.normal(0, 0.3, 200)
    found = _bootstrapped("e2e_s", logs, units, whole=20)
    assert found.low is not None
    assert found.high is not None
    assert found.p is not None
    means = logs.reshape(20, 10).mean(axis=1)
    width = np.log(found.high / found.low)
    student = scipy_stats.ttest_1samp(means, 0.0)
    low, high = student.confidence_interval(1 - ALPHA)
    assert width == pytest.approx(high - low, rel=0.25)
    assert np.log(found.low) == pytest.approx(low, abs=0.2 * width)
    assert found.p == pytest.approx(student.pvalue, rel=0.5, abs=2e-3)
    theirs = scipy_stats.bootstrap(
        (means,), np.mean, confidence_level=1 - ALPHA, n_resamples=4000, rng=rng, method="BCa"
    ).confidence_interval
    assert width >= 0.9 * (theirs.high - theirs.low)
    assert np.log(found.low) <= theirs.low + 0.15 * width
    assert np.log(found.high) >= theirs.high - 0.15 * width


@settings(deadline=None)
@given(p=st.lists(st.floats(1e-5, 0.02), min_size=1, max_size=6, unique=True))
def test_holm_is_the_closed_test_of_bonferronis(p: list[float]) -> None:
    """A metric is shown if and only if Bonferroni rejects every set of metrics that it is in.

    That is the principle behind Holm's procedure: Marcus, Peritz and Gabriel, On Closed Testing
    Procedures (1976).
    """
    effects = [
        Effect(metric=str(n), ratio=2.0, low=1.0, high=3.0, p=one, pairs=9, units=9, is_shown=False)
        for n, one in enumerate(p)
    ]
    for n, one in enumerate(_holm(effects)):
        sets = [
            chosen
            for size in range(1, len(p) + 1)
            for chosen in itertools.combinations(range(len(p)), size)
            if n in chosen
        ]
        assert one.is_shown == all(min(p[k] for k in own) < ALPHA / len(own) for own in sets)
