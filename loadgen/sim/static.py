"""Static batching: a batch runs until its longest member ends, and all others wait.

A row that has ended is computed on, for nobody. The rules are those of `servers/static`: first in,
first out; a batch starts when it is full, or once its oldest has waited long enough.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from loadgen.sim.policy import NeverFitsError, Sequence, Step


class StaticPrefill(StrEnum):
    """How many iterations a batch's prompts take: one a prompt token, or one in all."""

    LESSON = "lesson"
    FAIR = "fair"


class Release(StrEnum):
    """When a client gets tokens: as they are made, or when the whole batch has ended."""

    FINISHED = "finished"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """What may be chosen."""

    batch_size: int = 16
    max_wait_s: float = 0.0
    prefill: StaticPrefill = StaticPrefill.FAIR
    release: Release = Release.FINISHED
    prefill_emits_token: bool = True
    """Whether the prefill's last iteration gives each row its first token, as real ones do."""
    max_model_len: int | None = None


class StaticBatching:
    """The queue and the one batch."""

    is_full = True
    """A batch that runs takes nobody in."""

    def __init__(self, options: StaticOptions) -> None:
        self._options = options
        self._waiting: deque[Sequence] = deque()
        self._batch: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._prefill_left = 0  # iterations
        self._context = 0  # tokens of each row, padding included

    @property
    def has_work(self) -> bool:
        return bool(self._batch or self._waiting)

    @property
    def due_s(self) -> float:
        if self._batch or len(self._waiting) >= self._options.batch_size:
            return -math.inf
        return self._waiting[0].arrived_s + self._options.max_wait_s

    @property
    def decode_work(self) -> tuple[int, int]:
        return len(self._batch), len(self._batch) * (self._context + 1)

    @property
    def releases_at_end(self) -> bool:
        return self._options.release is Release.BATCH

    def submit(self, sequence: Sequence) -> None:
        check_fits(sequence, self._options.max_model_len)
        self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> list[Sequence]:
        """One that waits leaves; a row stays until the batch ends, which it no longer holds up."""
        sequence.is_left = True
        ended: list[Sequence] = []
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._decoding and all(row.is_left for row in self._decoding):
            if self.releases_at_end:
                ended = [row for row in self._batch if not row.is_left]
            self._end_batch()
        return ended

    def step(self, now_s: float = 0.0, most: int = 1) -> Step:
        if not self._batch:
            self._form()
        return self._prefill(most) if self._prefill_left else self._decode(most)

    def _form(self) -> None:
        size = min(self._options.batch_size, len(self._waiting))
        self._batch = [self._waiting.popleft() for _ in range(size)]
        self._decoding = list(self._batch)
        self._context = max(row.prompt_tokens for row in self._batch)
        is_lesson = self._options.prefill is StaticPrefill.LESSON
        self._prefill_left = self._context if is_lesson else 1

    def _prefill(self, most: int) -> Step:
        """All of the prompts at once, or one token of each; padded to the longest."""
        rows = self._batch
        if self._options.prefill is StaticPrefill.LESSON:
            at = self._context - self._prefill_left  # tokens of each row that are done
            longer = sorted(row.prompt_tokens for row in rows if row.prompt_tokens > at)
            alike = min(most, longer[0] - at)  # until the next row's prompt is through
            if self._options.prefill_emits_token and alike == self._prefill_left > 1:
                alike -= 1  # the one that gives tokens stands alone
            step = Step(iterations=alike, prefill_tokens=len(rows))
            step.kv_tokens, step.kv_growth = len(rows) * at, len(rows)
            step.wasted_prefill_tokens = len(rows) - len(longer)
            step.prefill = [(row, 1) for row in rows if row.prompt_tokens > at]
        else:
            alike = 1
            step = Step(prefill_tokens=len(rows) * self._context)
            step.wasted_prefill_tokens = step.prefill_tokens - sum(r.prompt_tokens for r in rows)
            step.prefill = [(row, row.prompt_tokens) for row in rows]
        self._prefill_left -= alike
        if not self._prefill_left and self._options.prefill_emits_token:
            self._emit(step, 1)
        return step

    def _decode(self, most: int) -> Step:
        """One token for each row, until the next of them ends."""
        alike = min(most, min(row.left for row in self._decoding))
        rows, kv_tokens = self.decode_work
        step = Step(iterations=alike, decode_rows=rows, kv_tokens=kv_tokens, kv_growth=rows)
        step.wasted_rows = rows - len(self._decoding)
        self._context += alike
        self._emit(step, alike)
        return step

    def _emit(self, step: Step, tokens: int) -> None:
        step.emitting = list(self._decoding)
        if self.releases_at_end:
            step.held = [row for row in self._batch if not row.left]
        for row in self._decoding:
            row.emitted += tokens
        done = [row for row in self._decoding if not row.left]
        if done:
            self._decoding = [row for row in self._decoding if row.left]
        is_over = all(row.is_left for row in self._decoding)
        if not self.releases_at_end:
            step.ended = done
        elif is_over:
            step.ended = self._batch
        if is_over:
            self._end_batch()

    def _end_batch(self) -> None:
        self._batch, self._decoding, self._prefill_left = [], [], 0


def check_fits(sequence: Sequence, max_model_len: int | None) -> None:
    """Raises NeverFitsError for a request that is longer than the model's context."""
    tokens = sequence.prompt_tokens + sequence.output_tokens
    if max_model_len is not None and tokens > max_model_len:
        raise NeverFitsError(
            f"row {sequence.row}: {sequence.prompt_tokens} prompt and {sequence.output_tokens} "
            f"output tokens, but --max-model-len is {max_model_len}; shorten the trace"
        )
