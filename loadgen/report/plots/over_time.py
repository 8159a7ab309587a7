"""What happened when: tokens that came, requests in flight, and how late the client was."""

from __future__ import annotations

import math

import numpy as np

from loadgen.columns import Floats, Ints
from loadgen.report.draw import Plot, draw, nice_bin
from loadgen.report.plots.series import (
    LINE,
    Clock,
    Series,
    each,
    points,
    turn_starts_s,
)

_MOST_STEPS = 800


def throughput(series: Series, clock: Clock) -> Plot | None:
    """Output tokens a second, in bins."""
    bin_s = _bin_s(series)
    if bin_s is None:
        return None
    values, told = [], []
    for name, c in series.items():
        if not len(c) or not c.tells_output_tokens:
            continue
        start_s = turn_starts_s(c)
        last = math.ceil(float((c.end_s - start_s).max()) / bin_s)
        chunks = np.diff(c.first_chunk)
        whole = (chunks == 0) & (c.output_tokens_served > 0)  # did not stream: all came at the end
        at_s = np.append(c.chunk_s - np.repeat(start_s, chunks), (c.end_s - start_s)[whole])
        came = np.append(c.tokens_by_chunk(), c.output_tokens_served[whole])
        bins = (at_s / bin_s).astype(np.int64).clip(0, last)
        tokens = np.bincount(bins, weights=came, minlength=last + 1) / bin_s
        values += points(name, _bins_s(np.arange(last + 1), bin_s), tokens, last + 1)
        told.append(
            f"{name}: median {np.median(tokens[:last]):,.0f}, at most {tokens.max():,.0f}"
            if last
            else f"{name}: {tokens.max():,.0f}"
        )
    return draw(
        f"Output tokens per {clock.unit.removesuffix('s')} over time",
        f"Tokens that arrived in each {bin_s:g} {clock.short}. {each(told)}",
        values,
        list(series),
        LINE,
        x=("t", clock.own_time, {}),
        y=("y", f"output tokens/{clock.per}", {}),
    )


def in_flight(series: Series, clock: Clock) -> Plot | None:
    """Requests that were sent and had not ended."""
    values, told = [], []
    for name, c in series.items():
        sent = c.was_sent
        if not sent.any():
            continue
        start_s = turn_starts_s(c)[sent]
        moments_s = np.concatenate((c.start_s[sent] - start_s, c.end_s[sent] - start_s))
        steps = np.repeat((1, -1), int(sent.sum()))
        order = np.lexsort((steps, moments_s))
        now = np.cumsum(steps[order])
        values += points(name, moments_s[order], now, _MOST_STEPS)
        span_s = float(np.ptp(moments_s))
        mean = float((c.end_s[sent] - c.start_s[sent]).sum()) / span_s if span_s > 0 else 0.0
        told.append(f"{name}: {mean:,.1f} on average, at most {now.max():,}")
    return draw(
        "Requests in flight",
        f"Requests that were sent and had not ended. {each(told)}",
        values,
        list(series),
        LINE,
        x=("t", clock.own_time, {}),
        y=("y", "requests in flight", {}),
    )


def lag(series: Series, clock: Clock) -> Plot | None:
    """The client's own lateness: the worst of each bin of due times."""
    bin_s = _bin_s(series)
    if bin_s is None:
        return None
    values, told = [], []
    for name, c in series.items():
        sent = c.was_sent
        if not sent.any():
            continue
        late_s = c.schedule_lag_s[sent]
        bins = ((c.due_s - turn_starts_s(c))[sent] / bin_s).astype(np.int64).clip(0)
        worst_s = np.full(int(bins.max()) + 1, np.nan)
        np.fmax.at(worst_s, bins, late_s)
        known = np.flatnonzero(~np.isnan(worst_s))
        values += points(name, _bins_s(known, bin_s), worst_s[known] * clock.fine_parts, len(known))
        median, worst = clock.said(float(np.median(late_s))), clock.said(float(late_s.max()))
        told.append(f"{name}: median {median}, worst {worst}")
    return draw(
        "Schedule lag over time",
        "How late the load generator itself sent requests: the worst of each "
        f"{bin_s:g} {clock.short}. {each(told)}",
        values,
        list(series),
        LINE,
        x=("t", clock.own_time, {}),
        y=("y", f"start \N{MINUS SIGN} due, {clock.fine}", {}),
    )


def _bins_s(bins: Ints, bin_s: float) -> Floats:
    """Where each bin begins."""
    return bins.astype(np.float64) * bin_s


def _bin_s(series: Series) -> float | None:
    """A bin for all targets; None where nothing took any time."""
    spans_s = [float((c.end_s - turn_starts_s(c)).max()) for c in series.values() if len(c)]
    longest_s = max(spans_s, default=0.0)
    return nice_bin(longest_s) if longest_s > 0 else None
