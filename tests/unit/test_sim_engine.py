"""The engine: arrivals, replicas and derived times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.schedule import Shot
from loadgen.sim.arrivals import Arrivals, ClosedLoop, Gangs, OpenLoop
from loadgen.sim.config import Router
from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions
from loadgen.sim.cost import ITERATIONS, StepCost
from loadgen.sim.engine import Replica, Served, drive
from loadgen.sim.fleet import route_by
from loadgen.sim.slots import SlotWatch, Use
from loadgen.sim.static import StaticBatching, StaticOptions
from loadgen.sim.timeline import Timeline, numbers_in
from loadgen.trace.blocks import BlockIds
from loadgen.trace.trace import Trace

EXACT = StepCost(fixed_s=1.0, prefill_token_s=1 / 64, decode_row_s=1 / 8, kv_token_s=1 / 1024)


def shots_of(*work: tuple[float, int, int]) -> list[Shot]:
    return [Shot(row, due, prompt, output) for row, (due, prompt, output) in enumerate(work)]


def serve(arrivals: Arrivals, cost: StepCost = ITERATIONS, slots: int = 2) -> dict[int, Served]:
    served: list[Served] = []
    policy = ContinuousBatching(ContinuousOptions(max_sequences=slots))
    drive(arrivals, [Replica(policy, cost)], served.append)
    return {one.row: one for one in served}


def test_times_by_hand() -> None:
    """Two requests whose costs are added up by hand end when that sum says."""
    found = serve(OpenLoop(shots_of((0.0, 64, 3), (0.5, 64, 1))), EXACT)
    first_s = 1 + 1  # fixed, 64 prompt tokens
    second_s = first_s + 1 + 1 / 8 + 65 / 1024 + 1  # a decode of 65 tokens beside a prompt of 64
    third_s = second_s + 1 + 1 / 8 + 66 / 1024
    assert (found[0].first_token_s, found[0].end_s) == (first_s, third_s)
    assert (found[1].first_token_s, found[1].end_s) == (second_s, second_s)


def test_an_arrival_waits_for_the_iteration_that_runs() -> None:
    """Who comes in the midst of an iteration is in the next one; who comes at its end, too."""
    found = serve(OpenLoop(shots_of((0.0, 1, 4), (1.5, 1, 1), (3.0, 1, 1))))
    assert [found[row].first_token_s for row in range(3)] == [1.0, 3.0, 4.0]


def test_a_batch_that_becomes_full_starts_then() -> None:
    """The request that fills a waiting batch starts it, at its own arrival and no sooner."""
    served: list[Served] = []
    policy = StaticBatching(StaticOptions(batch_size=2, max_wait_s=3.0))
    drive(
        OpenLoop(shots_of((0.0, 1, 1), (1.0, 1, 1), (9.0, 1, 1))),
        [Replica(policy, ITERATIONS)],
        served.append,
    )
    assert [one.end_s for one in served] == [2.0, 2.0, 13.0]


def test_a_closed_loop_keeps_its_width() -> None:
    """Of width one, each request begins when the one before has ended."""
    found = serve(ClosedLoop(shots_of((0.0, 1, 2), (0.0, 1, 3), (0.0, 1, 1)), 1))
    assert [found[row].arrived_s for row in range(3)] == [0.0, 2.0, 5.0]


def test_a_gang_waits_for_the_one_before() -> None:
    """The second gang begins when the longest of the first has ended."""
    work = [Shot(row, 0.0, 1, output, gang=row // 2) for row, output in enumerate((2, 5, 1, 1))]
    found = serve(Gangs(work))
    assert [found[row].arrived_s for row in range(4)] == [0.0, 0.0, 5.0, 5.0]


def test_a_session_waits_for_its_answer_and_thinks() -> None:
    """A later turn is due its delay after the end of the one before."""
    later = Shot(1, 2.5, 1, 1, session="s", parent=0)
    found = serve(OpenLoop([Shot(0, 0.0, 1, 3, session="s", follow_up=later)], has_sessions=True))
    assert (found[0].end_s, found[1].arrived_s, found[1].end_s) == (3.0, 5.5, 6.5)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.integers(1, 40), st.integers(1, 30)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 4),
    st.sampled_from(Router),
    st.sampled_from(["open", "closed", "static"]),
)
def test_replicas_run_ahead_without_a_difference(
    work: list[tuple[int, int, int]], replicas: int, router: Router, kind: str
) -> None:
    """Several replicas that skip ahead serve each request where and when careful ones do."""
    shots = shots_of(*((due / 8, prompt, output) for due, prompt, output in sorted(work)))
    trace = Trace(np.zeros(len(shots)), np.ones(len(shots)), np.ones(len(shots)))

    def times(*, every: bool) -> list[tuple[int, int, float, float, float]]:
        servers = [
            Replica(
                StaticBatching(StaticOptions(batch_size=2, max_wait_s=1.5))
                if kind == "static"
                else ContinuousBatching(ContinuousOptions(max_sequences=2)),
                EXACT,
                number=number,
                every_iteration=every,
            )
            for number in range(replicas)
        ]
        served: list[Served] = []
        arrivals = ClosedLoop(shots, 3) if kind == "closed" else OpenLoop(shots)
        drive(arrivals, servers, served.append, route_by(router, servers, trace))
        return sorted(
            (one.row, one.replica, one.arrived_s, one.first_token_s, one.end_s) for one in served
        )

    fast = times(every=False)
    assert fast == times(every=True)
    assert [row for row, *_ in fast] == [shot.seq for shot in shots]


def test_routers() -> None:
    """Round robin takes turns, least loaded the idlest, prefix one for each first block."""
    trace = Trace(
        np.zeros(4), np.ones(4), np.ones(4), hash_ids=BlockIds.of([[7, 1], [8], [7, 2], [8, 3]])
    )
    shots = shots_of(*[(0.0, 1, 9)] * 4)

    def servers() -> list[Replica]:
        return [
            Replica(ContinuousBatching(ContinuousOptions()), ITERATIONS, number=n) for n in range(3)
        ]

    route = route_by(Router.ROUND_ROBIN, servers(), trace)
    assert [route(shot, 0.0) for shot in shots] == [0, 1, 2, 0]
    loaded = servers()
    loaded[0].submit(shots[0], 0.0)
    loaded[1].submit(shots[1], 0.0)
    assert route_by(Router.LEAST_LOADED, loaded, trace)(shots[2], 0.0) == 2
    route = route_by(Router.PREFIX, servers(), trace)
    assert route(shots[0], 0.0) == route(shots[2], 0.0)
    assert route(shots[1], 0.0) == route(shots[3], 0.0)


def test_numbers_in_spans() -> None:
    """Spans become the iterations that they name."""
    assert numbers_in([(3, 2), (9, 1)]).tolist() == [3, 4, 9]
    assert Timeline().tokens_s([]).tolist() == []


@pytest.mark.parametrize("is_static", [True, False], ids=["static", "continuous"])
def test_slots_are_held_by_one_at_a_time(is_static: bool) -> None:
    """Stretches of one slot do not overlap, and only a static batch holds slots for the ended."""
    watch = SlotWatch(2, is_static=is_static)
    policy = (
        StaticBatching(StaticOptions(batch_size=2))
        if is_static
        else ContinuousBatching(ContinuousOptions(max_sequences=2))
    )
    replica = Replica(policy, ITERATIONS, watch=watch.watch)
    work = shots_of((0.0, 4, 1), (0.0, 4, 5), (0.0, 4, 3), (0.0, 4, 2))
    drive(OpenLoop(work), [replica], lambda served: None)
    holds = watch.holds
    for slot in (0, 1):
        own = sorted((h.start_s, h.end_s) for h in holds if h.slot == slot)
        assert all(a[1] <= b[0] for a, b in pairwise(own))
    wasted_s = sum(h.end_s - h.start_s for h in holds if h.use is Use.WASTED)
    assert wasted_s == (4 + 1 if is_static else 0)
