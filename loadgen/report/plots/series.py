"""What the plots share: a target's own time, values thinned out, and how times are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadgen.columns import Columns, Floats, Ints
from loadgen.report.draw import chosen

Series = Mapping[str, Columns]
"""Measured records by target."""

LINE: Final = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
LOG: Final = {"type": "log", "nice": False}


@dataclass(frozen=True, slots=True)
class Clock:
    """How times are told: in seconds, or where a simulation's costs are none, in iterations."""

    unit: str
    short: str
    """The unit behind a number."""
    per: str
    """As in tokens/s."""
    fine: str
    """The unit of short times, of which `fine_parts` make one."""
    fine_parts: float

    @property
    def own_time(self) -> str:
        """The title of an axis of `turn_starts_s`."""
        return f"{self.unit} of the target's own turns"

    def said(self, time: float) -> str:
        """`12 ms`, `3.1 s`, `97 iterations`: two digits or more, as one would say it."""
        if self.fine == self.unit:
            return f"{time:,.0f} {self.unit}" if abs(time) >= 100 else f"{time:.3g} {self.unit}"
        if abs(time) < 1:
            fine = time * self.fine_parts
            return f"{fine:.0f} {self.fine}" if abs(time) >= 0.01 else f"{fine:.2g} {self.fine}"
        return f"{time:.1f} {self.short}" if time < 100 else f"{time:,.0f} {self.short}"


SECONDS: Final = Clock("seconds", "s", "s", "ms", 1000.0)
ITERATIONS: Final = Clock("iterations", "iterations", "iteration", "iterations", 1.0)


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


def each(parts: list[str]) -> str:
    """Sentences of each target, as one text."""
    return "; ".join(parts) + "." if parts else ""
