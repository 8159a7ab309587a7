"""What a trace looks like: figures, arrivals over time, histograms of lengths, dispersion.

It computes; `loadgen.trace_report` shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.figures import describe, dispersion
from loadgen.trace.trace import TEXT_KEYS, Trace

TABLE_WINDOWS_S: Final = (1.0, 10.0, 60.0, 300.0)
_PLOT_WINDOWS_S: Final = tuple(
    step * 10.0**power for power in range(-2, 6) for step in (1, 2, 5)
)  # fmt: skip
_FEWEST_WINDOWS: Final = 8
_TIME_BINS: Final = 120
_LENGTH_BINS: Final = 40


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in bins; bin i lies between edges i and i + 1."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is told of a trace."""

    figures: dict[str, Any]
    """As `figures.describe` has them, with gaps and wider windows."""
    arrivals: Histogram
    """Edges in seconds."""
    input_tokens: Histogram
    output_tokens: Histogram
    dispersion: list[tuple[float, float]]
    """(window in seconds, variance / mean of the counts in it)."""

    def as_json(self) -> dict[str, Any]:
        """Figures and histograms."""
        return {
            **self.figures,
            "dispersion_by_window_s": self.dispersion,
            "histograms": {
                "arrivals_s": {"edges": self.arrivals.edges, "counts": self.arrivals.counts},
                "input_tokens": _as_json(self.input_tokens),
                "output_tokens": _as_json(self.output_tokens),
            },
        }


def _as_json(histogram: Histogram) -> dict[str, Any]:
    return {"edges": histogram.edges, "counts": histogram.counts}


def inspect(trace: Trace) -> Inspection:
    """Figures and plots' data of one trace."""
    gaps_ms = np.diff(trace.timestamp_ms)
    figures = describe(trace)
    figures["dispersion"] = {
        f"{window_s:g}": dispersion(trace.timestamp_ms, window_s) for window_s in TABLE_WINDOWS_S
    }
    figures["zero_gaps"] = float((gaps_ms == 0).mean()) if len(gaps_ms) else None
    figures["gap_ms"] = (
        {f"p{share}": float(np.percentile(gaps_ms, share)) for share in (50, 90, 99)}
        if len(gaps_ms)
        else None
    )
    figures["with_text"] = sum(bool(own.keys() & TEXT_KEYS) for own in trace.payload or ())
    figures["with_block_ids"] = trace.hash_ids is not None
    return Inspection(
        figures,
        _over_time(trace),
        _lengths(trace.input_length),
        _lengths(trace.output_length),
        _dispersion_curve(trace),
    )


def _over_time(trace: Trace) -> Histogram:
    duration_s = trace.duration_s
    if duration_s == 0:
        return Histogram([0.0, 0.0], [len(trace)])
    least = duration_s / _TIME_BINS
    scale = 10.0 ** math.floor(math.log10(least))
    bin_s = next(step * scale for step in (1, 2, 5, 10) if step * scale >= least)
    bins = math.floor(duration_s / bin_s) + 1
    index = np.minimum((trace.timestamp_ms / (bin_s * 1000.0)).astype(np.int64), bins - 1)
    counts = np.bincount(index, minlength=bins)
    return Histogram([place * bin_s for place in range(bins + 1)], counts.tolist())


def _lengths(tokens: NDArray[np.int64]) -> Histogram:
    """Bins of one ratio, on whole numbers; the last one includes its upper edge."""
    low, high = int(tokens.min()), int(tokens.max()) + 1
    edges = np.unique(np.rint(np.geomspace(low, high, _LENGTH_BINS + 1)))
    counts, _ = np.histogram(tokens, edges)
    return Histogram(edges.tolist(), counts.tolist())


def _dispersion_curve(trace: Trace) -> list[tuple[float, float]]:
    curve = []
    for window_s in _PLOT_WINDOWS_S:
        windows = trace.duration_s / window_s
        if windows >= _FEWEST_WINDOWS and len(trace) > 1:
            value = dispersion(trace.timestamp_ms, window_s)
            if value is not None:
                curve.append((window_s, value))
    return curve
