"""Lesson 1, exactly: static against continuous batching, counted in iterations.

100 requests of log-normal lengths (NumPy's legacy generator, seed 42) wait from the start; a static
batch's prefill takes one iteration a prompt token, which the fair model sets beside one forward
pass. Iterations of prefill give no output token, and continuous batching counts a last, empty
iteration in which the final request is freed. It prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from loadgen.schedule import Shot
from loadgen.sim.arrivals import OpenLoop
from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions
from loadgen.sim.cost import ITERATIONS
from loadgen.sim.engine import Replica, Served, drive
from loadgen.sim.order import Order
from loadgen.sim.policy import Policy
from loadgen.sim.static import Release, StaticBatching, StaticOptions, StaticPrefill
from loadgen.trace.lengths import draw_lesson1_tokens

BATCH_SIZE: Final = 16
REQUESTS: Final = 100
SEED: Final = 42
WHY_THEY_DIFFER: Final = (
    "They differ in the static prefill alone: the lesson charges a batch one iteration for every "
    "token of its longest prompt, which no real server does; the fair model charges what one "
    "forward pass costs, one iteration, as continuous batching is charged."
)
_LAST_EMPTY: Final = 1


@dataclass(frozen=True, slots=True)
class Counted:
    """What one policy came to."""

    iterations: int
    requests: int
    output_tokens: int

    @property
    def tokens_per_iteration(self) -> float:
        return self.output_tokens / self.iterations

    @property
    def requests_per_iteration(self) -> float:
        return self.requests / self.iterations

    def as_json(self) -> dict[str, Any]:
        return {
            "iterations": self.iterations,
            "output_tokens": self.output_tokens,
            "tokens_per_iteration": self.tokens_per_iteration,
            "requests_per_iteration": self.requests_per_iteration,
        }


@dataclass(frozen=True, slots=True)
class Lesson:
    """The lesson's table."""

    static_lesson: Counted
    static_fair: Counted
    continuous: Counted

    @property
    def gain_lesson(self) -> float:
        return self.continuous.tokens_per_iteration / self.static_lesson.tokens_per_iteration

    @property
    def gain_fair(self) -> float:
        return self.continuous.tokens_per_iteration / self.static_fair.tokens_per_iteration

    def as_json(self) -> dict[str, Any]:
        return {
            "static_lesson": self.static_lesson.as_json(),
            "static_fair": self.static_fair.as_json(),
            "continuous": self.continuous.as_json(),
            "gain_lesson": self.gain_lesson,
            "gain_fair": self.gain_fair,
        }


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one order of the queue, in iterations."""

    order: Order
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    latency_mean: float
    latency_p99: float
    iterations: int

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "order"}


def lesson1(requests: int = REQUESTS, seed: int = SEED, batch_size: int = BATCH_SIZE) -> Lesson:
    """The lesson's table; the defaults are its own."""
    shots = lesson_shots(requests, seed)

    def static(prefill: StaticPrefill) -> Counted:
        options = StaticOptions(
            batch_size=batch_size,
            prefill=prefill,
            release=Release.BATCH,
            prefill_emits_token=False,
        )
        return _counted(_run(shots, StaticBatching(options))[0])

    return Lesson(
        static(StaticPrefill.LESSON),
        static(StaticPrefill.FAIR),
        _counted(_run(shots, _continuous(batch_size, Order.FCFS))[0], _LAST_EMPTY),
    )


def lesson1_policies(
    requests: int = REQUESTS, seed: int = SEED, batch_size: int = BATCH_SIZE
) -> list[Waits]:
    """First come first served against shortest prompt first, and the oracle, on the same."""
    shots = lesson_shots(requests, seed)
    return [_waits(order, shots, batch_size) for order in (Order.FCFS, Order.SPF, Order.SOF)]


def lesson_shots(requests: int, seed: int) -> list[Shot]:
    """The lesson's requests, all due at once."""
    prompts, outputs = draw_lesson1_tokens(requests, seed)
    pairs = zip(prompts.tolist(), outputs.tolist(), strict=True)
    return [Shot(row, 0.0, prompt, output) for row, (prompt, output) in enumerate(pairs)]


def _continuous(batch_size: int, order: Order) -> ContinuousBatching:
    return ContinuousBatching(
        ContinuousOptions(
            max_sequences=batch_size,
            order=order,
            prefill_emits_token=False,
            admits_beside_a_chunk=False,
        )
    )


def _run(shots: Iterable[Shot], policy: Policy) -> tuple[Replica, list[Served]]:
    replica = Replica(policy, ITERATIONS)
    served: list[Served] = []
    drive(OpenLoop(shots), [replica], served.append)
    return replica, served


def _counted(replica: Replica, extra: int = 0) -> Counted:
    totals = replica.totals
    return Counted(totals.iterations + extra, totals.requests, totals.output_tokens)


def _waits(order: Order, shots: list[Shot], batch_size: int) -> Waits:
    replica, served = _run(shots, _continuous(batch_size, order))
    ttft = np.array([one.first_token_s for one in served])
    latency = np.array([one.end_s for one in served])
    assert not math.isnan(float(ttft.sum()))
    return Waits(
        order,
        float(ttft.mean()),
        float(np.percentile(ttft, 50)),
        float(np.percentile(ttft, 99)),
        float(latency.mean()),
        float(np.percentile(latency, 99)),
        replica.totals.iterations + _LAST_EMPTY,
    )
