"""Goodput: which requests are good, by record and by column."""

from __future__ import annotations

import pytest
from made_records import made_record

from loadgen.columns import Columns
from loadgen.record import Outcome, RequestRecord
from loadgen.slo import Slo
from loadgen.stats import summarise

QUICK = made_record(0, start=0.0, chunks=(0.1, 0.2, 0.3))
SLOW_START = made_record(1, start=0.0, chunks=(0.9, 1.0, 1.1))
SLOW_TOKENS = made_record(2, start=0.0, chunks=(0.1, 0.6, 1.1))
ONE_TOKEN = made_record(3, start=0.0, chunks=(0.1,))
FAILED = made_record(4, start=0.0, end=0.01, outcome=Outcome.HTTP_5XX)
NOT_STREAMED = made_record(5, start=0.0, end=0.3, served=3)
ALL = [QUICK, SLOW_START, SLOW_TOKENS, ONE_TOKEN, FAILED, NOT_STREAMED]


@pytest.mark.parametrize(
    ("goodput_ms", "good"),
    [
        ({}, [0, 1, 2, 3, 5]),
        ({"ttft": 500}, [0, 2, 3]),
        ({"tpot": 200}, [0, 1, 3]),
        ({"e2el": 500}, [0, 3, 5]),
        ({"ttft": 500, "tpot": 200, "e2el": 500}, [0, 3]),
        ({"ttft": 100}, [0, 2, 3]),
    ],
)
def test_who_is_good(goodput_ms: dict[str, float], good: list[int]) -> None:
    """Every limit must be met, the limit itself does; a failure is never good, however fast.

    One token has no TPOT and breaks no limit of it; an answer that was not streamed has neither
    TTFT nor TPOT that anybody knows, and meets none.
    """
    slo = Slo.of(goodput_ms)
    assert [record.seq for record in ALL if slo.is_met_by(record)] == good


@pytest.mark.parametrize("goodput_ms", [{}, {"ttft": 500}, {"tpot": 200}, {"e2el": 1050}])
def test_columns_say_what_records_say(goodput_ms: dict[str, float]) -> None:
    """The rule over arrays is the rule over records."""
    slo = Slo.of(goodput_ms)
    assert slo.are_met_by(Columns.of(ALL)).tolist() == [slo.is_met_by(r) for r in ALL]


def test_goodput_is_over_all_that_were_due() -> None:
    """Failed and dropped requests stay in the denominator."""
    dropped = made_record(6, due=1.0, start=1.2, outcome=Outcome.DROPPED)
    records: list[RequestRecord] = [*ALL, dropped]
    goodput = summarise(records, slo=Slo.of({"ttft": 500})).goodput
    assert goodput is not None
    assert goodput.good == 3
    assert goodput.share == pytest.approx(3 / 7)
    assert goodput.requests_per_s == pytest.approx(3 / 1.1)


def test_without_objectives_there_is_no_goodput() -> None:
    """None, and not the share of successes."""
    assert summarise(ALL).goodput is None
