"""Targets side by side, and their ratios."""

from __future__ import annotations

import pytest
from made_records import made_record

from loadgen.compare import comparison, figures, ratio_of
from loadgen.record import Outcome
from loadgen.stats import summarise
from loadgen.verdict import Grade, Reason, Verdict

VALID = Verdict(Grade.VALID, ())
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
KEYS = {
    "goodput",
    "completed", "failed", "duration_s", "requests_per_s", "output_tokens", "output_tokens_per_s",
    "useful_output_tokens_per_s", *LATENCIES,
}  # fmt: skip

# Two answers of three tokens each in 4 s; the faster target takes half the time for the same.
SLOW = summarise([made_record(n, chunks=(2.0, 3.0, 4.0)) for n in range(2)])
FAST = summarise([made_record(n, chunks=(1.0, 1.5, 2.0)) for n in range(2)])
NOTHING = summarise([made_record(0, outcome=Outcome.CONNECT)])


def test_figures_by_hand() -> None:
    """One target's figures are those of its records."""
    found = figures(SLOW)
    assert set(found) == KEYS
    assert (found["completed"], found["failed"], found["output_tokens"]) == (2, 0, 6)
    assert (found["duration_s"], found["requests_per_s"]) == (4.0, 0.5)
    assert found["output_tokens_per_s"] == 1.5
    assert found["ttft_s"] == {"mean": 2.0, "p50": 2.0, "p90": 2.0, "p99": 2.0}
    assert found["tpot_s"]["p99"] == found["itl_s"]["mean"] == 1.0
    assert found["e2e_s"]["p50"] == 4.0


def test_ratio_is_other_over_baseline() -> None:
    """Twice the throughput is 2, half the latency is 0.5: the baseline is the first target."""
    found = comparison({"static": SLOW, "vllm": FAST}, VALID, {})
    assert found["baseline"] == "static"
    ratio = found["ratio"]
    assert set(ratio) == KEYS
    assert (ratio["requests_per_s"], ratio["output_tokens_per_s"]) == (2.0, 2.0)
    assert ratio["completed"] == 1.0
    for name in LATENCIES:
        assert ratio[name] == {"mean": 0.5, "p50": 0.5, "p90": 0.5, "p99": 0.5}


def test_what_is_0_in_the_baseline_has_no_ratio() -> None:
    """No failures on the baseline: neither infinite nor 1, but no ratio."""
    assert comparison({"a": SLOW, "b": FAST}, VALID, {})["ratio"]["failed"] is None


@pytest.mark.parametrize(
    ("first", "second"), [(SLOW, NOTHING), (NOTHING, SLOW), (NOTHING, NOTHING)]
)
def test_what_is_missing_has_no_ratio(first: object, second: object) -> None:
    """Latencies that one side does not have are null, and keep their shape."""
    found = comparison({"a": first, "b": second}, VALID, {})  # type: ignore[dict-item]
    for name in LATENCIES:
        assert found["ratio"][name] == dict.fromkeys(("mean", "p50", "p90", "p99"))
    assert found["targets"]["a"]["ttft_s"].keys() == {"mean", "p50", "p90", "p99"}


def test_nothing_from_the_other_is_a_ratio_of_0() -> None:
    """No tokens against some is a ratio of 0: that is a figure, not a missing one."""
    down = summarise([made_record(0, end=4.0, outcome=Outcome.HTTP_5XX)])
    assert ratio_of(figures(down), figures(SLOW))["output_tokens_per_s"] == 0.0


def test_several_targets() -> None:
    """Each target but the first has its ratios; `ratio` is the second's."""
    found = comparison({"a": SLOW, "b": FAST, "c": SLOW}, VALID, {})
    assert list(found["ratios"]) == ["b", "c"]
    assert found["ratio"] == found["ratios"]["b"]
    assert found["ratios"]["c"]["output_tokens_per_s"] == 1.0


def test_the_verdict_stands_in_it() -> None:
    """The comparison says how far it can be trusted, and why."""
    reason = Reason(Grade.SUSPECT, "a", "few_samples", "2 requests are too few")
    found = comparison({"a": SLOW, "b": FAST}, Verdict(Grade.SUSPECT, (reason,)), {})
    assert found["verdict"] == "SUSPECT"
    assert found["reasons"] == [
        {"grade": "SUSPECT", "target": "a", "rule": "few_samples", "text": "2 requests are too few"}
    ]


def test_asked_percentiles_have_ratios_too() -> None:
    """A percentile that was asked for is compared beside the usual ones."""
    slow = summarise([made_record(0, chunks=(2.0, 4.0))], (99.9,))
    fast = summarise([made_record(0, chunks=(1.0, 2.0))], (99.9,))
    assert comparison({"a": slow, "b": fast}, VALID, {})["ratio"]["ttft_s"]["p99.9"] == 0.5
