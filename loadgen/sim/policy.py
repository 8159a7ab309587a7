"""What a batching policy is: sequences in, iterations out.

A policy is a step machine without a clock: it is told what time it is. `step` says what the next
iteration computes; how long that takes is a cost's matter (`cost.py`), and what it means for a
client the driver's: `engine.py` in virtual time, a server in real time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from loadgen.errors import TraceError


class NeverFitsError(TraceError):
    """A request that no iteration could ever serve."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside a policy. The policy alone changes it."""

    row: int
    """Row of the trace, or any number by which the driver knows it."""
    prompt_tokens: int
    output_tokens: int
    arrived_s: float = 0.0
    emitted: int = 0
    """Output tokens so far."""
    cached: int = 0
    """Tokens whose keys and values are held."""
    to_prefill: int = 0
    """Tokens to hold before it decodes: the prompt, and after a preemption its own output too."""
    blocks: int = 0
    """KV blocks held."""
    known_tokens: int = 0
    """Of its prompt, what a prefix cache holds already."""
    preemptions: int = 0
    last_token_s: float = 0.0
    is_left: bool = False
    """Its client has gone."""

    @property
    def left(self) -> int:
        """Output tokens still to come."""
        return self.output_tokens - self.emitted


@dataclass(slots=True)
class Step:
    """One iteration, or `iterations` alike in a row: what is computed, and who gets a token.

    Work is that of one iteration; of `kv_tokens`, that of the first.
    """

    iterations: int = 1
    prefill: list[tuple[Sequence, int]] = field(default_factory=list)
    """(sequence, tokens of its prompt that are computed)"""
    emitting: list[Sequence] = field(default_factory=list)
    """Each makes one token an iteration."""
    held: list[Sequence] = field(default_factory=list)
    """Sequences past their prefill that stay and get no token now."""
    ended: list[Sequence] = field(default_factory=list)
    """Done after the last of these iterations; its answer is whole."""
    preempted: list[Sequence] = field(default_factory=list)
    """Lost their blocks before this iteration and wait again."""
    prefill_tokens: int = 0
    """Computed, padding included."""
    decode_rows: int = 0
    """Rows that are decoded, ended ones included."""
    wasted_rows: int = 0
    """Of `decode_rows`, those whose token nobody gets."""
    wasted_prefill_tokens: int = 0
    """Of `prefill_tokens`, padding."""
    kv_tokens: int = 0
    """Keys and values read: each decoded row's context, and what chunks found already there."""
    kv_growth: int = 0
    """By how much `kv_tokens` grows from one of these iterations to the next."""


class Policy(Protocol):
    """A batching policy."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""

    @property
    def due_s(self) -> float:
        """Earliest time of the next step, given what waits now; -inf: at once."""

    @property
    def is_full(self) -> bool:
        """Whether an arrival would change nothing before some sequence ends."""

    @property
    def decode_work(self) -> tuple[int, int]:
        """(rows, KV tokens) of the next iteration, were it one of decoding alone."""

    @property
    def releases_at_end(self) -> bool:
        """Whether a client gets its tokens all at once, when its sequence has ended."""

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; raises NeverFitsError."""

    def cancel(self, sequence: Sequence) -> list[Sequence]:
        """Its client has gone; returns others whose answers are whole by that."""

    def step(self, now_s: float = 0.0, most: int = 1) -> Step:
        """The next iteration, or up to `most` alike in which no sequence joins, ends or stalls."""
