"""A trace drawn from a `GeneratorConfig`, and what was asked beside what was drawn.

Arrivals, prompt lengths and output lengths each have a random stream of their own, so a change to
one law leaves the draws of the others as they were.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.config import ArrivalLaw, GeneratorConfig
from loadgen.trace.arrivals import draw_arrivals_ms
from loadgen.trace.lengths import draw_lesson1_tokens, draw_lognormal_tokens
from loadgen.trace.trace import Trace


def generate(config: GeneratorConfig) -> Trace:
    """The trace that `config` describes: the same every time."""
    n = config.num_prompts
    arrival_rng, input_rng, output_rng = np.random.default_rng(config.seed).spawn(3)
    law, cv = config.arrival, config.arrival_cv
    if config.burstiness is not None:
        law, cv = ArrivalLaw.GAMMA, 1 / math.sqrt(config.burstiness)
    if config.preset == "lesson1":
        inputs, outputs = draw_lesson1_tokens(n, config.seed)
    else:
        inputs = draw_lognormal_tokens(
            n, config.input_mu, config.input_sigma, config.input_min, config.input_max, input_rng
        )
        outputs = draw_lognormal_tokens(
            n,
            config.output_mu,
            config.output_sigma,
            config.output_min,
            config.output_max,
            output_rng,
        )
    if config.input_len is not None:
        inputs = np.full(n, config.input_len, dtype=np.int64)
    if config.output_len is not None:
        outputs = np.full(n, config.output_len, dtype=np.int64)
    return Trace(draw_arrivals_ms(n, config.request_rate, law, cv, arrival_rng), inputs, outputs)


def describe(trace: Trace) -> dict[str, Any]:
    """What the trace holds: counts, rate, CV of the gaps, and the lengths' distributions."""
    gaps_s = np.diff(trace.timestamp_ms) / 1000.0
    mean_gap_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    return {
        "requests": len(trace),
        "duration_s": trace.duration_s,
        "request_rate": 1 / mean_gap_s if mean_gap_s else math.inf,
        "arrival_cv": float(gaps_s.std()) / mean_gap_s if mean_gap_s else 0.0,
        "input_tokens": _lengths(trace.input_length),
        "output_tokens": _lengths(trace.output_length),
    }


def _lengths(tokens: NDArray[np.int64]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99))
    return {
        "total": int(tokens.sum()),
        "mean": float(tokens.mean()),
        "cv": float(tokens.std() / tokens.mean()),
        "min": int(tokens.min()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(tokens.max()),
    }
