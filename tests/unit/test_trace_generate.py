"""Generating: profiles, mixtures, lengths of a trace, coupling; asked beside drawn."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadgen.config import GeneratorConfig
from loadgen.errors import TraceError
from loadgen.trace import Trace, trace_bytes, write_trace
from loadgen.trace.figures import describe, dispersion, spearman
from loadgen.trace.generate import Source, account, generate


def make(**values: Any) -> GeneratorConfig:
    return GeneratorConfig.model_validate(values)


@pytest.mark.parametrize(
    ("values", "digest"),
    [
        ({}, "6c28aab03177894d"),
        ({"preset": "lesson1"}, "a88b706cf3b74d93"),
        ({"burstiness": 2.0}, "4d3378709cfddbfa"),
        ({"arrival": "gamma"}, "2bed72cc2041eb7c"),
        (
            {"num_prompts": 3000, "request_rate": 8, "input_max": 9000, "input_mu": 7},
            "5e37f357bae65819",
        ),
    ],
    ids=str,
)
def test_traces_of_the_first_version(values: dict[str, Any], digest: str) -> None:
    """What was drawn before there were profiles and mixtures is drawn to the same byte."""
    data = trace_bytes(generate(make(**values)))
    assert hashlib.sha256(data).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"input_mean": 100.0}, ("input_mean", "input_cv", "input_median")),
        ({"input_mean": 100.0, "input_cv": 1.0, "input_median": 50.0}, ("input_mean",)),
        ({"input_cv": 1.0}, ("input_cv", "input_mean")),
        ({"output_median": 10.0}, ("output_median", "output_mean")),
        ({"input_mean": 100.0, "input_median": 200.0}, ("input_mean", "median")),
        ({"input_mean": 100.0, "input_cv": 1.0, "input_mu": 3.0}, ("input_mean", "input_mu")),
        ({"input_law": "gamma"}, ("input_law", "input_cv")),
        ({"input_law": "gamma", "input_mean": 5.0}, ("input_law", "input_cv")),
        ({"input_law": "uniform", "input_mu": 5.0}, ("input_mu", "uniform")),
        ({"output_law": "exponential", "output_mean": 5.0, "output_cv": 2.0}, ("output_cv",)),
        ({"output_law": "weibull", "output_mean": 5.0, "output_sigma": 2.0}, ("output_sigma",)),
        ({"input_law": "gamma", "input_mix": "0.5:1:1"}, ("input_mix",)),
        ({"input_len": 5, "input_mean": 5.0, "input_cv": 1.0}, ("input_len", "input_mean")),
        ({"preset": "lesson1", "length_correlation": 0.5}, ("preset", "length_correlation")),
        ({"preset": "lesson1", "lengths_from": "x"}, ("preset", "lengths_from")),
        ({"lengths_from": "x", "input_len": 5, "output_mu": 2.0}, ("lengths_from",)),
        ({"lengths_from": "x", "length_correlation": 0.5}, ("length_correlation",)),
        ({"burstiness": 1.0, "arrival_mix": "0.5:1:1"}, ("burstiness", "arrival_mix")),
        ({"arrival": "gamma", "arrival_mix": "0.5:1:1"}, ("arrival_mix", "arrival")),
        ({"rate_profile": "ramp:1:2:3", "request_rate": 5}, ("request_rate",)),
        ({"rate_profile": "steps:1@5", "request_rate": 5}, ("request_rate",)),
        ({"rate_profile": "sine:0.5", "request_rate": math.inf}, ("request_rate",)),
        ({"exact_rate": True, "request_rate": math.inf}, ("exact_rate", "request_rate")),
        ({"rate_profile": "up"}, ("rate_profile",)),
        ({"arrival_mix": "1:1"}, ("arrival_mix",)),
        ({"arrival_mix": "1.5:1:1"}, ("arrival_mix",)),
        ({"input_mix": "a:b:c"}, ("input_mix",)),
        ({"length_correlation": 1.5}, ("length_correlation",)),
    ],
    ids=str,
)
def test_contradictions(values: dict[str, Any], words: tuple[str, ...]) -> None:
    """What contradicts itself, or is half of a law, is refused by name."""
    with pytest.raises(ValueError, match=r"(?s).+") as caught:
        make(**values)
    told = str(caught.value) + str([error.get("ctx") for error in caught.value.errors()])  # type: ignore[attr-defined]
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    "values",
    [
        {"input_mean": 2048.0, "input_cv": 0.96, "request_rate": math.inf},
        {"output_mean": 20.0, "output_median": 10.0, "arrival_mix": "0.2:30:0.5"},
        {"input_law": "weibull", "input_mean": 5.0, "input_cv": 2.0, "rate_profile": "sine:1:60"},
        {"input_len": 7, "output_mix": "0.25:6:0.5", "exact_rate": True},
        {"preset": "lesson1", "burstiness": 2.0},
        {"rate_profile": "steps:1@5,2@3", "length_correlation": -0.5},
    ],
    ids=str,
)
def test_a_dump_is_read_back(values: dict[str, Any]) -> None:
    """What stands in a sidecar or a run's header is a configuration that draws the same trace."""
    config = make(num_prompts=50, **values)
    dump = orjson.dumps(config.model_dump(mode="json"))
    again = GeneratorConfig.model_validate(orjson.loads(dump))
    assert trace_bytes(generate(again)) == trace_bytes(generate(config))


@pytest.mark.parametrize("law", ["lognormal", "gamma", "weibull"])
def test_lengths_by_mean_and_cv(law: str) -> None:
    """A wide range: the sample has the asked mean and CV."""
    config = make(
        num_prompts=200_000, input_law=law, input_mean=1155.0, input_cv=0.9, input_min=1,
        input_max=1_000_000,
    )  # fmt: skip
    lengths = generate(config).input_length
    assert lengths.mean() == pytest.approx(1155, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(0.9, rel=0.02)


def test_lengths_by_mean_and_median() -> None:
    """The sample has the asked mean and median."""
    config = make(num_prompts=200_000, output_mean=500.0, output_median=300.0, output_max=1_000_000)
    lengths = generate(config).output_length
    assert lengths.mean() == pytest.approx(500, rel=0.02)
    assert np.median(lengths) == pytest.approx(300, rel=0.02)


def test_uniform_lengths() -> None:
    """Each length from min to max comes about as often."""
    config = make(num_prompts=40_000, input_law="uniform", input_min=3, input_max=6)
    values, counts = np.unique(generate(config).input_length, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts == pytest.approx(10_000, rel=0.05)


def test_a_mixture_of_lengths() -> None:
    """A quarter of the outputs comes from the second component."""
    config = make(
        num_prompts=100_000, output_mu=3.0, output_sigma=0.3, output_mix="0.25:7:0.3",
        output_max=100_000,
    )  # fmt: skip
    assert (generate(config).output_length > 200).mean() == pytest.approx(0.25, abs=0.005)


def test_a_mixture_of_gaps_keeps_the_rate() -> None:
    """Short gaps within bursts and long ones between them; the rate is the asked one."""
    config = make(
        num_prompts=400_000, request_rate=8, arrival_cv=0.5, arrival_mix="0.1:50:0.3", input_len=1,
        output_len=1,
    )  # fmt: skip
    found = describe(generate(config))
    assert found["request_rate"] == pytest.approx(8, rel=0.02)
    assert found["arrival_cv"] == pytest.approx(Source.of(config).arrivals.gap_law.cv, rel=0.02)


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.5, 1.0])
def test_coupled_lengths(correlation: float) -> None:
    """Ranks correlate as those of normal scores do, and each side keeps the lengths it had."""
    base = make(num_prompts=50_000, input_max=10**6, output_max=10**6)
    config = base.model_copy(update={"length_correlation": correlation})
    alone, coupled = generate(base), generate(config)
    for side in ("input_length", "output_length"):
        assert np.array_equal(np.sort(getattr(alone, side)), np.sort(getattr(coupled, side)))
    found = spearman(coupled.input_length, coupled.output_length)
    assert found == pytest.approx(6 / math.pi * math.asin(correlation / 2), abs=0.02)
    assert coupled.timestamp_ms.tolist() == alone.timestamp_ms.tolist()


@pytest.fixture
def given_trace(tmp_path: Path) -> Path:
    """Ten minutes, busy in the first; long prompts have long outputs."""
    times = np.concatenate([np.linspace(0, 59_000, 500), np.linspace(60_000, 600_000, 100)])
    inputs = np.arange(600) % 50 + 2000
    write_trace(tmp_path / "given.jsonl", Trace(times, inputs, inputs * 2), {})
    return tmp_path / "given.jsonl"


def test_lengths_of_a_trace(given_trace: Path) -> None:
    """Rows are drawn whole: lengths stay together, and the defaults' clamps do not cut them."""
    trace = generate(make(num_prompts=5000, lengths_from=given_trace))
    assert np.array_equal(trace.output_length, trace.input_length * 2)
    assert set(trace.input_length.tolist()) == set(range(2000, 2050))
    cut = generate(make(num_prompts=5000, lengths_from=given_trace, input_max=2010))
    assert cut.input_length.max() == 2010
    mixed = generate(make(num_prompts=500, lengths_from=given_trace, output_len=3))
    assert set(mixed.output_length.tolist()) == {3}
    assert mixed.input_length.min() >= 2000


def test_the_rate_of_a_trace(given_trace: Path) -> None:
    """A profile from a trace: busy where it was busy, at its own rate or scaled to another."""
    own = generate(make(num_prompts=600, rate_profile=f"trace:{given_trace}:60"))
    assert (own.timestamp_ms < 60_000).mean() == pytest.approx(500 / 600, abs=0.1)
    assert own.duration_s == pytest.approx(600, rel=0.15)
    config = make(num_prompts=6000, request_rate=10, rate_profile=f"trace:{given_trace}:60")
    scaled = generate(config)
    assert scaled.duration_s == pytest.approx(600, rel=0.15)
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        generate(make(rate_profile="trace:nowhere.jsonl"))
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        generate(make(lengths_from="nowhere.jsonl"))


@settings(deadline=None, max_examples=40)
@given(
    values=st.fixed_dictionaries(
        {"num_prompts": st.integers(1, 60), "seed": st.integers(0, 2**32 - 1)},
        optional={
            "arrival": st.sampled_from(
                ["lognormal", "exponential", "gamma", "weibull", "constant"]
            ),
            "rate_profile": st.sampled_from(
                ["ramp:0:10:5", "steps:5@1,0@2,9@1", "steps:0@3,4", "sine:1:10", "constant"]
            ),
            "exact_rate": st.booleans(),
            "length_correlation": st.floats(-1, 1),
            "input_mix": st.just("0.3:8:2"),
        },
    )
)
def test_any_trace_is_one(values: dict[str, Any]) -> None:
    """Whatever is asked: times rise from 0 and are finite, lengths lie in range, it can be told."""
    config = make(**values)
    source = Source.of(config)
    trace = source.draw()
    assert trace.timestamp_ms[0] == 0
    assert np.isfinite(trace.timestamp_ms).all()
    assert (np.diff(trace.timestamp_ms) >= 0).all()
    assert trace.input_length.min() >= 10
    assert trace.input_length.max() <= 1024
    told = account(source, trace)
    assert orjson.loads(orjson.dumps(told))["drawn"]["requests"] == len(trace)
    assert trace_bytes(generate(config)) == trace_bytes(trace)


def test_asked_beside_drawn() -> None:
    """Law figures are the law's, drawn ones the sample's, and they lie near each other."""
    source = Source.of(make(num_prompts=40_000, request_rate=8, arrival="exponential"))
    told = account(source, source.draw())
    assert told["law"]["request_rate"] == 8
    assert told["law"]["arrival_cv"] == 1.0
    assert told["law"]["dispersion"] == {"1": 1.0, "10": 1.0, "60": 1.0}
    assert told["drawn"]["dispersion"]["1"] == pytest.approx(1.0, abs=0.06)
    for name in ("gaps", "input_tokens", "output_tokens"):
        assert 0 < told["ks"][name] < 1.95 / math.sqrt(40_000)
    for part in ("mean", "cv", "p50", "p90"):
        law, drawn = (told[who]["output_tokens"][part] for who in ("law", "drawn"))
        assert drawn == pytest.approx(law, rel=0.05)


def test_what_no_law_says_is_none() -> None:
    """A preset, constant gaps and an infinite rate have no law to be held against."""
    source = Source.of(make(preset="lesson1", request_rate=math.inf))
    told = account(source, source.draw())
    assert told["law"]["input_tokens"] is None
    assert told["law"]["arrival_cv"] is None
    assert told["ks"] == {"gaps": None, "input_tokens": None, "output_tokens": None}
    constant = Source.of(make(arrival="constant"))
    assert account(constant, constant.draw())["ks"]["gaps"] is None


def test_dispersion_by_hand() -> None:
    """Counts 0 and 4 in turn: mean 2, variance 4, so 2; too few windows give none."""
    times_s = np.array([10.0 * window + place for window in range(10) for place in range(4)])
    times_s = np.append(times_s, 100.0)
    assert dispersion(times_s * 1000, 5.0) == pytest.approx(2.0)
    assert dispersion(times_s * 1000, 10.0) == 0.0
    assert dispersion(times_s * 1000, 20.0) is None


def test_rank_correlation() -> None:
    """It is scipy's, ties included, and none where a side does not vary."""
    rng = np.random.default_rng(0)
    one = rng.integers(0, 20, 500)
    two = one + rng.integers(0, 20, 500)
    assert spearman(one, two) == pytest.approx(stats.spearmanr(one, two).statistic)
    assert spearman(one, np.ones(500, dtype=np.int64)) is None
    assert spearman(one[:1], two[:1]) is None
