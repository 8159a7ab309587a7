"""Drives a batching policy in real time: an iteration ends when its cost says so.

Its time line is the simulator's: an iteration begins where the one before was due to end, and has
those requests in it that had come by then. A wake-up that is late is told late and shifts nothing,
so that the same arrivals give the same iterations as in `loadgen.sim.engine`, whatever the machine
does. It knows no HTTP; `reply` of a job is called with the tokens that it has by now.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from loadgen.alarm import Alarm
from loadgen.clock import monotonic
from loadgen.sim.cost import StepCost
from loadgen.sim.policy import Policy, Sequence, Step
from servers.toy.metrics import Metrics


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Sequence):
    """One request; `arrived_s` is on the monotonic clock."""

    reply: Callable[[int], None]
    """Called with the number of its tokens, whenever that has grown and its client may know."""
    has_begun: bool = False
    first_token_s: float = math.nan


class Engine:
    """The queue before the policy, and the policy's clock."""

    def __init__(self, policy: Policy, cost: StepCost, metrics: Metrics, max_queue: int) -> None:
        self._policy = policy
        self._cost = cost
        self._metrics = metrics
        self.max_queue = max_queue
        self._arrivals: deque[Job] = deque()  # that the policy has not been given
        self._waiting = 0
        self._running = 0
        self._free_s = 0.0  # when the last iteration was due to end
        self._step: Step | None = None
        self._alarm: Alarm | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many requests wait as may wait."""
        return self._waiting >= self.max_queue

    def submit(self, job: Job) -> None:
        """Queue a request that came now; it must fit."""
        self._arrivals.append(job)
        self._waiting += 1
        self._note()
        if self._alarm is not None:
            self._alarm.ring()

    def cancel(self, job: Job) -> None:
        """Its client has gone."""
        if job.is_left:
            return
        self._metrics.by_reason["abort"].inc()
        self._leave(job)
        if job in self._arrivals:
            self._arrivals.remove(job)
            job.is_left = True
            return
        whole = self._policy.cancel(job)
        if self._step is not None:  # their last iteration may be the one that runs
            self._step.ended = [*self._step.ended, *whole]
        else:
            self._end(whole)

    async def run(self) -> None:
        """Serve until cancelled."""
        self._alarm = alarm = Alarm()
        try:
            while True:
                start_s = self._take_in()
                if start_s == math.inf:
                    await alarm.until_rung()
                elif start_s > monotonic():
                    await alarm.until(start_s)  # an arrival may make it earlier
                else:
                    self._step = step = self._policy.step(start_s)
                    self._free_s = end_s = start_s + self._cost.seconds(step)
                    self._begin(step)
                    while monotonic() < end_s:
                        await alarm.until(end_s)
                    self._step = None
                    self._hand_out(step)
                    self._metrics.count(step, monotonic() - end_s)
        finally:
            alarm.close()

    def _take_in(self) -> float:
        """Give the policy what came before its next iteration; when that begins, or inf."""
        policy, arrivals = self._policy, self._arrivals
        while True:
            start_s = max(self._free_s, policy.due_s) if policy.has_work else math.inf
            if not arrivals or arrivals[0].arrived_s > start_s:
                return start_s
            job = arrivals.popleft()
            self._free_s = max(self._free_s, job.arrived_s)  # the next iteration is not before it
            policy.submit(job)

    def _begin(self, step: Step) -> None:
        for sequence, _ in step.prefill:
            job = cast("Job", sequence)
            if not job.has_begun:
                job.has_begun = True
                self._waiting -= 1
                self._running += 1
                self._metrics.prompt_tokens.inc(job.prompt_tokens)
        self._note()

    def _hand_out(self, step: Step) -> None:
        if not self._policy.releases_at_end:
            for sequence in step.emitting:
                self._tell(cast("Job", sequence))
        self._end(step.ended)

    def _end(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            job = cast("Job", sequence)
            if job.is_left:
                continue
            if self._policy.releases_at_end:
                self._tell(job)
            self._leave(job)
            job.is_left = True
            self._metrics.by_reason["length"].inc()
            self._metrics.e2e_s.observe(monotonic() - job.arrived_s)

    def _tell(self, job: Job) -> None:
        if job.is_left:
            return
        if math.isnan(job.first_token_s):
            job.first_token_s = monotonic()
            self._metrics.ttft_s.observe(job.first_token_s - job.arrived_s)
        job.reply(job.emitted)

    def _leave(self, job: Job) -> None:
        if job.has_begun:
            self._running -= 1
        else:
            self._waiting -= 1
        self._note()

    def _note(self) -> None:
        self._metrics.waiting.set(self._waiting)
        self._metrics.running.set(self._running)
