"""Figures of a trace: rate, spread of the gaps, index of dispersion, lengths.

The index of dispersion is variance / mean of the arrivals in windows of one size: 1 for a Poisson
process at any size; it grows with the window where the rate drifts. It knows no law.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.special import Floats
from loadgen.trace.trace import Trace

WINDOWS_S: Final = (1.0, 10.0, 60.0)
_FEWEST_WINDOWS: Final = 8


def describe(trace: Trace) -> dict[str, Any]:
    """What the trace holds: counts, rate, CV of the gaps, dispersion, distribution of lengths."""
    gaps_s = np.diff(trace.timestamp_ms) / 1000.0
    mean_gap_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    return {
        "requests": len(trace),
        "duration_s": trace.duration_s,
        "request_rate": 1 / mean_gap_s if mean_gap_s else math.inf,
        "arrival_cv": float(gaps_s.std()) / mean_gap_s if mean_gap_s else 0.0,
        "dispersion": {
            f"{window_s:g}": dispersion(trace.timestamp_ms, window_s) for window_s in WINDOWS_S
        },
        "length_correlation": spearman(trace.input_length, trace.output_length),
        "input_tokens": lengths(trace.input_length),
        "output_tokens": lengths(trace.output_length),
    }


def lengths(tokens: NDArray[np.int64]) -> dict[str, float]:
    """Sum, mean, CV, extremes and percentiles."""
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


def dispersion(timestamp_ms: Floats, window_s: float) -> float | None:
    """Variance / mean of the counts in the whole windows from the first arrival on.

    None where fewer than eight windows lie within the trace.
    """
    windows = math.floor(float(timestamp_ms[-1]) / 1000.0 / window_s)
    if windows < _FEWEST_WINDOWS:
        return None
    index = np.floor(timestamp_ms / (window_s * 1000.0))
    inside = index[index < windows].astype(np.int64)
    _, counts = np.unique(inside, return_counts=True)  # windows without arrivals count as 0
    mean = float(counts.sum()) / windows
    return (float((counts.astype(np.float64) ** 2).sum()) / windows - mean**2) / mean


def spearman(first: NDArray[np.int64], second: NDArray[np.int64]) -> float | None:
    """Rank correlation, ties at their mean rank; None where a side is constant or has one row."""
    ranks = [_ranks(side) for side in (first, second)]
    spreads = [float(side.std()) for side in ranks]
    if len(first) < 2 or min(spreads) == 0:
        return None
    a, b = (side - side.mean() for side in ranks)
    return float((a * b).mean()) / (spreads[0] * spreads[1])


def _ranks(values: NDArray[np.int64]) -> Floats:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[index]
    return ranks
