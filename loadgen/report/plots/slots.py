"""A Gantt chart of who was in flight when: what waited, what decoded, and beside whom.

Requests are laid into lanes, each into the lowest that is free: the lanes are the load generator's
view of the server's slots, of which it knows nothing.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np

from loadgen.columns import OUTCOMES, Columns, Floats, Ints
from loadgen.report.draw import Plot, draw
from loadgen.report.plots.series import Clock, Series, turn_starts_s

_MOST: Final = 150
"""Requests that are shown: the first ones of the first turn."""
_LANE_PX: Final = 7
_FRAME_PX: Final = 90
_MOST_LANES: Final = 60


def slots(series: Series, clock: Clock) -> list[Plot | None]:
    """One plot a target."""
    return [_slots(list(series), name, c, clock) for name, c in series.items()]


def _slots(names: list[str], name: str, c: Columns, clock: Clock) -> Plot | None:
    sent = c.was_sent & (c.end_s > c.start_s)
    turns = [turn for turn in c.turns() if (sent & turn).any()]
    if not turns:
        return None
    rows = np.flatnonzero(sent & turns[0])
    shift_s = turn_starts_s(c)
    order = rows[np.argsort((c.start_s - shift_s)[rows], kind="stable")][:_MOST]
    lanes = _lanes((c.start_s - shift_s)[order], (c.end_s - shift_s)[order])
    shown = lanes < _MOST_LANES
    order, lanes = order[shown], lanes[shown]
    start_s, end_s = (c.start_s - shift_s)[order], (c.end_s - shift_s)[order]
    first_s = np.fmin((c.first_token_s - shift_s)[order], end_s)
    first_s = np.where(np.isnan(first_s), end_s, first_s)
    values: list[dict[str, Any]] = []
    for at, row in enumerate(order.tolist()):
        outcome = OUTCOMES[int(c.outcome[row])]
        hover = (
            f"{name}: request {c.seq[row]}, {max(0, c.output_tokens_served[row])} tokens, {outcome}"
            f": first token after {clock.said(first_s[at] - start_s[at])}, "
            f"end after {clock.said(end_s[at] - start_s[at])}"
        )
        values.append(
            {
                "target": name,
                "t": float(start_s[at]),
                "first": float(first_s[at]),
                "end": float(end_s[at]),
                "y": int(lanes[at]) + 1,
                "hover": hover,
            }
        )
    waiting = float((first_s - start_s).sum() / (end_s - start_s).sum())
    count = int(lanes.max()) + 1
    wide = _LANE_PX - 2
    described = {"field": "hover", "type": "nominal"}
    decoding = {
        "mark": {"type": "rule", "strokeWidth": wide},
        "encoding": {
            "x": {"field": "first", "type": "quantitative"},
            "x2": {"field": "end"},
            "description": described,
        },
    }
    requests = f"{len(order):,} of {int(sent.sum()):,} requests"
    which = requests if len(turns) == 1 else f"{requests} (of its first turn)"
    return draw(
        f"Who was in flight when: {name}",
        f"{which}, each a bar in the lowest free lane: thin while it waits for its first token, "
        f"thick while tokens come. {name}: {count} lanes; {waiting:.0%} of the time in flight "
        "was waiting for the first token.",
        values,
        names,
        {"type": "rule", "strokeWidth": 1.5},
        x=("t", clock.own_time, {"nice": False}),
        y=("y", "lane", {"domain": [count + 0.5, 0.5], "nice": False}),
        coding={"x2": {"field": "first"}},
        layers=[decoding],
        more=[("first", "first token"), ("end", "end")],
        height=_FRAME_PX + _LANE_PX * max(count, 12),
    )


def _lanes(starts_s: Floats, ends_s: Floats) -> Ints:
    """The lane, from 0 on, of each request; they are sorted by their start."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = np.zeros(len(starts_s), np.int64)
    used = 0
    for at, (start_s, end_s) in enumerate(zip(starts_s.tolist(), ends_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lanes[at] = lane
        heapq.heappush(busy, (end_s, lane))
    return lanes
