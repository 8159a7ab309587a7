"""Counters of a run while it runs: for the progress line and, later, for Prometheus.

They move with tokens and not with finished answers. They are a view, never a source: every figure
that is kept comes from the records. One event loop writes them, so there is no lock.
"""

from __future__ import annotations

from loadgen.record import Outcome, RequestRecord


class LiveCounters:
    """Plain integers, cheap enough to move with every chunk."""

    __slots__ = ("chunks", "due", "outcomes", "prompt_tokens", "sent", "tokens")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from zero: another target's turn begins."""
        self.due = 0
        self.sent = 0
        self.chunks = 0
        self.tokens = 0
        """Output tokens so far; a chunk whose tokens are not told counts as one."""
        self.prompt_tokens = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    def count_due(self) -> None:
        self.due += 1

    def add(self, other: LiveCounters) -> None:
        """Add another worker's counters to these."""
        self.due += other.due
        self.sent += other.sent
        self.chunks += other.chunks
        self.tokens += other.tokens
        self.prompt_tokens += other.prompt_tokens
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] += count

    def chunk(self, tokens: int) -> None:
        self.chunks += 1
        self.tokens += tokens

    def ended(self, record: RequestRecord) -> None:
        self.outcomes[record.outcome] += 1
        self.prompt_tokens += record.prompt_tokens_served or 0

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        return self.done - self.outcomes[Outcome.OK]

    @property
    def in_flight(self) -> int:
        return self.sent - (self.done - self.outcomes[Outcome.DROPPED])
