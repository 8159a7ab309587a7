"""The schedule: due times, shards that partition the trace, gangs, ramps and warm-ups."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import Phase
from loadgen.schedule import (
    Shard,
    Shot,
    block_rows,
    closed_loop,
    gangs,
    open_loop,
    turns_of,
    warmups,
)
from loadgen.trace import Trace


def made_trace(n: int, every_ms: float = 250.0) -> Trace:
    """Row k is due at k * every_ms, has k + 1 prompt tokens and 10 (k + 1) output tokens."""
    return Trace(np.arange(n) * every_ms, np.arange(1, n + 1), 10 * np.arange(1, n + 1))


def test_an_open_loop_keeps_the_traces_times() -> None:
    """Each row is due at its own time, in seconds, with its own lengths."""
    assert list(open_loop(made_trace(3))) == [
        Shot(0, 0.0, 1, 10),
        Shot(1, 0.25, 2, 20),
        Shot(2, 0.5, 3, 30),
    ]


def test_a_closed_loop_keeps_the_order_alone() -> None:
    """Rows come in the trace's order, its times left out."""
    shots = list(closed_loop(made_trace(3)))
    assert [(shot.seq, shot.due_s) for shot in shots] == [(0, 0.0), (1, 0.0), (2, 0.0)]


@given(n=st.integers(1, 300), workers=st.integers(1, 9))
def test_shards_partition_the_trace(n: int, workers: int) -> None:
    """Together the workers send each row once, at the very times that one worker would."""
    trace = made_trace(n)
    for walk in (open_loop, closed_loop):
        parts = [list(walk(trace, Shard(worker, workers))) for worker in range(workers)]
        assert sorted((shot for part in parts for shot in part), key=lambda shot: shot.seq) == list(
            walk(trace)
        )
        for part in parts:
            assert all(a.due_s <= b.due_s for a, b in pairwise(part))


@pytest.mark.parametrize("workers", [1, 3])
def test_shards_partition_a_long_trace(workers: int) -> None:
    """Rows beyond one block of the walk are neither lost nor doubled."""
    trace = made_trace(10_007)
    seqs = [s.seq for w in range(workers) for s in open_loop(trace, Shard(w, workers))]
    assert sorted(seqs) == list(range(10_007))


@given(places=st.integers(0, 1000), workers=st.integers(1, 50))
def test_places_are_shared_out(places: int, workers: int) -> None:
    """The workers' shares of a cap add up to the cap, and differ by one at most."""
    shares = [Shard(worker, workers).share_of(places) for worker in range(workers)]
    assert sum(shares) == places
    assert max(shares) - min(shares) <= 1


def test_a_ramp_by_hand() -> None:
    """With a ramp of 2 s: 0 stays, 0.25 s is due at 1, 1 s at 2, and all later ones 1 s later."""
    times_ms = np.array([0.0, 250.0, 1000.0, 1500.0])
    trace = Trace(times_ms, np.ones(4, dtype=int), np.ones(4, dtype=int))
    assert [shot.due_s for shot in open_loop(trace, ramp_up_s=2.0)] == [0.0, 1.0, 2.0, 2.5]


def test_a_ramp_grows_the_rate_from_0() -> None:
    """In a ramp of 10 s a quarter of the ramp's requests come in its first half."""
    trace = made_trace(2000, every_ms=10.0)
    due = np.array([shot.due_s for shot in open_loop(trace, ramp_up_s=10.0)])
    assert (due < 10.0).sum() == pytest.approx(500, abs=1)
    assert (due < 5.0).sum() == pytest.approx(125, abs=1)
    assert np.diff(due[due >= 10.0]) == pytest.approx(0.01)


@pytest.mark.parametrize(("n", "size"), [(6, 3), (7, 3), (2, 5), (5, 1)])
def test_gangs(n: int, size: int) -> None:
    """Rows come in gangs of the asked size, the last perhaps smaller; lengths are their own."""
    shots = list(gangs(made_trace(n), size))
    assert [shot.seq for shot in shots] == list(range(n))
    assert [shot.gang for shot in shots] == [seq // size for seq in range(n)]
    assert [shot.output_tokens for shot in shots] == [10 * (seq + 1) for seq in range(n)]


def test_padded_gangs_ask_for_their_longest() -> None:
    """With padding all of a gang ask for the output of its longest member."""
    trace = Trace(np.zeros(5), np.ones(5, dtype=int), np.array([4, 9, 2, 7, 3]))
    asked = [shot.output_tokens for shot in gangs(trace, 2, pad=True)]
    assert asked == [9, 9, 7, 7, 3]


def test_warmups_are_the_first_rows_again_and_again() -> None:
    """More warm-ups than rows begin anew; they are marked as warm-up."""
    shots = list(warmups(made_trace(2), 5))
    assert [shot.seq for shot in shots] == [0, 1, 0, 1, 0]
    assert {shot.phase for shot in shots} == {Phase.WARMUP}
    assert list(warmups(made_trace(2), 0)) == []


def test_measured_shots_are_marked_so() -> None:
    """The trace itself is what is measured."""
    assert {shot.phase for shot in open_loop(made_trace(3))} == {Phase.MEASURED}


@given(n=st.integers(1, 300), data=st.data())
def test_blocks_partition_the_trace(n: int, data: st.DataObject) -> None:
    """Each row is in one block, blocks differ by one row at most, and none is empty."""
    blocks = data.draw(st.integers(1, n))
    parts = [block_rows(n, block, blocks) for block in range(blocks)]
    assert [row for part in parts for row in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_targets_alternate() -> None:
    """A B, B A, A B: whatever drifts evenly weighs on both alike."""
    assert list(turns_of(2, 1)) == [[(0, 0)], [(1, 0)]]
    assert [turn for (turn,) in turns_of(2, 3)] == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
    assert list(turns_of(2, 2, together=True)) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


@given(n=st.integers(2, 200), workers=st.integers(1, 5), data=st.data())
def test_a_block_is_a_stretch_of_the_trace(n: int, workers: int, data: st.DataObject) -> None:
    """Rows keep their numbers and lengths, and their times count from the block's first."""
    trace = made_trace(n)
    blocks = data.draw(st.integers(1, n))
    rows = block_rows(n, data.draw(st.integers(0, blocks - 1)), blocks)
    whole = list(open_loop(trace))[rows.start : rows.stop]
    parts = [
        shot for w in range(workers) for shot in open_loop(trace, Shard(w, workers), 0.0, rows)
    ]
    parts.sort(key=lambda shot: shot.seq)
    assert [(s.seq, s.prompt_tokens, s.output_tokens) for s in parts] == [
        (s.seq, s.prompt_tokens, s.output_tokens) for s in whole
    ]
    assert [s.due_s for s in parts] == [s.due_s - whole[0].due_s for s in whole]
    assert [s.seq for s in closed_loop(trace, rows=rows)] == list(rows)


def test_gangs_of_a_block_are_counted_from_its_start() -> None:
    """A gang never reaches over the end of its block."""
    shots = list(gangs(made_trace(7), 2, pad=True, rows=range(3, 7)))
    assert [(shot.seq, shot.gang) for shot in shots] == [(3, 0), (4, 0), (5, 1), (6, 1)]
    assert [shot.output_tokens for shot in shots] == [50, 50, 70, 70]
