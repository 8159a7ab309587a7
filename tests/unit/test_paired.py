"""Two targets, paired: intervals that cover, differences that are found, and none where none is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import made_record

from loadgen.columns import Columns
from loadgen.paired import (
    ALPHA,
    Comparison,
    Effect,
    compare_paired,
    student_t_cdf,
    student_t_quantile,
)
from loadgen.record import Outcome, RequestRecord
from loadgen.slo import Slo


def target(
    seed: int, *, requests: int = 160, blocks: int = 8, slower: float = 1.0, noise: float = 0.2
) -> list[RequestRecord]:
    """A target's records: latencies by output length, with noise of its own that lasts a while."""
    trace = np.random.default_rng(0)  # the same lengths for every target
    rng = np.random.default_rng(seed)
    lengths = trace.integers(4, 60, requests)
    drift, records = 0.0, []
    for seq in range(requests):
        drift = 0.5 * drift + noise * float(rng.normal())
        pace_s = 0.02 * slower * math.exp(drift)
        start_s = float(seq) + 1000.0 * (seq * blocks // requests)
        tokens = int(lengths[seq])
        chunks = tuple(start_s + pace_s * (5 + n) for n in range(tokens))
        records.append(
            made_record(
                seq,
                due=start_s,
                chunks=chunks,
                asked=tokens,
                prompt=10 + int(lengths[(seq * 7) % requests]),
                block=seq * blocks // requests,
            )
        )
    return records


def compared(
    first: list[RequestRecord], second: list[RequestRecord], slo: Slo | None = None
) -> Comparison:
    return compare_paired(Columns.of(first), Columns.of(second), slo)


def effect(found: Comparison, metric: str) -> Effect:
    (one,) = [effect for effect in found.others if effect.metric == metric]
    return one


def test_a_known_ratio() -> None:
    """Every latency half as long: each pair has a ratio of 0.5, and so has their mean."""
    first = [made_record(n, due=n, chunks=(n + 1.0, n + 2.0, n + 3.0)) for n in range(4)]
    second = [made_record(n, due=n, chunks=(n + 0.5, n + 1.0, n + 1.5)) for n in range(4)]
    found = compared(first, second)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        one = effect(found, metric)
        assert one.ratio == pytest.approx(0.5)
        assert one.pairs == 4
        assert not one.has_interval


def test_a_mean_of_ratios_is_not_a_ratio_of_means() -> None:
    """Twice as long once and half as long once is a ratio of 1, whatever their sizes are."""
    first = [made_record(0, chunks=(1.0,)), made_record(1, chunks=(100.0,))]
    second = [made_record(0, chunks=(2.0,)), made_record(1, chunks=(50.0,))]
    assert effect(compared(first, second), "e2e_s").ratio == pytest.approx(1.0)


def test_only_what_is_ok_on_both_is_paired() -> None:
    """A request that failed on one side has no ratio, and the others keep their partners."""
    first = [made_record(n, due=n, chunks=(n + 1.0, n + 2.0)) for n in range(6)]
    second = [made_record(n, due=n, chunks=(n + 2.0, n + 4.0)) for n in reversed(range(6))]
    second[2] = replace(second[2], outcome=Outcome.TRUNCATED)
    one = effect(compared(first, second), "e2e_s")
    assert one.pairs == 5
    assert one.ratio == pytest.approx(2.0)


def test_a_target_against_itself_shows_no_difference() -> None:
    """Of 100 pairs of targets that differ by chance alone, at most 3 are said to differ."""
    shown = [compared(target(2 * n), target(2 * n + 1)).primary for n in range(100)]
    assert all(one is not None and one.has_interval for one in shown)
    assert sum(one is not None and one.is_shown for one in shown) <= 3


def test_corrected_metrics_show_no_difference_either() -> None:
    """The same of all other metrics together: Holm keeps the whole family at ALPHA."""
    slo = Slo(e2e_s=1.0)
    found = [compared(target(2 * n), target(2 * n + 1), slo) for n in range(100)]
    assert sum(any(one.is_shown for one in each.others) for each in found) <= 3


def test_a_slowdown_is_found() -> None:
    """A target that is 10 % slower is found in at least 19 of 20 by 400 requests."""

    def one_more(n: int) -> Effect:
        first = target(2 * n, requests=400, noise=0.1)
        second = target(2 * n + 1, requests=400, noise=0.1, slower=1.1)
        return effect(compared(first, second), "e2e_s")

    found = [one_more(n) for n in range(20)]
    assert sum(one.is_shown and one.ratio > 1 for one in found) >= 19


def test_the_interval_covers_the_truth() -> None:
    """Of 200 intervals for a ratio of 1.3, the share that misses it is near ALPHA."""
    missed = 0
    for n in range(200):
        one = effect(compared(target(2 * n), target(2 * n + 1, slower=1.3)), "e2e_s")
        assert one.low is not None
        assert one.high is not None
        missed += not one.low <= 1.3 <= one.high
    assert missed <= 200 * 4 * ALPHA


@pytest.mark.parametrize(
    ("requests", "blocks", "has_interval"),
    [(6, 6, False), (42, 6, False), (48, 6, True), (47, 1, False), (48, 1, True)],
)
def test_an_interval_needs_6_units_of_8_requests(
    requests: int, blocks: int, has_interval: bool
) -> None:
    """However the requests are spread over blocks: shorter blocks are no such units."""
    sides = (target(seed, requests=requests, blocks=blocks) for seed in (1, 2))
    assert effect(compared(*sides), "ttft_s").has_interval is has_interval


def test_an_interval_leans_to_where_the_truth_may_lie() -> None:
    """Most stretches nearly alike and a few far above: what is not known is how many more are so
    far up, so the interval reaches further up than down."""
    first, second = target(1, blocks=20, noise=0.01), []
    for record in target(2, blocks=20, noise=0.01):
        later_s = -0.1 * math.log(1 - (record.block + 0.5) / 20)
        first_s = record.chunk_s[0] + later_s
        second.append(replace(record, first_token_s=first_s))
    one = effect(compared(first, second), "ttft_s")
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.ratio < one.high
    assert math.log(one.high / one.ratio) > 1.2 * math.log(one.ratio / one.low)


def test_the_order_of_records_is_of_no_account() -> None:
    """Units are stretches of the trace, whatever the order in which the answers ended."""
    rng = np.random.default_rng(7)
    sides = [target(1), target(2)]
    mixed = [[side[n] for n in rng.permutation(len(side))] for side in sides]
    ours, theirs = (effect(compared(*both), "e2e_s") for both in (sides, mixed))
    assert (theirs.low, theirs.high) == pytest.approx((ours.low, ours.high))
    assert theirs.units == ours.units


def test_the_same_records_give_the_same_interval() -> None:
    """The bootstrap is seeded."""
    assert compared(target(1), target(2)) == compared(target(1), target(2))


def test_without_blocks_a_rate_has_no_interval() -> None:
    """One turn is one value: its ratio is told, and nothing of how sure it is."""
    found = compared(target(1, blocks=1), target(2, blocks=1, slower=3.0))
    assert found.primary is not None
    assert not found.primary.has_interval
    assert not found.primary.is_shown
    assert effect(found, "e2e_s").has_interval  # stretches of the trace stand in


def test_rates_by_hand() -> None:
    """All tokens over all time of each side; blocks that were idle between do not count."""
    first = [
        made_record(0, due=0, chunks=(1.0, 2.0), block=0),
        made_record(1, due=100, chunks=(101.0, 102.0), block=1),
    ]
    second = [
        made_record(0, due=50, chunks=(50.5, 51.0), block=0),
        made_record(1, due=150, chunks=(150.5, 151.0), block=1),
    ]
    found = compared(first, second)
    assert found.primary is not None
    assert found.primary.ratio == pytest.approx(2.0)
    assert found.blocks == 2


def test_goodput_is_compared_where_there_is_one() -> None:
    """With an objective, good requests a second are a metric of their own."""
    found = compared(target(1), target(2, slower=2.0), Slo(e2e_s=0.8))
    assert effect(found, "goodput_per_s").ratio < 0.8


def test_nothing_on_one_side_is_no_ratio() -> None:
    """A target that gave nothing has no effect of any kind, and nothing is divided by 0."""
    dead = [made_record(n, due=n, outcome=Outcome.CONNECT) for n in range(10)]
    found = compared(target(1, requests=10, blocks=1), dead)
    assert found.primary is None
    assert found.others == ()
    assert found.splits == ()
    assert compared([], []).primary is None


def test_quarters_show_who_pays() -> None:
    """A target that delays short answers alone shows it in the first quarter, not in the last."""
    first = target(1, noise=0.01)
    second = [
        made_record(
            r.seq,
            due=r.due_s,
            chunks=tuple(at + (3.0 if r.output_tokens_asked < 15 else 0.0) for at in r.chunk_s),
            asked=r.output_tokens_asked,
            prompt=r.prompt_tokens_asked,
            block=r.block,
        )
        for r in first
    ]
    quarters = [split for split in compared(first, second).splits if split.by == "output"]
    assert len(quarters) == 4
    ratios = [
        next(one.ratio for one in quarter.effects if one.metric == "e2e_s") for quarter in quarters
    ]
    assert ratios[0] > 3
    assert ratios[-1] == pytest.approx(1.0)
    assert quarters[0].high < quarters[-1].low
    assert sum(quarter.effects[0].pairs for quarter in quarters) == 160
    by_prompt = [split for split in compared(first, second).splits if split.by == "prompt"]
    assert by_prompt[0].low == min(r.prompt_tokens_asked for r in first)
    assert by_prompt[-1].high == max(r.prompt_tokens_asked for r in first)


def test_few_requests_or_one_length_have_no_quarters() -> None:
    """A quarter of a few is no group, and all of one length are one group, which `all` shows."""
    few = [target(seed, requests=31, blocks=1) for seed in (1, 2)]
    assert compared(*few).splits == ()
    alike = [
        [replace(r, output_tokens_asked=8, prompt_tokens_asked=8) for r in target(seed)]
        for seed in (1, 2)
    ]
    assert compared(*alike).splits == ()


@pytest.mark.parametrize(
    ("share", "freedom", "t"),
    [(0.995, 3, 5.840909), (0.995, 7, 3.499483), (0.975, 30, 2.042272), (0.9, 1, 3.077684)],
)
def test_students_t(share: float, freedom: int, t: float) -> None:
    """Quantiles as tables have them, and the distribution function as their inverse."""
    assert student_t_quantile(share, freedom) == pytest.approx(t, abs=1e-5)
    assert student_t_cdf(t, freedom) == pytest.approx(share, abs=1e-7)
    assert student_t_cdf(-t, freedom) == pytest.approx(1 - share, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), requests=st.integers(1, 70), blocks=st.integers(1, 6))
def test_no_records_break_it(data: st.DataObject, requests: int, blocks: int) -> None:
    """Whatever few requests there are, equal ones and failures among them: figures or none."""
    times = st.sampled_from([1e-6, 0.01, 0.01, 0.5, 500.0])
    sides = []
    for _ in range(2):
        records = []
        for n in range(requests):
            first_s, gap_s = data.draw(times), data.draw(times)
            tokens = 1 + n % 4
            outcome = Outcome.OK if data.draw(st.integers(0, 9)) else Outcome.TRUNCATED
            chunks = tuple(n + first_s + gap_s * k for k in range(tokens))
            records.append(
                made_record(
                    n,
                    due=n,
                    chunks=chunks,
                    asked=tokens,
                    block=n * blocks // requests,
                    outcome=outcome,
                )
            )
        sides.append(records)
    found = compared(*sides)
    for one in (*found.others, *(e for split in found.splits for e in split.effects)):
        assert 0 < one.ratio < math.inf
        if one.low is not None and one.high is not None:
            assert 0 < one.low <= one.high < math.inf
