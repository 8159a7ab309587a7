"""One plot, drawn by Vega-Lite (no browser, no network): for a page, for a phone, for a file.

Targets differ by colour and also by dash or shape. Each drawing brings its values as a table and,
for a mouse, as titles of its marks. It does not know what it shows; how it looks is `look.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import vl_convert

from loadgen.report.look import (
    CONFIG,
    DASHES,
    LEGEND,
    OF_LINES,
    PALETTE,
    SHAPES,
    legend_columns,
)
from loadgen.report.svg import as_document, for_page

_HEIGHT: Final = 300
_WIDE: Final = 900
_NARROW: Final = 360
"""Pixels of the whole drawing; `style.css` says below which width of the page it is narrow."""
_INK: Final = "#1b1f24"
_MAX_BINS: Final = 120
_MOST_HOVERS: Final = 60
_MOST_DOTS_NARROW: Final = 200
_MOST_ROWS: Final = 25
_MOST_TICKS: Final = 9
_LEGEND_ROW: Final = 18

Axis = tuple[str, str, dict[str, Any]]
"""(field, title, scale)"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing, with what it shows in words for those who do not see it."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The table behind it: some of the values, evenly chosen."""
    spec: dict[str, Any]
    """Vega-Lite."""

    @property
    def slug(self) -> str:
        """The title as part of a file's name."""
        kept = "".join(c if c.isascii() and c.isalnum() else " " for c in self.title.lower())
        return "-".join(kept.split())[:80] or "plot"

    @property
    def svg(self) -> str:
        """For a page as wide as a desk's."""
        return for_page(vl_convert.vegalite_to_svg(self.spec), f"{self.slug}-wide", self.title)

    @property
    def narrow(self) -> str:
        """The same for a phone: narrower, its letters as large, fewer dots, no hover values."""
        spec: dict[str, Any] = orjson.loads(orjson.dumps(self.spec))
        spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != "hover"]
        own = spec["layer"][-1]
        if own["name"] == "dots":
            spec["data"]["values"] = _fewer(spec["data"]["values"], _MOST_DOTS_NARROW)
        spec["width"] = _NARROW
        for encoding in (spec["encoding"], own["encoding"]):
            for channel in ("color", "shape", "strokeDash"):
                if legend := encoding.get(channel, {}).get("legend"):
                    legend["columns"] = columns = legend_columns(legend["values"], _NARROW)
                    legend["labelLimit"] = _NARROW - 120
                    if channel == "color":
                        spec["height"] += _LEGEND_ROW * (-(-len(legend["values"]) // columns) - 1)
        name = f"{self.slug}-narrow"
        return for_page(vl_convert.vegalite_to_svg(spec), name, self.title, hovers=False)

    def as_svg(self) -> str:
        """A document of its own: dark on white, with its title."""
        svg = vl_convert.vegalite_to_svg(self._on_white())
        return as_document(svg, self.title, self.caption)

    def as_png(self) -> bytes:
        """The same as pixels, at twice the size."""
        png: bytes = vl_convert.vegalite_to_png(self._on_white(), scale=2.0)
        return png

    def _on_white(self) -> dict[str, Any]:
        title = {"text": self.title, "anchor": "start", "color": _INK, "fontSize": 15}
        plain = orjson.dumps(self.spec).replace(b'"currentColor"', f'"{_INK}"'.encode())
        spec: dict[str, Any] = orjson.loads(plain) | {"background": "#ffffff", "title": title}
        spec["padding"] = 12
        return spec


def draw(
    title: str,
    caption: str,
    values: list[dict[str, Any]],
    names: Sequence[str],
    mark: dict[str, Any],
    *,
    x: Axis,
    y: Axis,
    coding: dict[str, Any] | None = None,
    layers: Sequence[dict[str, Any]] = (),
    more: Sequence[tuple[str, str]] = (),
    dashes: Sequence[list[int]] = (),
    heading: str = "target",
    height: int = _HEIGHT,
) -> Plot | None:
    """A plot of rows that hold `target` and the fields of x and y; None where there are none.

    One colour, and one dash or shape, for each of `names`. `coding` joins the mark's encoding;
    `layers` are further Vega-Lite layers on the same rows, drawn beneath; `more` are (field, title)
    of further columns of the table, whose first one has that `heading`. A row's `hover` is its
    title for a mouse; else x and y are. Lines have dashes of their own; bars, where they are given.
    """
    if not values:
        return None
    for row in values:
        row.setdefault("hover", f"{row['target']}: {_told(row, x)}, {_told(row, y)}")
    present = list(dict.fromkeys(row["target"] for row in values))
    dashes = dashes or (DASHES if mark["type"] == "line" else ())
    legend = LEGEND | (OF_LINES if dashes else {})
    legend |= {"values": present, "columns": legend_columns(present, _WIDE)}
    by_target = {
        "field": "target",
        "type": "nominal",
        "legend": legend if len(present) > 1 else None,
    }
    domain = {"domain": list(names)}
    coding = dict(coding or {})
    described = {"field": "hover", "type": "nominal"}
    own = {"name": "marks", "mark": mark, "encoding": coding}
    hover: list[dict[str, Any]] = []
    if dashes:
        coding["strokeDash"] = by_target | {"scale": domain | {"range": _some(dashes, names)}}
    if mark["type"] == "line":
        own["mark"] = mark | {"aria": False}  # a line has many values, and Vega would tell one
        shown = _fewer(values, _MOST_HOVERS)
        spot = {"type": "point", "shape": "square", "size": 220, "filled": True, "opacity": 0}
        hover = [
            {
                "name": "hover",
                "data": {"values": shown},
                "mark": spot,
                "encoding": {"description": described},
            }
        ]
    elif mark["type"] == "point":
        own["name"] = "dots"
        coding["shape"] = by_target | {"scale": domain | {"range": _some(SHAPES, names)}}
        coding["description"] = described
    else:
        coding["description"] = described
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDE,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": None,
        "data": {"values": values},
        "encoding": {
            "x": _axis(x, values),
            "y": _axis(y, values),
            "color": by_target | {"scale": domain | {"range": _some(PALETTE, names)}},
        },
        "layer": [*layers, own, *hover],
        "config": CONFIG,
    }
    columns = [(x[0], x[1].removesuffix(" (log)")), (y[0], y[1].removesuffix(" (log)")), *more]
    rows = (
        (str(row["target"]), *(f"{row[field]:.4g}" for field, _ in columns))
        for row in _fewer(values, _MOST_ROWS)
    )
    named = (heading, *(name for _, name in columns))
    return Plot(title, caption, named, tuple(rows), spec)


def nice_bin(span_s: float) -> float:
    """A bin of 1, 2 or 5 times a power of ten, so that `span_s` gives at most _MAX_BINS."""
    least = span_s / _MAX_BINS
    scale = 10.0 ** math.floor(math.log10(least))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= least)


def rule_at(at: float, across: str = "y") -> dict[str, Any]:
    """A layer: a line at that value of y, or of `x`."""
    return {
        "name": "rule",
        "data": {"values": [{"at": at}]},
        "mark": {
            "type": "rule",
            "color": "currentColor",
            "strokeWidth": 1.5,
            "opacity": 0.7,
            "aria": False,
        },
        "encoding": {"x": None, "y": None, "color": None}
        | {across: {"field": "at", "type": "quantitative"}},
    }


def _axis(axis: Axis, values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    field, title, scale = axis
    encoding = {"field": field, "type": "quantitative", "title": title, "scale": scale}
    if scale.get("type") == "log":
        at = [row[field] for row in values] + scale.get("domain", [])
        ticks = log_ticks(min(at), max(at), scale.get("base", 10))
        encoding["axis"] = {
            "values": ticks,
            "tickCount": len(ticks),  # else Vega drops some of them
            "labelExpr": "format(datum.value, '~g')",
        }
    return encoding


def log_ticks(low: float, high: float, base: int = 10) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`; of many, the powers alone.

    Of base 2, its powers.
    """
    if not 0 < low <= high:
        return []
    if base == 2:
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        return [2.0**power for power in powers][-_MOST_TICKS:]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks[:: -(-len(ticks) // _MOST_TICKS) or 1]


def _some(choices: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """One choice a name, over and over where there are more names."""
    return [choices[at % len(choices)] for at in range(len(names))]


def _told(row: dict[str, Any], axis: Axis) -> str:
    return f"{axis[1].removesuffix(' (log)')} {row[axis[0]]:.4g}"


def _fewer(values: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows of each target, evenly chosen, its last one always."""
    by_target: dict[str, list[dict[str, Any]]] = {}
    for row in values:
        by_target.setdefault(row["target"], []).append(row)
    return [rows[at] for rows in by_target.values() for at in chosen(len(rows), most)]


def chosen(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // (most - 1) for at in range(most)]
