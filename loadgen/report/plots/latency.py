"""How long requests took: distributions, by the answer's length, by the place in the answer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from loadgen.columns import Columns, Floats, Ints
from loadgen.report.draw import Plot, draw
from loadgen.report.plots.series import LINE, LOG, Clock, Series, each, points

_MOST_DOTS: Final = 500
_MOST_POSITIONS: Final = 80
_MOST_GAPS: Final = 500_000
_FEWEST_GAPS: Final = 20


def distribution_of(
    series: Series, short: str, long: str, attribute: str, clock: Clock
) -> Plot | None:
    """The empirical distribution of one latency over successes, on a log axis."""
    values, told = [], []
    for name, c in series.items():
        figures: Floats = getattr(c, attribute)[c.is_ok]
        known = np.sort(figures[figures > 0])  # NaN is not
        values += points(name, known, np.arange(1, len(known) + 1) / max(1, len(known)), 400)
        if len(known):
            p50, p90, p99 = (clock.said(value) for value in np.percentile(known, (50, 90, 99)))
            told.append(
                f"{name}: median {p50}, p90 {p90}, p99 {p99} ({len(known):,} of {len(c):,})"
            )
    return draw(
        f"{long} ({short})",
        f"Share of successful requests whose {short} was at most that; further left is faster. "
        f"{each(told)}",
        values,
        list(series),
        LINE,
        x=("t", f"{short}, {clock.unit} (log)", LOG),
        y=("y", "share of requests", {"domain": [0, 1]}),
    )


def by_output_length(series: Series, clock: Clock) -> Plot | None:
    """E2E of each success against the tokens it was given."""
    values, told = [], []
    for name, c in series.items():
        rows = c.is_ok & (c.output_tokens_served > 0)
        tokens, e2e_s = c.output_tokens_served[rows], c.e2e_s[rows]
        values += points(name, tokens, e2e_s, _MOST_DOTS)
        if len(tokens):
            low, high = np.quantile(tokens, (0.25, 0.75))
            short_s, long_s = np.median(e2e_s[tokens <= low]), np.median(e2e_s[tokens >= high])
            told.append(
                f"{name}: median {clock.said(short_s)} up to {low:,.0f} tokens, "
                f"{clock.said(long_s)} from {high:,.0f} on"
            )
    return draw(
        "End-to-end latency by output length",
        "One dot a request. Where short answers wait for long ones (head-of-line blocking), "
        f"short outputs lie as high as long ones. {each(told)}",
        values,
        list(series),
        {"type": "point", "filled": True, "size": 30, "opacity": 0.85},
        x=("t", "output tokens (log)", LOG | {"padding": 6}),
        y=("y", f"E2E, {clock.unit}", {}),
    )


def by_position(series: Series, clock: Clock) -> Plot | None:
    """The gap before the k-th token of an answer: its median, and a band up to its p90."""
    values: list[dict[str, Any]] = []
    told = []
    gaps = {name: _gaps_by_position(c) for name, c in series.items()}
    longest = max((int(at.max()) for at, _ in gaps.values() if len(at)), default=0)
    width = max(1, -(-longest // _MOST_POSITIONS))
    for name, (position, gap_s) in gaps.items():
        if not len(position):
            continue
        bins = (position - 2) // width
        order = np.argsort(bins, kind="stable")
        edges = np.flatnonzero(np.diff(bins[order])) + 1
        fewest = min(_FEWEST_GAPS, int(np.bincount(bins).max()))
        binned = (np.split(values_of[order], edges) for values_of in (position, gap_s))
        for places, gaps_s in zip(*binned, strict=True):
            if len(gaps_s) < fewest:
                continue
            median, high = (
                float(value) * clock.fine_parts for value in np.quantile(gaps_s, (0.5, 0.9))
            )
            at = int(places.min())
            told_gaps = f"median {median:.1f}, p90 {high:.1f} {clock.fine}"
            hover = f"{name}: token {at:,}: {told_gaps}"
            values.append({"target": name, "t": at, "y": median, "high": high, "hover": hover})
        over_all = [clock.said(float(value)) for value in np.quantile(gap_s, (0.5, 0.9))]
        told.append(f"{name}: median {over_all[0]}, p90 {over_all[1]} over all positions")
    of_each = "token" if width == 1 else f"{width} tokens"
    band = {
        "mark": {"type": "area", "opacity": 0.2, "aria": False},
        "encoding": {"y2": {"field": "high"}},
    }
    return draw(
        "Inter-token latency by position in the answer",
        f"The gap before the k-th token: median of each {of_each}, and a band up to the p90. "
        f"{each(told)}",
        values,
        list(series),
        {"type": "line", "strokeWidth": 2},
        x=("t", "position of the token in its answer", {"nice": False}),
        y=("y", f"ITL, {clock.fine}", {}),
        layers=[band],
        more=[("high", f"p90, {clock.fine}")],
    )


def _gaps_by_position(c: Columns) -> tuple[Ints, Floats]:
    """(position of a token from 2 on, gap before it), of successes; of some, where many are."""
    counts = np.diff(c.first_chunk)
    rows = c.is_ok & (counts > 1)
    every = max(1, int(c.chunk_tokens.sum()) // _MOST_GAPS)
    if every > 1:
        rows &= np.arange(len(c)) % every == 0
    some = c.only(rows)
    counts = np.diff(some.first_chunk)
    if not len(counts):
        return np.zeros(0, np.int64), np.zeros(0)
    firsts = some.first_chunk[:-1]
    tokens = some.chunk_tokens.astype(np.int64)
    through = np.cumsum(tokens)
    before = np.repeat(through[firsts] - tokens[firsts], counts)
    last_position = through - before
    is_later = np.ones(len(tokens), np.bool_)
    is_later[firsts] = False
    is_later &= tokens > 0
    held = tokens[is_later]
    gap_s = np.diff(some.chunk_s, prepend=np.nan)[is_later] / held
    # A chunk of k tokens holds the positions up to its last one, each after an equal gap.
    back = np.cumsum(held).repeat(held) - np.arange(int(held.sum())) - 1
    return last_position[is_later].repeat(held) - back, gap_s.repeat(held)
