"""Traces cut, repeated and scaled to a rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.errors import TraceError
from loadgen.trace import Trace
from loadgen.trace.blocks import BlockIds
from loadgen.trace.config import GeneratorConfig
from loadgen.trace.generate import generate
from loadgen.trace.scaling import at_rate, part_of
from loadgen.trace.trace import parse_trace, trace_bytes


def drawn(requests: int = 20) -> Trace:
    return generate(GeneratorConfig(num_prompts=requests, seed=3))


@given(st.floats(1e-3, 1e4))
@settings(deadline=None)
def test_a_rate_is_reached_by_one_factor(rate: float) -> None:
    """(n - 1) / (last - first) is the rate, all gaps are multiplied alike, lengths stay."""
    trace = drawn()
    scaled = at_rate(trace, rate)
    assert 19 / scaled.duration_s == pytest.approx(rate)
    factors = np.diff(scaled.timestamp_ms) / np.diff(trace.timestamp_ms)
    assert factors == pytest.approx(np.full(19, factors[0]))
    assert scaled.input_length is trace.input_length


def test_requests_at_one_time_have_no_rate() -> None:
    """There is no gap to scale, which is said."""
    trace = generate(GeneratorConfig(num_prompts=5, request_rate=float("inf")))
    with pytest.raises(TraceError, match="at one time"):
        at_rate(trace, 2.0)


@given(st.integers(0, 3), st.integers(2, 50))
@settings(deadline=None)
def test_parts_are_stretches_of_the_trace_over_and_over(part: int, requests: int) -> None:
    """Part k of n requests holds rows k n to (k + 1) n of the endlessly repeated trace, from 0."""
    trace = drawn()
    cut = part_of(trace, part, requests)
    rows = np.arange(part * requests, (part + 1) * requests) % 20
    assert cut.input_length.tolist() == trace.input_length[rows].tolist()
    assert cut.output_length.tolist() == trace.output_length[rows].tolist()
    assert cut.timestamp_ms[0] == 0
    assert (np.diff(cut.timestamp_ms) >= 0).all()


def test_a_repetition_shares_nothing_with_the_first() -> None:
    """Blocks that were shared within the trace stay shared within each repetition, and there alone;
    a session is another in each."""
    trace = Trace(
        np.array([0.0, 10.0, 30.0]),
        np.array([600, 600, 40]),
        np.array([5, 5, 5]),
        BlockIds.of([[7, 8], [7, 9], [7]]),
        ({"session_id": "a"}, {"session_id": "a"}, {}),
    )
    twice = part_of(trace, 0, 6)
    assert twice.hash_ids is not None
    first, again = twice.hash_ids[:3], twice.hash_ids[3:]
    assert first == [(7, 8), (7, 9), (7,)]
    assert again[0][0] == again[1][0] == again[2][0]
    assert not {i for row in first for i in row} & {i for row in again for i in row}
    assert twice.payload is not None
    assert [own.get("session_id") for own in twice.payload] == ["a", "a", None, "a#1", "a#1", None]
    assert twice.timestamp_ms.tolist() == [0, 10, 30, 45, 55, 75]
    assert len(parse_trace(trace_bytes(twice), "twice")) == 6


@given(
    st.lists(st.lists(st.integers(-3, 5), max_size=4), min_size=1, max_size=6),
    st.integers(0, 2),
    st.integers(1, 15),
)
@example([[], [], []], 0, 10)
@example([[], [7], []], 1, 4)
@settings(deadline=None)
def test_rows_without_blocks_are_repeated_too(
    ids: list[list[int]], part: int, requests: int
) -> None:
    """Rows that have no blocks, some or all of them, have none in any repetition; the ids of others
    are shared as in the trace within a repetition, and with no other one."""
    n = len(ids)
    lengths = np.full(n, 5)
    cut = part_of(Trace(np.arange(n), lengths, lengths, BlockIds.of(ids)), part, requests)
    assert cut.hash_ids is not None
    own: dict[tuple[int, int], int] = {}
    for place, found in enumerate(cut.hash_ids, part * requests):
        copy, row = divmod(place, n)
        assert len(found) == len(ids[row])
        for here, there in zip(found, ids[row], strict=True):
            assert own.setdefault((copy, there), here) == here
    assert len(set(own.values())) == len(own)


def test_a_trace_without_any_block_is_repeated() -> None:
    """A file whose rows all have `"hash_ids":[]` is repeated like one that has none."""
    row = b'{"timestamp":%d,"input_length":5,"output_length":5,"hash_ids":[]}\n'
    trace = parse_trace(b"".join(row % n for n in range(4)), "t")
    repeated = part_of(trace, 0, 10)
    assert repeated.hash_ids is None or list(repeated.hash_ids) == [()] * 10
    assert len(parse_trace(trace_bytes(repeated), "again")) == 10


def test_ids_too_great_for_a_repetition() -> None:
    """Ids near 2^63 leave no room for those of a copy."""
    trace = Trace(
        np.array([0.0, 1.0]), np.array([5, 5]), np.array([5, 5]), BlockIds.of([[1], [2**63 - 2]])
    )
    assert len(part_of(trace, 0, 2)) == 2
    with pytest.raises(TraceError, match="hash_ids"):
        part_of(trace, 0, 4)
