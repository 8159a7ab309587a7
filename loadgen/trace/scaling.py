"""A trace cut or repeated to a number of requests, and its times scaled to a rate.

What a search over rates replays: the lengths, their order and the shape of the arrivals stay; all
gaps are multiplied by one factor. Think times within sessions are the user's own and stay as they
are. It knows neither targets nor why a rate is wanted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import TraceError
from loadgen.trace.blocks import BlockIds
from loadgen.trace.trace import Trace


def part_of(trace: Trace, part: int, requests: int) -> Trace:
    """The `part`-th stretch (from 0) of so many requests, of the trace over and over.

    A repetition follows the one before after a mean gap; its sessions and shared prompt blocks are
    its own, so that it finds nothing in a cache that it brought there itself. Texts that rows bring
    are the same again.
    """
    whole = len(trace)
    places = np.arange(part * requests, (part + 1) * requests)
    rows, copies = places % whole, places // whole
    mean_gap_ms = trace.timestamp_ms[-1] / (whole - 1) if whole > 1 else 0.0
    times = trace.timestamp_ms[rows] + copies * (trace.timestamp_ms[-1] + mean_gap_ms)
    return Trace(
        times - times[0],
        trace.input_length[rows],
        trace.output_length[rows],
        None if trace.hash_ids is None else _blocks(BlockIds.of(trace.hash_ids), rows, copies),
        None if trace.payload is None else tuple(_rows(trace, rows, copies)),
    )


def at_rate(trace: Trace, rate: float) -> Trace:
    """All gaps multiplied by one factor, so that (n - 1) / (last - first) is `rate` a second.

    Raises TraceError where there is no gap to scale.
    """
    if not trace.duration_s > 0:
        raise TraceError(
            f"all {len(trace)} requests come at one time, which no factor makes a rate; "
            "give a trace whose arrivals are spread, or leave out what makes them wait"
        )
    factor = (len(trace) - 1) / rate / trace.duration_s
    return replace(trace, timestamp_ms=trace.timestamp_ms * factor)


def _blocks(ids: BlockIds, rows: NDArray[np.int64], copies: NDArray[np.int64]) -> BlockIds:
    taken = ids.take(rows)
    if not len(ids.flat) or not copies.any():
        return taken
    known = np.unique(ids.flat)
    first = int(known[-1]) + 1
    if first + int(copies[-1]) * len(known) >= 2**63:
        raise TraceError("hash_ids: too great for copies of the trace to have ids of their own")
    copy = np.repeat(copies, np.diff(taken.offsets))
    own = first + (copy - 1) * len(known) + np.searchsorted(known, taken.flat)
    return BlockIds(np.where(copy > 0, own, taken.flat), taken.offsets)


def _rows(
    trace: Trace, rows: NDArray[np.int64], copies: NDArray[np.int64]
) -> list[dict[str, object]]:
    payload = []
    for row, copy in zip(rows.tolist(), copies.tolist(), strict=True):
        own = dict((trace.payload or ())[row])
        if copy and "session_id" in own:
            own["session_id"] = f"{own['session_id']}#{copy}"
        payload.append(own)
    return payload
