"""Slots over time of a simulated server: who holds which, and for whom that is computed.

The picture of head-of-line blocking: in a static batch a request that has ended keeps its slot
until the longest one ends. Unlike the lanes of a run (`slots.py`), these are the server's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadgen.report.draw import Plot, draw
from loadgen.report.plots.series import Clock

PREFILL: Final = "prefill"
DECODE: Final = "decode"
WASTED: Final = "ended, slot held"
_USES: Final = {WASTED: ([3, 2], 6), PREFILL: ([1, 0], 9), DECODE: ([1, 0], 7)}
"""What a slot is held for, as `sim/slots.py` writes it; dash and height of its bars."""
_SLOT_PX: Final = 10
_FRAME_PX: Final = 90


def draw_slots(held: Mapping[str, Sequence[Mapping[str, Any]]], clock: Clock) -> list[Plot]:
    """A plot a policy, on one axis of time, so that they can be held against each other."""
    end = max((row["end_s"] for rows in held.values() for row in rows), default=0)
    plots = [_slots(name, rows, end, clock) for name, rows in held.items()]
    return [plot for plot in plots if plot is not None]


def _slots(name: str, rows: Sequence[Mapping[str, Any]], end: float, clock: Clock) -> Plot | None:
    values: list[dict[str, Any]] = [
        {
            "target": row["use"],
            "t": row["start_s"],
            "end": row["end_s"],
            "y": row["slot"] + 1,
            "row": row["row"],
            "hover": f"{name}: request {row['row']} in slot {row['slot'] + 1}: {row['use']} "
            f"from {row['start_s']:.4g} to {row['end_s']:.4g} {clock.unit}",
        }
        for row in sorted(rows, key=lambda row: (row["start_s"], row["slot"]))
    ]
    spent = dict.fromkeys(_USES, 0.0)
    for row in values:
        spent[row["target"]] = spent.get(row["target"], 0.0) + row["end"] - row["t"]
    count = max((row["y"] for row in values), default=1)
    last = max((row["end"] for row in values), default=0.0)
    scale: dict[str, Any] = {"type": "ordinal", "domain": list(_USES)}
    scale["range"] = [height for _, height in _USES.values()]
    heights = {"field": "target", "type": "nominal", "legend": None, "scale": scale}
    requests = len({row["row"] for row in values})
    return draw(
        f"Slots over time: {name}",
        f"The first {requests} requests, were they the only ones, on one simulated server: each "
        "bar is a request in a slot; dashed, it has ended, and its slot is computed for nobody. "
        f"{name}: {spent[WASTED] / (sum(spent.values()) or 1):.0%} of the time that slots were "
        f"held was for nobody; all done after {last:.4g} {clock.unit}.",
        values,
        list(_USES),
        {"type": "rule"},
        x=("t", clock.unit, {"domain": [0, end], "nice": False}),
        y=("y", "slot", {"domain": [count + 0.5, 0.5], "nice": False}),
        coding={"x2": {"field": "end"}, "strokeWidth": heights},
        more=[("end", "until"), ("row", "request")],
        dashes=[dash for dash, _ in _USES.values()],
        heading="use",
        height=_FRAME_PX + _SLOT_PX * max(count, 8),
    )
