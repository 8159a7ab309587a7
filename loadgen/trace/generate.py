"""A trace drawn from a `GeneratorConfig`, and what was asked beside what was drawn.

Arrivals, prompt lengths, output lengths and their coupling each have a random stream of their own,
so a change to one law leaves the draws of the others as they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.arrivals import Arrivals, GapMix
from loadgen.trace.config import ArrivalLaw, GeneratorConfig
from loadgen.trace.figures import WINDOWS_S, describe
from loadgen.trace.laws import Constant, Empirical, ks_distance
from loadgen.trace.lengths import TokenLaw, coupled, draw_lesson1_tokens, token_law
from loadgen.trace.profile import DailySine, FromTrace, Profile, Sine, parse_profile, profile_of
from loadgen.trace.trace import Trace, read_trace


@dataclass(frozen=True, slots=True)
class Source:
    """What a trace is drawn from, once the files that the configuration names have been read."""

    config: GeneratorConfig
    arrivals: Arrivals
    rows: Trace | None
    """The trace that gives the lengths."""

    @staticmethod
    def of(config: GeneratorConfig) -> Source:
        """Raises TraceError where a trace that is named cannot be read."""
        law, cv = config.arrival, config.arrival_cv
        if config.burstiness is not None:
            law, cv = ArrivalLaw.GAMMA, 1 / math.sqrt(config.burstiness)
        mix = None if config.arrival_mix is None else GapMix(*config.arrival_mix)
        arrivals = Arrivals(config.request_rate, law, cv, mix, _profile(config), config.exact_rate)
        rows = None if config.lengths_from is None else read_trace(config.lengths_from)[0]
        return Source(config, arrivals, rows)

    def draw(self) -> Trace:
        """The trace: the same every time."""
        config, n = self.config, self.config.num_prompts
        streams = np.random.default_rng(config.seed).spawn(5)
        arrival_rng, input_rng, output_rng, couple_rng, row_rng = streams
        if config.preset == "lesson1":
            inputs, outputs = draw_lesson1_tokens(n, config.seed)
        else:
            picked = None if self.rows is None else row_rng.integers(0, len(self.rows), n)
            inputs = self._lengths("input", input_rng, picked)
            outputs = self._lengths("output", output_rng, picked)
        if config.length_correlation is not None:
            inputs, outputs = coupled(inputs, outputs, config.length_correlation, couple_rng)
        return Trace(self.arrivals.draw_ms(n, arrival_rng), inputs, outputs)

    def law_of(self, side: str) -> TokenLaw | None:
        """The law of one side's lengths; None for a preset, which is no law of ours."""
        if self.config.preset is not None:
            return None
        if self.rows is None or self.config.has_own_law(side):
            return token_law(self.config, side)
        low, high = self._range(side)
        values = np.sort(self._column(side)).astype(np.float64)
        return TokenLaw(Empirical(values), low, high)

    def _lengths(
        self, side: str, rng: np.random.Generator, picked: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        if picked is None or self.config.has_own_law(side):
            return token_law(self.config, side).draw(self.config.num_prompts, rng)
        return np.clip(self._column(side)[picked], *self._range(side))

    def _column(self, side: str) -> NDArray[np.int64]:
        assert self.rows is not None
        return self.rows.input_length if side == "input" else self.rows.output_length

    def _range(self, side: str) -> tuple[int, int]:
        """The clamps that were asked for; a trace's own lengths are not cut by the defaults."""
        said, column = self.config.said, self._column(side)
        low = getattr(self.config, f"{side}_min") if f"{side}_min" in said else int(column.min())
        high = getattr(self.config, f"{side}_max") if f"{side}_max" in said else int(column.max())
        return low, high


def generate(config: GeneratorConfig) -> Trace:
    """The trace that `config` describes: the same every time."""
    return Source.of(config).draw()


def _profile(config: GeneratorConfig) -> Profile | None:
    spec = parse_profile(config.rate_profile or "constant")
    if isinstance(spec, DailySine):
        return Sine(config.request_rate, spec.amplitude, spec.period_s, spec.phase_s)
    if isinstance(spec, FromTrace):
        rate = config.request_rate if "request_rate" in config.said else None
        return profile_of(read_trace(spec.path)[0].timestamp_ms, spec.bin_s, rate)
    return spec


def asked(source: Source) -> dict[str, Any]:
    """What the laws say a trace has, in the words of `figures.describe`; None: they do not say."""
    arrivals, n = source.arrivals, source.config.num_prompts
    is_constant = arrivals.profile is None and math.isfinite(arrivals.rate)
    is_poisson = is_constant and arrivals.law is ArrivalLaw.EXPONENTIAL and arrivals.mix is None
    return {
        "requests": n,
        "request_rate": arrivals.asked_rate(n),
        "arrival_cv": arrivals.gap_law.cv if is_constant else None,
        "dispersion": {f"{window_s:g}": 1.0 if is_poisson else None for window_s in WINDOWS_S},
        "input_tokens": _law_figures(source.law_of("input")),
        "output_tokens": _law_figures(source.law_of("output")),
    }


def distances(source: Source, trace: Trace) -> dict[str, float | None]:
    """KS distances of the drawn gaps and lengths to the laws they were drawn from."""
    arrivals = source.arrivals
    is_finite = arrivals.profile is not None or math.isfinite(arrivals.rate)
    gaps: float | None = None
    if is_finite and len(trace) > 1 and not isinstance(arrivals.gap_law, Constant):
        gaps = ks_distance(arrivals.law_gaps(trace.timestamp_ms), arrivals.gap_law)
    sides = (("input", trace.input_length), ("output", trace.output_length))
    laws = {side: (source.law_of(side), tokens) for side, tokens in sides}
    return {
        "gaps": gaps,
        **{
            f"{side}_tokens": None if law is None else law.ks_distance(tokens)
            for side, (law, tokens) in laws.items()
        },
    }


def account(source: Source, trace: Trace) -> dict[str, Any]:
    """All that is told of a drawn trace: asked, drawn, and how far apart they are."""
    return {
        "asked": source.config.model_dump(mode="json"),
        "law": asked(source),
        "drawn": describe(trace),
        "ks": distances(source, trace),
    }


def _law_figures(law: TokenLaw | None) -> dict[str, float] | None:
    if law is None:
        return None
    mean, cv = law.moments()
    return {
        "mean": mean,
        "cv": cv,
        "unclamped_mean": law.law.mean,
        "min": law.low,
        **{f"p{share}": law.percentile(share / 100) for share in (50, 90, 99)},
        "max": law.high,
    }
