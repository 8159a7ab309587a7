"""The schedule: a trace turned into shots with due times. Pure, and settled before the run.

Each worker walks the same schedule and keeps its own shard: together the shards are the trace, each
row once, and nothing is drawn. Shots are made as they are needed, so that memory does not grow with
the trace. It knows neither clocks nor targets: due times count from the start of a target's turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.record import Phase
from loadgen.trace import Trace

_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Shot:
    """One request that will be sent."""

    seq: int
    due_s: float
    """From the turn's start; for closed loops and gangs, the earliest time."""
    prompt_tokens: int
    output_tokens: int
    phase: Phase = Phase.MEASURED
    gang: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's share of the schedule: the rows with seq % workers == worker."""

    worker: int = 0
    workers: int = 1

    def share_of(self, places: int) -> int:
        """This worker's part of so many places in flight; the parts add up to `places`."""
        return places // self.workers + (self.worker < places % self.workers)


def open_loop(trace: Trace, shard: Shard = Shard(), ramp_up_s: float = 0.0) -> Iterator[Shot]:
    """Rows at their own times. In the first `ramp_up_s` seconds the rate grows from 0 to the
    trace's: an arrival at t is due at sqrt(2 * ramp_up_s * t) while that lies within the ramp, and
    ramp_up_s / 2 later than t afterwards."""
    due_s = trace.timestamp_ms / 1000.0
    if ramp_up_s > 0:
        due_s = np.where(
            due_s < ramp_up_s / 2, np.sqrt(2 * ramp_up_s * due_s), due_s + ramp_up_s / 2
        )
    return _rows(trace, shard, due_s, trace.output_length)


def closed_loop(trace: Trace, shard: Shard = Shard()) -> Iterator[Shot]:
    """Rows in the trace's order, its times left out."""
    return _rows(trace, shard, np.zeros(len(trace)), trace.output_length)


def gangs(trace: Trace, size: int, *, pad: bool = False) -> Iterator[Shot]:
    """Rows in gangs of `size`; with `pad`, each asks for its gang's longest output.

    There is one shard only: a gang waits for all of the one before.
    """
    output_tokens = trace.output_length
    if pad:
        firsts = np.arange(0, len(trace), size)
        longest = np.maximum.reduceat(trace.output_length, firsts)
        output_tokens = np.repeat(longest, size)[: len(trace)]
    return _rows(trace, Shard(), np.zeros(len(trace)), output_tokens, gang_size=size)


def warmups(trace: Trace, count: int) -> Iterator[Shot]:
    """The first rows again (over and over if need be), to be sent one by one before the trace."""
    for number in range(count):
        seq = number % len(trace)
        yield Shot(
            seq, 0.0, int(trace.input_length[seq]), int(trace.output_length[seq]), Phase.WARMUP
        )


def _rows(
    trace: Trace,
    shard: Shard,
    due_s: NDArray[np.float64],
    output_tokens: NDArray[np.int64],
    gang_size: int | None = None,
) -> Iterator[Shot]:
    step = shard.workers
    for first in range(shard.worker, len(trace), _AT_ONCE * step):
        rows = slice(first, min(first + _AT_ONCE * step, len(trace)), step)
        columns = zip(
            range(rows.start, rows.stop, step),
            due_s[rows].tolist(),
            trace.input_length[rows].tolist(),
            output_tokens[rows].tolist(),
            strict=True,
        )
        for seq, due, prompt, output in columns:
            gang = None if gang_size is None else seq // gang_size
            yield Shot(seq, due, prompt, output, gang=gang)
