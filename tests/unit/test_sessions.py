"""Sessions of a trace, and the shots that are made of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schedule import Shard, Shot, block_rows, open_loop, open_sessions
from loadgen.trace import Trace, trace_bytes
from loadgen.trace.sessions import Sessions, sessions_of
from loadgen.trace.trace import parse_trace


def trace_of(*rows: dict[str, Any]) -> Trace:
    """Rows 100 ms apart, of 10 prompt and 5 output tokens if they do not say."""
    lines = [
        orjson.dumps({"timestamp": 100.0 * n, "input_length": 10, "output_length": 5} | row)
        for n, row in enumerate(rows)
    ]
    return parse_trace(b"\n".join(lines), "t.jsonl")


def turns(*names: str | int | None) -> Trace:
    """One row for each name; None stands alone. Row k thinks for k ms."""
    return trace_of(
        *({} if name is None else {"session_id": name, "delay": k} for k, name in enumerate(names))
    )


def sessions_in(trace: Trace) -> Sessions:
    found = sessions_of(trace)
    assert found is not None
    return found


def flat(shots: list[Shot]) -> list[Shot]:
    """First turns and all that follow them."""
    found = []
    for first in shots:
        shot: Shot | None = first
        while shot is not None:
            found.append(shot)
            shot = shot.follow_up
    return found


names = st.lists(st.sampled_from(["a", "b", "c", "d", None, None]), min_size=1, max_size=60)


def test_who_follows_whom() -> None:
    """Rows of one id are turns in the order of their times; a row without one stands alone."""
    sessions = sessions_in(turns("a", None, "b", "a", "b", "a"))
    assert sessions.firsts.tolist() == [0, 1, 2]
    assert sessions.turns.tolist() == [3, 1, 2]
    assert sessions.later == {0: 3, 3: 5, 2: 4}
    assert sessions.parent == {3: 0, 5: 3, 4: 2}
    assert sessions.name[5] == "a"
    assert 1 not in sessions.name


def test_a_trace_without_sessions_has_none() -> None:
    """Text and sampling of rows make no session."""
    assert sessions_of(trace_of({}, {})) is None
    assert sessions_of(trace_of({"prompt": "hi"}, {"sampling": {"seed": 1}})) is None


def test_numbers_name_sessions_too() -> None:
    """An id may be a whole number, and is kept as its digits."""
    assert sessions_in(turns(7, 7)).name == {0: "7", 1: "7"}


def test_turns_are_in_the_order_of_their_times() -> None:
    """Not in that of the file."""
    trace = trace_of(
        {"timestamp": 500, "session_id": "a", "input_length": 20},
        {"timestamp": 100, "session_id": "a", "input_length": 10},
    )
    assert trace.input_length.tolist() == [10, 20]
    assert sessions_in(trace).later == {0: 1}


def test_sessions_survive_the_file() -> None:
    """Written and read again, ids, delays and sampling are the same."""
    trace = trace_of(
        {"session_id": "a", "delay": 0},
        {"session_id": "a", "delay": 12.5, "sampling": {"temperature": 0.7, "top_p": 0.9}},
        {"sampling": {"seed": -3}},
    )
    assert parse_trace(trace_bytes(trace), "t").payload == trace.payload


def test_shots_of_a_session() -> None:
    """A first turn is due at its own time; later ones after their think time, with their parent."""
    trace = turns("a", None, "a")
    first, alone = open_sessions(trace, sessions_in(trace))
    assert first == Shot(
        *(0, 0.0, 10, 5),
        session="a",
        follow_up=Shot(2, 0.002, 10, 5, session="a", parent=0),
    )
    assert alone == Shot(1, 0.1, 10, 5)


@given(names=names, workers=st.integers(1, 5), data=st.data())
def test_shards_and_blocks_partition_sessions(
    names: list[str | None], workers: int, data: st.DataObject
) -> None:
    """Each row is sent once; a session is with one worker and in one block, turn after turn."""
    trace = turns(*names, "z")
    sessions = sessions_in(trace)
    count = len(sessions.firsts)
    blocks = data.draw(st.integers(1, count))
    seen: list[int] = []
    home: dict[str, tuple[int, int]] = {}
    for block in range(blocks):
        part = block_rows(count, block, blocks)
        rows = 0
        for worker in range(workers):
            shard = Shard(worker, workers)
            firsts = list(open_sessions(trace, sessions, shard, 0.0, part))
            assert all(a.due_s <= b.due_s for a, b in pairwise(firsts))
            for shot in flat(firsts):
                seen.append(shot.seq)
                rows += 1
                if shot.session is not None:
                    assert home.setdefault(shot.session, (block, worker)) == (block, worker)
                    assert shot.parent == sessions.parent.get(shot.seq)
        assert rows == sum(sessions.turns[part.start : part.stop])
    assert sorted(seen) == list(range(len(trace)))


@given(names=names, ramp_up_s=st.sampled_from([0.0, 2.0]))
def test_first_turns_are_an_open_loop(names: list[str | None], ramp_up_s: float) -> None:
    """First turns are due when the same rows would be without sessions, under a ramp as well."""
    trace = turns("z", *names)
    sessions = sessions_in(trace)
    plain = {s.seq: s.due_s for s in open_loop(trace, ramp_up_s=ramp_up_s)}
    for shot in open_sessions(trace, sessions, ramp_up_s=ramp_up_s):
        assert shot.due_s == pytest.approx(plain[shot.seq])


def test_a_long_session_is_no_recursion() -> None:
    """Five thousand turns are five thousand shots."""
    trace = turns(*["a"] * 5000)
    (first,) = open_sessions(trace, sessions_in(trace))
    assert len(flat([first])) == 5000
