"""One plot as SVG, drawn by Vega-Lite (no browser, no network).

Colours are from Okabe and Ito's colour-blind-safe palette; text and axes take the page's own
colour, so that a plot fits a light and a dark page. It does not know what it shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import vl_convert

PALETTE: Final = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_WIDTH: Final = 560
_HEIGHT: Final = 220
_MAX_BINS: Final = 120


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing, with what it shows in words for those who do not see it."""

    title: str
    caption: str
    svg: str


def draw(
    title: str,
    caption: str,
    values: list[dict[str, Any]],
    names: list[str],
    mark: dict[str, Any],
    *,
    x: tuple[str, str, dict[str, Any]],
    y: tuple[str, str, dict[str, Any]],
) -> Plot | None:
    """A plot of rows that hold `target` and the fields of x and y: (field, title, scale).

    One colour for each of `names`; None where there is nothing to draw.
    """
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
                "scale": {"domain": names, "range": list(PALETTE[: len(names)])},
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


def nice_bin(span_s: float) -> float:
    """A bin of 1, 2 or 5 times a power of ten, so that `span_s` gives at most _MAX_BINS."""
    least = span_s / _MAX_BINS
    scale = 10.0 ** math.floor(math.log10(least))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= least)
