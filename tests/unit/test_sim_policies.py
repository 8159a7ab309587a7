"""The policies step by step, against what can be worked out by hand."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions, Schedule
from loadgen.sim.cost import StepCost
from loadgen.sim.kv import KvBlocks
from loadgen.sim.order import Order, Queue
from loadgen.sim.policy import NeverFitsError, Policy, Sequence, Step
from loadgen.sim.prefix import PrefixCache
from loadgen.sim.static import Release, StaticBatching, StaticOptions, StaticPrefill


def steps_of(policy: Policy, *sequences: Sequence) -> list[Step]:
    """All iterations, one by one, of sequences that wait from the start."""
    for sequence in sequences:
        policy.submit(sequence)
    steps = []
    while policy.has_work:
        steps.append(policy.step(float(len(steps))))
        assert len(steps) < 1000
    return steps


def rows(sequences: list[Sequence]) -> list[int]:
    return [sequence.row for sequence in sequences]


def test_a_static_batch_computes_ended_rows_on() -> None:
    """Outputs of 1 and 4 in one batch: a prefill and three decodes of both rows, three in vain."""
    steps = steps_of(StaticBatching(StaticOptions()), Sequence(0, 5, 1), Sequence(1, 3, 4))
    assert [rows(step.emitting) for step in steps] == [[0, 1], [1], [1], [1]]
    assert [rows(step.ended) for step in steps] == [[0], [], [], [1]]
    assert [(s.prefill_tokens, s.wasted_prefill_tokens) for s in steps] == [(10, 2), *[(0, 0)] * 3]
    assert [(s.decode_rows, s.wasted_rows, s.kv_tokens) for s in steps[1:]] == [
        (2, 1, 12),
        (2, 1, 14),
        (2, 1, 16),
    ]


def test_release_at_the_batchs_end_tells_all_at_once() -> None:
    """Under release=batch nobody's answer is whole before the longest row's is."""
    options = StaticOptions(release=Release.BATCH)
    steps = steps_of(StaticBatching(options), Sequence(0, 5, 1), Sequence(1, 3, 4))
    assert [rows(step.ended) for step in steps] == [[], [], [], [0, 1]]


def test_the_lessons_prefill_takes_the_longest_prompt() -> None:
    """Prompts of 5 and 3 take five iterations, of which a row of the last two is padding."""
    options = StaticOptions(prefill=StaticPrefill.LESSON, prefill_emits_token=False)
    steps = steps_of(StaticBatching(options), Sequence(0, 5, 1), Sequence(1, 3, 1))
    assert [s.wasted_prefill_tokens for s in steps] == [0, 0, 0, 1, 1, 0]
    assert [rows(s.emitting) for s in steps] == [[], [], [], [], [], [0, 1]]


def test_a_static_batch_is_due_when_full_or_old() -> None:
    """One that is not full waits for its oldest's patience, and a full one for nobody."""
    policy = StaticBatching(StaticOptions(batch_size=2, max_wait_s=3.0))
    policy.submit(Sequence(0, 1, 2, arrived_s=10.0))
    assert policy.due_s == 13.0
    policy.submit(Sequence(1, 1, 2, arrived_s=11.0))
    assert policy.due_s < 0
    policy.submit(Sequence(2, 1, 2, arrived_s=12.0))
    policy.step(12.0)
    assert rows(policy.step(13.0).ended) == [0, 1]
    assert policy.due_s == 15.0


def test_who_leaves_a_static_batch_does_not_hold_it_up() -> None:
    """When the last one that is waited for leaves, the batch ends, and held answers are given."""
    policy = StaticBatching(StaticOptions(release=Release.BATCH))
    short, long = Sequence(0, 1, 1), Sequence(1, 1, 9)
    policy.submit(short)
    policy.submit(long)
    policy.step()
    assert policy.cancel(long) == [short]
    assert not policy.has_work


def test_continuous_refills_a_slot_at_once() -> None:
    """Two slots, outputs of 1, 3 and 2: the third takes the slot of the first, and none idles."""
    policy = ContinuousBatching(ContinuousOptions(max_sequences=2))
    steps = steps_of(policy, Sequence(0, 4, 1), Sequence(1, 4, 3), Sequence(2, 4, 2))
    assert [rows(step.emitting) for step in steps] == [[0, 1], [1, 2], [1, 2]]
    assert [rows(step.ended) for step in steps] == [[0], [], [1, 2]]


def test_a_long_prompt_is_cut_and_stalls_no_decode() -> None:
    """With a budget of 4, a prompt of 7 takes three chunks while another decodes beside it."""
    policy = ContinuousBatching(ContinuousOptions(max_sequences=2, token_budget=4))
    steps = steps_of(policy, Sequence(0, 4, 5), Sequence(1, 7, 1))
    assert [[tokens for _, tokens in step.prefill] for step in steps] == [[4], [3], [3], [1], []]
    assert [rows(step.emitting) for step in steps] == [[0], [0], [0], [0, 1], [0]]
    assert [step.kv_tokens for step in steps] == [0, 5, 6 + 3, 7 + 6, 8]


def test_prefill_first_makes_decodes_wait() -> None:
    """As in vLLM v0, an iteration that takes a prompt in decodes nobody."""
    options = ContinuousOptions(max_sequences=2, schedule=Schedule.PREFILL_FIRST)
    policy = ContinuousBatching(options)
    policy.submit(Sequence(0, 4, 3))
    policy.step()
    policy.submit(Sequence(1, 4, 1))
    step = policy.step()
    assert (rows(step.emitting), rows(step.held), step.decode_rows) == ([1], [0], 0)
    assert rows(policy.step().emitting) == [0]


def test_whole_prompts_are_not_cut() -> None:
    """As in Orca: a prompt that does not fit beside the decodes of an iteration waits."""
    options = ContinuousOptions(
        max_sequences=3, token_budget=8, schedule=Schedule.WHOLE_PROMPT, prefill_emits_token=False
    )
    policy = ContinuousBatching(options)
    steps = steps_of(policy, Sequence(0, 4, 2), Sequence(1, 4, 3), Sequence(2, 7, 1))
    chunks = [[tokens for _, tokens in step.prefill] for step in steps]
    assert chunks == [[4, 4], [], [], [7], []]
    assert [rows(step.emitting) for step in steps] == [[], [0, 1], [0, 1], [1], [2]]


def test_the_last_to_join_is_preempted_and_computed_anew() -> None:
    """Two sequences grow past the blocks: the second loses its own, waits, and resumes with what it
    had said already as part of its prompt."""
    options = ContinuousOptions(max_sequences=2, kv_blocks=4, block_tokens=4)
    policy = ContinuousBatching(options)
    first, second = Sequence(0, 7, 6), Sequence(1, 7, 6)
    steps = steps_of(policy, first, second)
    lost = next(step for step in steps if step.preempted)
    assert (rows(lost.preempted), rows(lost.emitting)) == ([1], [0])
    assert (first.preemptions, second.preemptions) == (0, 1)
    again = [step.prefill for step in steps if step.prefill][1]
    assert again == [(second, 7 + 2)]
    assert sum(rows(step.emitting).count(1) for step in steps) == 6
    assert policy.free_blocks == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ContinuousOptions(kv_blocks=2, block_tokens=4), "need 3 KV blocks, but there are 2"),
        (ContinuousOptions(max_model_len=8), "--max-model-len is 8"),
        (ContinuousOptions(token_budget=8, schedule=Schedule.PREFILL_FIRST), "--token-budget of 8"),
    ],
    ids=["blocks", "context", "budget"],
)
def test_what_never_fits_is_named(options: ContinuousOptions, words: str) -> None:
    """A request that no iteration could serve is refused with its row, before anything runs."""
    with pytest.raises(NeverFitsError, match=f"^row 7: .*{words}"):
        ContinuousBatching(options).submit(Sequence(7, 6, 3))


@pytest.mark.parametrize(
    ("order", "expected"),
    [(Order.FCFS, [0, 1, 2]), (Order.SPF, [2, 0, 1]), (Order.SOF, [1, 0, 2])],
)
def test_the_orders_of_the_queue(order: Order, expected: list[int]) -> None:
    """Each order serves first what its name says; who was preempted goes before all."""
    queue = Queue(order)
    for sequence in (Sequence(0, 5, 5), Sequence(1, 9, 1), Sequence(2, 1, 9)):
        queue.push(sequence)
    queue.push_front(Sequence(3, 99, 99))
    assert [queue.pop().row for _ in range(4)] == [3, *expected]


def test_slai_puts_off_decodes_that_are_in_time() -> None:
    """With budget for a prompt or for decodes, the prompt goes first until a deadline is near."""
    options = ContinuousOptions(
        max_sequences=2, token_budget=2, order=Order.SLAI, tbt_s=3.0, tbt_margin=0.0
    )
    policy = ContinuousBatching(options)
    steps = steps_of(policy, Sequence(0, 2, 3), Sequence(1, 6, 1))
    # Its first token came at 1, the deadline of the second is 4: until then, 2 tokens of prompt.
    assert [rows(step.held) for step in steps[:5]] == [[], [0], [0], [0], []]
    assert rows(steps[3].emitting) == [1]


@pytest.mark.parametrize("seed", [172, 241])
def test_slai_preempts_nobody_who_has_its_token(seed: int) -> None:
    """An urgent sequence that joined last keeps its blocks in the iteration that gives it a token,
    and an earlier one, which is not urgent, gives way. (Seeds that come to it.)"""
    draw = random.Random(seed)
    work = [(i * draw.randint(0, 2), draw.randint(1, 30), draw.randint(1, 40)) for i in range(30)]
    options = ContinuousOptions(
        order=Order.SLAI,
        kv_blocks=25,
        block_tokens=4,
        token_budget=8,
        max_sequences=8,
        tbt_s=draw.choice([2.0, 4.0, 8.0]),
    )
    policy = ContinuousBatching(options)
    coming = deque(Sequence(row, *rest) for row, (_, *rest) in enumerate(sorted(work)))
    due = deque(sorted(at for at, *_ in work))
    ended: list[int] = []
    now = 0
    while coming or policy.has_work:
        while due and due[0] <= now:
            due.popleft()
            policy.submit(coming.popleft())
        if policy.has_work:
            step = policy.step(float(now))
            assert not set(rows(step.preempted)) & set(rows(step.emitting))
            ended += rows(step.ended)
        now += 1
    assert sorted(ended) == list(range(30))


def test_a_prefix_that_is_known_needs_no_prefill() -> None:
    """Known tokens are skipped, all but the last, which must be computed to go on."""
    policy = ContinuousBatching(ContinuousOptions())
    steps = steps_of(
        policy, Sequence(0, 600, 1, known_tokens=512), Sequence(1, 9, 1, known_tokens=512)
    )
    assert steps[0].prefill_tokens == 88 + 1


def test_the_prefix_cache_forgets_the_least_recently_used() -> None:
    """With room for three blocks, the fourth pushes out the one that was seen longest ago."""
    cache = PrefixCache(3 * 512)
    assert [cache.take([1, 2]), cache.take([1, 3]), cache.take([4]), cache.take([2])] == [
        0,
        512,
        0,
        0,
    ]
    assert cache.take([4]) == 512


def test_who_leaves_frees_slot_and_blocks() -> None:
    """A sequence that is cancelled while it decodes, prefills or waits gives back what it held."""
    policy = ContinuousBatching(ContinuousOptions(max_sequences=2, token_budget=4))
    decoding, prefilling, waiting = Sequence(0, 2, 9), Sequence(1, 9, 9), Sequence(2, 1, 1)
    for sequence in (decoding, prefilling, waiting):
        policy.submit(sequence)
    policy.step()
    for sequence in (decoding, prefilling, waiting):
        assert policy.cancel(sequence) == []
    assert (policy.has_work, policy.free_blocks, policy.running) == (False, 8192, 0)


@given(st.lists(st.integers(1, 100), max_size=8), st.integers(1, 60), st.integers(1, 200))
def test_iterations_that_fit_do(cached: list[int], most: int, spare: int) -> None:
    """As many iterations as are promised find blocks, one after another."""
    kv = KvBlocks(2000, 4)
    sequences = [Sequence(row, tokens, 1, cached=tokens) for row, tokens in enumerate(cached)]
    for sequence in sequences:
        assert kv.grow(sequence, sequence.cached)
    kv.free = min(kv.free, spare)
    promised = kv.iterations_that_fit(sequences, most)
    assert 1 <= promised <= most
    for more in range(1, promised + 1 if promised > 1 else 1):
        assert all(kv.grow(sequence, sequence.cached + more) for sequence in sequences)
    assert kv.free >= 0


@given(
    st.integers(0, 64),
    st.integers(0, 5000),
    st.floats(1e-3, 500),
    st.sampled_from([0.0, 1e-6, 0.5]),
)
def test_iterations_before_a_moment_are_counted_exactly(
    rows_: int, kv_tokens: int, limit_s: float, kv_s: float
) -> None:
    """The last iteration counted begins before the moment, and the next does not."""
    cost = StepCost(fixed_s=0.01, decode_row_s=0.001, kv_token_s=kv_s)
    step = Step(decode_rows=rows_, kv_tokens=kv_tokens, kv_growth=rows_)
    n = cost.iterations_before(limit_s, rows_, kv_tokens)
    assert cost.seconds_of(step, n - 1) < limit_s <= cost.seconds_of(step, n)
