"""Plots of a curve: latencies over throughput and over load, the good share over load.

Drawn by Vega-Lite; each series differs in colour and in dash. It computes nothing that is quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import vl_convert

from loadgen.knee import Knee
from loadgen.points import Axis, Point
from loadgen.report.look import PALETTE

_ORANGE, _BLUE, _GREEN = PALETTE[0], PALETTE[1], PALETTE[2]
_SERIES: Final[dict[str, tuple[str, str, list[int]]]] = {
    "TTFT p50": ("ttft_p50_s", _BLUE, [1, 0]),
    "TTFT p99": ("ttft_p99_s", _BLUE, [6, 4]),
    "E2E p50": ("e2e_p50_s", _ORANGE, [1, 0]),
    "E2E p99": ("e2e_p99_s", _ORANGE, [6, 4]),
}
"""Name, field of a point, colour, dash."""
_HEIGHT: Final = 240
_INK: Final = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG: Final = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "legend": _INK,
    "axis": _INK
    | {
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
}


@dataclass(frozen=True, slots=True)
class CurvePlot:
    """A drawing, what it shows in words, and the numbers behind it."""

    title: str
    caption: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def draw_curves(
    axis: Axis, points: Sequence[Point], knee: Knee | None, share: float | None
) -> list[CurvePlot]:
    """Every plot for which the points have figures; `share`: the line of a capacity's goal.

    Points that say nothing of their target are left out.
    """
    knee_at = None if knee is None else points[knee.index]
    taken = [point for point in points if point.refused is None]
    load = axis.in_words
    plots = [
        _latencies(
            "Latency over throughput",
            "Lower and further right is better; where the line turns upwards the target is full.",
            taken,
            knee_at,
            lambda point: point.output_tokens_per_s,
            "output tokens/s",
        ),
        _latencies(
            f"Latency over {load}",
            "Each point is a run of its own.",
            taken,
            knee_at,
            lambda point: point.load,
            load,
        ),
        _line(
            f"Output tokens/s over {load}",
            "Where more load brings no more tokens, the target is full.",
            taken,
            knee_at,
            lambda point: point.output_tokens_per_s,
            (load, "output tokens/s"),
        ),
        _line(
            f"Good requests over {load}",
            "Share of all due requests that met every limit"
            + ("." if share is None else f"; the line is the share asked for, {100 * share:g} %."),
            taken,
            None,
            lambda point: point.good_share,
            (load, "share of requests"),
            share,
        ),
    ]
    return [plot for plot in plots if plot is not None]


def _latencies(
    title: str,
    caption: str,
    points: Sequence[Point],
    knee: Point | None,
    x_of: Callable[[Point], float | None],
    x_title: str,
) -> CurvePlot | None:
    values = []
    for at, point in enumerate(points):
        x = x_of(point)
        for name, (field, _, _) in _SERIES.items():
            seconds = getattr(point, field)
            if x is not None and seconds:
                values.append({"series": name, "x": x, "y": 1000 * seconds, "at": at})
    names = [name for name in _SERIES if any(row["series"] == name for row in values)]
    if not values:
        return None
    legend = {"orient": "top", "title": None, "symbolType": "stroke", "symbolSize": 400}
    by = {"field": "series", "type": "nominal", "legend": legend}
    encoding = {
        **_axes(x_title, "latency, ms (log)", {"type": "log", "nice": False}),
        "color": by | {"scale": {"domain": names, "range": [_SERIES[name][1] for name in names]}},
        "order": {"field": "at"},
    }
    dash = by | {"scale": {"domain": names, "range": [_SERIES[name][2] for name in names]}}
    layers = [
        {
            "data": {"values": values},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": encoding | {"strokeDash": dash},
        },
        {
            "data": {"values": values},
            "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
            "encoding": encoding | {"color": encoding["color"] | {"legend": None}},
        },
        *_knee(None if knee is None else x_of(knee)),
    ]
    fields = [_SERIES[name][0] for name in names]
    rows = tuple(
        (_told(x_of(point)), *(_told(getattr(point, field), 1000) for field in fields))
        for point in points
    )
    columns = (x_title, *(f"{name}, ms" for name in names))
    return CurvePlot(title, _with_knee(caption, knee), _svg(layers), columns, rows)


def _line(
    title: str,
    caption: str,
    points: Sequence[Point],
    knee: Point | None,
    y_of: Callable[[Point], float | None],
    titles: tuple[str, str],
    rule: float | None = None,
) -> CurvePlot | None:
    values = [
        {"x": point.load, "y": y, "at": at}
        for at, point in enumerate(points)
        if (y := y_of(point)) is not None
    ]
    if not values:
        return None
    encoding = {**_axes(*titles, {"zero": True}), "order": {"field": "at"}}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": values},
            "mark": {
                "type": "line",
                "strokeWidth": 2,
                "color": _BLUE,
                "point": {"filled": True, "size": 40, "color": _BLUE},
            },
            "encoding": encoding,
        },
        *_knee(None if knee is None else knee.load),
    ]
    if rule is not None:
        layers.append(
            {
                "data": {"values": [{"y": rule}]},
                "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2, "color": _GREEN},
                "encoding": {"y": {"field": "y", "type": "quantitative"}},
            }
        )
    rows = tuple((_told(point.load), _told(y_of(point))) for point in points)
    return CurvePlot(title, _with_knee(caption, knee), _svg(layers), titles, rows)


def _axes(x_title: str, y_title: str, y_scale: dict[str, Any]) -> dict[str, Any]:
    return {
        "x": {"field": "x", "type": "quantitative", "title": x_title, "scale": {"zero": True}},
        "y": {"field": "y", "type": "quantitative", "title": y_title, "scale": y_scale},
    }


def _knee(x: float | None) -> list[dict[str, Any]]:
    """A vertical rule with its name, in the text's colour."""
    if x is None:
        return []
    data = {"values": [{"x": x, "text": "knee"}]}
    at = {"x": {"field": "x", "type": "quantitative"}}
    rule = {"type": "rule", "strokeDash": [2, 3], "color": "currentColor", "opacity": 0.8}
    text = {"type": "text", "align": "left", "dx": 4, "dy": -8, "color": "currentColor"}
    return [
        {"data": data, "mark": rule, "encoding": at},
        {
            "data": data,
            "mark": text,
            "encoding": {**at, "y": {"value": _HEIGHT}, "text": {"field": "text"}},
        },
    ]


def _with_knee(caption: str, knee: Point | None) -> str:
    return caption if knee is None else f"{caption} The knee is marked, at {knee.load:g}."


def _svg(layers: Sequence[dict[str, Any]]) -> str:
    svg: str = vl_convert.vegalite_to_svg(
        {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "width": 560,
            "height": _HEIGHT,
            "background": None,
            "layer": list(layers),
            "config": _CONFIG,
        }
    )
    return svg


def _told(value: float | None, factor: float = 1) -> str:
    return "-" if value is None else f"{factor * value:,.4g}"
