"""Rate profiles: their integral, its inverse, and arrivals that follow them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.trace.arrivals import Arrivals
from loadgen.trace.config import ArrivalLaw, GeneratorConfig
from loadgen.trace.generate import generate
from loadgen.trace.profile import (
    DailySine,
    FromTrace,
    Profile,
    Ramp,
    Sine,
    Steps,
    parse_profile,
    profile_of,
)

PROFILES: dict[str, Profile] = {
    "ramp up": Ramp(1.0, 20.0, 60.0),
    "ramp from 0": Ramp(0.0, 5.0, 30.0),
    "ramp down": Ramp(9.0, 0.5, 40.0),
    "flat ramp": Ramp(3.0, 3.0, 10.0),
    "steps": Steps((10.0, 5.0, 2.5), (1.0, 8.0, 0.25)),
    "steps with a pause": Steps((10.0, 5.0, 10.0), (2.0, 0.0, 3.0)),
    "steps with a tail": Steps((10.0, 5.0), (2.0, 7.0), 4.0),
    "sine": Sine(5.0, 0.8, 50.0, 12.0),
    "sine to 0": Sine(5.0, 1.0, 50.0),
    "no sine": Sine(5.0, 0.0, 50.0),
}


def rate_at(name: str, t: float) -> float:
    """The rate that each profile's words say, written down independently."""
    if name.startswith(("ramp", "flat")):
        ramp = PROFILES[name]
        assert isinstance(ramp, Ramp)
        return ramp.first + (ramp.last - ramp.first) * min(t / ramp.duration_s, 1.0)
    if name.startswith("steps"):
        steps = PROFILES[name]
        assert isinstance(steps, Steps)
        total = sum(steps.duration_s)
        if steps.tail is not None and t >= total:
            return steps.tail
        t %= total
        for duration, rate in zip(steps.duration_s, steps.rate, strict=True):
            if t < duration:
                return rate
            t -= duration
        return steps.rate[0]
    sine = PROFILES[name]
    assert isinstance(sine, Sine)
    turn = 2 * math.pi * (t + sine.phase_s) / sine.period_s
    return sine.rate * (1 + sine.amplitude * math.sin(turn))


@pytest.mark.parametrize("name", PROFILES)
def test_the_integral_is_that_of_the_rate(name: str) -> None:
    """Expected arrivals are the rate's integral, summed numerically over 200 s."""
    times = np.linspace(0.0, 200.0, 40_001)
    rates = np.array([rate_at(name, t) for t in (times[:-1] + times[1:]) / 2])
    summed = np.concatenate(([0.0], np.cumsum(rates * np.diff(times))))
    assert PROFILES[name].expected(times) == pytest.approx(summed, abs=0.05)


@pytest.mark.parametrize("name", PROFILES)
@settings(deadline=None, max_examples=40)
@given(expected=st.lists(st.floats(0, 5000), min_size=1, max_size=20))
def test_the_inverse_is_the_inverse(name: str, expected: list[float]) -> None:
    """The time at which a number is expected has that number expected, and times never fall."""
    wanted = np.sort(np.array(expected))
    times_s = PROFILES[name].time_s(wanted)
    assert PROFILES[name].expected(times_s) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert (np.diff(times_s) >= 0).all()
    assert (times_s >= 0).all()


@pytest.mark.parametrize("name", PROFILES)
def test_the_local_rate_is_the_profiles(name: str) -> None:
    """Poisson arrivals under a profile: counts in 100 windows scatter as such."""
    arrivals = Arrivals(1.0, ArrivalLaw.EXPONENTIAL, 1.0, profile=PROFILES[name])
    times_s = arrivals.draw_ms(20_000, np.random.default_rng(9)) / 1000.0
    edges = np.linspace(0.0, times_s[-1], 101)
    counts, _ = np.histogram(times_s, edges)
    expected = np.diff(PROFILES[name].expected(edges))
    sure = expected > 5
    assert sure.sum() > 20
    squares = (counts[sure] - expected[sure]) ** 2 / expected[sure]
    assert squares.mean() == pytest.approx(1.0, abs=0.6)


@pytest.mark.parametrize("law", list(ArrivalLaw))
@pytest.mark.parametrize("name", PROFILES)
def test_gaps_come_back_out_of_a_profile(name: str, law: ArrivalLaw) -> None:
    """With the profile taken out again, gaps have the unit law's mean and spread."""
    arrivals = Arrivals(1.0, law, 0.7, profile=PROFILES[name])
    gaps = arrivals.law_gaps(arrivals.draw_ms(20_000, np.random.default_rng(3)))
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() == pytest.approx(arrivals.gap_law.cv, rel=0.1, abs=1e-6)


@pytest.mark.parametrize("profile", [None, *PROFILES.values()], ids=["none", *PROFILES])
@pytest.mark.parametrize("n", [2, 3, 1000])
def test_an_exact_rate(profile: Profile | None, n: int) -> None:
    """The sample's own rate, (n - 1) / (last - first), is the asked one."""
    arrivals = Arrivals(8.0, ArrivalLaw.LOGNORMAL, 1.5, profile=profile, is_exact=True)
    times_ms = arrivals.draw_ms(n, np.random.default_rng(1))
    assert times_ms[0] == 0
    assert (n - 1) / (times_ms[-1] / 1000) == pytest.approx(arrivals.asked_rate(n), rel=1e-9)


def test_a_profile_of_a_trace() -> None:
    """Bins of a trace become its rates; a rate that is asked scales them; then it starts again."""
    times_ms = np.array([0.0, 1000.0, 2000.0, 61_000.0, 90_000.0])
    profile = profile_of(times_ms, 60.0, None)
    assert profile.duration_s == (60.0, 30.0)
    assert profile.rate == (pytest.approx(3 / 60), pytest.approx(2 / 30))
    scaled = profile_of(times_ms, 60.0, 10.0)
    assert scaled.expected(np.array([90.0]))[0] == pytest.approx(900.0)
    assert scaled.rate[1] / scaled.rate[0] == pytest.approx(profile.rate[1] / profile.rate[0])
    assert profile.expected(np.array([180.0]))[0] == pytest.approx(10.0)


@settings(deadline=None, max_examples=300)
@given(bins=st.integers(1, 3000), bin_ms=st.integers(1, 100_000), arrivals=st.integers(2, 40))
@example(bins=7, bin_ms=300, arrivals=3)  # 2.1 / 0.3 is over 7: a last bin of length 0
@example(bins=14, bin_ms=300, arrivals=5)
@example(bins=6, bin_ms=700, arrivals=50)  # 4.2 / 0.7 is over 6: one of 9e-16 s
@example(bins=30, bin_ms=700, arrivals=2)
@example(bins=3, bin_ms=100, arrivals=2)  # 0.3 / 0.1 is under 3
def test_a_trace_that_is_whole_bins_long(bins: int, bin_ms: int, arrivals: int) -> None:
    """So many bins there are, each of the asked length, however decimals round; and the profile
    gives the trace's arrivals back, at finite times."""
    times_ms = np.linspace(0.0, float(bins * bin_ms), arrivals)
    profile = profile_of(times_ms, bin_ms / 1000, None)
    assert profile.duration_s == pytest.approx((bin_ms / 1000,) * bins, rel=1e-5)
    counts = np.array(profile.rate) * profile.duration_s
    assert counts.sum() == pytest.approx(arrivals)
    assert (counts > -1e-9).all()
    drawn_s = profile.time_s(np.arange(2.0 * arrivals))
    assert np.isfinite(drawn_s).all()
    assert (np.diff(drawn_s) >= 0).all()
    assert drawn_s[-1] <= 2 * bins * bin_ms / 1000 * (1 + 1e-9)


@given(bins=st.integers(1, 500), bin_ms=st.integers(2, 100_000), data=st.data())
def test_a_last_bin_that_is_cut_stays(bins: int, bin_ms: int, data: st.DataObject) -> None:
    """A rest of the trace that is no rounding, of a microsecond even, has a bin of its own."""
    rest_ms = data.draw(st.integers(1, bin_ms - 1) | st.just(0.001))
    profile = profile_of(np.array([0.0, bins * bin_ms + rest_ms]), bin_ms / 1000, None)
    assert len(profile.rate) == bins + 1
    assert profile.duration_s[-1] == pytest.approx(rest_ms / 1000, rel=1e-2)
    assert profile.rate[-1] * profile.duration_s[-1] == pytest.approx(1.0)


def test_a_profile_of_whole_bins_draws_a_trace(tmp_path: Path) -> None:
    """A trace of 2.1 s in bins of 0.3 s is a rate profile for `trace generate`."""
    path = tmp_path / "t.jsonl"
    row = '{{"timestamp":{},"input_length":9,"output_length":9}}\n'
    path.write_text("".join(row.format(60 * n) for n in range(36)))
    trace = generate(GeneratorConfig(num_prompts=50, seed=1, rate_profile=f"trace:{path}:0.3"))
    assert len(trace) == 50
    assert np.isfinite(trace.timestamp_ms).all()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("constant", None),
        ("ramp:1:10:60", Ramp(1, 10, 60)),
        ("steps:1@60,10@30", Steps((60.0, 30.0), (1.0, 10.0))),
        ("steps:1@60,4", Steps((60.0,), (1.0,), 4.0)),
        ("sine:0.5", DailySine(0.5, 86_400, 0)),
        ("sine:0.5:60:15", DailySine(0.5, 60, 15)),
        ("trace:a.jsonl", FromTrace(Path("a.jsonl"), 60)),
        ("trace:a.jsonl:5", FromTrace(Path("a.jsonl"), 5)),
        ("trace:dir:with/colon.jsonl", FromTrace(Path("dir:with/colon.jsonl"), 60)),
    ],
)
def test_words_of_a_profile(words: str, expected: object) -> None:
    """Each form is taken for what it says."""
    assert parse_profile(words) == expected


@pytest.mark.parametrize(
    "words",
    [
        "", "up", "constant:1", "ramp", "ramp:1:2", "ramp:1:0:5", "ramp:-1:1:5", "ramp:1:2:0",
        "ramp:a:b:c", "ramp:1:inf:5", "steps:", "steps:5", "steps:1@0,2@3", "steps:0@5",
        "steps:1@5,2@x", "steps:1,2@5", "steps:-1@5", "steps:1@5,0", "sine", "sine:2", "sine:-0.1",
        "sine:0.5:0", "sine:0.5:1:2:3", "sine:nan", "trace", "trace:", "trace:f:0", "trace:f:inf",
    ],
)  # fmt: skip
def test_words_that_are_no_profile(words: str) -> None:
    """What makes no sense is refused."""
    with pytest.raises(ValueError, match=r"must|need|number|amplitude"):
        parse_profile(words)
