"""The simulator's invariants, and the lesson's own figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.schedule import Shot
from loadgen.sim.arrivals import OpenLoop
from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions, Schedule
from loadgen.sim.cost import ITERATIONS, StepCost
from loadgen.sim.engine import Replica, Served, Totals, drive
from loadgen.sim.lesson import lesson1
from loadgen.sim.order import Order
from loadgen.sim.policy import Policy, Step
from loadgen.sim.static import Release, StaticBatching, StaticOptions, StaticPrefill
from loadgen.sim.timeline import Timeline

EXACT = StepCost(fixed_s=1.0, prefill_token_s=1 / 64, decode_row_s=1 / 8, kv_token_s=1 / 1024)
"""Powers of two: sums are exact, so that two ways of adding them can be compared by ==."""

shots = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=40
).map(
    lambda rows: [
        Shot(row, due / 8, prompt, output)
        for row, (due, prompt, output) in enumerate(sorted(rows, key=lambda one: one[0]))
    ]
)
continuous_options = st.builds(
    ContinuousOptions,
    token_budget=st.integers(100, 200),
    max_sequences=st.integers(1, 8),
    kv_blocks=st.integers(25, 60),
    block_tokens=st.integers(4, 8),
    schedule=st.sampled_from(Schedule),
    order=st.sampled_from(Order),
    prefill_emits_token=st.booleans(),
    admits_beside_a_chunk=st.booleans(),
    tbt_s=st.sampled_from([0.5, 4.0, 16.0]),
)
static_options = st.builds(
    StaticOptions,
    batch_size=st.integers(1, 8),
    max_wait_s=st.sampled_from([0.0, 2.5]),
    prefill=st.sampled_from(StaticPrefill),
    release=st.sampled_from(Release),
    prefill_emits_token=st.booleans(),
)
policies = st.one_of(
    continuous_options.map(lambda options: (ContinuousBatching, options)),
    static_options.map(lambda options: (StaticBatching, options)),
)
costs = st.sampled_from([ITERATIONS, EXACT])


def run(
    work: list[Shot], policy: Policy, cost: StepCost = ITERATIONS, *, every: bool = False
) -> tuple[Totals, list[Served], Timeline]:
    timeline = Timeline()
    replica = Replica(policy, cost, timeline=timeline, every_iteration=every)
    served: list[Served] = []
    drive(OpenLoop(work), [replica], served.append)
    return replica.totals, served, timeline


def test_lesson_1_exactly() -> None:
    """The lesson's table comes out figure by figure."""
    found = lesson1()
    assert found.static_lesson.iterations == 1699
    assert found.static_fair.iterations == 731
    assert found.continuous.iterations == 353
    for counted in (found.static_lesson, found.static_fair, found.continuous):
        assert (counted.output_tokens, counted.requests) == (3748, 100)
    assert round(found.static_lesson.tokens_per_iteration, 4) == 2.2060
    assert round(found.static_fair.tokens_per_iteration, 4) == 5.1272
    assert round(found.continuous.tokens_per_iteration, 4) == 10.6176
    assert round(found.gain_lesson, 2) == 4.81
    assert round(found.gain_fair, 2) == 2.07
    assert round(found.static_lesson.requests_per_iteration, 4) == 0.0589
    assert round(found.static_fair.requests_per_iteration, 4) == 0.1368
    assert round(found.continuous.requests_per_iteration, 4) == 0.2833


@settings(deadline=None, max_examples=300)
@given(shots, policies, costs)
def test_skipping_ahead_changes_nothing(work: list[Shot], chosen: object, cost: StepCost) -> None:
    """Many iterations at once give the very times that one after another gives."""
    kind, options = chosen  # type: ignore[misc]
    fast, fast_served, fast_times = run(work, kind(options), cost)
    slow, slow_served, slow_times = run(work, kind(options), cost, every=True)
    assert fast == slow
    assert [one.row for one in fast_served] == [one.row for one in slow_served]
    for one, other in zip(fast_served, slow_served, strict=True):
        assert (one.first_token_s, one.end_s) == (other.first_token_s, other.end_s)
        assert (fast_times.tokens_s(one.spans) == slow_times.tokens_s(other.spans)).all()


@settings(deadline=None, max_examples=300)
@given(shots, policies, costs)
def test_work_is_conserved(work: list[Shot], chosen: object, cost: StepCost) -> None:
    """Each request is served once, with as many tokens as it asked for, none before it came."""
    kind, options = chosen  # type: ignore[misc]
    policy = kind(options)
    totals, served, timeline = run(work, policy, cost)
    assert sorted(one.row for one in served) == [shot.seq for shot in work]
    assert totals.output_tokens == sum(shot.output_tokens for shot in work)
    for one in served:
        times_s = timeline.tokens_s(one.spans)
        assert len(times_s) == one.output_tokens
        assert (np.diff(times_s) > 0).all()
        assert one.arrived_s < times_s[0] <= times_s[-1] <= one.end_s
        if not policy.releases_at_end:
            assert (times_s[0], times_s[-1]) == (one.first_token_s, one.end_s)
    assert not policy.has_work


tight_slai = continuous_options.map(
    lambda options: replace(
        options,
        order=Order.SLAI,
        kv_blocks=25,
        block_tokens=4,
        token_budget=10,
        max_sequences=8,
        schedule=Schedule.DECODE_FIRST,
    )
)


@settings(deadline=None, max_examples=300)
@given(shots, st.one_of(continuous_options, tight_slai), costs)
def test_blocks_budget_and_slots_hold(
    work: list[Shot], options: ContinuousOptions, cost: StepCost
) -> None:
    """Blocks are never negative and all free at the end; no step is over its budget or slots."""
    policy = ContinuousBatching(options)
    steps: list[Step] = []

    def watch(start_s: float, end_s: float, step: Step) -> None:
        steps.append(step)
        assert end_s > start_s
        assert 0 <= policy.free_blocks <= options.kv_blocks
        assert policy.running <= options.max_sequences
        assert step.prefill_tokens + step.decode_rows <= options.token_budget
        assert step.prefill_tokens == sum(tokens for _, tokens in step.prefill)
        assert len(set(map(id, step.emitting))) == len(step.emitting)
        assert not set(map(id, step.preempted)) & set(map(id, step.emitting))

    served: list[Served] = []
    drive(OpenLoop(work), [Replica(policy, cost, watch=watch)], served.append)
    assert policy.free_blocks == options.kv_blocks
    assert policy.running == 0
    preempted = {one.row for step in steps for one in step.preempted}
    assert preempted <= {one.row for one in served}
    assert sum(one.preemptions for one in served) == sum(len(step.preempted) for step in steps)


@settings(deadline=None, max_examples=300)
@given(shots, st.integers(1, 8), st.sampled_from([0.0, 3.0]), st.booleans())
def test_continuous_is_never_longer_than_static(
    work: list[Shot], size: int, max_wait_s: float, emits: bool
) -> None:
    """Where every step costs the same, arrivals fall between steps and the budget holds the slots'
    prompts, each request ends no later under continuous batching, first come first served."""
    whole = [replace(shot, due_s=float(int(shot.due_s))) for shot in work]
    static = StaticOptions(batch_size=size, max_wait_s=max_wait_s, prefill_emits_token=emits)
    continuous = ContinuousOptions(
        max_sequences=size, prefill_emits_token=emits, token_budget=10_000
    )
    slow, slow_served, _ = run(whole, StaticBatching(static))
    fast, fast_served, _ = run(whole, ContinuousBatching(continuous))
    assert fast.end_s <= slow.end_s
    assert fast.wasted_rows == 0
    end_s = {one.row: one.end_s for one in slow_served}
    assert all(one.end_s <= end_s[one.row] for one in fast_served)
