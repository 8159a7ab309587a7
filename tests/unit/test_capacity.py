"""The search for a capacity: where it ends, in how many probes, and how it decides."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from bench.capacity import MOST, config_for, simulated, trace_of, true_rate
from loadgen.capacity import (
    Ask,
    Found,
    Goal,
    Look,
    Trial,
    in_words,
    look_at,
    search,
    share_interval,
)
from loadgen.columns import Columns
from loadgen.record import Outcome
from loadgen.slo import Slo
from tests.unit.made_records import made_record

Oracle = Callable[[float, int], Look]


def goal(**more: float) -> Goal:
    values = {"share": 0.95, "start_rate": 1.0, "min_rate": 0.01, "max_rate": 1000.0}
    return Goal(**{**values, "tolerance": 0.05, "max_looks": 3, **more})  # type: ignore[arg-type]


def look(good: int, of: int = 200, growth: float | None = None) -> Look:
    """Twenty stretches of equal size that hold so many good requests, spread evenly."""
    each = of // 20
    edges = [round(good * unit / 20) for unit in range(21)]
    return Look(tuple((edges[u + 1] - edges[u], each) for u in range(20)), growth)


def step_at(capacity: float) -> Oracle:
    """All good up to a rate, and none beyond."""
    return lambda rate, _: look(200 if rate <= capacity else 0)


def noisy(capacity: float, steepness: float, seed: int) -> Oracle:
    """A share that falls as the rate grows, and draws of it; the same each time."""

    def oracle(rate: float, number: int) -> Look:
        share = 1 / (1 + (0.05 / 0.95) * (rate / capacity) ** steepness)
        rng = np.random.default_rng([seed, number, round(rate * 1e6)])
        return Look(tuple((int(good), 10) for good in rng.binomial(10, share, 20)))

    return oracle


def find(oracle: Oracle, aim: Goal) -> tuple[Found, list[tuple[float, Look]]]:
    """The end, and each look in its order."""
    looks: dict[float, list[Look]] = {}
    seen = []
    while isinstance(step := search(looks, aim), Ask):
        assert step.look == len(looks.get(step.rate, []))
        found = oracle(step.rate, step.look)
        looks.setdefault(step.rate, []).append(found)
        seen.append((step.rate, found))
        assert len(seen) < 1000
    return step, seen


@given(st.floats(0.02, 900), st.floats(0.01, 0.3), st.floats(0.05, 500))
@settings(deadline=None)
def test_a_known_capacity_is_found_within_the_tolerance(
    capacity: float, tolerance: float, start: float
) -> None:
    """Whatever the start: it lies between the last that passed and the first that failed, which are
    within the tolerance of each other."""
    found, _ = find(step_at(capacity), goal(tolerance=tolerance, start_rate=start))
    assert found.passed is not None
    assert found.failed is not None
    assert found.rate is not None
    assert found.passed.rate <= capacity < found.failed.rate
    assert found.failed.rate <= found.passed.rate * (1 + tolerance)
    assert abs(found.rate / capacity - 1) <= tolerance


@given(st.floats(0.02, 900), st.floats(2, 60), st.integers(0, 10**6), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_any_noisy_oracle_is_searched_to_an_end(
    capacity: float, steepness: float, seed: int, looks: int
) -> None:
    """The bracket is within the tolerance or at a limit, no rate gets more looks than allowed, and
    the number of rates is bounded."""
    aim = goal(max_looks=looks)
    found, seen = find(noisy(capacity, steepness, seed), aim)
    rates = {rate for rate, _ in seen}
    # A ruling may turn once with a second look, which opens another bracket.
    bracket = math.log2(aim.max_rate / aim.min_rate) + 2
    assert len(rates) <= bracket + 4 * (math.ceil(math.log2(1 / math.log2(1.05))) + 1)
    assert all([rate for rate, _ in seen].count(rate) <= looks for rate in rates)
    if found.passed is not None and found.failed is not None:
        assert found.passed.rate < found.failed.rate <= found.passed.rate * 1.05
    elif found.passed is None:
        assert found.failed is not None
        assert found.failed.rate == aim.min_rate
    else:
        assert found.passed.rate == aim.max_rate


@given(st.floats(0.1, 200), st.integers(0, 10**6), st.data())
@settings(deadline=None, max_examples=40)
def test_a_search_that_was_cut_anywhere_ends_the_same(
    capacity: float, seed: int, data: st.DataObject
) -> None:
    """What is next follows from the looks that are kept, and from nothing else."""
    oracle = noisy(capacity, 10, seed)
    found, seen = find(oracle, goal())
    cut = data.draw(st.integers(0, len(seen)))
    looks: dict[float, list[Look]] = {}
    for rate, kept in seen[:cut]:
        looks.setdefault(rate, []).append(kept)
    while isinstance(step := search(looks, goal()), Ask):
        looks.setdefault(step.rate, []).append(oracle(step.rate, step.look))
    assert step == found


def test_a_capacity_above_all_rates_is_told_as_at_least() -> None:
    """Where nothing fails the highest rate is probed, and named as a lower bound."""
    found, seen = find(step_at(1e9), goal(max_rate=100.0))
    assert found.failed is None
    assert max(rate for rate, _ in seen) == found.rate == 100.0
    assert "at least 100 requests/s" in in_words(found, goal(), "it", {"ttft": 500.0})


def test_a_capacity_below_all_rates_is_told_as_none() -> None:
    """Where nothing passes the lowest rate is probed, and no rate is given."""
    found, seen = find(step_at(1e-9), goal(start_rate=8.0, min_rate=1.0))
    assert found.rate is None
    assert min(rate for rate, _ in seen) == 1.0
    assert "does not serve even 1 requests/s" in in_words(found, goal(), "it", {"ttft": 500.0})


def test_a_failing_start_is_gone_down_from() -> None:
    """Below the start it halves until a rate passes, and bisects from there."""
    found, seen = find(step_at(1.5), goal(start_rate=8.0))
    assert [rate for rate, _ in seen][:4] == [8.0, 4.0, 2.0, 1.0]
    assert found.rate == pytest.approx(1.5, rel=0.05)


def test_an_open_interval_is_looked_at_again_and_then_counted_by_its_estimate() -> None:
    """192 of 200 leaves 95 % open: three looks, then its point estimate counts, which is said."""
    trial = Trial(4.0, (look(192),))
    assert trial.ruling(goal()) is None
    ruling = Trial(4.0, (look(192),) * 3).ruling(goal())
    assert ruling is not None
    assert ruling.passed
    assert not ruling.is_sure
    assert "by its point estimate" in ruling.text
    assert Trial(4.0, (look(187),) * 3).ruling(goal()).passed is False  # type: ignore[union-attr]


def test_a_growing_queue_fails_although_the_share_is_good() -> None:
    """All good, but latency rises by 10 % of the time in each look: it fails; where it rose in one
    look alone, it passes."""
    grows, stays = look(200, growth=0.1), look(200, growth=0.0)
    assert Trial(4.0, (grows,)).ruling(goal()) is None
    ruling = Trial(4.0, (grows,) * 3).ruling(goal())
    assert ruling is not None
    assert not ruling.passed
    assert "queue grew" in ruling.text
    assert Trial(4.0, (grows, stays)).ruling(goal()).passed  # type: ignore[union-attr]


def test_the_two_ends_are_looked_at_twice() -> None:
    """Neither end of the last bracket rests on one stretch of arrivals."""
    found, _ = find(step_at(7.0), goal())
    assert found.passed is not None
    assert found.failed is not None
    assert len(found.passed.looks) == len(found.failed.looks) == 2


@pytest.mark.parametrize("good", [0, 100, 188, 199, 200])
def test_the_interval_is_wilsons_where_requests_are_independent(good: int) -> None:
    """With stretches as alike as can be it is scipy's interval, widened by Student's t alone."""
    units = look(good).units
    low, high = share_interval(units)
    effective = round(200 * (1.959964 / 2.0930) ** 2)
    wanted = binomtest(round(good / 200 * effective), effective).proportion_ci(0.95, "wilson")
    assert low == pytest.approx(wanted.low, abs=0.006)
    assert high == pytest.approx(wanted.high, abs=0.006)


def test_the_interval_covers_where_neighbours_depend_on_each_other() -> None:
    """Stretches that are good or bad as a whole: at least 92 of 100 intervals hold the true share,
    where an interval that took requests as independent would hold it in half of them."""
    rng = np.random.default_rng(5)
    held = naive = 0
    for _ in range(400):
        shares = rng.beta(4, 1, 20)  # mean 0.8
        units = tuple((int(good), 20) for good in rng.binomial(20, shares))
        low, high = share_interval(units)
        held += low <= 0.8 <= high
        total = sum(good for good, _ in units)
        ci = binomtest(total, 400).proportion_ci(0.95, "wilson")
        naive += ci.low <= 0.8 <= ci.high
    assert held >= 0.92 * 400
    assert naive < 0.75 * 400


def test_one_stretch_tells_nothing() -> None:
    """Of fewer than two stretches the interval is everything."""
    assert share_interval([(9, 10)]) == (0.0, 1.0)


def records(count: int, latency_s: Callable[[float], float]) -> Columns:
    """Requests each 0.1 s whose first token comes `latency_s` after a due time."""
    return Columns.of(
        made_record(seq, due=seq / 10, chunks=(seq / 10 + latency_s(seq / 10),), served=1)
        for seq in reversed(range(count))
    )


def test_a_look_counts_all_that_were_due() -> None:
    """Good requests a stretch in the order of due times; what has no record is not good."""
    found = look_at(records(40, lambda due: 0.1 if due < 2 else 1.0), Slo(ttft_s=0.5), 44)
    assert found.units == ((8, 8), (8, 8), (4, 8), (0, 8), (0, 8), (0, 4))


@pytest.mark.parametrize(("share", "grows"), [(0.0, False), (0.01, False), (0.05, True)])
def test_growth_is_the_share_by_which_the_rate_is_over_what_is_served(
    share: float, grows: bool
) -> None:
    """Latency that rises by a share of the time is found to, whatever its noise."""
    rng = np.random.default_rng(3)
    noise_s = dict(zip(range(400), rng.uniform(0, 0.2, 400), strict=True))
    c = records(400, lambda due: 0.1 + share * due + noise_s[round(due * 10)])
    found = look_at(c, Slo(), 400)
    assert found.growth == pytest.approx(share, abs=0.01)
    assert found.grows is grows


def test_growth_is_not_taken_from_longer_answers() -> None:
    """Outputs that get longer over the run take longer, and are no queue."""
    c = Columns.of(
        made_record(
            seq,
            due=seq / 10,
            chunks=(seq / 10 + 0.1, seq / 10 + 0.1 + seq / 100),
            served=10 + seq,
            asked=10 + seq,
        )
        for seq in range(200)
    )
    assert not look_at(c, Slo(), 200).grows


def test_few_requests_have_no_growth() -> None:
    """Under four stretches of the load after its start, and of failures alone, it is not told."""
    assert look_at(records(24, lambda _: 0.1), Slo(), 24).growth is None
    failed = Columns.of(
        made_record(seq, due=float(seq), end=seq + 1.0, outcome=Outcome.CONNECT)
        for seq in range(200)
    )
    assert look_at(failed, Slo(), 200).growth is None


def test_the_answer_says_how_sure_it_is() -> None:
    """The sentence names limits, both ends, shares with intervals, and the requests of each."""
    found, _ = find(step_at(12.4), goal())
    text = in_words(found, goal(), "vllm", {"ttft": 500.0, "e2el": 10000.0})
    assert text.startswith("Under ttft <= 500 ms and e2el <= 10000 ms, vllm serves 12.")
    assert "95 % of requests good; between" in text
    assert "400 requests" in text


def test_constant_arrivals_at_a_known_server() -> None:
    """Answered by an exact queue of 20 slots of 0.5 s, it ends within 5 % of 40 requests/s."""
    config = config_for("constant")
    found, probes = simulated(config, trace_of(config))
    assert found.rate == pytest.approx(MOST, rel=0.05)
    assert probes <= 15


@pytest.mark.parametrize("seed", range(4))
def test_random_arrivals_at_a_known_server(seed: int) -> None:
    """With exponential gaps and probes of 2,000 requests it ends within 8 % of what a long trace
    says, which is well under the slots' own 40 requests/s."""
    config = config_for("exponential", seed, num_prompts=2000)
    trace = trace_of(config)
    true = true_rate(trace)
    assert 0.7 * MOST < true < 0.8 * MOST
    assert simulated(config, trace)[0].rate == pytest.approx(true, rel=0.08)
