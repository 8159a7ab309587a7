"""What may be said of a sweep and of a search for a capacity: strict models like `config.py`'s."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from loadgen.config import Pace, RunConfig
from loadgen.config_file import POINT_SECTIONS, Sections
from loadgen.flags import validate
from loadgen.points import Axis
from loadgen.strict import FASTEST, SLOWEST, Strict, conflict

LOADS: Final[dict[Axis, str]] = {
    Axis.RATE: "rates",
    Axis.CONCURRENCY: "concurrencies",
    Axis.BATCH_SIZE: "batch_sizes",
}
"""The field that gives a sweep's points, by what they are."""
_MOST_POINTS: Final = 1000
_MOST_REQUESTS: Final = 10_000_000
_FEWEST_EACH: Final = 4
"""Requests of a closed loop or of gangs, for each place."""


def _loads(value: Any) -> Any:
    """`1,2,4`, or `1:8:4`: so many from the first to the last, each the same times the former."""
    if not isinstance(value, str):
        return value
    if ":" not in value:
        return [part for part in value.replace(" ", ",").split(",") if part]
    try:
        first, last, count = value.split(":")
        low, high, steps = float(first), float(last), int(count)
    except ValueError:
        raise ValueError("must be numbers with commas, or FROM:TO:HOW_MANY") from None
    if not (0 < low < high and 2 <= steps <= _MOST_POINTS):
        raise ValueError("needs 0 < FROM < TO, and 2 points at least, in FROM:TO:HOW_MANY")
    return [float(f"{low * (high / low) ** (at / (steps - 1)):.4g}") for at in range(steps)]


def _whole_loads(value: Any) -> Any:
    loads = _loads(value)
    if isinstance(value, str) and ":" in value:
        return sorted({round(load) for load in loads})
    return loads


RatePoint = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]
Size = Annotated[int, Field(ge=1, le=1_000_000)]
Rates = Annotated[
    tuple[RatePoint, ...], Field(min_length=1, max_length=_MOST_POINTS), BeforeValidator(_loads)
]
Sizes = Annotated[
    tuple[Size, ...], Field(min_length=1, max_length=_MOST_POINTS), BeforeValidator(_whole_loads)
]


class PointsOptions(Strict):
    """What a sweep and a search say of each of their points, which is a run of its own."""

    num_prompts: int = Field(
        100,
        ge=2,
        le=_MOST_REQUESTS,
        description="requests of a point, at the least",
        json_schema_extra={"aliases": ["--request-count"]},
    )
    seconds_per_point: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="a rate gets requests for so many seconds, where that is more; the trace is "
        "then drawn longer, or repeated",
    )
    rest: float = Field(0.0, ge=0, le=86_400, description="seconds between points")
    fresh_text: bool = Field(
        True,
        description="prompts of each point say other words, of the same lengths and with the same "
        "blocks in common, so that no point finds those of another in a cache; without it, all "
        "points send the same bytes",
    )


class PointsConfig(PointsOptions):
    """Points, and the run that they share."""

    run: RunConfig
    """Its pace is the point's; its number of prompts and its rate are not used."""

    @property
    def points_in_all(self) -> int | None:
        """None: nobody knows before the end."""
        return None

    @model_validator(mode="after")
    def _points_agree(self) -> PointsConfig:
        if len(self.run.targets) != 1:
            raise conflict("target", "points are of one target; compare two by a sweep of each")
        load = self.run.load
        if load.pace is not Pace.OPEN or load.max_concurrency is not None:
            field = "gang" if load.gang is not None else "max_concurrency"
            raise conflict(field, "is what the points differ in; leave it out")
        return self

    def _rate_is_free(self) -> Iterator[Exception]:
        if self.run.trace is None and "request_rate" in self.run.generate.said:
            yield conflict("request_rate", "is what the points differ in; leave it out")
        if self.run.load.ramp_up:
            yield conflict("ramp_up", "makes the rate another than the point's; leave it out")


class SweepOptions(PointsOptions):
    """The loads of a sweep."""

    rates: Rates | None = Field(
        None,
        description="requests a second, open loop: 1,2,4,8 or FROM:TO:HOW_MANY; the trace's gaps "
        "are multiplied to give each",
        json_schema_extra={"metavar": "R,R,..."},
    )
    concurrencies: Sizes | None = Field(
        None,
        description="requests kept in flight, closed loop: 1,2,4,8 or FROM:TO:HOW_MANY",
        json_schema_extra={"metavar": "N,N,..."},
    )
    batch_sizes: Sizes | None = Field(
        None,
        description="requests in a gang, which waits for its longest member, as --gang",
        json_schema_extra={"metavar": "N,N,..."},
    )
    gang_pad: bool = Field(False, description="all of a gang ask for its longest output")


class SweepConfig(SweepOptions, PointsConfig):
    """One run at each of several loads."""

    @property
    def points_in_all(self) -> int:
        return len(self.loads)

    @property
    def axis(self) -> Axis:
        return next(axis for axis, field in LOADS.items() if getattr(self, field) is not None)

    @property
    def loads(self) -> list[float]:
        """Ascending, each once."""
        return sorted({float(load) for load in getattr(self, LOADS[self.axis])})

    @model_validator(mode="after")
    def _agree(self) -> SweepConfig:
        said = [field for field in LOADS.values() if getattr(self, field) is not None]
        if not said:
            raise conflict("rates", "no points: give this, --concurrencies or --batch-sizes")
        if len(said) > 1:
            raise conflict(said[0], "gives the points; leave out", said[1:])
        if self.axis is Axis.RATE:
            for contradiction in self._rate_is_free():
                raise contradiction
        if self.gang_pad and self.axis is not Axis.BATCH_SIZE:
            raise conflict("gang_pad", "pads gangs: give", ["batch_sizes"])
        if self.axis is Axis.BATCH_SIZE:
            for field in ("ramp_up", "workers"):
                if field in self.run.load.model_fields_set and getattr(self.run.load, field):
                    raise conflict(field, "does not go with gangs; leave it out")
        _check_size(self, LOADS[self.axis])
        return self


class CapacityOptions(PointsOptions):
    """How a capacity is searched for."""

    num_prompts: int = Field(
        200,
        ge=16,
        le=_MOST_REQUESTS,
        description="requests of a probe, at the least: the more, the surer (docs/capacity.md)",
        json_schema_extra={"aliases": ["--request-count"]},
    )
    share: float = Field(
        0.95, gt=0, lt=1, description="share of all due requests that must meet every limit"
    )
    start_rate: RatePoint = Field(1.0, description="requests a second that are probed first")
    min_rate: RatePoint = Field(0.01, description="lowest rate to probe, where the first fails")
    max_rate: RatePoint = Field(1000.0, description="highest rate to probe")
    tolerance: float = Field(
        0.05,
        ge=0.005,
        le=1,
        description="ends where the rate that failed is at most so much, as a share, above the "
        "one that passed",
    )
    max_looks: int = Field(
        3,
        ge=1,
        le=100,
        description="runs at one rate, where the first leaves it open whether it passes",
    )


class CapacityConfig(CapacityOptions, PointsConfig):
    """The highest rate at which enough requests meet every SLO."""

    @model_validator(mode="after")
    def _agree(self) -> CapacityConfig:
        if not self.run.output.goodput:
            raise conflict("goodput", "a capacity is under limits: give some, as ttft:500")
        if not self.min_rate <= self.start_rate <= self.max_rate:
            raise conflict("start_rate", "must lie between", ["min_rate", "max_rate"])
        for contradiction in self._rate_is_free():
            raise contradiction
        _check_size(self, "max_rate")
        return self


def _check_size(config: PointsConfig, field: str) -> None:
    """Raises where the largest point has more requests than a trace may have."""
    if (count := most_requests(config)) > _MOST_REQUESTS:
        text = f"the largest point would have {count:,} requests, of at most {_MOST_REQUESTS:,}"
        raise conflict(field, f"{text}; lower it or", ["seconds_per_point"])


SECTIONS: Final[dict[str, Sections]] = {
    "sweep": {**POINT_SECTIONS, "sweep": SweepOptions},
    "capacity": {**POINT_SECTIONS, "capacity": CapacityOptions},
}
"""Of their configuration files; the options have a section of the command's own name."""
Config = TypeVar("Config", bound=PointsConfig)


def config_of(kind: str, model: type[Config], content: Mapping[str, Any]) -> Config:
    """A configuration file's content as `model`; raises ConfigError."""
    run = {name: part for name, part in content.items() if name != kind}
    return validate(model, {"run": validate(RunConfig, run), **content.get(kind, {})})


def requests_for(config: PointsOptions, axis: Axis, load: float) -> int:
    """How many requests a point has."""
    if axis is Axis.RATE:
        return max(config.num_prompts, math.ceil(load * config.seconds_per_point))
    return max(config.num_prompts, _FEWEST_EACH * round(load))


def most_requests(config: PointsConfig) -> int:
    """Of the largest point that a sweep has, or that a search may come to."""
    if isinstance(config, SweepConfig):
        return max(requests_for(config, config.axis, load) for load in config.loads)
    assert isinstance(config, CapacityConfig)
    return requests_for(config, Axis.RATE, config.max_rate)
