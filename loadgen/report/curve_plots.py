"""Plots of a curve: latencies over throughput and over load, the good share over load.

It says what is drawn; `draw.py` draws. It computes nothing that is quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from loadgen.knee import Knee
from loadgen.points import Axis, Point
from loadgen.report.draw import Plot, draw, rule_at

_LATENCIES: Final = {
    "TTFT p50": "ttft_p50_s",
    "TTFT p99": "ttft_p99_s",
    "E2E p50": "e2e_p50_s",
    "E2E p99": "e2e_p99_s",
}
"""Fields of a point."""
_LINE: Final = {"type": "line", "point": {"size": 50}, "strokeWidth": 2}
_IN_ORDER: Final = {"order": {"field": "at"}}
"""Of load: throughput falls again beyond some."""

Side = tuple[str, Callable[[Point], float | None]]
"""Title of an axis, and what a point has on it."""


def draw_curves(
    axis: Axis, points: Sequence[Point], knee: Knee | None, share: float | None
) -> list[Plot]:
    """Every plot for which the points have figures; `share`: the line of a capacity's goal.

    Points that say nothing of their target are left out.
    """
    knee_at = None if knee is None else points[knee.index]
    taken = [point for point in points if point.refused is None]
    load: Side = axis.in_words, lambda point: point.load
    tokens: Side = "output tokens/s", lambda point: point.output_tokens_per_s
    good: Side = "share of requests", lambda point: point.good_share
    plots = [
        _latencies(
            "Latency over throughput",
            "Lower and further right is better; where the line turns upwards the target is full.",
            taken,
            knee_at,
            tokens,
        ),
        _latencies(
            f"Latency over {load[0]}", "Each point is a run of its own.", taken, knee_at, load
        ),
        _line(
            f"Output tokens/s over {load[0]}",
            "Where more load brings no more tokens, the target is full.",
            taken,
            knee_at,
            load,
            tokens,
        ),
        _line(
            f"Good requests over {load[0]}",
            "Share of all due requests that met every limit"
            + ("." if share is None else f"; the line is the share asked for, {100 * share:g} %."),
            taken,
            None,
            load,
            good,
            [] if share is None else [rule_at(share)],
        ),
    ]
    return [plot for plot in plots if plot is not None]


def _latencies(
    title: str, caption: str, points: Sequence[Point], knee: Point | None, x: Side
) -> Plot | None:
    values = [
        {"target": name, "t": at_x, "y": 1000 * seconds, "at": at}
        for name, field in _LATENCIES.items()
        for at, point in enumerate(points)
        if (at_x := x[1](point)) is not None and (seconds := getattr(point, field))
    ]
    return draw(
        title,
        _with_knee(caption, knee),
        values,
        list(_LATENCIES),
        _LINE,
        x=("t", x[0], {"zero": True}),
        y=("y", "latency, ms (log)", {"type": "log", "nice": False}),
        coding=_IN_ORDER,
        layers=_knee(knee, x, points),
        heading="latency",
    )


def _line(
    title: str,
    caption: str,
    points: Sequence[Point],
    knee: Point | None,
    x: Side,
    y: Side,
    layers: Sequence[dict[str, Any]] = (),
) -> Plot | None:
    values = [
        {"target": "measured", "t": x[1](point), "y": at_y, "at": at}
        for at, point in enumerate(points)
        if (at_y := y[1](point)) is not None
    ]
    return draw(
        title,
        _with_knee(caption, knee),
        values,
        ["measured"],
        _LINE,
        x=("t", x[0], {"zero": True}),
        y=("y", y[0], {"zero": True}),
        coding=_IN_ORDER,
        layers=[*_knee(knee, x, points), *layers],
        heading="line",
    )


def _knee(knee: Point | None, x: Side, points: Sequence[Point]) -> list[dict[str, Any]]:
    """A rule from the bottom to the top, and its name on the side where there is room."""
    at = None if knee is None else x[1](knee)
    if at is None:
        return []
    is_left = 2 * at < max(x[1](point) or 0.0 for point in points)
    side = {"align": "left", "dx": 5} if is_left else {"align": "right", "dx": -5}
    text = {"type": "text", "text": "knee", "baseline": "top", "fontSize": 12, "aria": False}
    rule = rule_at(at, "x")
    name = {
        "name": "knee",
        "data": rule["data"],
        "mark": text | side | {"color": "currentColor"},
        "encoding": rule["encoding"] | {"y": {"value": 2}},
    }
    return [rule, name]


def _with_knee(caption: str, knee: Point | None) -> str:
    return caption if knee is None else f"{caption} The knee is marked, at {knee.load:g}."
