"""Descriptors and ports, looked at before a run starts."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from loadgen.config import GeneratorConfig, LoadConfig
from loadgen.errors import ConfigError
from loadgen.limits import check_limits, most_in_flight, raise_file_limit
from loadgen.trace.generate import generate


@pytest.fixture
def restored() -> Iterator[None]:
    """The process's limit as it was."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("load", "rate", "most"),
    [
        ({}, "inf", 50),
        ({"max_concurrency": 8}, "inf", 8),
        ({"max_concurrency": 80}, "inf", 50),
        ({"max_concurrency": 8, "closed_loop": True}, 5, 8),
        ({"gang": 16}, "inf", 16),
        ({}, 5, None),
    ],
    ids=["all at once", "cap", "wide cap", "closed", "gang", "open"],
)
def test_the_most_in_flight(load: dict[str, object], rate: object, most: int | None) -> None:
    """It is known for a cap, a closed loop, a gang and a burst, and not for an open loop."""
    trace = generate(GeneratorConfig.model_validate({"num_prompts": 50, "request_rate": rate}))
    assert most_in_flight(LoadConfig.model_validate(load), trace) == most


def test_too_few_descriptors() -> None:
    """What cannot be opened is told with the limit to raise; more workers share the need."""
    with pytest.raises(ConfigError, match="ulimit -Hn"):
        check_limits(1000, 1, files=1024, ports=30_000)
    check_limits(1000, 2, files=1024, ports=30_000)


def test_too_few_ports() -> None:
    """More connections to one address than there are local ports cannot be."""
    with pytest.raises(ConfigError, match="local ports"):
        check_limits(30_000, 1, files=10**6, ports=28_232)
    check_limits(28_000, 1, files=10**6, ports=28_232)


def test_the_soft_limit_is_raised(restored: None) -> None:
    """The soft limit, which is often 1024, does not hold a run back where the hard is higher."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert raise_file_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
