"""Plots of a run, from records alone: one colour a target everywhere.

It computes nothing that is quoted as a figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from loadgen.columns import Columns, Floats
from loadgen.record import RequestRecord
from loadgen.report.draw import Plot, draw, nice_bin

Series = Mapping[str, Columns]
"""Measured records by target."""


def draw_all(targets: Mapping[str, Columns | Iterable[RequestRecord]]) -> list[Plot]:
    """Every plot for which the measured records of each target have data."""
    series = {name: Columns.of(records) for name, records in targets.items()}
    plots = [
        _throughput(series),
        _in_flight(series),
        _ecdf(series, "TTFT", "Time to first token", "ttft_s"),
        _ecdf(series, "E2E", "End-to-end latency", "e2e_s"),
        _by_output_length(series),
    ]
    return [plot for plot in plots if plot is not None]


def _throughput(series: Series) -> Plot | None:
    spans = {name: _span_s(c) for name, c in series.items() if len(c)}
    longest_s = max((end - start for start, end in spans.values()), default=0.0)
    if longest_s <= 0:
        return None
    bin_s = nice_bin(longest_s)
    values = []
    for name, (start_s, end_s) in spans.items():
        c = series[name]
        bins = ((c.chunk_s - start_s) / bin_s).astype(np.int64)
        last = math.ceil((end_s - start_s) / bin_s)
        tokens = np.bincount(bins.clip(0, last), weights=c.chunk_tokens, minlength=last + 1)
        values += [
            {"target": name, "t": index * bin_s, "y": count / bin_s}
            for index, count in enumerate(tokens.tolist())
        ]
    return draw(
        "Output tokens per second over time",
        f"Tokens that arrived in each {bin_s:g} s, from each target's first due time.",
        values,
        list(series),
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", "seconds since the first request was due", {}),
        y=("y", "output tokens/s", {}),
    )


def _in_flight(series: Series) -> Plot | None:
    values = []
    for name, c in series.items():
        sent = c.was_sent
        if not sent.any():
            continue
        start_s, _ = _span_s(c)
        moments_s = np.concatenate((c.start_s[sent], c.end_s[sent]))
        steps = np.repeat((1, -1), int(sent.sum()))
        order = np.lexsort((steps, moments_s))
        now = np.cumsum(steps[order])
        values += _thinned(name, moments_s[order] - start_s, now, 1000)
    return draw(
        "Requests in flight",
        "Requests that were sent and had not ended.",
        values,
        list(series),
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", "seconds since the first request was due", {}),
        y=("y", "requests in flight", {}),
    )


def _ecdf(series: Series, short: str, long: str, attribute: str) -> Plot | None:
    values = []
    for name, c in series.items():
        figures: Floats = getattr(c, attribute)[c.is_ok]
        known = np.sort(figures[figures > 0])  # NaN is not
        values += _thinned(name, known, np.arange(1, len(known) + 1) / max(1, len(known)), 500)
    return draw(
        f"{long} ({short})",
        f"Share of successful requests whose {short} was at most that; further left is faster.",
        values,
        list(series),
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", f"{short}, seconds (log)", {"type": "log", "nice": False}),
        y=("y", "share of requests", {"domain": [0, 1]}),
    )


def _by_output_length(series: Series) -> Plot | None:
    values = []
    for name, c in series.items():
        rows = c.is_ok & (c.output_tokens_served > 0)
        values += _thinned(name, c.output_tokens_served[rows], c.e2e_s[rows], 2000)
    return draw(
        "End-to-end latency by output length",
        "One dot a request. Where short answers wait for long ones (head-of-line blocking), "
        "short outputs lie as high as long ones.",
        values,
        list(series),
        {"type": "point", "filled": True, "size": 28, "opacity": 0.7},
        x=("t", "output tokens (log)", {"type": "log", "nice": False}),
        y=("y", "E2E, seconds", {}),
    )


def _thinned(name: str, x: Any, y: Any, most: int) -> list[dict[str, Any]]:
    """At most about `most` evenly chosen points, the last one always."""
    every = max(1, len(x) // most)
    chosen = sorted({*range(0, len(x), every), len(x) - 1} - {-1})
    return [{"target": name, "t": float(x[i]), "y": float(y[i])} for i in chosen]


def _span_s(c: Columns) -> tuple[float, float]:
    return float(c.due_s.min()), float(c.end_s.max())
