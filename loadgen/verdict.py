"""How far a run's numbers can be trusted: VALID, SUSPECT or INVALID, with reasons.

Pure, from the header, the summaries and the workers' own state. Thresholds stand in one table
(`THRESHOLDS`), documented with their reason in `docs/verdict.md`. A verdict speaks of the
*measurement*: a slow server is no reason, a client that was late is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from loadgen.record import Outcome, RunHeader, TokenSource, WorkerHealth
from loadgen.stats import Distribution, Summary, percentile_name


class Grade(StrEnum):
    """Worst last."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Above `suspect` (or `invalid`) the rule speaks."""

    suspect: float
    invalid: float
    reason: str


THRESHOLDS: Final = {
    "schedule_lag_share": Threshold(
        0.02, 0.20, "p99 of the client's lateness, as a share of the median TTFT (or else E2E)"
    ),
    "rate_shortfall": Threshold(0.01, 0.05, "1 - sent rate / asked rate"),
    "loop_lag_share": Threshold(
        0.05, 0.50, "p99 of the event loops' lateness, as a share of the median TTFT (or else E2E)"
    ),
    "worker_cpu": Threshold(0.80, 0.95, "processor time / time of the busiest worker"),
    "ceiling_share": Threshold(0.70, 1.00, "events/s a worker / the self-check's ceiling"),
    "error_share": Threshold(0.01, 0.10, "failed requests: percentiles are over survivors"),
    "length_shortfall": Threshold(0.01, 0.10, "output tokens missing / asked, of successes"),
    "prompt_length_error": Threshold(0.05, 10.0, "|prompt tokens served - asked| / asked"),
    "buffered_share": Threshold(
        0.20, 0.80, "streams whose chunks came in bursts, as from a proxy that holds them back"
    ),
    "unstreamed_share": Threshold(0.20, 1.0, "streams of many tokens that came in one piece"),
}

LOST: Final = "ended unexpectedly"
"""In the reason of a run that was stopped because this happened to a worker."""
_FEWEST_FOR_P99: Final = 100
LAG_FLOOR_S: Final = 0.010
"""Lag below this is never a reason: it is noise on any server that is worth measuring."""
_SHORTEST_WORK_S: Final = 1.0
"""A worker whose turns lasted less in all is not weighed: one without a request ends at once."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a verdict is not VALID."""

    grade: Grade
    target: str
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst grade of all reasons."""

    grade: Grade
    reasons: tuple[Reason, ...]


def judge(
    header: RunHeader,
    summaries: dict[str, Summary],
    percentiles: Sequence[float],
    *,
    health: Sequence[WorkerHealth] = (),
    stopped: str | None = None,
) -> Verdict:
    """The verdict over all targets of a run."""
    reasons: list[Reason] = []
    for name, summary in summaries.items():
        own = [state for state in health if state.target == name]
        for rule in (
            _completeness(header, summary, stopped),
            _loss(header, own, stopped),
            _punctuality(header, summary),
            _effort(header, summary, own),
            _content(summary),
            _samples(summary, percentiles),
        ):
            reasons += [Reason(grade, name, key, text) for grade, key, text in rule]
    order = list(Grade)
    worst = max((reason.grade for reason in reasons), key=order.index, default=Grade.VALID)
    return Verdict(worst, tuple(sorted(reasons, key=lambda r: -order.index(r.grade))))


Finding = tuple[Grade, str, str]
"""(grade, rule, what to say)"""


def _weigh(rule: str, value: float, text: str) -> Iterator[Finding]:
    threshold = THRESHOLDS[rule]
    if value > threshold.invalid:
        yield Grade.INVALID, rule, text
    elif value > threshold.suspect:
        yield Grade.SUSPECT, rule, text


def _completeness(header: RunHeader, summary: Summary, stopped: str | None) -> Iterator[Finding]:
    if summary.completed == 0:
        yield Grade.INVALID, "no_success", "no request succeeded"
    if summary.duplicates:
        text = (
            f"{summary.duplicates} of {summary.requests} records are of a request that has one "
            "already, and every figure counts it again: the record files were copied or merged"
        )
        yield Grade.INVALID, "duplicated", text
    recorded = summary.requests - summary.duplicates
    missing = header.requests - recorded
    if missing > 0:
        grade = Grade.INVALID if recorded < header.requests / 2 else Grade.SUSPECT
        why = stopped or "the run was cut short"
        yield grade, "unfinished", f"{missing} of {header.requests} requests have no record: {why}"
    if summary.requests:
        share = summary.failed / summary.requests
        failures = ", ".join(
            f"{outcome} {count}"
            for outcome, count in sorted(summary.outcomes.items())
            if outcome is not Outcome.OK
        )
        text = f"{summary.failed} of {summary.requests} requests failed ({share:.1%}): {failures}"
        yield from _weigh("error_share", share, text)


def _loss(
    header: RunHeader, health: Sequence[WorkerHealth], stopped: str | None
) -> Iterator[Finding]:
    """Whether a worker was lost in a turn of this target, or before one; records may be whole."""
    compare = header.config.get("compare")
    turns = compare.get("blocks", 1) if isinstance(compare, dict) else 1
    if stopped is not None and LOST in stopped and len(health) < header.workers * turns:
        text = f"a worker was lost, and how busy it was is not known: {stopped}"
        yield Grade.SUSPECT, "worker_lost", text


def _punctuality(header: RunHeader, summary: Summary) -> Iterator[Finding]:
    """Whether the load was the one that was asked for, at the times that were asked for."""
    lag = summary.schedule_lag_s
    load = _load(header)
    is_capped = load.get("max_concurrency") is not None and not load.get("closed_loop")
    if is_capped:
        if lag is not None and lag.at(99.0) > LAG_FLOOR_S:
            text = (
                f"the cap of {load['max_concurrency']} in flight held requests back: p99 "
                f"{_ms(lag.at(99.0))}; latencies from due hold that wait, the others do not"
            )
            yield Grade.SUSPECT, "held_back", text
        return
    typical, name = _typical(summary)
    if lag is not None and typical is not None and lag.at(99.0) > LAG_FLOOR_S:
        text = (
            f"the client was late: schedule lag p99 {_ms(lag.at(99.0))}, "
            f"median {name} {_ms(typical.at(50.0))}"
        )
        for grade, rule, said in _weigh(
            "schedule_lag_share", _part(lag.at(99.0), typical.at(50.0)), text
        ):
            # The p99 of fewer is their maximum: one late request must not condemn a run.
            yield Grade.SUSPECT if lag.n < _FEWEST_FOR_P99 else grade, rule, said
    was_late = lag is not None and lag.max > LAG_FLOOR_S
    if was_late and summary.request_rate_asked and summary.request_rate_sent:
        shortfall = 1 - summary.request_rate_sent / summary.request_rate_asked
        text = (
            f"sent {summary.request_rate_sent:.3f} requests/s where "
            f"{summary.request_rate_asked:.3f} were asked"
        )
        yield from _weigh("rate_shortfall", shortfall, text)


def _effort(
    header: RunHeader, summary: Summary, health: Sequence[WorkerHealth]
) -> Iterator[Finding]:
    """Whether the instrument itself was near its limits."""
    if not health:
        return
    typical, name = _typical(summary)
    loop_lag_s = max(state.loop_lag_p99_s for state in health)
    if typical is not None and loop_lag_s > LAG_FLOOR_S:
        text = (
            f"the client's event loop was busy: lag p99 {_ms(loop_lag_s)}, "
            f"median {name} {_ms(typical.at(50.0))}"
        )
        yield from _weigh("loop_lag_share", _part(loop_lag_s, typical.at(50.0)), text)
    worked = [work for work in _work_of(health) if work.wall_s >= _SHORTEST_WORK_S]
    busiest = max((work.cpu_s / work.wall_s for work in worked), default=0.0)
    text = f"a worker used {busiest:.0%} of a core: it may be the bottleneck; give more --workers"
    yield from _weigh("worker_cpu", busiest, text)
    ceiling = (header.self_check or {}).get("events_per_s_per_worker")
    if ceiling:
        rate = max((work.chunks / work.wall_s for work in worked), default=0.0)
        text = (
            f"{rate:,.0f} events/s a worker, of the {ceiling:,} that the self-check found "
            "possible; give more --workers"
        )
        yield from _weigh("ceiling_share", rate / ceiling, text)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one worker did in all its turns with a target."""

    cpu_s: float
    wall_s: float
    chunks: int


def _work_of(health: Sequence[WorkerHealth]) -> list[_Work]:
    """The work of each worker."""
    return [
        _Work(
            sum(state.cpu_s for state in turns),
            sum(state.wall_s for state in turns),
            sum(state.chunks for state in turns),
        )
        for worker in {state.worker for state in health}
        if (turns := [state for state in health if state.worker == worker])
    ]


def _content(summary: Summary) -> Iterator[Finding]:
    """Whether the work was the one that was asked for, and is counted."""
    by_chunks = summary.token_sources.get(TokenSource.CHUNKS)
    if by_chunks:
        text = (
            f"{by_chunks} of {summary.completed} answers told no usage (or another target of the "
            "comparison refuses to be asked for it): their output tokens are counted by chunks, "
            "and a chunk may hold several; give --tokenizer"
        )
        yield Grade.SUSPECT, "tokens_by_chunks", text
    if summary.untold:
        left = "are unknown" if summary.output_tokens is None else "leave these out"
        text = (
            f"{summary.untold} of {summary.completed} answers do not tell how many tokens they "
            f"have: output tokens and their rates {left}; give --tokenizer"
        )
        yield Grade.SUSPECT, "tokens_untold", text
    if summary.length_shortfall is not None:
        text = f"answers lack {summary.length_shortfall:.1%} of the output tokens that were asked"
        yield from _weigh("length_shortfall", summary.length_shortfall, text)
    if summary.ok_prompt_tokens and summary.prompt_length_error is not None:  # 0: told by nobody
        text = (
            f"prompts are longer or shorter than asked by {summary.prompt_length_error:.1%} of all "
            "their tokens; give --tokenizer for exact lengths (no prompt is shorter than a chat "
            "template)"
        )
        yield from _weigh("prompt_length_error", summary.prompt_length_error, text)
    if summary.buffered_share is not None:
        text = (
            f"the chunks of {summary.buffered_share:.0%} of the streams came in bursts, as from a "
            "proxy that holds them back: TTFT and ITL are not the server's"
        )
        yield from _weigh("buffered_share", summary.buffered_share, text)
    if summary.unstreamed_share is not None:
        text = (
            f"{summary.unstreamed_share:.0%} of the streams of many tokens came at one moment "
            "(reasoning that is not shown, a call of a tool, or a stream that is none): TTFT and "
            "TPOT tell nothing of how fast they were decoded"
        )
        yield from _weigh("unstreamed_share", summary.unstreamed_share, text)


def _samples(summary: Summary, percentiles: Sequence[float]) -> Iterator[Finding]:
    """A percentile p of n samples needs n (100 - p) >= 100: else it is the maximum, or invented."""
    too_few = [
        percentile_name(p)
        for p in percentiles
        if summary.completed and summary.completed * (100 - p) < 100 - 1e-6
    ]
    if too_few:
        text = f"{summary.completed} requests are too few for {', '.join(too_few)}"
        yield Grade.SUSPECT, "few_samples", text


def _typical(summary: Summary) -> tuple[Distribution | None, str]:
    """What lateness is held against: TTFT, or E2E where answers are not streamed."""
    if summary.ttft_s is not None:
        return summary.ttft_s, "TTFT"
    return summary.e2e_s, "E2E"


def _part(lag_s: float, typical_s: float) -> float:
    """Lag as a share of a latency; of none it is infinite."""
    return lag_s / typical_s if typical_s > 0 else math.inf


def _load(header: RunHeader) -> dict[str, Any]:
    load = header.config.get("load", {})
    return load if isinstance(load, dict) else {}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
