"""What the plots share: a target's own time, values thinned out, and how values are said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from loadgen.columns import Columns, Floats, Ints
from loadgen.report.draw import chosen

Series = Mapping[str, Columns]
"""Measured records by target."""

LINE: Final = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
LOG: Final = {"type": "log", "nice": False}
OWN_TIME: Final = "seconds of the target's own turns"


def turn_starts_s(c: Columns) -> Floats:
    """What each request's times are counted from, so that its target's turns lie end to end.

    Shape (n,). Of a single turn that is its first due time; pauses between turns are cut out.
    """
    shift_s: Floats = np.zeros(len(c))
    before_s = 0.0
    for rows in c.turns():
        start_s = float(c.due_s[rows].min())
        shift_s[rows] = start_s - before_s
        before_s += max(0.0, float(c.end_s[rows].max()) - start_s)
    return shift_s


def points(name: str, x: Floats | Ints, y: Floats | Ints, most: int) -> list[dict[str, Any]]:
    """At most `most` evenly chosen points, the first and the last among them."""
    return [{"target": name, "t": float(x[at]), "y": float(y[at])} for at in chosen(len(x), most)]


def said_s(seconds: float) -> str:
    """`12 ms`, `3.1 s`: two digits or more, as one would say it."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms" if abs(seconds) >= 0.01 else f"{seconds * 1000:.2g} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def each(parts: list[str]) -> str:
    """Sentences of each target, as one text."""
    return "; ".join(parts) + "." if parts else ""
