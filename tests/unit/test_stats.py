"""Figures of a target, against values worked out by hand and against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_record

from loadgen import stats
from loadgen.record import Outcome, TokenSource
from loadgen.stats import distribution, percentile_name, summarise

# Two requests, due at 0 and 1, and taken up 0.1 s late each. The first gives tokens at 1, 2 and 3;
# the second fails at 5, after a token at 4.
FIRST = made_record(0, due=0.0, start=0.1, chunks=(1.0, 2.0, 3.0), end=3.1, served=3)
SECOND = made_record(
    1, due=1.0, start=1.1, chunks=(4.0,), end=5.1, served=1, outcome=Outcome.TRUNCATED
)


def test_counts() -> None:
    """Requests are completed or failed, and every one is counted."""
    summary = summarise([FIRST, SECOND])
    assert (summary.requests, summary.completed, summary.failed) == (2, 1, 1)
    assert summary.outcomes == {Outcome.OK: 1, Outcome.TRUNCATED: 1}
    assert summary.chunks == 4


def test_duration_is_first_start_to_last_end() -> None:
    """0.1 to 5.1 is 5 s, the failed request included."""
    assert summarise([FIRST, SECOND]).duration_s == pytest.approx(5.0)


def test_throughput() -> None:
    """One success and four tokens in 5 s: tokens of failed requests came too."""
    summary = summarise([FIRST, SECOND])
    assert summary.requests_per_s == pytest.approx(0.2)
    assert summary.output_tokens == 4
    assert summary.output_tokens_per_s == pytest.approx(0.8)


def test_latencies_are_over_successes() -> None:
    """Only the successful request has latencies."""
    summary = summarise([FIRST, SECOND])
    for values, expected in (
        (summary.ttft_s, 0.9),
        (summary.ttft_from_due_s, 1.0),
        (summary.tpot_s, 1.0),
        (summary.e2e_s, 3.0),
        (summary.e2e_from_due_s, 3.1),
    ):
        assert values is not None
        assert values.n == 1
        assert values.mean == pytest.approx(expected)


def test_schedule_lag_is_over_all_that_were_sent() -> None:
    """The client's lateness counts for failed requests as well."""
    lag = summarise([FIRST, SECOND]).schedule_lag_s
    assert lag is not None
    assert lag.n == 2
    assert lag.mean == pytest.approx(0.1)


def test_rates() -> None:
    """Three requests over 2 s are 1 a second; sent over 4 s, half of one."""
    records = [made_record(n, due=float(n), start=2.0 * n, end=9.0) for n in range(3)]
    summary = summarise(records)
    assert summary.request_rate_asked == 1.0
    assert summary.request_rate_sent == 0.5


def test_rates_do_not_need_an_order() -> None:
    """Records come in the order in which requests ended."""
    records = [made_record(n, due=float(n), end=9.0) for n in (2, 0, 1)]
    assert summarise(records).request_rate_asked == 1.0


def test_an_infinite_rate_is_no_figure() -> None:
    """When all requests are due at once there is no rate that was asked."""
    summary = summarise([made_record(n, chunks=(1.0,)) for n in range(3)])
    assert summary.request_rate_asked is None
    assert summary.steady is None


def test_one_token_answers_do_not_count_as_tpot_of_0() -> None:
    """TPOT is over the answers that have one: here 0.5 alone, not the mean of 0 and 0.5."""
    one = made_record(0, chunks=(1.0,), served=1)
    three = made_record(1, chunks=(1.0, 1.5, 2.0), served=3)
    tpot = summarise([one, three]).tpot_s
    assert tpot is not None
    assert (tpot.n, tpot.mean, tpot.min) == (1, 0.5, 0.5)


def test_only_one_token_answers_have_no_tpot() -> None:
    """With nothing to compute it from, TPOT is missing."""
    summary = summarise([made_record(0, chunks=(1.0,), served=1)])
    assert summary.tpot_s is None
    assert summary.itl_s is None
    assert summary.ttft_s is not None


def test_itl_pools_gaps_and_icl_does_not_spread_them() -> None:
    """ITL has a gap a token, ICL one a chunk; both pool all requests."""
    records = [
        made_record(0, chunks=(1.0, 2.0), chunk_tokens=(1, 4), served=5),
        made_record(1, chunks=(1.0, 3.0), chunk_tokens=(1, 1), served=2),
    ]
    summary = summarise(records)
    assert summary.itl_s is not None
    assert summary.icl_s is not None
    assert (summary.itl_s.n, summary.itl_s.mean) == (5, pytest.approx(3.0 / 5))
    assert (summary.icl_s.n, summary.icl_s.mean) == (2, 1.5)


def test_the_steady_window_is_first_to_last_due() -> None:
    """Tokens before the first and after the last due time are left out; at its ends, in."""
    records = [
        made_record(
            0, due=1.0, chunks=(1.0, 2.0, 3.0, 3.5), chunk_tokens=(2, 3, 4, 100), served=109
        ),
        made_record(1, due=3.0, chunks=(4.0,), chunk_tokens=(100,), served=100),
    ]
    steady = summarise(records).steady
    assert steady is not None
    assert steady.duration_s == 2.0
    assert steady.output_tokens == 9
    assert steady.output_tokens_per_s == 4.5


def test_the_steady_window_takes_chunks_as_equal_where_the_total_alone_is_told() -> None:
    """An answer's chunks share its tokens; of one whose count nobody told, each counts as one."""
    records = [
        made_record(0, due=0.0, chunks=(1.0, 2.0, 5.0), served=30),
        made_record(
            1, due=4.0, chunks=(3.0,), output_tokens_served=None, outcome=Outcome.STREAM_ERROR
        ),
    ]
    steady = summarise(records).steady
    assert steady is not None
    assert steady.output_tokens == 20 + 1
    assert steady.output_tokens_per_s == pytest.approx(21 / 4)


def test_steady_throughput_is_near_all_throughput_whatever_a_chunk_holds() -> None:
    """Ten tokens a chunk are ten where usage tells the total alone."""
    records = [
        made_record(n, due=n / 10, chunks=tuple(n / 10 + k / 20 for k in range(1, 11)), served=100)
        for n in range(200)
    ]
    summary = summarise(records)
    assert summary.steady is not None
    assert summary.steady.output_tokens_per_s == pytest.approx(summary.output_tokens_per_s, rel=0.1)


def test_dropped_requests_are_failures_without_time() -> None:
    """What was never sent has no duration, lag or rate, but it is in every denominator."""
    dropped = made_record(2, due=2.0, start=1000.0, end=1000.0, outcome=Outcome.DROPPED)
    with_it, without = summarise([FIRST, SECOND, dropped]), summarise([FIRST, SECOND])
    assert (with_it.requests, with_it.failed) == (3, 2)
    assert with_it.duration_s == without.duration_s
    assert with_it.schedule_lag_s == without.schedule_lag_s
    assert with_it.request_rate_sent == without.request_rate_sent


def test_prompt_and_output_tokens_asked_are_of_all() -> None:
    """What was asked is summed over all records, what was served over those that know it."""
    failed = made_record(1, prompt=7, asked=9, outcome=Outcome.HTTP_5XX)
    summary = summarise([made_record(0, prompt=5, asked=2, chunks=(1.0, 2.0)), failed])
    assert (summary.prompt_tokens, summary.prompt_tokens_asked) == (5, 12)
    assert (summary.output_tokens, summary.output_tokens_asked) == (2, 11)


def test_token_sources() -> None:
    """The report can say how the tokens of the successes were counted."""
    records = [
        made_record(0, chunks=(1.0,), token_source=TokenSource.CHUNKS),
        made_record(1, chunks=(1.0,), token_source=TokenSource.USAGE),
        made_record(2, chunks=(1.0,), token_source=TokenSource.USAGE),
        made_record(3, outcome=Outcome.EMPTY),
        made_record(4, chunks=(1.0,), outcome=Outcome.TRUNCATED),
    ]
    assert summarise(records).token_sources == {TokenSource.CHUNKS: 1, TokenSource.USAGE: 2}


@pytest.mark.parametrize(
    "records",
    [[], [made_record(0, outcome=Outcome.DROPPED)], [made_record(0, outcome=Outcome.CONNECT)]],
    ids=["no records", "dropped alone", "one failure of no duration"],
)
def test_what_cannot_be_computed_is_none(records: list[stats.RequestRecord]) -> None:
    """An empty denominator gives None, never 0 and never an error."""
    summary = summarise(records)
    assert summary.completed == 0
    for name in ("requests_per_s", "output_tokens_per_s", "request_rate_asked", "request_rate_sent",
                 "prompt_tokens", "steady", "ttft_s", "tpot_s", "itl_s", "icl_s",
                 "e2e_s"):  # fmt: skip
        assert getattr(summary, name) is None, name


def test_what_was_never_sent_has_no_duration() -> None:
    """A target that got no turn took no time that could be told; one failure took none."""
    assert summarise([]).duration_s is None
    assert summarise([made_record(0, outcome=Outcome.DROPPED)]).duration_s is None
    assert summarise([made_record(0, outcome=Outcome.CONNECT)]).duration_s == 0.0


def test_tokens_that_nobody_told_are_none() -> None:
    """Whole answers without usage have no token counts, and no rate of 0 tokens/s."""
    summary = summarise([made_record(n, due=float(n), end=n + 1.0) for n in range(5)])
    assert summary.completed == 5
    for name in ("output_tokens", "ok_output_tokens", "output_tokens_per_s", "useful_output_tokens",
                 "useful_output_tokens_per_s", "prompt_tokens", "ok_prompt_tokens"):  # fmt: skip
        assert getattr(summary, name) is None, name
    failed = summarise([made_record(0, end=1.0, outcome=Outcome.HTTP_5XX)])
    assert (failed.output_tokens, failed.output_tokens_per_s) == (0, 0.0)


def test_what_successes_asked_is_of_those_that_tell_what_they_were_served() -> None:
    """A sum of what was served is held against the same answers' lengths and no others."""
    records = [
        made_record(0, chunks=(1.0, 2.0), prompt=500, asked=2, prompt_tokens_served=501),
        made_record(1, chunks=(1.0, 2.0), prompt=700, asked=2, prompt_tokens_served=None),
        made_record(2, end=2.0, prompt=900, asked=8, prompt_tokens_served=900),
    ]
    summary = summarise(records)
    assert (summary.ok_prompt_tokens, summary.ok_prompt_tokens_asked) == (1401, 1400)
    assert (summary.ok_output_tokens, summary.ok_output_tokens_asked) == (4, 4)


@given(
    values=st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=200),
    percentiles=st.lists(st.floats(0.1, 99.9), min_size=1, max_size=5, unique=True),
)
def test_percentiles_are_numpys(values: list[float], percentiles: list[float]) -> None:
    """Mean, deviation and percentiles are NumPy's defaults, as vLLM's are."""
    found = distribution(values, percentiles)
    assert found is not None
    assert found.n == len(values)
    assert found.mean == np.mean(values)
    assert found.std == np.std(values)
    assert (found.min, found.max) == (min(values), max(values))
    for percentile in percentiles:
        assert found.at(percentile) == np.percentile(values, percentile)


def test_a_percentile_by_hand() -> None:
    """p90 of 0 to 9 lies a tenth of the way from 8 to 9: rank 0.9 * 9 = 8.1."""
    found = distribution([float(n) for n in range(10)], (50.0, 90.0))
    assert found is not None
    assert found.at(50.0) == 4.5
    assert found.at(90.0) == pytest.approx(8.1)
    with pytest.raises(KeyError):
        found.at(99.0)


def test_no_values_have_no_distribution() -> None:
    """Nothing has no mean."""
    assert distribution([], (50.0,)) is None


def test_asked_percentiles_come_beside_the_usual_ones() -> None:
    """50, 90 and 99 are always there: the results' format names them."""
    summary = summarise([FIRST], (75.0, 99.9))
    assert summary.e2e_s is not None
    assert [p for p, _ in summary.e2e_s.percentiles] == [50.0, 75.0, 90.0, 99.0, 99.9]


@pytest.mark.parametrize(
    ("percentile", "name"), [(50.0, "p50"), (99.9, "p99.9"), (99.99, "p99.99"), (5.0, "p5")]
)
def test_percentile_names(percentile: float, name: str) -> None:
    """A percentile is named as it is said."""
    assert percentile_name(percentile) == name


def test_as_json_is_plain() -> None:
    """A summary goes into JSON, and comes back as it was, missing figures as null."""
    content = stats.as_json(summarise([FIRST, SECOND]))
    again = json.loads(json.dumps(content))
    assert again == content
    assert again["outcomes"] == {"ok": 1, "truncated": 1}
    assert again["ttft_s"]["n"] == 1
    assert set(again["ttft_s"]) >= {"mean", "p50", "p90", "p99", "n", "std", "min", "max"}
    assert again["steady"]["duration_s"] == 1.0
    assert stats.as_json(summarise([]))["ttft_s"] is None


times = st.floats(0, 100, allow_nan=False)


@given(
    st.lists(
        st.tuples(times, times, st.lists(times, max_size=5), st.sampled_from(list(Outcome))),
        max_size=20,
    )
)
def test_any_records_can_be_summarised(
    rows: list[tuple[float, float, list[float], Outcome]],
) -> None:
    """Counts add up and no figure is NaN or negative, whatever the records."""
    records = [
        made_record(
            n, due=due, start=start, chunks=tuple(sorted(start + g for g in gaps)), outcome=o
        )
        for n, (due, start, gaps, o) in enumerate(rows)
    ]
    summary = summarise(records)
    assert summary.completed + summary.failed == summary.requests == len(records)
    assert sum(summary.outcomes.values()) == len(records)
    content = stats.as_json(summary)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    for name in ("duration_s", "requests_per_s", "output_tokens_per_s"):
        assert content[name] is None or content[name] >= 0


def test_what_took_no_time_has_no_rate() -> None:
    """A span below any clock's tick gives no rate, and never an infinite one."""
    records = [
        made_record(n, due=n * 5e-324, start=n * 5e-324, chunks=(n * 5e-324,)) for n in (0, 1)
    ]
    summary = summarise(records)
    assert summary.requests_per_s is None
    assert summary.request_rate_asked is None
    assert summary.steady is None


def test_answers_that_do_not_stream_have_no_steady_throughput() -> None:
    """Without chunk times nobody knows when tokens came: no figure, and not 0."""
    whole = [
        made_record(n, due=float(n), end=n + 1.0, served=4, token_source=TokenSource.USAGE)
        for n in range(5)
    ]
    assert summarise(whole).steady is None
    assert summarise(whole).output_tokens_per_s is not None


def test_turns_are_summed_and_what_lies_between_them_is_not() -> None:
    """Between its turns a target was idle: no duration, rate or throughput counts that time."""
    records = [
        made_record(0, due=0.0, start=0.0, chunks=(0.5, 1.0)),
        made_record(1, due=1.0, start=1.0, chunks=(1.5, 2.0)),
        made_record(2, due=100.0, start=100.0, chunks=(100.5, 101.0), block=1),
        made_record(3, due=102.0, start=102.0, chunks=(102.5, 103.0), block=1),
    ]
    summary = summarise(records)
    assert summary.duration_s == pytest.approx(2.0 + 3.0)
    assert summary.requests_per_s == pytest.approx(4 / 5)
    assert summary.request_rate_asked == pytest.approx(2 / 3)
    assert summary.request_rate_sent == pytest.approx(2 / 3)
    assert summary.steady is not None
    assert summary.steady.duration_s == pytest.approx(3.0)
    assert summary.steady.output_tokens == 2 + 2


def test_turns_that_overlap_have_their_own_chunks() -> None:
    """A chunk that comes late, in the next turn's time, is in no turn's steady window."""
    records = [
        made_record(0, due=0.0, chunks=(0.5, 6.0)),
        made_record(1, due=1.0, chunks=(2.0,)),
        made_record(0, due=5.0, chunks=(5.5,), repeat=1),
        made_record(1, due=7.0, chunks=(8.0,), repeat=1),
    ]
    summary = summarise(records)
    assert summary.steady is not None
    assert summary.steady.duration_s == pytest.approx(1.0 + 2.0)
    assert summary.steady.output_tokens == 2


def test_what_failed_is_held_to_no_length() -> None:
    """An answer that broke off is a failure, not a success that is short of what it asked."""
    records = [
        made_record(0, chunks=(1.0, 2.0, 3.0, 4.0)),
        made_record(1, chunks=(1.0,), outcome=Outcome.TRUNCATED),
    ]
    summary = summarise(records)
    assert summary.length_shortfall == 0.0
    assert summary.ok_output_tokens_asked == 4
