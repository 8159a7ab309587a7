"""The schedule: a trace turned into shots with due times. Pure, and settled before the run.

Each worker walks the same schedule and keeps its own shard: together the shards are the trace, each
row once, and nothing is drawn. Shots are made as they are needed, so that memory does not grow with
the trace. It knows neither clocks nor targets: due times count from the start of a target's turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.record import Phase
from loadgen.trace import Trace
from loadgen.trace.sessions import Sessions

_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Shot:
    """One request that will be sent."""

    seq: int
    due_s: float
    """From the turn's start; for closed loops and gangs, the earliest time; for a follow-up, from
    its parent's end."""
    prompt_tokens: int
    output_tokens: int
    phase: Phase = Phase.MEASURED
    gang: int | None = None
    session: str | None = None
    parent: int | None = None
    """`seq` of the turn before, in its session."""
    wanted_tokens: int | None = None
    """The trace's own output length, where padding asks for more; None: `output_tokens`."""
    follow_up: Shot | None = None
    """The next turn of its session."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's share of the schedule: each `workers`-th row, from its own number on."""

    worker: int = 0
    workers: int = 1

    def share_of(self, places: int) -> int:
        """This worker's part of so many places in flight; the parts add up to `places`."""
        return places // self.workers + (self.worker < places % self.workers)


def block_rows(requests: int, block: int, blocks: int) -> range:
    """The rows of one of `blocks` stretches of a trace, nearly of a size; together they are all.

    Of a trace with sessions: first turns, so that no session is in two blocks.
    """
    return range(requests * block // blocks, requests * (block + 1) // blocks)


def turns_of(
    targets: int, blocks: int, *, together: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """Turns that begin at one moment, as (target, block): one after another, or of all targets.

    A B for one block; A B, B A, A B, ... for several, so that whatever drifts with time, such as a
    machine that warms up, weighs on all targets alike.
    """
    for block in range(blocks):
        turns = [(target, block) for target in range(targets)]
        if together:
            yield turns
        else:
            yield from ([turn] for turn in (turns if block % 2 == 0 else turns[::-1]))


def open_loop(
    trace: Trace, shard: Shard = Shard(), ramp_up_s: float = 0.0, rows: range | None = None
) -> Iterator[Shot]:
    """Rows at their own times, which count from the first of them. In the first `ramp_up_s` seconds
    the rate grows from 0 to the trace's: an arrival at t is due at sqrt(2 * ramp_up_s * t) while
    that lies within the ramp, and ramp_up_s / 2 later than t afterwards."""
    rows = rows or range(len(trace))
    due_s = _ramped(trace.timestamp_ms[rows.start : rows.stop] / 1000.0, ramp_up_s)
    return _shots(trace, shard, rows, due_s, trace.output_length[rows.start : rows.stop])


def open_sessions(
    trace: Trace,
    sessions: Sessions,
    shard: Shard = Shard(),
    ramp_up_s: float = 0.0,
    block: range | None = None,
) -> Iterator[Shot]:
    """As `open_loop`, of sessions: first turns at their own times, each with all that follow it.

    Shards and `block` count first turns: a session is in one of each.
    """
    block = block or range(len(sessions.firsts))
    firsts = sessions.firsts[block.start : block.stop]
    due_s = _ramped(trace.timestamp_ms[firsts] / 1000.0, ramp_up_s)
    for place in range(shard.worker, len(firsts), shard.workers):
        rows = [int(firsts[place])]
        while (later := sessions.later.get(rows[-1])) is not None:
            rows.append(later)
        shot: Shot | None = None
        for turn in reversed(range(len(rows))):
            row = rows[turn]
            shot = Shot(
                row,
                sessions.delay_s.get(row, 0.0) if turn else float(due_s[place]),
                int(trace.input_length[row]),
                int(trace.output_length[row]),
                session=sessions.name.get(row),
                parent=rows[turn - 1] if turn else None,
                follow_up=shot,
            )
        assert shot is not None
        yield shot


def _ramped(times_s: NDArray[np.float64], ramp_up_s: float) -> NDArray[np.float64]:
    """Times from the first on, which is 0, under a ramp."""
    due_s: NDArray[np.float64] = times_s - times_s[0]
    if ramp_up_s > 0:
        due_s = np.where(
            due_s < ramp_up_s / 2, np.sqrt(2 * ramp_up_s * due_s), due_s + ramp_up_s / 2
        )
    return due_s


def closed_loop(trace: Trace, shard: Shard = Shard(), rows: range | None = None) -> Iterator[Shot]:
    """Rows in the trace's order, its times left out."""
    rows = rows or range(len(trace))
    output_tokens = trace.output_length[rows.start : rows.stop]
    return _shots(trace, shard, rows, np.zeros(len(rows)), output_tokens)


def gangs(
    trace: Trace, size: int, *, pad: bool = False, rows: range | None = None
) -> Iterator[Shot]:
    """Rows in gangs of `size`; with `pad`, each asks for its gang's longest output.

    There is one shard only: a gang waits for all of the one before.
    """
    rows = rows or range(len(trace))
    output_tokens = trace.output_length[rows.start : rows.stop]
    asked = padded(output_tokens, size) if pad else output_tokens
    due_s = np.zeros(len(rows))
    for shot in _shots(trace, Shard(), rows, due_s, asked, gang_size=size):
        wanted = int(trace.output_length[shot.seq])
        yield shot if wanted == shot.output_tokens else replace(shot, wanted_tokens=wanted)


def padded(output_tokens: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """For each of n consecutive requests the longest output of its gang; shape (n,)."""
    longest = np.maximum.reduceat(output_tokens, np.arange(0, len(output_tokens), size))
    return np.repeat(longest, size)[: len(output_tokens)]


def warmups(trace: Trace, count: int) -> Iterator[Shot]:
    """The first rows again (over and over if need be), to be sent one by one before the trace."""
    for number in range(count):
        seq = number % len(trace)
        yield Shot(
            seq, 0.0, int(trace.input_length[seq]), int(trace.output_length[seq]), Phase.WARMUP
        )


def _shots(
    trace: Trace,
    shard: Shard,
    rows: range,
    due_s: NDArray[np.float64],
    output_tokens: NDArray[np.int64],
    gang_size: int | None = None,
) -> Iterator[Shot]:
    """Shots of the shard's part of `rows`; `due_s` and `output_tokens` are theirs, one a row."""
    step = shard.workers
    input_tokens = trace.input_length[rows.start : rows.stop]
    for first in range(shard.worker, len(rows), _AT_ONCE * step):
        part = slice(first, min(first + _AT_ONCE * step, len(rows)), step)
        columns = zip(
            range(part.start, part.stop, step),
            due_s[part].tolist(),
            input_tokens[part].tolist(),
            output_tokens[part].tolist(),
            strict=True,
        )
        for place, due, prompt, output in columns:
            gang = None if gang_size is None else place // gang_size
            yield Shot(rows.start + place, due, prompt, output, gang=gang)
