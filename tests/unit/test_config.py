"""What a configuration may say: conflicts are refused, and nothing unknown passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from loadgen.config import (
    ArrivalLaw,
    Endpoint,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    RunConfig,
    TargetConfig,
)

TARGET = {"name": "a", "base_url": "http://127.0.0.1:8000"}
MODELS: tuple[tuple[type[BaseModel], dict[str, Any]], ...] = (
    (GeneratorConfig, {}),
    (RequestConfig, {}),
    (LoadConfig, {}),
    (OutputConfig, {}),
    (TargetConfig, TARGET),
    (RunConfig, {"targets": [TARGET]}),
)


def refusal(model: type[BaseModel], /, **values: Any) -> str:
    """The message with which `model` refuses these values."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return str(caught.value)


@pytest.mark.parametrize(("model", "values"), MODELS, ids=lambda v: getattr(v, "__name__", ""))
def test_unknown_keys_are_refused(model: type[BaseModel], values: dict[str, Any]) -> None:
    """A key that does not exist is an error, at every level."""
    model.model_validate(values)
    assert "no_such_key" in refusal(model, **values, no_such_key=1)


def test_unknown_keys_are_refused_inside() -> None:
    """A wrong key in a part of a run's configuration is found as well."""
    assert "rate" in refusal(RunConfig, targets=[TARGET], generate={"rate": 3})


@pytest.mark.parametrize(("model", "values"), MODELS, ids=lambda v: getattr(v, "__name__", ""))
def test_nothing_changes_after_validation(model: type[BaseModel], values: dict[str, Any]) -> None:
    """A configuration is what it was when it was checked."""
    made = model.model_validate(values)
    with pytest.raises(ValidationError):
        setattr(made, next(iter(type(made).model_fields)), None)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"input_min": 20, "input_max": 10}, ("input_min", "input_max")),
        ({"output_min": 2000}, ("output_min", "output_max")),
        ({"input_len": 5, "input_mu": 1.0}, ("input_len", "input_mu")),
        ({"input_len": 5, "input_max": 50}, ("input_len", "input_max")),
        ({"output_len": 5, "output_sigma": 1.0}, ("output_len", "output_sigma")),
        ({"output_len": 5, "output_min": 1}, ("output_len", "output_min")),
        ({"preset": "lesson1", "input_mu": 3.5}, ("lesson1", "input_mu")),
        ({"preset": "lesson1", "output_len": 5}, ("lesson1", "output_len")),
        ({"preset": "lesson1", "input_len": 5}, ("lesson1", "input_len")),
        ({"burstiness": 1.0, "arrival": "gamma"}, ("burstiness", "arrival")),
        ({"burstiness": 1.0, "arrival_cv": 1.5}, ("burstiness", "arrival_cv")),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_conflicts_of_a_generator(values: dict[str, Any], words: tuple[str, ...]) -> None:
    """What contradicts itself is refused, and the message names both sides."""
    message = refusal(GeneratorConfig, **values)
    for word in words:
        assert word in message


@pytest.mark.parametrize("law", ["constant", "exponential"])
def test_a_cv_that_would_be_ignored_is_refused(law: str) -> None:
    """Constant and exponential gaps have a CV of their own: another one is a contradiction."""
    assert "arrival_cv" in refusal(GeneratorConfig, arrival=law, arrival_cv=2.0)


@pytest.mark.parametrize(
    "values",
    [
        {"input_len": 5, "output_mu": 1.0},
        {"input_len": 5, "output_len": 7},
        {"preset": "lesson1", "request_rate": 8, "arrival_cv": 1.5, "seed": 1, "num_prompts": 64},
        {"burstiness": 0.5, "request_rate": 2},
        {"input_min": 10, "input_max": 10},
        {"input_sigma": 0},
        {"arrival": "gamma", "arrival_cv": 3},
    ],
    ids=str,
)
def test_what_goes_together(values: dict[str, Any]) -> None:
    """What does not contradict itself is taken."""
    GeneratorConfig.model_validate(values)


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (GeneratorConfig, "num_prompts", 0),
        (GeneratorConfig, "num_prompts", -1),
        (GeneratorConfig, "num_prompts", 1.5),
        (GeneratorConfig, "request_rate", 0),
        (GeneratorConfig, "request_rate", -1),
        (GeneratorConfig, "request_rate", math.nan),
        (GeneratorConfig, "request_rate", -math.inf),
        (GeneratorConfig, "arrival", "uniform"),
        (GeneratorConfig, "arrival_cv", 0),
        (GeneratorConfig, "arrival_cv", -1),
        (GeneratorConfig, "arrival_cv", math.inf),
        (GeneratorConfig, "arrival_cv", math.nan),
        (GeneratorConfig, "burstiness", 0),
        (GeneratorConfig, "burstiness", math.inf),
        (GeneratorConfig, "seed", -1),
        (GeneratorConfig, "seed", 2**32),
        (GeneratorConfig, "input_mu", math.nan),
        (GeneratorConfig, "input_sigma", -0.1),
        (GeneratorConfig, "input_min", 0),
        (GeneratorConfig, "output_len", 0),
        (GeneratorConfig, "preset", "lesson2"),
        (RequestConfig, "model", ""),
        (RequestConfig, "endpoint", "/v2/completions"),
        (RequestConfig, "temperature", -0.1),
        (RequestConfig, "temperature", 2.1),
        (RequestConfig, "temperature", math.nan),
        (RequestConfig, "top_p", 0),
        (RequestConfig, "top_p", 1.1),
        (RequestConfig, "extra_body", "{oops"),
        (RequestConfig, "extra_body", "[1]"),
        (RequestConfig, "header", ["nothing"]),
        (RequestConfig, "header", ["=value"]),
        (RequestConfig, "header", ["Bad Name=value"]),
        (RequestConfig, "header", ["X=a\r\nInjected: b"]),
        (RequestConfig, "header", ["X=über"]),
        (RequestConfig, "transport", "carrier-pigeon"),
        (RequestConfig, "connect_timeout", 0),
        (RequestConfig, "total_timeout", math.inf),
        (RequestConfig, "first_token_timeout", math.nan),
        (RequestConfig, "api_key_env", ""),
        (RequestConfig, "api_key_env", "A=B"),
        (LoadConfig, "max_concurrency", 0),
        (LoadConfig, "num_warmups", -1),
        (LoadConfig, "ready_timeout", -1),
        (LoadConfig, "ready_timeout", math.inf),
        (OutputConfig, "metric_percentiles", "0"),
        (OutputConfig, "metric_percentiles", "100"),
        (OutputConfig, "metric_percentiles", "50,nan"),
        (OutputConfig, "metric_percentiles", "50;90"),
        (OutputConfig, "label", "x" * 201),
        (OutputConfig, "metadata", ["nothing"]),
        (TargetConfig, "base_url", "127.0.0.1:8000"),
        (TargetConfig, "base_url", "ftp://h"),
        (TargetConfig, "base_url", "http://"),
        (TargetConfig, "base_url", "http://[::1"),
        (TargetConfig, "base_url", "http://h:port"),
        (TargetConfig, "base_url", "http://h:99999"),
        (TargetConfig, "base_url", "http://h/a b"),
        (TargetConfig, "base_url", "http://h/\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:40],
)
def test_values_out_of_bounds(model: type[BaseModel], field: str, value: Any) -> None:
    """What could not be used is refused before a run, by the name of its field."""
    base = TARGET if model is TargetConfig else {}
    assert field in refusal(model, **(base | {field: value}))


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "-a", "a" * 64, "<script>", "a\n", "../x"], ids=repr
)
def test_target_names_are_words(name: str) -> None:
    """A name goes into files, labels and tables: letters, digits, dot, dash, underscore."""
    assert "name" in refusal(TargetConfig, name=name, base_url="http://h")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "https://llm.example.com/v1",
        "http://[::1]:8000/v1/",
        "https://user:password@h/v1?api-version=1",
    ],
)
def test_urls_that_are_taken(url: str) -> None:
    """Hosts, IPv6, paths, passwords and queries are taken as they are."""
    assert TargetConfig(base_url=url).base_url == url


def test_an_infinite_rate_is_a_rate() -> None:
    """`inf` means that all requests wait at the start."""
    assert GeneratorConfig.model_validate({"request_rate": "inf"}).request_rate == math.inf


def test_an_infinite_rate_is_told_as_one() -> None:
    """What a run was asked for can be read back from its header, an infinite rate too."""
    config = GeneratorConfig(request_rate=math.inf)
    written = orjson.loads(orjson.dumps(config.model_dump(mode="json")))
    assert GeneratorConfig.model_validate(written) == config


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["A=1", "B=2"], {"A": "1", "B": "2"}),
        (["Authorization=Bearer a=b"], {"Authorization": "Bearer a=b"}),
        (["Authorization: Bearer k"], {"Authorization": "Bearer k"}),
        (["Authorization: Basic dXNlcjpwYXNz="], {"Authorization": "Basic dXNlcjpwYXNz="}),
        (["Referer: http://h/?a=b"], {"Referer": "http://h/?a=b"}),
        (["Referer=http://h/"], {"Referer": "http://h/"}),
        ([" A = 1 "], {"A": "1"}),
        (["A="], {"A": ""}),
        ({"A": "1"}, {"A": "1"}),
    ],
    ids=str,
)
def test_headers(words: Any, expected: dict[str, str]) -> None:
    """K=V and curl's `K: V`: the first separator is the one that counts."""
    assert RequestConfig.model_validate({"header": words}).header == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50,90,99", (50, 90, 99)), ("99.9", (99.9,)), ("50 90", (50, 90)), ("50, 99", (50, 99))],
)
def test_percentiles(text: str, expected: tuple[float, ...]) -> None:
    """Percentiles are separated by commas or spaces."""
    made = OutputConfig.model_validate({"metric_percentiles": text})
    assert made.metric_percentiles == expected


def test_extra_body_is_json() -> None:
    """Further fields come as JSON text or as a mapping."""
    for value in ('{"top_k": 3}', {"top_k": 3}):
        assert RequestConfig.model_validate({"extra_body": value}).extra_body == {"top_k": 3}


def test_targets_need_different_names() -> None:
    """Two targets of one name could not be told apart in the results."""
    assert "names must differ" in refusal(RunConfig, targets=[TARGET, TARGET])


def test_a_run_needs_a_target() -> None:
    """A run without a target is none."""
    assert "targets" in refusal(RunConfig, targets=[])


def test_defaults_are_those_of_the_demo() -> None:
    """The documented defaults: log-normal gaps of CV 1.5, seed 42, the lesson's laws, streaming."""
    config = GeneratorConfig()
    assert (config.arrival, config.arrival_cv, config.seed) == (ArrivalLaw.LOGNORMAL, 1.5, 42)
    assert (config.input_mu, config.input_sigma) == (3.5, 1.0)
    assert (config.output_mu, config.output_sigma) == (3.0, 0.8)
    request = RequestConfig()
    assert (request.endpoint, request.stream, request.insecure) == (Endpoint.AUTO, True, False)
    assert request.api_key_env == "OPENAI_API_KEY"
    assert OutputConfig().result_dir == Path("runs")


@pytest.mark.parametrize("key", ["stream", "max_tokens", "model", "prompt", "stream_options"])
def test_body_fields_that_loadgen_sets_cannot_be_overridden(key: str) -> None:
    """--extra-body adds fields; what loadgen sets itself is refused, with the flag to use."""
    assert key in refusal(RequestConfig, extra_body={key: 1})
