"""A point of a curve: one finished run at one load, as its row in tables, plots and JSON. Pure.

All figures come from the run's summary, by the formulas of `docs/metrics.md`; a figure that cannot
be computed is None. It knows neither files nor why a load was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from loadgen.capacity import Look
from loadgen.knee import Knee, knee_of
from loadgen.record import Outcome
from loadgen.stats import Distribution, Summary
from loadgen.verdict import Grade, Verdict

CLIENT_RULES: Final = frozenset(
    {"schedule_lag_share", "rate_shortfall", "loop_lag_share", "worker_cpu", "ceiling_share"}
)
"""Rules of the verdict that speak of the client itself."""
TARGET_RULES: Final = frozenset({"error_share", "no_success", "unfinished"})
"""Rules that an overloaded target breaks by itself: its requests are not good, and it is a figure.
What is left of the rules speaks of the work, which was then not the trace's."""
_ERROR_LIMIT: Final = "--max-error-share"
"""The only hard stop that speaks of the target; the others stop a healthy one too."""
_UNANSWERED: Final = frozenset({Outcome.CANCELLED, Outcome.DROPPED})


class Axis(StrEnum):
    """What a point's load is."""

    RATE = "rate"
    CONCURRENCY = "concurrency"
    BATCH_SIZE = "batch_size"

    @property
    def in_words(self) -> str:
        return _IN_WORDS[self]


_IN_WORDS: Final = {
    Axis.RATE: "requests/s asked",
    Axis.CONCURRENCY: "requests in flight",
    Axis.BATCH_SIZE: "requests in a gang",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One finished run; times in seconds, percentiles over successes."""

    load: float
    """Requests/s, requests in flight, or the size of a gang."""
    look: int
    """How often that load was looked at before."""
    run: str
    """Name of its run directory."""
    verdict: Grade
    reasons: tuple[str, ...]
    refused: str | None
    """Why the run says nothing of its target, where it does not."""
    requests: int
    """Due."""
    completed: int
    duration_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_mean_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    good: int | None
    """Requests that met every SLO; None: there is none, or a limit of the load cut the run."""
    evidence: Look | None = None
    """What a search for a capacity needs of it."""

    @property
    def good_share(self) -> float | None:
        return None if self.good is None else self.good / self.requests

    def as_json(self) -> dict[str, Any]:
        """Plain values; `of_json` is its inverse."""
        return asdict(self) | {"verdict": str(self.verdict), "good_share": self.good_share}

    @staticmethod
    def of_json(row: dict[str, Any]) -> Point:
        """Raises KeyError, TypeError or ValueError where it is none."""
        known = {field.name: row[field.name] for field in fields(Point)}
        known["verdict"] = Grade(row["verdict"])
        known["reasons"] = tuple(row["reasons"])
        if (seen := row["evidence"]) is not None:
            units = tuple((int(good), int(size)) for good, size in seen["units"])
            known["evidence"] = Look(units, seen["growth"])
        return Point(**known)


def point_of(
    load: float,
    look: int,
    run: str,
    requests: int,
    summary: Summary,
    verdict: Verdict,
    stopped: str | None,
    evidence: Look | None,
) -> Point:
    """The row of a run of so many due `requests`."""
    limit = _cut_by(summary, requests, stopped)

    def at(found: Distribution | None, percentile: float) -> float | None:
        return None if found is None else found.at(percentile)

    return Point(
        load=load,
        look=look,
        run=run,
        verdict=verdict.grade,
        reasons=tuple(f"{reason.grade}: {reason.text}" for reason in verdict.reasons),
        refused=limit or _why_refused(verdict, stopped),
        requests=requests,
        completed=summary.completed,
        duration_s=summary.duration_s,
        requests_per_s=summary.requests_per_s,
        output_tokens_per_s=summary.output_tokens_per_s,
        ttft_p50_s=at(summary.ttft_s, 50.0),
        ttft_p99_s=at(summary.ttft_s, 99.0),
        tpot_p50_s=at(summary.tpot_s, 50.0),
        tpot_p99_s=at(summary.tpot_s, 99.0),
        e2e_mean_s=None if summary.e2e_s is None else summary.e2e_s.mean,
        e2e_p50_s=at(summary.e2e_s, 50.0),
        e2e_p99_s=at(summary.e2e_s, 99.0),
        good=None if summary.goodput is None or limit else summary.goodput.good,
        evidence=None if limit else evidence,
    )


def _cut_by(summary: Summary, requests: int, stopped: str | None) -> str | None:
    """The limit of the load that left requests unanswered, and what to do; begins with its flag."""
    if stopped is None or not stopped.startswith("--") or stopped.startswith(_ERROR_LIMIT):
        return None
    is_whole = summary.requests >= requests and _UNANSWERED.isdisjoint(summary.outcomes)
    if is_whole:
        return None
    return (
        f"{stopped} before all requests had ended: raise it, or send fewer by --num-prompts and "
        "--seconds-per-point"
    )


def _why_refused(verdict: Verdict, stopped: str | None) -> str | None:
    if stopped is not None and not stopped.startswith("--"):  # by no limit that was asked for
        return f"the client: {stopped}"
    for reason in verdict.reasons:
        if reason.grade is Grade.INVALID and reason.rule not in TARGET_RULES:
            whose = "the client" if reason.rule in CLIENT_RULES else "the work"
            return f"{whose}: {reason.text}"
    return None


def in_order(points: Sequence[Point]) -> list[Point]:
    """By load, and of one load as they were made."""
    return sorted(points, key=lambda point: (point.load, point.look))


def knee_in(points: Sequence[Point]) -> Knee | None:
    """Output tokens/s over mean E2E is greatest there."""
    return knee_of(
        [point.load for point in points],
        [point.output_tokens_per_s for point in points],
        [point.e2e_mean_s for point in points],
    )
