"""What may be said of a trace that is drawn: the laws of its arrivals and lengths.

A strict, frozen model like those of `loadgen.config`; each field is a flag and a line of the docs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from loadgen.strict import Rate, Spread, Strict, Tokens, conflict
from loadgen.trace.profile import DailySine, Ramp, Steps, parse_profile


class ArrivalLaw(StrEnum):
    """The law of the gaps between arrivals; its mean gap is always 1 / rate."""

    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"
    GAMMA = "gamma"
    WEIBULL = "weibull"
    CONSTANT = "constant"


class LengthLaw(StrEnum):
    """The law of prompt or output lengths, rounded to whole tokens and clamped to a range."""

    LOGNORMAL = "lognormal"
    GAMMA = "gamma"
    WEIBULL = "weibull"
    EXPONENTIAL = "exponential"
    UNIFORM = "uniform"


def _triple(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) != 3:
        raise ValueError("must be three numbers with colons between them")
    return parts


def _profile_words(text: str) -> str:
    parse_profile(text)
    return text


Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
_TOLD: Final = PlainSerializer(lambda triple: ":".join(f"{part:g}" for part in triple))
GapMixTriple = Annotated[tuple[Share, Positive, Spread], BeforeValidator(_triple), _TOLD]
LengthMixTriple = Annotated[
    tuple[Share, float, Annotated[float, Field(ge=0)]], BeforeValidator(_triple), _TOLD
]
_LENGTH_PARTS: Final = ("law", "mu", "sigma", "mean", "median", "cv", "mix", "min", "max")
_TAKES: Final = {
    LengthLaw.LOGNORMAL: {"mu", "sigma", "mean", "median", "cv", "mix"},
    LengthLaw.GAMMA: {"mean", "cv"},
    LengthLaw.WEIBULL: {"mean", "cv"},
    LengthLaw.EXPONENTIAL: {"mean"},
    LengthLaw.UNIFORM: set(),
}
_MIX: Final[dict[str, Any]] = {"metavar": "W:MU:SIGMA"}
_MIX_WORDS: Final = "a second log-normal component: its share, mu and sigma"


class GeneratorConfig(Strict):
    """A trace drawn from laws."""

    preset: Literal["lesson1"] | None = Field(
        None,
        description="lengths of a known workload: lesson1 draws log-normal lengths from NumPy's "
        "legacy generator (prompt 3.5/1.0, output 3.0/0.8, +10, clipped to 10..1024)",
    )
    num_prompts: int = Field(
        100,
        ge=1,
        le=100_000_000,
        description="how many requests",
        json_schema_extra={"aliases": ["--request-count"]},
    )
    request_rate: Rate = Field(
        1.0, description="mean arrivals a second; inf: all of them wait at the start"
    )
    rate_profile: Annotated[str, AfterValidator(_profile_words)] | None = Field(
        None,
        description="how the rate moves: constant; ramp:FROM:TO:SECONDS; "
        "steps:RATE@SECONDS,RATE@SECONDS,... (from the start again, unless the last is a RATE "
        "alone); sine:AMPLITUDE[:PERIOD[:PHASE]] around --request-rate (amplitude 0 to 1, period "
        "86400 s); trace:FILE[:BIN], the rate of another trace in bins of 60 s",
        json_schema_extra={"metavar": "PROFILE"},
    )
    exact_rate: bool = Field(
        False,
        description="rescale the drawn gaps, so that the sample itself has the asked rate: "
        "(n - 1) / (last - first)",
    )
    arrival: ArrivalLaw = Field(
        ArrivalLaw.LOGNORMAL, description="law of the gaps between arrivals"
    )
    arrival_cv: Spread = Field(
        1.5, description="coefficient of variation of the gaps (lognormal, gamma, weibull)"
    )
    arrival_mix: GapMixTriple | None = Field(
        None,
        description="a second log-normal component of the gaps: its share, its mean over that of "
        "the first, its CV; the mean gap stays 1 / rate",
        json_schema_extra={"metavar": "W:RATIO:CV"},
    )
    burstiness: Annotated[float, Field(ge=1e-6, le=1e6)] | None = Field(
        None, description="as in vLLM: gamma gaps of this shape, that is CV = 1 / sqrt(burstiness)"
    )
    seed: int = Field(42, ge=0, lt=2**32, description="the same seed draws the same trace")
    input_law: LengthLaw = Field(
        LengthLaw.LOGNORMAL,
        description="law of prompt lengths; gamma and weibull need mean and CV, exponential the "
        "mean, uniform lies between min and max",
    )
    input_mu: float = Field(3.5, description="mean of ln(prompt tokens)")
    input_sigma: float = Field(1.0, ge=0, description="standard deviation of ln(prompt tokens)")
    input_mean: Positive | None = Field(
        None, description="mean prompt tokens before clamping, with --input-median or --input-cv"
    )
    input_median: Positive | None = Field(None, description="median prompt tokens")
    input_cv: Spread | None = Field(None, description="coefficient of variation of prompt tokens")
    input_mix: LengthMixTriple | None = Field(None, description=_MIX_WORDS, json_schema_extra=_MIX)
    input_min: Tokens = Field(10, description="shortest prompt, in tokens")
    input_max: Tokens = Field(1024, description="longest prompt, in tokens")
    output_law: LengthLaw = Field(LengthLaw.LOGNORMAL, description="law of output lengths")
    output_mu: float = Field(3.0, description="mean of ln(output tokens)")
    output_sigma: float = Field(0.8, ge=0, description="standard deviation of ln(output tokens)")
    output_mean: Positive | None = Field(
        None, description="mean output tokens before clamping, with --output-median or --output-cv"
    )
    output_median: Positive | None = Field(None, description="median output tokens")
    output_cv: Spread | None = Field(None, description="coefficient of variation of output tokens")
    output_mix: LengthMixTriple | None = Field(None, description=_MIX_WORDS, json_schema_extra=_MIX)
    output_min: Tokens = Field(10, description="shortest output, in tokens")
    output_max: Tokens = Field(1024, description="longest output, in tokens")
    input_len: Tokens | None = Field(
        None,
        description="every prompt has this many tokens",
        json_schema_extra={"aliases": ["--random-input-len", "--isl"]},
    )
    output_len: Tokens | None = Field(
        None,
        description="every output has this many tokens",
        json_schema_extra={"aliases": ["--random-output-len", "--osl"]},
    )
    lengths_from: Path | None = Field(
        None,
        description="a trace whose rows give the lengths, prompt and output together, drawn with "
        "replacement; a side that has a law of its own keeps it",
    )
    length_correlation: Annotated[float, Field(ge=-1, le=1)] | None = Field(
        None,
        description="correlation of the normal scores of prompt and output lengths (copula)",
    )

    @property
    def said(self) -> set[str]:
        """The fields that were asked for. A whole dump of a config names them all; in one, those at
        their default were not asked for.
        """
        named = set(self.model_fields_set)
        if len(named) < len(type(self).model_fields):
            return named
        fields = type(self).model_fields.items()
        return {name for name, field in fields if getattr(self, name) != field.default}

    def has_own_law(self, side: str) -> bool:
        """Whether lengths of that side ("input" or "output") were asked for by a law or fixed."""
        parts = {*_LENGTH_PARTS, "len"} - {"min", "max"}
        return any(f"{side}_{part}" in self.said for part in parts)

    @model_validator(mode="after")
    def _agree(self) -> GeneratorConfig:
        for check in (self._lengths_agree, self._arrivals_agree):
            for contradiction in check():
                raise contradiction
        return self

    def _lengths_agree(self) -> Iterator[Exception]:
        said = self.said
        for side in ("input", "output"):
            yield from self._side_agrees(side)
        if self.preset is not None:
            laws = {name for name in said if name.startswith(("input_", "output_", "length"))}
            if laws:
                yield conflict("preset", "fixes the lengths; leave out", laws)
        if self.lengths_from is not None:
            own = [side for side in ("input", "output") if self.has_own_law(side)]
            if len(own) == 2:
                yield conflict("lengths_from", "gives the lengths; leave out a law of either side")
            if not own and self.length_correlation is not None:
                yield conflict("length_correlation", "is that of the rows of", ["lengths_from"])

    def _side_agrees(self, side: str) -> Iterator[Exception]:
        said = {part for part in _LENGTH_PARTS if f"{side}_{part}" in self.said}
        low, high = getattr(self, f"{side}_min"), getattr(self, f"{side}_max")
        if low > high:
            yield conflict(f"{side}_min", f"is {low}, over {side}_max, which is {high}")
        if getattr(self, f"{side}_len") is not None and said:
            laws = [f"{side}_{part}" for part in said]
            yield conflict(f"{side}_len", "fixes the lengths; leave out", laws)
        law: LengthLaw = getattr(self, f"{side}_law")
        for part in sorted(said - _TAKES[law] - {"law", "min", "max"}):
            yield conflict(f"{side}_{part}", f"has no meaning for {law} lengths; leave it out")
        has_mean = "mean" in said
        by_logs = sorted(said & {"mu", "sigma"})
        if has_mean and by_logs:
            laws = [f"{side}_{part}" for part in by_logs]
            yield conflict(f"{side}_mean", "is another way to say the law; leave out", laws)
        if not has_mean:
            for part in sorted(said & {"median", "cv"}):
                yield conflict(f"{side}_{part}", "is half of a law: give", [f"{side}_mean"])
        if law is not LengthLaw.LOGNORMAL:
            for part in sorted(_TAKES[law] - said):
                yield conflict(f"{side}_law", f"{law} lengths need", [f"{side}_{part}"])
        elif has_mean and len(said & {"median", "cv"}) != 1:
            words = "needs one of its median and its CV: give either"
            yield conflict(f"{side}_mean", words, [f"{side}_median", f"{side}_cv"])
        mean, median = getattr(self, f"{side}_mean"), getattr(self, f"{side}_median")
        if has_mean and median is not None and mean < median:
            yield conflict(f"{side}_mean", "is under the median, which no log-normal law has")

    def _arrivals_agree(self) -> Iterator[Exception]:
        said = self.said
        if self.burstiness is not None:
            laws = {"arrival", "arrival_cv", "arrival_mix"} & said
            if laws:
                yield conflict("burstiness", "means gamma gaps; leave out", laws)
        if self.arrival in (ArrivalLaw.CONSTANT, ArrivalLaw.EXPONENTIAL) and "arrival_cv" in said:
            yield conflict("arrival_cv", f"has no meaning for {self.arrival} gaps; leave it out")
        if self.arrival_mix is not None and self.arrival is not ArrivalLaw.LOGNORMAL:
            yield conflict("arrival_mix", "is of log-normal gaps; leave out", ["arrival"])
        spec = parse_profile(self.rate_profile or "constant")
        if isinstance(spec, Ramp | Steps) and "request_rate" in said:
            yield conflict("request_rate", "is told by the profile; leave it out")
        if isinstance(spec, DailySine) and not math.isfinite(self.request_rate):
            yield conflict("request_rate", "must be finite for a sine")
        if self.exact_rate and spec is None and not math.isfinite(self.request_rate):
            yield conflict("exact_rate", "needs a finite", ["request_rate"])
