"""Who is next: the queue of a policy, in one of several orders.

Shortest prompt first needs what every server knows; shortest output first is an oracle, since no
server knows how long an answer will be. A preempted sequence goes back to the head of the queue,
whatever the order.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from enum import StrEnum

from loadgen.sim.policy import Sequence


class Order(StrEnum):
    """fcfs: first come, first served; spf, sof: shortest prompt, shortest output first.

    slai: shortest prompt first, and decodes wait while they are in time (see `continuous.py`).
    """

    FCFS = "fcfs"
    SPF = "spf"
    SOF = "sof"
    SLAI = "slai"


class Queue:
    """Waiting sequences. `head` is next."""

    def __init__(self, order: Order = Order.FCFS) -> None:
        self._order = order
        self._returned: deque[Sequence] = deque()
        self._fifo: deque[Sequence] = deque()
        self._heap: list[tuple[int, int, Sequence]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._returned) + len(self._fifo) + len(self._heap)

    def push(self, sequence: Sequence) -> None:
        """Queue an arrival; among equals the first is served first."""
        if self._order is Order.FCFS:
            self._fifo.append(sequence)
            return
        is_oracle = self._order is Order.SOF
        size = sequence.output_tokens if is_oracle else sequence.prompt_tokens
        heapq.heappush(self._heap, (size, next(self._numbers), sequence))

    def push_front(self, sequence: Sequence) -> None:
        """Put a sequence before all others."""
        self._returned.appendleft(sequence)

    @property
    def head(self) -> Sequence:
        """The next one; the queue must not be empty."""
        if self._returned:
            return self._returned[0]
        return self._fifo[0] if self._fifo else self._heap[0][2]

    def pop(self) -> Sequence:
        """Take the next one; the queue must not be empty."""
        if self._returned:
            return self._returned.popleft()
        return self._fifo.popleft() if self._fifo else heapq.heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> bool:
        """Take `sequence` out, wherever it stands; False where it does not wait."""
        for waiting in (self._returned, self._fifo):
            if sequence in waiting:
                waiting.remove(sequence)
                return True
        rest = [entry for entry in self._heap if entry[2] is not sequence]
        was_there = len(rest) < len(self._heap)
        if was_there:
            heapq.heapify(rest)
            self._heap = rest
        return was_there
