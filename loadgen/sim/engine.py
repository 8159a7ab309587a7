"""The simulation itself: arrivals, policies and costs in virtual time.

A `Replica` is one server: a policy, a cost and a clock of its own. `drive` gives it its requests
when they are due and lets it run in between, many iterations alike at once where nothing changes in
them; `every_iteration` does each by itself instead, and gives the same times. What has ended goes
to a sink, one request after another. It knows no files.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from loadgen.schedule import Shot
from loadgen.sim.arrivals import Arrivals
from loadgen.sim.cost import NO_LIMIT, StepCost
from loadgen.sim.policy import Policy, Step
from loadgen.sim.policy import Sequence as SimSequence
from loadgen.sim.timeline import Timeline


@dataclass(slots=True, eq=False, kw_only=True)
class Served(SimSequence):
    """A sequence with what became of it."""

    shot: Shot
    replica: int = 0
    first_token_s: float = math.nan
    end_s: float = math.nan
    """Of its last iteration, or of its batch where that is when it is told."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(first iteration, how many) in which it made tokens."""
    open_from: int = -1
    """First iteration of the span that goes on; -1: none does."""

    def close_span(self, iteration: int) -> None:
        """It makes no token in `iteration`."""
        if self.open_from >= 0:
            self.spans.append((self.open_from, iteration - self.open_from))
            self.open_from = -1


@dataclass(slots=True)
class Totals:
    """What a replica computed, and how much of it for nobody."""

    iterations: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0
    requests: int = 0
    output_tokens: int = 0
    prefill_tokens: int = 0
    wasted_prefill_tokens: int = 0
    decode_rows: int = 0
    wasted_rows: int = 0
    preemptions: int = 0

    def add(self, step: Step) -> None:
        n = step.iterations
        self.iterations += n
        self.output_tokens += n * len(step.emitting)
        self.prefill_tokens += n * step.prefill_tokens
        self.wasted_prefill_tokens += n * step.wasted_prefill_tokens
        self.decode_rows += n * step.decode_rows
        self.wasted_rows += n * step.wasted_rows
        self.preemptions += len(step.preempted)
        self.requests += len(step.ended)


Watch = Callable[[float, float, Step], None]
"""Told of every stretch of iterations: its start, its end, and what it did."""


Known = Callable[[Shot], int]
"""How many tokens of a request's prompt a prefix cache holds when it comes."""


class Replica:
    """One simulated server."""

    def __init__(
        self,
        policy: Policy,
        cost: StepCost,
        *,
        number: int = 0,
        timeline: Timeline | None = None,
        watch: Watch | None = None,
        known: Known = lambda shot: 0,
        every_iteration: bool = False,
    ) -> None:
        self.policy = policy
        self.totals = Totals()
        self.timeline = timeline
        self._cost = cost
        self._number = number
        self._watch = watch
        self._known = known
        self._every_iteration = every_iteration
        self._now_s = 0.0
        self._in_flight = 0
        self._ends_s: deque[float] = deque()  # of those that are still counted as in flight

    @property
    def next_s(self) -> float:
        """When its next iteration begins; inf where it has nothing to do."""
        if not self.policy.has_work:
            return math.inf
        return max(self._now_s, self.policy.due_s)

    def in_flight(self, now_s: float) -> int:
        """Requests that it has been given and has not answered by then."""
        while self._ends_s and self._ends_s[0] <= now_s:
            self._ends_s.popleft()
            self._in_flight -= 1
        return self._in_flight

    def submit(self, shot: Shot, due_s: float) -> None:
        """Give it a request; raises NeverFitsError."""
        self._now_s = max(self._now_s, due_s)  # an idle server's next iteration is not in the past
        self._in_flight += 1
        self.policy.submit(
            Served(
                shot.seq,
                shot.prompt_tokens,
                shot.output_tokens,
                due_s,
                known_tokens=self._known(shot),
                shot=shot,
                replica=self._number,
            )
        )

    def step(self, until_s: float) -> list[Served]:
        """Run at least one iteration, and those alike that begin before `until_s`; who ended."""
        policy, cost = self.policy, self._cost
        start_s = self.next_s
        most = 1
        if not self._every_iteration:
            most = NO_LIMIT
            if until_s < math.inf and not policy.is_full:
                most = cost.iterations_before(until_s - start_s, *policy.decode_work)
        step = policy.step(start_s, most)
        first_s, growth_s = cost.series(step)
        iteration = self.totals.iterations
        if self.timeline is not None:
            self.timeline.add(iteration, start_s, first_s, growth_s)
        self._now_s = end_s = start_s + cost.seconds(step)
        self._note(step, iteration, start_s + first_s, end_s)
        self.totals.add(step)
        self.totals.busy_s += end_s - start_s
        self.totals.end_s = end_s
        if self._watch is not None:
            self._watch(start_s, end_s, step)
        self._ends_s.extend([end_s] * len(step.ended))
        return cast("list[Served]", step.ended)

    def _note(self, step: Step, iteration: int, first_end_s: float, end_s: float) -> None:
        for served in cast("list[Served]", step.emitting):
            if served.open_from < 0:
                served.open_from = iteration
                if not served.spans:
                    served.first_token_s = first_end_s
        for served in cast("list[Served]", step.held + step.preempted):
            served.close_span(iteration)
        for served in cast("list[Served]", step.ended):
            served.close_span(iteration + step.iterations)
            served.end_s = end_s
            if self.policy.releases_at_end:
                served.first_token_s = end_s


Route = Callable[[Shot, float], int]
"""Which replica takes a request that is due then."""


def drive(
    arrivals: Arrivals,
    replicas: Sequence[Replica],
    sink: Callable[[Served], None],
    route: Route = lambda shot, due_s: 0,
) -> None:
    """Run until nothing comes and nothing is left; raises NeverFitsError.

    Who is due when an iteration begins is in time for it. A replica runs ahead of the others only
    as far as no arrival that they may yet cause could reach it.
    """
    alone = len(replicas) == 1
    while True:
        due_s = arrivals.due_s
        if alone:
            replica, other_s = replicas[0], math.inf
            next_s = replica.next_s
        else:
            replica = min(replicas, key=_next_s)
            next_s = replica.next_s
            other_s = math.inf
            if arrivals.follow_ends:
                other_s = min(other.next_s for other in replicas if other is not replica)
        if due_s <= next_s:
            if due_s == math.inf:
                return
            shot = arrivals.take()
            replicas[route(shot, due_s)].submit(shot, due_s)
            continue
        for served in replica.step(min(due_s, other_s)):
            arrivals.ended(served.shot, served.end_s)
            sink(served)


def _next_s(replica: Replica) -> float:
    return replica.next_s
