"""Plots of a run as SVG, from records alone, drawn by Vega-Lite (no browser, no network).

One colour a target everywhere, from Okabe and Ito's colour-blind-safe palette; text and axes take
the page's own colour, so that a plot fits a light and a dark page. It computes nothing that is
quoted as a figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import vl_convert

from loadgen.record import RequestRecord

PALETTE: Final = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_WIDTH: Final = 560
_HEIGHT: Final = 220
_MAX_BINS: Final = 120

Series = dict[str, list[RequestRecord]]
"""Measured records by target."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing, with what it shows in words for those who do not see it."""

    title: str
    caption: str
    svg: str


def draw_all(series: Series) -> list[Plot]:
    """Every plot for which there are data."""
    plots = [
        _throughput(series),
        _in_flight(series),
        _ecdf(series, "TTFT", "Time to first token", [("ttft_s", "TTFT")]),
        _ecdf(series, "E2E", "End-to-end latency", [("e2e_s", "E2E")]),
        _by_output_length(series),
    ]
    return [plot for plot in plots if plot is not None]


def _throughput(series: Series) -> Plot | None:
    spans = {name: _span_s(records) for name, records in series.items() if records}
    longest_s = max((end - start for start, end in spans.values()), default=0.0)
    if longest_s <= 0:
        return None
    bin_s = _nice_bin(longest_s)
    values = []
    for name, (start_s, end_s) in spans.items():
        bins = [0] * (math.ceil((end_s - start_s) / bin_s) + 1)
        for record in series[name]:
            for index, at_s in enumerate(record.chunk_s):
                tokens = 1 if record.chunk_tokens is None else record.chunk_tokens[index]
                bins[int((at_s - start_s) / bin_s)] += tokens
        values += [
            {"target": name, "t": index * bin_s, "y": count / bin_s}
            for index, count in enumerate(bins)
        ]
    return _draw(
        "Output tokens per second over time",
        f"Tokens that arrived in each {bin_s:g} s, from each target's first due time.",
        values,
        series,
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", "seconds since the first request was due", {}),
        y=("y", "output tokens/s", {}),
    )


def _in_flight(series: Series) -> Plot | None:
    values = []
    for name, records in series.items():
        if not records:
            continue
        start_s, _ = _span_s(records)
        steps = sorted(
            [(record.start_s, 1) for record in records] + [(record.end_s, -1) for record in records]
        )
        now = 0
        every = max(1, len(steps) // 1000)
        for index, (at_s, step) in enumerate(steps):
            now += step
            if index % every == 0 or index == len(steps) - 1:
                values.append({"target": name, "t": at_s - start_s, "y": now})
    return _draw(
        "Requests in flight",
        "Requests that were sent and had not ended.",
        values,
        series,
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", "seconds since the first request was due", {}),
        y=("y", "requests in flight", {}),
    )


def _ecdf(series: Series, short: str, long: str, figures: Sequence[tuple[str, str]]) -> Plot | None:
    values = []
    for name, records in series.items():
        for attribute, _ in figures:
            known = sorted(
                value
                for record in records
                if record.is_ok and (value := getattr(record, attribute)) is not None and value > 0
            )
            every = max(1, len(known) // 500)
            values += [
                {"target": name, "t": value, "y": (rank + 1) / len(known)}
                for rank, value in enumerate(known)
                if rank % every == 0 or rank == len(known) - 1
            ]
    return _draw(
        f"{long} ({short})",
        f"Share of successful requests whose {short} was at most that; further left is faster.",
        values,
        series,
        {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        x=("t", f"{short}, seconds (log)", {"type": "log", "nice": False}),
        y=("y", "share of requests", {"domain": [0, 1]}),
    )


def _by_output_length(series: Series) -> Plot | None:
    values = []
    for name, records in series.items():
        good = [record for record in records if record.is_ok and record.output_tokens_served]
        every = max(1, len(good) // 2000)
        values += [
            {"target": name, "t": record.output_tokens_served, "y": record.e2e_s}
            for record in good[::every]
        ]
    return _draw(
        "End-to-end latency by output length",
        "One dot a request. Where short answers wait for long ones (head-of-line blocking), "
        "short outputs lie as high as long ones.",
        values,
        series,
        {"type": "point", "filled": True, "size": 28, "opacity": 0.7},
        x=("t", "output tokens (log)", {"type": "log", "nice": False}),
        y=("y", "E2E, seconds", {}),
    )


def _draw(
    title: str,
    caption: str,
    values: list[dict[str, Any]],
    series: Series,
    mark: dict[str, Any],
    *,
    x: tuple[str, str, dict[str, Any]],
    y: tuple[str, str, dict[str, Any]],
) -> Plot | None:
    if not values:
        return None
    text = {"labelColor": "currentColor", "titleColor": "currentColor"}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "height": _HEIGHT,
        "background": None,
        "data": {"values": values},
        "mark": mark,
        "encoding": {
            "x": {"field": x[0], "type": "quantitative", "title": x[1], "scale": x[2]},
            "y": {"field": y[0], "type": "quantitative", "title": y[1], "scale": y[2]},
            "color": {
                "field": "target",
                "type": "nominal",
                "scale": {"domain": list(series), "range": list(PALETTE[: len(series)])},
                "legend": {"orient": "top", "title": None, "labelColor": "currentColor"},
            },
        },
        "config": {
            "font": "system-ui, sans-serif",
            "view": {"stroke": None},
            "axis": text
            | {
                "gridColor": "currentColor",
                "gridOpacity": 0.12,
                "domainColor": "currentColor",
                "tickColor": "currentColor",
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
            },
        },
    }
    return Plot(title, caption, vl_convert.vegalite_to_svg(spec))


def _span_s(records: Sequence[RequestRecord]) -> tuple[float, float]:
    return min(record.due_s for record in records), max(record.end_s for record in records)


def _nice_bin(span_s: float) -> float:
    """A bin of 1, 2 or 5 times a power of ten, so that `span_s` gives at most _MAX_BINS."""
    least = span_s / _MAX_BINS
    scale = 10.0 ** math.floor(math.log10(least))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= least)
