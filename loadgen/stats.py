"""Figures from records, and from records alone. Pure.

Formulas: `docs/metrics.md`. Percentiles are NumPy's default (linear interpolation between the two
nearest ranks), as in `vllm bench serve`. Latencies are over successes, and say how many those are;
throughput counts every token that came, of failed requests too. A figure that cannot be computed is
None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from loadgen.record import Outcome, RequestRecord, TokenSource

PERCENTILES: Final = (50.0, 90.0, 99.0)

LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
RATES: Final = ("requests_per_s", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency over the requests (or gaps) that have it, in seconds."""

    n: int
    mean: float
    std: float
    min: float
    max: float
    percentiles: tuple[tuple[float, float], ...]
    """(percentile, value) pairs."""

    def at(self, percentile: float) -> float:
        """The value of a percentile that was asked for; raises KeyError for another."""
        return dict(self.percentiles)[percentile]

    def as_dict(self) -> dict[str, float]:
        """`{"mean": ..., "p50": ..., "n": ...}`."""
        return {
            "mean": self.mean,
            **{percentile_name(p): value for p, value in self.percentiles},
            "n": self.n,
            "std": self.std,
            "min": self.min,
            "max": self.max,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Throughput between the first and the last due time: ramp and drain left out."""

    duration_s: float
    output_tokens: int
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the measured records of one target come to."""

    requests: int
    """Due and recorded."""
    completed: int
    """Ended with outcome ok."""
    failed: int
    outcomes: dict[Outcome, int]
    duration_s: float
    """From the first start to the last end."""
    requests_per_s: float | None
    """Successes over the duration."""
    request_rate_asked: float | None
    """(n - 1) / (last due - first due)."""
    request_rate_sent: float | None
    """(n - 1) / (last start - first start)."""
    prompt_tokens: int
    """As the server counts them."""
    prompt_tokens_asked: int
    output_tokens: int
    output_tokens_asked: int
    output_tokens_per_s: float | None
    """All output tokens over the duration: vLLM's output_throughput."""
    steady: Steady | None
    token_sources: dict[TokenSource, int]
    ttft_s: Distribution | None
    ttft_from_due_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    icl_s: Distribution | None
    e2e_s: Distribution | None
    e2e_from_due_s: Distribution | None
    schedule_lag_s: Distribution | None
    chunks: int


def summarise(
    records: Sequence[RequestRecord], percentiles: Sequence[float] = PERCENTILES
) -> Summary:
    """The figures of one target's measured records; `percentiles` in (0, 100)."""
    sent = [record for record in records if record.outcome is not Outcome.DROPPED]
    good = [record for record in records if record.is_ok]
    duration_s = 0.0
    if sent:
        duration_s = max(record.end_s for record in sent) - min(record.start_s for record in sent)
    output_tokens = sum(record.output_tokens_served or 0 for record in records)
    wanted = sorted({*PERCENTILES, *percentiles})

    def over(values: Iterable[float | None]) -> Distribution | None:
        return distribution([value for value in values if value is not None], wanted)

    return Summary(
        requests=len(records),
        completed=len(good),
        failed=len(records) - len(good),
        outcomes=dict(Counter(record.outcome for record in records)),
        duration_s=duration_s,
        requests_per_s=_ratio(len(good), duration_s),
        request_rate_asked=_rate([record.due_s for record in records]),
        request_rate_sent=_rate([record.start_s for record in sent]),
        prompt_tokens=sum(record.prompt_tokens_served or 0 for record in records),
        prompt_tokens_asked=sum(record.prompt_tokens_asked for record in records),
        output_tokens=output_tokens,
        output_tokens_asked=sum(record.output_tokens_asked for record in records),
        output_tokens_per_s=_ratio(output_tokens, duration_s),
        steady=_steady(records),
        token_sources=dict(
            Counter(record.token_source for record in good if record.token_source is not None)
        ),
        ttft_s=over(record.ttft_s for record in good),
        ttft_from_due_s=over(record.ttft_from_due_s for record in good),
        tpot_s=over(record.tpot_s for record in good),
        itl_s=over(gap for record in good for gap in record.itl_s()),
        icl_s=over(gap for record in good for gap in record.icl_s()),
        e2e_s=over(record.e2e_s for record in good),
        e2e_from_due_s=over(record.e2e_from_due_s for record in good),
        schedule_lag_s=over(record.schedule_lag_s for record in sent),
        chunks=sum(len(record.chunk_s) for record in records),
    )


def distribution(values: Sequence[float], percentiles: Sequence[float]) -> Distribution | None:
    """Mean and percentiles of `values`; None where there are none."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    found = np.percentile(array, percentiles)
    return Distribution(
        len(array),
        float(array.mean()),
        float(array.std()),
        float(array.min()),
        float(array.max()),
        tuple(zip((float(p) for p in percentiles), found.tolist(), strict=True)),
    )


def percentile_name(percentile: float) -> str:
    """99.0 is `p99`, 99.9 is `p99.9`."""
    return f"p{percentile:g}"


def as_json(summary: Summary) -> dict[str, Any]:
    """A summary as plain JSON values, under the names of its fields."""
    return {field.name: _plain(getattr(summary, field.name)) for field in fields(summary)}


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return value.as_dict()
    if isinstance(value, Steady):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): count for key, count in value.items()}
    return value


def _steady(records: Sequence[RequestRecord]) -> Steady | None:
    """Tokens whose chunk came between the first and the last due time; None without such a span.

    A chunk whose tokens are not told counts as one.
    """
    if not records:
        return None
    first, last = min(r.due_s for r in records), max(r.due_s for r in records)
    if last <= first:
        return None
    tokens = 0
    for record in records:
        for index, at_s in enumerate(record.chunk_s):
            if first <= at_s <= last:
                tokens += 1 if record.chunk_tokens is None else record.chunk_tokens[index]
    return Steady(
        duration_s=last - first, output_tokens=tokens, output_tokens_per_s=tokens / (last - first)
    )


def _rate(times_s: Sequence[float]) -> float | None:
    if len(times_s) < 2:
        return None
    return _ratio(len(times_s) - 1, max(times_s) - min(times_s))


def _ratio(count: float, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None
