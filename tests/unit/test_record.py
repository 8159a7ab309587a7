"""The formulas of one record, against values worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_record

from loadgen.record import Outcome, RequestRecord

RECORD = made_record(due=1.0, start=1.25, chunks=(2.0, 2.5, 3.5), end=4.0, served=3)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("schedule_lag_s", 0.25),
        ("ttft_s", 0.75),
        ("ttft_from_due_s", 1.0),
        ("e2e_s", 2.75),
        ("e2e_from_due_s", 3.0),
        ("tpot_s", 0.75),
    ],
)
def test_formulas(figure: str, expected: float) -> None:
    """Due 1, start 1.25, tokens at 2, 2.5 and 3.5, end 4: each figure by its formula."""
    assert getattr(RECORD, figure) == expected


def test_ttft_holds_the_connect() -> None:
    """TTFT counts from the moment the client took the request up, before it had a connection."""
    record = made_record(start=0.0, chunks=(1.0,), connected_s=0.4, sent_s=0.5)
    assert record.ttft_s == 1.0


@pytest.mark.parametrize("served", [None, 0, 1], ids=["unknown", "none", "one"])
def test_tpot_is_undefined_up_to_one_token(served: int | None) -> None:
    """One token has no time per further token: the value is missing, not 0."""
    record = dataclasses.replace(RECORD, output_tokens_served=served)
    assert record.tpot_s is None


def test_tpot_counts_tokens_and_not_chunks() -> None:
    """Five tokens in two chunks a second apart took a quarter of a second each."""
    assert made_record(chunks=(1.0, 2.0), served=5).tpot_s == 0.25


def test_a_record_without_tokens_has_no_ttft() -> None:
    """What never happened has no time."""
    record = made_record(outcome=Outcome.CONNECT, end=1.0)
    assert record.ttft_s is None
    assert record.ttft_from_due_s is None
    assert record.tpot_s is None
    assert record.icl_s() == []
    assert record.itl_s() == []


def test_icl_is_between_chunks() -> None:
    """ICL knows chunks alone, however many tokens they hold."""
    assert dataclasses.replace(RECORD, chunk_tokens=(1, 2, 4)).icl_s() == [0.5, 1.0]


def test_itl_spreads_a_gap_over_the_tokens_of_its_chunk() -> None:
    """A chunk of 2 after 0.5 s and one of 4 after 1 s give six gaps of 0.25 s."""
    assert dataclasses.replace(RECORD, chunk_tokens=(1, 2, 4)).itl_s() == [0.25] * 6


def test_itl_leaves_the_first_chunk_out() -> None:
    """Tokens of the first chunk came with TTFT, and have no gap."""
    assert made_record(chunks=(1.0, 2.0), chunk_tokens=(10, 1)).itl_s() == [1.0]


def test_itl_is_icl_where_tokens_are_not_told() -> None:
    """Without tokens by chunk each chunk counts as one token."""
    assert RECORD.chunk_tokens is None
    assert RECORD.itl_s() == RECORD.icl_s() == [0.5, 1.0]


def test_one_chunk_has_no_gap() -> None:
    """A gap needs two ends."""
    assert made_record(chunks=(1.0,), chunk_tokens=(3,)).itl_s() == []


@given(
    gaps=st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 9)), min_size=1, max_size=30),
    first=st.integers(1, 9),
)
def test_itl_keeps_the_time_and_counts_the_tokens(
    gaps: list[tuple[float, int]], first: int
) -> None:
    """All gaps take the time from first to last chunk, one a token after the first chunk."""
    times = [1.0]
    for gap, _ in gaps:
        times.append(times[-1] + gap)
    tokens = (first, *(count for _, count in gaps))
    record = made_record(chunks=tuple(times), chunk_tokens=tokens)
    assert len(record.itl_s()) == sum(tokens) - first
    assert sum(record.itl_s()) == pytest.approx(times[-1] - times[0])
    assert sum(record.icl_s()) == pytest.approx(times[-1] - times[0])


@pytest.mark.parametrize("outcome", list(Outcome), ids=str)
def test_only_ok_is_ok(outcome: Outcome) -> None:
    """Each outcome but ok is a failure."""
    assert made_record(outcome=outcome).is_ok is (outcome == "ok")


def test_outcomes_are_the_closed_set_of_the_documentation() -> None:
    """The enum holds the documented outcomes, and nothing else may be a label."""
    assert set(Outcome) == set(
        "ok connect tls timeout_connect timeout_first_token timeout_total http_4xx http_429 "
        "http_5xx stream_error truncated malformed empty short cancelled dropped".split()
    )


def test_the_record_has_every_field_of_the_format() -> None:
    """Fields are the file format: one that goes missing makes old runs unreadable."""
    names = {field.name for field in dataclasses.fields(RequestRecord)}
    assert names >= set(
        "seq target phase session parent gang block repeat worker due_s start_s connected_s sent_s "
        "first_byte_s first_token_s chunk_s chunk_tokens last_token_s end_s prompt_tokens_asked "
        "prompt_tokens_served output_tokens_asked output_tokens_served token_source outcome "
        "http_status finish_reason error".split()
    )
