"""Continuous batching: every iteration is scheduled anew, and an ended sequence's slot is free.

An iteration has a token budget. Under `decode-first` (Sarathi-Serve, vLLM v1) all running sequences
decode, then chunks of prompts take what budget is left, so that no decode stalls. `whole-prompt`
(Orca) is the same without chunks. Under `prefill-first` (vLLM v0) waiting prompts go before, in an
iteration of their own, and decodes wait. Where blocks run out, the sequence that joined last loses
its own and is computed anew (vLLM's recompute). Order `slai` (arXiv 2508.01002): decodes that are
near their deadline go first, then prompts, shortest first, then the other decodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from loadgen.sim.kv import KvBlocks
from loadgen.sim.order import Order, Queue
from loadgen.sim.policy import NeverFitsError, Sequence, Step
from loadgen.sim.static import check_fits


class Schedule(StrEnum):
    """What an iteration is filled with first."""

    DECODE_FIRST = "decode-first"
    WHOLE_PROMPT = "whole-prompt"
    PREFILL_FIRST = "prefill-first"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousOptions:
    """What may be chosen. The token budget must not be below the most sequences."""

    token_budget: int = 2048
    max_sequences: int = 16
    kv_blocks: int = 8192
    block_tokens: int = 16
    schedule: Schedule = Schedule.DECODE_FIRST
    order: Order = Order.FCFS
    prefill_emits_token: bool = True
    """Whether the iteration that completes a prompt gives the first token, as real ones do."""
    admits_beside_a_chunk: bool = True
    """Whether new sequences may join while a prompt that began earlier is being computed."""
    max_model_len: int | None = None
    tbt_s: float = 0.1
    """Order slai: the longest time that a sequence may wait between two tokens."""
    tbt_margin: float = 2.0
    """Order slai: mean iterations before that deadline at which a decode becomes critical."""


class ContinuousBatching:
    """Waiting, prefilling, decoding: a sequence's life."""

    releases_at_end = False
    due_s = -math.inf

    def __init__(self, options: ContinuousOptions) -> None:
        self._options = options
        self._kv = KvBlocks(options.kv_blocks, options.block_tokens)
        self._waiting = Queue(options.order)
        self._prefilling: list[Sequence] = []  # in the order in which they joined
        self._decoding: list[Sequence] = []
        self._urgency = Urgency(options.tbt_s, options.tbt_margin)
        self._is_slai = options.order is Order.SLAI
        self._prefills_first = options.schedule is Schedule.PREFILL_FIRST
        self._is_chunked = options.schedule is Schedule.DECODE_FIRST

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prefilling or self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._decoding) == self._options.max_sequences

    @property
    def decode_work(self) -> tuple[int, int]:
        rows = len(self._decoding)
        return rows, sum(sequence.cached for sequence in self._decoding) + rows

    @property
    def free_blocks(self) -> int:
        return self._kv.free

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._decoding) + len(self._prefilling)

    def submit(self, sequence: Sequence) -> None:
        self._check_fits(sequence)
        self._waiting.push(sequence)

    def cancel(self, sequence: Sequence) -> list[Sequence]:
        sequence.is_left = True
        for running in (self._prefilling, self._decoding):
            if sequence in running:
                running.remove(sequence)
                self._kv.release(sequence)
                return []
        self._waiting.remove(sequence)
        return []

    def step(self, now_s: float = 0.0, most: int = 1) -> Step:
        step = Step()
        if self._is_slai:
            return self._slai_step(step, now_s)
        if self._prefills_first:
            self._admit(step)
            if step.prefill:
                step.held = list(self._decoding)
            else:
                self._decode(step, self._decoding, most)
        else:
            self._decode(step, self._decoding, most if self._stays_alike() else 1)
            self._continue_prefill(step)
            self._admit(step)
        return self._end(step)

    def _slai_step(self, step: Step, now_s: float) -> Step:
        self._urgency.begin(now_s, was_idle=not self.running)
        critical = [s for s in self._decoding if self._urgency.is_critical(s, now_s)]
        relaxed = [s for s in self._decoding if not self._urgency.is_critical(s, now_s)]
        self._decode(step, critical, 1)
        self._continue_prefill(step)
        self._admit(step)
        relaxed = [s for s in relaxed if s.blocks]  # those that were not preempted
        room = self._budget_left(step)
        self._decode(step, relaxed[:room], 1)
        step.held = [s for s in relaxed[room:] if s.blocks]
        self._urgency.ran(step)
        return self._end(step)

    def _decode(self, step: Step, sequences: list[Sequence], most: int) -> None:
        """One token for each, or up to `most`, until one of them ends or blocks run out."""
        if not sequences:
            return
        if most > 1:
            most = min(most, min([sequence.left for sequence in sequences]))
            most = self._kv.iterations_that_fit(sequences, most)
        step.iterations = most
        size = self._options.block_tokens
        for sequence in list(sequences):
            cached = sequence.cached + most
            if cached > sequence.blocks * size and not self._grow(sequence, cached, step):
                continue
            step.kv_tokens += sequence.cached + 1
            sequence.cached = cached
            sequence.emitted += most
            step.emitting.append(sequence)
            step.decode_rows += 1
        step.kv_growth = step.decode_rows

    def _grow(self, sequence: Sequence, tokens: int, step: Step) -> bool:
        """Get blocks, others' if need be; False where `sequence` itself was the last to join."""
        while sequence not in step.preempted:
            if self._kv.grow(sequence, tokens):
                return True
            self._preempt_last(step)
        return False

    def _preempt_last(self, step: Step) -> None:
        candidates = self._prefilling or [s for s in self._decoding if s not in step.emitting]
        victim = candidates[-1]
        (self._prefilling or self._decoding).remove(victim)
        self._kv.release(victim)
        victim.cached = 0
        victim.preemptions += 1
        self._waiting.push_front(victim)
        step.preempted.append(victim)

    def _continue_prefill(self, step: Step) -> None:
        """Chunks of prompts that began in an earlier iteration."""
        for sequence in self._prefilling:
            self._compute(step, sequence)

    def _admit(self, step: Step) -> None:
        """New sequences, while there are slots, budget and blocks."""
        options = self._options
        if step.preempted or (step.prefill and not options.admits_beside_a_chunk):
            return
        while self._waiting and self.running < options.max_sequences:
            sequence = self._waiting.head
            tokens = sequence.prompt_tokens + sequence.emitted
            budget = self._budget_left(step)
            if budget < (1 if self._is_chunked else tokens) or not self._kv.grow(sequence, tokens):
                return
            sequence.to_prefill = tokens
            sequence.cached = min(sequence.known_tokens, tokens - 1)
            self._prefilling.append(self._waiting.pop())
            self._compute(step, sequence)

    def _compute(self, step: Step, sequence: Sequence) -> None:
        """As much of a prompt as the budget allows."""
        tokens = min(sequence.to_prefill - sequence.cached, self._budget_left(step))
        if not tokens:
            return
        step.prefill.append((sequence, tokens))
        step.prefill_tokens += tokens
        step.kv_tokens += sequence.cached
        sequence.cached += tokens

    def _budget_left(self, step: Step) -> int:
        return self._options.token_budget - step.prefill_tokens - step.decode_rows

    def _stays_alike(self) -> bool:
        """Whether nobody could join, so that iterations are alike until one ends."""
        if self._prefilling:
            return False
        if not self._waiting or self.is_full:
            return True
        head = self._waiting.head
        return not self._kv.has_room(head.prompt_tokens + head.emitted)

    def _end(self, step: Step) -> Step:
        """Move on those that have all of their prompt, or all of their output."""
        if step.prefill:
            for sequence, _ in step.prefill:
                if sequence.cached == sequence.to_prefill:
                    self._prefilling.remove(sequence)
                    self._decoding.append(sequence)
                    if self._options.prefill_emits_token:
                        sequence.emitted += 1
                        step.emitting.append(sequence)
        step.ended = [s for s in step.emitting if s.emitted == s.output_tokens]
        if step.ended:
            self._decoding = [s for s in self._decoding if s.emitted < s.output_tokens]
            for sequence in step.ended:
                self._kv.release(sequence)
        return step

    def _check_fits(self, sequence: Sequence) -> None:
        check_fits(sequence, self._options.max_model_len)
        tokens = sequence.prompt_tokens + sequence.output_tokens
        where = f"row {sequence.row}: {sequence.prompt_tokens} prompt and "
        where += f"{sequence.output_tokens} output tokens"
        if (blocks := self._kv.needed(tokens)) > self._kv.total:
            raise NeverFitsError(
                f"{where} need {blocks} KV blocks, but there are {self._kv.total}; give more "
                "--kv-blocks, or shorten the trace"
            )
        if not self._is_chunked and tokens > self._options.token_budget:
            raise NeverFitsError(
                f"{where} are more than the --token-budget of {self._options.token_budget}, and "
                f"--schedule {self._options.schedule} cuts no prompt; give a larger budget"
            )


class Urgency:
    """SLAI's deadlines: when a decode can be put off no longer.

    A sequence's last moment is its last token + the time between tokens that it may take, less a
    margin of so many mean iterations. The paper's text gives the idea; that the mean is the
    running one, and one margin for all, is our reading.
    """

    def __init__(self, tbt_s: float, margin: float) -> None:
        self._tbt_s = tbt_s
        self._margin = margin
        self._mean_s = 0.0
        self._iterations = 0
        self._began_s: float | None = None
        self._emitted: list[Sequence] = []

    def begin(self, now_s: float, *, was_idle: bool) -> None:
        """An iteration begins; the one before ended just now, unless there was nothing to do."""
        if self._began_s is not None and not was_idle:
            self._iterations += 1
            self._mean_s += (now_s - self._began_s - self._mean_s) / self._iterations
        for sequence in self._emitted:
            sequence.last_token_s = now_s
        self._began_s, self._emitted = now_s, []

    def is_critical(self, sequence: Sequence, now_s: float) -> bool:
        return now_s >= sequence.last_token_s + self._tbt_s - self._margin * self._mean_s

    def ran(self, step: Step) -> None:
        """What the iteration that began computes."""
        self._emitted = [*step.emitting, *(sequence for sequence, _ in step.prefill)]
