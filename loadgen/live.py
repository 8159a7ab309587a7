"""Counters and histograms of a run while it runs: for the progress line and for Prometheus.

They move with tokens and not with finished answers. They are a view, never a source: every figure
that is kept comes from the records. One event loop writes them, so there is no lock. What is
observed waits in a list, which costs an append, and is counted by bucket a few times a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.record import Outcome, RequestRecord
from loadgen.slo import Slo

# Each holds all of vLLM's bounds of its kind, so that the client's histogram can be laid over the
# server's, and finer ones between and below them.
LATENCY_BOUNDS_S: Final = tuple(
    float(word)
    for word in """
    .0005 .001 .0015 .002 .003 .004 .005 .006 .008
    .01 .0125 .015 .02 .025 .03 .035 .04 .05 .06 .07 .075 .08 .09
    .1 .125 .15 .175 .2 .25 .3 .35 .4 .5 .6 .7 .75 .8 .9
    1 1.25 1.5 1.75 2 2.5 3 4 5 6 7.5 8.5
    10 12.5 15 17.5 20 25 30 35 40 50 60 80
    120 160 240 480 640 960 1920 2560 7680
    """.split()
)
"""Seconds, for every latency."""
LAG_BOUNDS_S: Final = tuple(
    float(word)
    for word in """
    .0001 .0002 .0003 .0005 .00075 .001 .0015 .002 .003 .005 .0075
    .01 .02 .03 .05 .1 .2 .5 1 2 5 10 30 60 300
    """.split()
)
"""Seconds, for the schedule lag."""


_NO_SLO: Final = Slo()
_FEW: Final = 64
"""So many equal values are cheaper in the list."""


class LiveHistogram:
    """Observations by bucket. `pending.append` is the cheap way in, for hot paths."""

    __slots__ = ("bounds", "counts", "pending", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: NDArray[np.int64] = np.zeros(len(bounds) + 1, np.int64)
        """Not cumulative, shape (bounds + 1,): the last one has no upper bound."""
        self.sum = 0.0
        self.pending: list[float] = []

    def observe(self, value: float) -> None:
        self.pending.append(value)

    def observe_times(self, value: float, times: int) -> None:
        """The same value, so many times."""
        if times <= _FEW:
            self.pending.extend([value] * times)
        else:
            self.counts[np.searchsorted(self.bounds, value)] += times
            self.sum += value * times

    def flush(self) -> None:
        """Count what is pending; the list stays the same object."""
        if not self.pending:
            return
        values = np.array(self.pending)
        self.pending.clear()
        buckets = np.searchsorted(self.bounds, values)  # a bound belongs to the bucket below it
        self.counts += np.bincount(buckets, minlength=len(self.counts))
        self.sum += float(values.sum())

    def add(self, other: LiveHistogram) -> None:
        """Add what another one, of the same bounds, has counted."""
        self.counts = self.counts + other.counts
        self.sum += other.sum

    @property
    def count(self) -> int:
        return int(self.counts.sum())


class ByOutcome(dict[Outcome, LiveHistogram]):
    """One histogram for each outcome that has occurred, and for `ok`."""

    def __init__(self) -> None:
        super().__init__({Outcome.OK: LiveHistogram(LATENCY_BOUNDS_S)})

    def __missing__(self, outcome: Outcome) -> LiveHistogram:
        made = self[outcome] = LiveHistogram(LATENCY_BOUNDS_S)
        return made


@dataclass(frozen=True, slots=True)
class Vitals:
    """How one worker fares just now."""

    worker: int
    open_connections: int = 0
    loop_lag_s: float = 0.0
    """The worst lateness of its event loop in the last seconds."""
    cpu_ratio: float = 0.0
    """Share of one core since the last time it was asked."""


class LiveCounters:
    """One worker's turn, or the sum of several: integers, cheap enough to move with every chunk."""

    __slots__ = (
        "_excess",
        "_slo",
        "chunks",
        "due",
        "e2e_from_due_s",
        "e2e_s",
        "good",
        "itl_s",
        "lag_s",
        "outcomes",
        "prompt_tokens",
        "sent",
        "tokens",
        "tpot_s",
        "ttft_from_due_s",
        "ttft_s",
    )

    def __init__(self, slo: Slo = _NO_SLO) -> None:
        self._slo = slo
        self.restart()

    def restart(self) -> None:
        """Count from zero: another target's turn begins."""
        self.due = 0
        self.sent = 0
        self.chunks = 0
        self.tokens = 0
        """Output tokens so far; a chunk whose tokens are not told counts as one until its answer
        ends, and a count then told replaces the guess."""
        self._excess = 0  # guessed, and not there: the next tokens make up for it
        self.prompt_tokens = 0
        self.good = 0
        """Ended ok and within every SLO."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.lag_s = LiveHistogram(LAG_BOUNDS_S)
        self.ttft_s = LiveHistogram(LATENCY_BOUNDS_S)
        self.ttft_from_due_s = LiveHistogram(LATENCY_BOUNDS_S)
        self.itl_s = LiveHistogram(LATENCY_BOUNDS_S)
        self.tpot_s = ByOutcome()
        self.e2e_s = ByOutcome()
        self.e2e_from_due_s = ByOutcome()

    def histograms(self) -> list[LiveHistogram]:
        """All of them; those by outcome, as many as have occurred."""
        alone = [self.lag_s, self.ttft_s, self.ttft_from_due_s, self.itl_s]
        return alone + [h for kind in self._by_outcome() for h in kind.values()]

    def _by_outcome(self) -> tuple[ByOutcome, ByOutcome, ByOutcome]:
        return self.tpot_s, self.e2e_s, self.e2e_from_due_s

    def flush(self) -> None:
        """Count what the histograms have pending, before they are looked at."""
        for histogram in self.histograms():
            histogram.flush()

    @staticmethod
    def sum_of(parts: Iterable[LiveCounters]) -> LiveCounters:
        """All of them together; they have been flushed."""
        total = LiveCounters()
        for part in parts:
            total.add(part)
        return total

    def add(self, other: LiveCounters) -> None:
        """Add another's counters to these; it has been flushed."""
        for name in ("due", "sent", "chunks", "tokens", "prompt_tokens", "good"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] += count
        for name in ("lag_s", "ttft_s", "ttft_from_due_s", "itl_s"):
            getattr(self, name).add(getattr(other, name))
        for ours, theirs in zip(self._by_outcome(), other._by_outcome(), strict=True):
            for outcome, histogram in theirs.items():
                ours[outcome].add(histogram)

    def count_due(self) -> None:
        self.due += 1

    def started(self, lag_s: float) -> None:
        """A request is taken up, that late."""
        self.sent += 1
        self.lag_s.observe(lag_s)

    def chunk(self, tokens: int, gap_s: float | None) -> None:
        """Content came, `gap_s` after the chunk before it in its answer."""
        self.chunks += 1
        self.tokens += tokens
        if gap_s is not None and tokens:
            self.itl_s.observe_times(gap_s / tokens, tokens)

    def settle(self, tokens: int) -> None:
        """An answer ended with so many tokens more than were counted as its chunks came.

        Counters never go down: tokens too many are made up for by answers that end later.
        """
        more = tokens - self._excess
        self.tokens += max(0, more)
        self._excess = max(0, -more)

    def ended(self, record: RequestRecord) -> None:
        outcome = record.outcome
        self.outcomes[outcome] += 1
        self.prompt_tokens += record.prompt_tokens_served or 0
        self.good += self._slo.is_met_by(record)
        if outcome is Outcome.DROPPED:
            return
        self.e2e_s[outcome].observe(record.e2e_s)
        self.e2e_from_due_s[outcome].observe(record.e2e_from_due_s)
        tpot_s = record.tpot_s
        if tpot_s is not None:
            self.tpot_s[outcome].observe(tpot_s)

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        return self.done - self.outcomes[Outcome.OK]

    @property
    def in_flight(self) -> int:
        return self.sent - (self.done - self.outcomes[Outcome.DROPPED])
