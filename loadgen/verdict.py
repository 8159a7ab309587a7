"""How far a run's numbers can be trusted: VALID, SUSPECT or INVALID, with reasons.

Pure, from the summary and the header. Each rule has its thresholds in one table (`THRESHOLDS`),
documented with their reason in `docs/verdict.md`. A verdict speaks of the *measurement*: a slow
server is no reason, a client that was late is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadgen.record import Outcome, RunHeader, TokenSource
from loadgen.stats import Summary, percentile_name


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
        0.02, 0.20, "p99 of the client's lateness, as a share of the median TTFT"
    ),
    "rate_shortfall": Threshold(0.01, 0.05, "1 - sent rate / asked rate"),
    "error_share": Threshold(0.01, 0.10, "failed requests: percentiles are over survivors"),
    "length_shortfall": Threshold(0.01, 0.10, "1 - output tokens served / asked, of successes"),
    "prompt_length_error": Threshold(0.05, 0.50, "|prompt tokens served / asked - 1|"),
}

LAG_FLOOR_S: Final = 0.010
"""Lag below this is never a reason: it is noise on any server that is worth measuring."""

_SAMPLES_PER_TAIL: Final = 1.0
"""A percentile p of n samples needs n * (1 - p) >= this: else it is the maximum, or invented."""


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
    header: RunHeader, summaries: dict[str, Summary], percentiles: Sequence[float]
) -> Verdict:
    """The verdict over all targets of a run."""
    reasons = [
        reason
        for name, summary in summaries.items()
        for reason in _judge_target(header, name, summary, percentiles)
    ]
    order = list(Grade)
    worst = max((reason.grade for reason in reasons), key=order.index, default=Grade.VALID)
    return Verdict(worst, tuple(sorted(reasons, key=lambda r: -order.index(r.grade))))


def _judge_target(
    header: RunHeader, target: str, summary: Summary, percentiles: Sequence[float]
) -> list[Reason]:
    reasons: list[Reason] = []

    def say(grade: Grade, rule: str, text: str) -> None:
        reasons.append(Reason(grade, target, rule, text))

    def weigh(rule: str, value: float, text: str) -> None:
        threshold = THRESHOLDS[rule]
        if value > threshold.invalid:
            say(Grade.INVALID, rule, text)
        elif value > threshold.suspect:
            say(Grade.SUSPECT, rule, text)

    if summary.completed == 0:
        say(Grade.INVALID, "no_success", "no request succeeded")
    missing = header.requests - summary.requests
    if missing > 0:
        say(
            Grade.INVALID if summary.requests < header.requests / 2 else Grade.SUSPECT,
            "unfinished",
            f"{missing} of {header.requests} requests have no record: the run was cut short",
        )
    if summary.requests:
        share = summary.failed / summary.requests
        weigh(
            "error_share",
            share,
            f"{summary.failed} of {summary.requests} requests failed ({share:.1%}): "
            + ", ".join(
                f"{outcome} {count}"
                for outcome, count in sorted(summary.outcomes.items())
                if outcome is not Outcome.OK
            ),
        )
    if summary.schedule_lag_s is not None and summary.ttft_s is not None:
        lag_s = summary.schedule_lag_s.at(99.0)
        if lag_s > LAG_FLOOR_S:
            weigh(
                "schedule_lag_share",
                lag_s / summary.ttft_s.at(50.0),
                f"the client was late: schedule lag p99 {lag_s * 1e3:.1f} ms, "
                f"median TTFT {summary.ttft_s.at(50.0) * 1e3:.1f} ms",
            )
    if summary.request_rate_asked and summary.request_rate_sent:
        shortfall = 1 - summary.request_rate_sent / summary.request_rate_asked
        weigh(
            "rate_shortfall",
            shortfall,
            f"sent {summary.request_rate_sent:.3f} requests/s where "
            f"{summary.request_rate_asked:.3f} were asked",
        )
    if summary.token_sources.get(TokenSource.CHUNKS):
        say(
            Grade.SUSPECT,
            "tokens_by_chunks",
            "the server reports no usage: output tokens are counted by chunks, "
            "and a chunk may hold several tokens; give --tokenizer",
        )
    elif summary.completed and not summary.failed:
        shortfall = 1 - summary.output_tokens / summary.output_tokens_asked
        weigh(
            "length_shortfall",
            shortfall,
            f"{summary.output_tokens} output tokens where {summary.output_tokens_asked} were asked",
        )
        if summary.prompt_tokens:
            ratio = summary.prompt_tokens / summary.prompt_tokens_asked
            weigh(
                "prompt_length_error",
                abs(ratio - 1),
                f"{summary.prompt_tokens} prompt tokens where {summary.prompt_tokens_asked} "
                "were asked; give --tokenizer for exact lengths",
            )
    too_few = [
        percentile_name(p)
        for p in percentiles
        if summary.completed and summary.completed * (1 - p / 100) < _SAMPLES_PER_TAIL
    ]
    if too_few:
        say(
            Grade.SUSPECT,
            "few_samples",
            f"{summary.completed} requests are too few for {', '.join(too_few)}",
        )
    return reasons
