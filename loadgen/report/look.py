"""How plots look: colours, dashes, shapes, legend, axes. Text and lines take the page's own colour.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), the light ones darkened until
they stand out from a white and from a black page. It knows no plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PALETTE: Final = ("#D55E00", "#1E81C4", "#009E73", "#B8649A", "#9A7500", "#5C7FD6", "#808080")
DASHES: Final = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2], [12, 4])
SHAPES: Final = ("circle", "triangle-up", "square", "diamond", "cross", "triangle-down", "wedge")

LEGEND: Final = {
    "orient": "top",
    "title": None,
    "labelColor": "currentColor",
    "labelFontSize": 13,
    "labelLimit": 290,
    "columnPadding": 24,
    "symbolSize": 160,
    "symbolStrokeWidth": 2.5,
}
OF_LINES: Final = {
    "symbolType": "stroke",
    "symbolSize": 500,
    "symbolFillColor": "transparent",
    "symbolOpacity": 1,
}
CONFIG: Final = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
    "axisX": {"tickCount": 6},
    "axisY": {"tickCount": 5},
}


def legend_columns(names: Sequence[str], width: int) -> int:
    """Of a legend, so that its names fit beside each other, in whatever font they are shown."""
    longest = min(36, max(map(len, names)))
    return max(1, int((width - 60) / (60 + 8.5 * longest)))
