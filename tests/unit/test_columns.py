"""Columns say what the records' own properties say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_record

from loadgen.columns import OUTCOMES, SOURCES, Columns
from loadgen.record import Outcome, RequestRecord, TokenSource

times = st.floats(0, 1000, allow_nan=False)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Any record that a client could make."""
    chunks = tuple(sorted(draw(st.lists(times, max_size=8))))
    told = draw(st.booleans())
    return made_record(
        draw(st.integers(0, 1000)),
        due=draw(times),
        start=draw(times),
        end=draw(times),
        chunks=chunks,
        chunk_tokens=tuple(draw(st.integers(0, 5)) for _ in chunks) if told else None,
        served=draw(st.none() | st.integers(0, 50)),
        output_tokens_wanted=draw(st.none() | st.integers(1, 50)),
        prompt_tokens_served=draw(st.none() | st.integers(0, 50)),
        outcome=draw(st.sampled_from(Outcome)),
        token_source=draw(st.none() | st.sampled_from(TokenSource)),
    )


def listed(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


@given(st.lists(records(), max_size=12))
def test_columns_are_the_records_properties(made: list[RequestRecord]) -> None:
    """Every column and every figure per request is the record's own, value by value."""
    c = Columns.of(made)
    assert len(c) == len(made)
    for name in ("due_s", "start_s", "end_s", "first_token_s", "last_token_s", "schedule_lag_s",
                 "ttft_s", "ttft_from_due_s", "tpot_s", "e2e_s", "e2e_from_due_s"):  # fmt: skip
        assert listed(getattr(c, name)) == [getattr(record, name) for record in made], name
    for name in ("prompt_tokens_served", "output_tokens_served", "output_tokens_asked",
                 "output_tokens_wanted", "useful_tokens"):  # fmt: skip
        wanted = [getattr(record, name) for record in made]
        assert getattr(c, name).tolist() == [-1 if value is None else value for value in wanted]
    assert [OUTCOMES[code] for code in c.outcome] == [record.outcome for record in made]
    assert [SOURCES[code] if code >= 0 else None for code in c.source] == [
        record.token_source for record in made
    ]
    assert c.is_ok.tolist() == [record.is_ok for record in made]
    assert c.was_sent.tolist() == [record.outcome is not Outcome.DROPPED for record in made]


@given(st.lists(records(), max_size=12))
def test_gaps_are_the_records_gaps(made: list[RequestRecord]) -> None:
    """The pooled ICL and ITL are those of the successes, request by request."""
    c = Columns.of(made)
    good = [record for record in made if record.is_ok]
    assert c.icl_s().tolist() == pytest.approx([gap for r in good for gap in r.icl_s()])
    assert c.itl_s().tolist() == pytest.approx([gap for r in good for gap in r.itl_s()])


@given(st.lists(records(), max_size=12))
def test_the_tokens_of_chunks_sum_to_the_answers_total(made: list[RequestRecord]) -> None:
    """Where the total is told the chunks share it; else each is what it tells, or one."""
    c = Columns.of(made)
    parts = np.split(c.tokens_by_chunk(), c.first_chunk[1:-1])
    for record, part in zip(made, parts, strict=False):
        told = record.chunk_tokens or (1,) * len(record.chunk_s)
        if record.output_tokens_served is None:
            assert part.tolist() == list(told)
        elif sum(told):
            assert part.sum() == pytest.approx(record.output_tokens_served)


def test_columns_of_columns_are_themselves() -> None:
    """What is columns already is not made anew."""
    c = Columns.of([made_record(0, chunks=(1.0,))])
    assert Columns.of(c) is c
