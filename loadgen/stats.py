"""Figures from records, and from records alone. Pure.

Formulas: `docs/metrics.md`. Percentiles are NumPy's default (linear interpolation between the two
nearest ranks), as in `vllm bench serve`. Latencies are over successes, and say how many those are;
throughput counts every token that came, of failed requests too. A figure that cannot be computed is
None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np

from loadgen.columns import OUTCOMES, SOURCES, Columns, Flags, Floats, Ints
from loadgen.record import Outcome, RequestRecord, TokenSource
from loadgen.slo import Slo

Member = TypeVar("Member", Outcome, TokenSource)

PERCENTILES: Final = (50.0, 90.0, 99.0)

_FEWEST_CHUNKS: Final = 8
_FEWEST_TOKENS: Final = 32
"""More than a server decodes in the steps of one chunk."""
_SHORTEST_S: Final = 1e-9
"""No clock tells less: what took less has no rate."""
_AT_ONCE_S: Final = 50e-6
"""Chunks nearer than this came in one read."""

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
class Goodput:
    """Requests that ended ok within every objective, of all that were due."""

    good: int
    requests_per_s: float | None
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the measured records of one target come to."""

    requests: int
    """Due and recorded."""
    duplicates: int
    """Of these: records of a request that had one before; each figure counts them again."""
    completed: int
    """Ended with outcome ok."""
    failed: int
    outcomes: dict[Outcome, int]
    duration_s: float | None
    """From the first start to the last end; of several turns, the sum. None: nothing was sent."""
    requests_per_s: float | None
    """Successes over the duration."""
    request_rate_asked: float | None
    """(n - 1) / (last due - first due)."""
    request_rate_sent: float | None
    """(n - 1) / (last start - first start)."""
    prompt_tokens: int | None
    """As the server counts them. This and all below that are served: None where nobody told any."""
    prompt_tokens_asked: int
    output_tokens: int | None
    output_tokens_asked: int
    ok_prompt_tokens: int | None
    """This and the five below: of the successes whose count is told, alone."""
    ok_prompt_tokens_asked: int
    prompt_tokens_off_mean: float | None
    """|served - asked| of each success whose count is told; and the largest."""
    prompt_tokens_off_max: int | None
    ok_output_tokens: int | None
    ok_output_tokens_asked: int
    prompt_length_error: float | None
    """The sum of |served - asked| over that of asked, of the same successes."""
    length_shortfall: float | None
    """Output tokens missing over those asked, of the successes whose count is told and not one of
    chunks. What one has too much makes up for none that another lacks."""
    output_tokens_per_s: float | None
    """All output tokens over the duration: vLLM's output_throughput."""
    useful_output_tokens: int | None
    """Those that the trace wanted: without what padding added."""
    useful_output_tokens_per_s: float | None
    steady: Steady | None
    goodput: Goodput | None
    """None where no objective was given."""
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
    buffered_share: float | None
    """Of the streams of 8 chunks or more: those of which most chunks came at one moment."""
    unstreamed_share: float | None
    """Of the streams of 32 tokens or more: those that came at one moment as a whole."""

    @property
    def untold(self) -> int:
        """Successes that do not tell their output tokens: no figure of tokens holds any of them."""
        return self.completed - sum(self.token_sources.values())


def summarise(
    records: Iterable[RequestRecord] | Columns,
    percentiles: Sequence[float] = PERCENTILES,
    slo: Slo | None = None,
) -> Summary:
    """The figures of one target's measured records; `percentiles` in (0, 100)."""
    c = Columns.of(records)
    ok, sent = c.is_ok, c.was_sent
    turns = c.turns()
    close = _close_gaps(c)
    duration_s = float(sum(c.span_s(rows) for rows in turns)) if sent.any() else None
    is_told = bool(sent.any()) and c.tells_output_tokens
    output_tokens = int(np.maximum(c.output_tokens_served, 0).sum()) if is_told else None
    useful_output_tokens = None if output_tokens is None else int(c.useful_tokens.sum())
    wanted = sorted({*PERCENTILES, *percentiles})

    prompt_told = ok & (c.prompt_tokens_served >= 0)
    output_told = ok & (c.output_tokens_served >= 0)
    counted = output_told & (c.source != SOURCES.index(TokenSource.CHUNKS))
    off = np.abs(c.prompt_tokens_served - c.prompt_tokens_asked)[prompt_told]

    def over(values: Floats, rows: Flags = ok) -> Distribution | None:
        chosen = values[rows]
        return distribution(chosen[~np.isnan(chosen)], wanted)

    return Summary(
        requests=len(c),
        duplicates=c.duplicates,
        completed=int(ok.sum()),
        failed=int((~ok).sum()),
        outcomes=_tally(c.outcome, OUTCOMES),
        duration_s=duration_s,
        requests_per_s=_ratio(int(ok.sum()), duration_s),
        request_rate_asked=_rate([c.due_s[rows] for rows in turns]),
        request_rate_sent=_rate([c.start_s[rows & sent] for rows in turns]),
        prompt_tokens=_total(c.prompt_tokens_served),
        prompt_tokens_asked=int(c.prompt_tokens_asked.sum()),
        output_tokens=output_tokens,
        output_tokens_asked=int(c.output_tokens_asked.sum()),
        ok_prompt_tokens=_total(c.prompt_tokens_served[ok]),
        ok_prompt_tokens_asked=int(c.prompt_tokens_asked[prompt_told].sum()),
        prompt_tokens_off_mean=float(off.mean()) if len(off) else None,
        prompt_tokens_off_max=int(off.max()) if len(off) else None,
        ok_output_tokens=_total(c.output_tokens_served[ok]),
        ok_output_tokens_asked=int(c.output_tokens_asked[output_told].sum()),
        prompt_length_error=_share(off, c.prompt_tokens_asked[prompt_told]),
        length_shortfall=_share(
            np.maximum(c.output_tokens_asked - c.output_tokens_served, 0)[counted],
            c.output_tokens_asked[counted],
        ),
        output_tokens_per_s=_ratio(output_tokens, duration_s),
        useful_output_tokens=useful_output_tokens,
        useful_output_tokens_per_s=_ratio(useful_output_tokens, duration_s),
        steady=_steady(c, turns),
        goodput=None if slo is None else _goodput(c, slo, duration_s),
        token_sources=_tally(c.source[ok & (c.source >= 0)], SOURCES),
        ttft_s=over(c.ttft_s),
        ttft_from_due_s=over(c.ttft_from_due_s),
        tpot_s=over(c.tpot_s),
        itl_s=distribution(c.itl_s(), wanted),
        icl_s=distribution(c.icl_s(), wanted),
        e2e_s=over(c.e2e_s),
        e2e_from_due_s=over(c.e2e_from_due_s),
        schedule_lag_s=over(c.schedule_lag_s, sent),
        chunks=len(c.chunk_s),
        buffered_share=_buffered_share(c, close),
        unstreamed_share=_unstreamed_share(c, close),
    )


def distribution(
    values: Sequence[float] | Floats, percentiles: Sequence[float]
) -> Distribution | None:
    """Mean and percentiles of `values`; None where there are none."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return None
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
    if isinstance(value, Steady | Goodput):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): count for key, count in value.items()}
    return value


def _steady(c: Columns, turns: Sequence[Flags]) -> Steady | None:
    """Tokens whose chunk came between a turn's first and last due time, if there is such a span."""
    if not len(c.chunk_s):  # answers that do not stream have no chunk times
        return None
    duration_s, tokens = 0.0, 0.0
    chunk_tokens = c.tokens_by_chunk()
    for rows in turns:
        first_s, last_s = float(c.due_s[rows].min()), float(c.due_s[rows].max())
        is_in = (c.chunk_s >= first_s) & (c.chunk_s <= last_s)
        if len(turns) > 1:
            is_in &= np.repeat(rows, np.diff(c.first_chunk))
        duration_s += last_s - first_s
        tokens += float(chunk_tokens[is_in].sum())
    if duration_s < _SHORTEST_S:
        return None
    return Steady(
        duration_s=duration_s,
        output_tokens=round(tokens),
        output_tokens_per_s=tokens / duration_s,
    )


def _goodput(c: Columns, slo: Slo, duration_s: float | None) -> Goodput | None:
    if not len(c):
        return None
    good = int(slo.are_met_by(c).sum())
    return Goodput(good=good, requests_per_s=_ratio(good, duration_s), share=good / len(c))


def _buffered_share(c: Columns, close: Ints) -> float | None:
    """Streams that a proxy seems to have held back: over half of their gaps are next to nothing.

    A server that generates token by token leaves gaps; only what was kept and then let go arrives
    in one read. A server may merge the tokens of one step, but not those of many.
    """
    counts = np.diff(c.first_chunk)
    long = c.is_ok & (counts >= _FEWEST_CHUNKS)
    return float((close[long] > counts[long] / 2).mean()) if long.any() else None


def _unstreamed_share(c: Columns, close: Ints) -> float | None:
    """Streams without any gap, be they one chunk: nothing tells how fast they were decoded."""
    counts = np.diff(c.first_chunk)
    many = c.is_ok & (counts > 0) & (c.output_tokens_served >= _FEWEST_TOKENS)
    return float((close[many] == counts[many] - 1).mean()) if many.any() else None


def _close_gaps(c: Columns) -> Ints:
    """How many gaps between a request's chunks are next to nothing, shape (n,)."""
    counts = np.diff(c.first_chunk)
    is_close = np.diff(c.chunk_s, append=np.inf) < _AT_ONCE_S
    is_close[c.first_chunk[1:][counts > 0] - 1] = False  # the gap to the next request's first
    ones = np.append(is_close, False).astype(np.int64)
    close: Ints = np.add.reduceat(ones, c.first_chunk[:-1]) * (counts > 0)
    return close


def _share(part: Ints, whole: Ints) -> float | None:
    return float(part.sum() / whole.sum()) if whole.sum() > 0 else None


def _total(tokens: Ints) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = tokens[tokens >= 0]
    return int(known.sum()) if len(known) else None


def _tally(codes: Ints, members: Sequence[Member]) -> dict[Member, int]:
    found, counts = np.unique(codes, return_counts=True)
    return {members[code]: int(count) for code, count in zip(found, counts, strict=True)}


def _rate(turns_s: Sequence[Floats]) -> float | None:
    """Gaps over the time that they take, all turns together."""
    gaps = sum(max(0, len(times_s) - 1) for times_s in turns_s)
    spans_s = [float(np.ptp(times_s)) for times_s in turns_s if len(times_s)]
    return _ratio(gaps, sum(spans_s)) if gaps else None


def _ratio(count: float | None, duration_s: float | None) -> float | None:
    if count is None or duration_s is None or duration_s < _SHORTEST_S:
        return None
    return count / duration_s
