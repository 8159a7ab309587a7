"""Live counters: what they count as it comes is what the records say in the end."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from made_records import STREAMS, capture, made_record

from loadgen.client.answer import Answer
from loadgen.live import LAG_BOUNDS_S, LATENCY_BOUNDS_S, LiveCounters, LiveHistogram
from loadgen.record import Outcome, RequestRecord
from loadgen.slo import Slo

VLLM_BOUNDS_S = {
    "time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "inter_token_latency": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        *(20.0, 40.0, 80.0),
    ),
    "e2e_request_latency": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
        *(240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}


@pytest.mark.parametrize("name", VLLM_BOUNDS_S)
def test_the_bounds_hold_those_of_vllm(name: str) -> None:
    """So the client's histogram can be laid over the server's, bound by bound."""
    assert set(VLLM_BOUNDS_S[name]) <= set(LATENCY_BOUNDS_S)


@pytest.mark.parametrize("bounds", [LATENCY_BOUNDS_S, LAG_BOUNDS_S])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    """Each is over the one before."""
    assert (np.diff(bounds) > 0).all()


def test_a_value_on_a_bound_is_below_it() -> None:
    """Prometheus's `le`: less than or equal."""
    histogram = LiveHistogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1, 99.0):
        histogram.observe(value)
    histogram.flush()
    assert histogram.counts.tolist() == [2, 2, 2]
    assert histogram.sum == pytest.approx(105.6)
    assert histogram.count == 6


def test_what_was_flushed_is_counted_once() -> None:
    """A second flush adds nothing, and the list that hot paths append to is the same."""
    histogram = LiveHistogram((1.0,))
    append = histogram.pending.append
    append(0.5)
    histogram.flush()
    histogram.flush()
    append(3.0)
    histogram.flush()
    assert histogram.counts.tolist() == [1, 1]


def test_counters_never_go_down() -> None:
    """Tokens that were guessed and are not there are made up for by what ends later."""
    live = LiveCounters()
    seen = []
    for counted, true in ((5, 3), (2, 3), (1, 4), (0, 2)):
        live.chunk(counted, None)
        live.settle(true - counted)
        seen.append(live.tokens)
    assert seen == sorted(seen)
    assert live.tokens == 3 + 3 + 4 + 2


def test_two_workers_add_up() -> None:
    """The sum of two is what one would have counted; pickling loses nothing."""
    parts = [LiveCounters(), LiveCounters()]
    for live, outcome in zip(parts, (Outcome.OK, Outcome.HTTP_429), strict=True):
        live.count_due()
        live.started(0.001)
        live.chunk(3, 0.02)
        live.ended(made_record(start=0.0, chunks=(0.5, 1.0), outcome=outcome))
        live.flush()
    total = LiveCounters()
    for live in parts:
        total.add(pickle.loads(pickle.dumps(live)))
    assert (total.due, total.sent, total.chunks, total.tokens) == (2, 2, 2, 6)
    assert (total.done, total.failed, total.in_flight) == (2, 1, 0)
    assert total.itl_s.count == 6
    assert {outcome: h.count for outcome, h in total.e2e_s.items()} == {
        Outcome.OK: 1,
        Outcome.HTTP_429: 1,
    }


def test_a_request_that_was_never_sent_has_no_latency() -> None:
    """A dropped request counts by its outcome, and in no histogram."""
    live = LiveCounters()
    live.ended(made_record(due=1.0, start=1.5, outcome=Outcome.DROPPED))
    live.flush()
    assert live.outcomes[Outcome.DROPPED] == 1
    assert sum(h.count for h in live.histograms()) == 0
    assert live.in_flight == 0


def test_good_is_what_the_objectives_say() -> None:
    """As `Slo.is_met_by`."""
    live = LiveCounters(Slo(ttft_s=0.2))
    for first in (0.1, 0.3):
        live.ended(made_record(start=0.0, chunks=(first, 1.0)))
    assert live.good == 1


def test_a_new_turn_counts_from_zero() -> None:
    """`restart` forgets all, the objectives apart."""
    live = LiveCounters(Slo(ttft_s=0.2))
    live.started(0.1)
    live.chunk(2, 0.1)
    live.ended(made_record(start=0.0, chunks=(0.1, 1.0)))
    live.restart()
    live.flush()
    assert (live.sent, live.tokens, live.done, live.good) == (0, 0, 0, 0)
    assert sum(h.count for h in live.histograms()) == 0
    live.ended(made_record(start=0.0, chunks=(0.3, 1.0)))
    assert live.good == 0


def streamed(name: str, live: LiveCounters) -> RequestRecord:
    """A captured stream, an event each 20 ms from 10.1 on, as the client would record it."""
    answer = Answer(live, start_s=10.0, due_s=9.9)
    live.started(0.1)
    answer.response(200, ((b"content-type", b"text/event-stream"),), 10.05)
    pieces = [piece + b"\n\n" for piece in capture(name).split(b"\n\n") if piece]
    for n, piece in enumerate(pieces):
        answer.body(piece, 10.1 + 0.02 * n)
    answer.end(20.0, is_whole=True)
    served, source = answer.served_tokens(None)
    live.settle((served or 0) - answer.counted_tokens)
    record = made_record(
        due=9.9,
        start=10.0,
        chunks=tuple(answer.chunk_s),
        end=answer.done_s,
        served=served,
        chunk_tokens=answer.tokens_by_chunk(),
        token_source=source,
    )
    live.ended(record)
    return record


@pytest.mark.parametrize("name", STREAMS)
def test_live_figures_are_those_of_the_record(name: str) -> None:
    """Of every captured stream: tokens, TTFT, ITL, TPOT and E2E, by count and by sum."""
    live = LiveCounters()
    record = streamed(name, live)
    live.flush()
    assert live.tokens == record.output_tokens_served
    expected: list[tuple[LiveHistogram, list[Any]]] = [
        (live.ttft_s, [record.ttft_s]),
        (live.ttft_from_due_s, [record.ttft_from_due_s]),
        (live.itl_s, record.itl_s()),
        (live.tpot_s[Outcome.OK], [record.tpot_s]),
        (live.e2e_s[Outcome.OK], [record.e2e_s]),
        (live.e2e_from_due_s[Outcome.OK], [record.e2e_from_due_s]),
        (live.lag_s, [0.1]),
    ]
    for histogram, values in expected:
        assert histogram.count == len(values)
        assert histogram.sum == pytest.approx(sum(values))


def test_one_value_many_times() -> None:
    """A chunk of many tokens is as many observations, and no list of them."""
    histogram, one_by_one = LiveHistogram((1.0, 2.0)), LiveHistogram((1.0, 2.0))
    for value, times in ((1.0, 3), (1.5, 10_000), (9.0, 70)):
        histogram.observe_times(value, times)
        for _ in range(times):
            one_by_one.observe(value)
    assert len(histogram.pending) == 3
    histogram.flush()
    one_by_one.flush()
    assert histogram.counts.tolist() == one_by_one.counts.tolist()
    assert histogram.sum == pytest.approx(one_by_one.sum)
