"""Two targets on one trace, paired: by how much they differ, and how sure that is. Pure.

Both targets got the same requests, so each request has a ratio (other / baseline), whose logarithm
is what is averaged: a mean of ratios is geometric here, and never a ratio of means. Requests near
each other share a queue and are not independent, so intervals are over *units*: consecutive
stretches of the trace, none of which reaches over the end of a block.

- Latencies: the studentised bootstrap over units (Efron and Tibshirani, An Introduction to the
  Bootstrap, 12.5), seeded, so that the same records give the same interval.
- Rates have one value a block and target: Student's t over the blocks' log ratios.
- One metric is named beforehand and judged at ALPHA; the others by Holm's procedure at ALPHA
  (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979).

Figures of one target alone are `stats.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.columns import Columns, Flags, Floats, Ints
from loadgen.slo import Slo
from loadgen.units import FEWEST_PER_UNIT, MOST, stretches

ALPHA: Final = 0.01
PRIMARY: Final = "output_tokens_per_s"
RATES: Final = ("output_tokens_per_s", "goodput_per_s")
LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")
FEWEST_BLOCKS: Final = 4
FEWEST_UNITS: Final = 6
"""An interval over fewer would be a guess: of blocks for rates, of units for latencies."""
_RESAMPLES: Final = 4000
_SEED: Final = 20_240_229
_VAST: Final = 300.0
_SENSELESS: Final = 1e4
"""An interval this wide, as resamples of few and equal units can give, says nothing."""
_FAR: Final = 1 << 40
"""More rows than any trace has."""

Rates = tuple[Floats, Floats]
"""(tokens or requests, seconds) of each block; shape (blocks,) each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How one metric of the other target relates to the baseline's."""

    metric: str
    ratio: float
    """Of rates: of all tokens over all time; of latencies: the geometric mean over pairs."""
    low: float | None
    """The interval that covers the true ratio with probability 1 - ALPHA; None: too few units."""
    high: float | None
    p: float | None
    """Of a ratio this far from 1, were there none; None without an interval."""
    pairs: int
    units: int
    is_shown: bool
    """Whether a difference is shown: by itself for the primary, after Holm's correction else."""

    @property
    def has_interval(self) -> bool:
        return self.low is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One quarter of the requests, by a length that was asked."""

    by: str
    """`output` or `prompt`."""
    low: int
    high: int
    """Tokens, both inclusive."""
    effects: tuple[Effect, ...]
    """Of the latencies; not corrected, and no ground for a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that pairing gives."""

    primary: Effect | None
    """None where one of them gave nothing."""
    others: tuple[Effect, ...]
    splits: tuple[Split, ...]
    blocks: int


def compare_paired(baseline: Columns, other: Columns, slo: Slo | None = None) -> Comparison:
    """`other` against `baseline`: measured records of two targets of one run."""
    rates = [
        rate_effect(name, rates_of(baseline, first), rates_of(other, second))
        for name, first, second in zip(
            RATES, _counts(baseline, slo), _counts(other, slo), strict=True
        )
    ]
    first, second = pair(baseline, other)
    units = _units(baseline, first)
    latencies = [_latency_effect(name, baseline, other, first, second, units) for name in LATENCIES]
    primary = rates[0]
    others = _holm([effect for effect in (*rates[1:], *latencies) if effect is not None])
    return Comparison(
        primary=primary,
        others=tuple(others),
        splits=tuple(
            split
            for by in ("output", "prompt")
            for split in _splits(by, baseline, other, first, second)
        ),
        blocks=len(baseline.turns()),
    )


def pair(baseline: Columns, other: Columns) -> tuple[Ints, Ints]:
    """Rows of each that are the same request, ok on both; shape (pairs,) each."""
    keys = [c.repeat * _FAR + c.seq for c in (baseline, other)]
    ok = [np.flatnonzero(c.is_ok) for c in (baseline, other)]
    _, first, second = np.intersect1d(keys[0][ok[0]], keys[1][ok[1]], return_indices=True)
    return ok[0][first], ok[1][second]


def _units(c: Columns, rows: Ints) -> Ints:
    """The unit of each pair: a stretch of its block, of which all together are some twenty."""
    turn = c.turn[rows]
    order = np.argsort(turn * _FAR + c.seq[rows], kind="stable")
    blocks = np.unique(turn)
    units = np.empty(len(rows), np.int64)
    first = 0
    for block in blocks:
        members = order[turn[order] == block]
        units[members] = first + stretches(len(members), max(1, MOST // len(blocks)))
        first = int(units[members].max()) + 1
    return units


def _latency_effect(
    name: str, baseline: Columns, other: Columns, first: Ints, second: Ints, units: Ints
) -> Effect | None:
    values = getattr(baseline, name)[first], getattr(other, name)[second]
    known: Flags = (values[0] > 0) & (values[1] > 0)  # NaN is neither
    if not known.any():
        return None
    logs = np.log(values[1][known] / values[0][known])
    whole = int((np.bincount(units) >= FEWEST_PER_UNIT).sum())
    return _bootstrapped(name, logs, units[known], whole)


def _bootstrapped(name: str, logs: Floats, units: Ints, whole: int) -> Effect:
    """The geometric mean of exp(logs), and its studentised bootstrap interval over units.

    `whole`: how many units are of FEWEST_PER_UNIT pairs, with the value or without; blocks may be
    shorter.
    """
    _, unit = np.unique(units, return_inverse=True)
    sizes = np.bincount(unit)
    sums = np.bincount(unit, weights=logs).astype(np.float64)
    mean = float(logs.mean())
    count = len(sizes)
    bare = Effect(
        metric=name,
        ratio=math.exp(mean),
        low=None,
        high=None,
        p=None,
        pairs=len(logs),
        units=count,
        is_shown=False,
    )
    error = _error(sums[None, :], sizes[None, :])[0]
    if min(count, whole) < FEWEST_UNITS or error == 0:
        return bare
    drawn = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, count))
    drawn_sums, drawn_sizes = sums[drawn], sizes[drawn]
    means = drawn_sums.sum(axis=1) / drawn_sizes.sum(axis=1)
    errors = _error(drawn_sums, drawn_sizes)
    t = (means - mean) / np.where(errors > 0, errors, np.inf)
    low_t, high_t = np.quantile(t, (ALPHA / 2, 1 - ALPHA / 2))
    # How often the resamples stray as far from their own centre as 1 lies from ours.
    p = (1 + int((np.abs(t) >= abs(mean) / error).sum())) / (1 + _RESAMPLES)
    low, high = np.exp(np.clip([mean - high_t * error, mean - low_t * error], -_VAST, _VAST))
    if high / low > _SENSELESS:
        return bare
    return replace(bare, low=float(low), high=float(high), p=p)


def _error(sums: Floats, sizes: NDArray[Any]) -> Floats:
    """Standard errors of means over units of unequal sizes, one a row of shape (rows, units)."""
    count = sums.shape[1]
    means = sums.sum(axis=1, keepdims=True) / sizes.sum(axis=1, keepdims=True)
    strays = sums - means * sizes
    squares = (strays**2).sum(axis=1) * count / max(count - 1, 1)
    error: Floats = np.sqrt(squares) / sizes.sum(axis=1)
    return error


def rate_effect(name: str, baseline: Rates, other: Rates) -> Effect | None:
    """The ratio of two rates, with Student's t over the blocks where there are enough; None where
    one is 0."""
    (counts_a, times_a), (counts_b, times_b) = baseline, other
    whole = [float(counts.sum()) for counts in (counts_a, counts_b)]
    spans = [float(times.sum()) for times in (times_a, times_b)]
    if min(whole) <= 0 or min(spans) <= 0:
        return None
    effect = Effect(
        metric=name,
        ratio=(whole[1] / spans[1]) / (whole[0] / spans[0]),
        low=None,
        high=None,
        p=None,
        pairs=len(counts_a),
        units=len(counts_a),
        is_shown=False,
    )
    same = len(counts_a) == len(counts_b) >= FEWEST_BLOCKS
    if not same or min(counts_a.min(), counts_b.min(), times_a.min(), times_b.min()) <= 0:
        return effect
    logs = np.log((counts_b / times_b) / (counts_a / times_a))
    freedom = len(logs) - 1
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    if error == 0:
        return effect
    reach = student_t_quantile(1 - ALPHA / 2, freedom) * error
    centre = float(logs.mean())
    p = 2 * (1 - student_t_cdf(abs(centre) / error, freedom))
    return replace(
        effect,
        low=math.exp(centre - reach),
        high=math.exp(centre + reach),
        p=p,
        is_shown=name == PRIMARY and p < ALPHA,
    )


def _counts(c: Columns, slo: Slo | None) -> tuple[NDArray[Any], ...]:
    """What each request adds to each of RATES; shape (n,) each."""
    return np.maximum(c.output_tokens_served, 0), (slo or Slo()).are_met_by(c)


def rates_of(c: Columns, counts: NDArray[Any]) -> Rates:
    """What `counts`, shape (n,), come to in each block that was sent, and its seconds."""
    turns = [rows for rows in c.turns() if (rows & c.was_sent).any()]
    return (
        np.array([float(counts[rows].sum()) for rows in turns]),
        np.array([c.span_s(rows) for rows in turns]),
    )


def _holm(effects: Sequence[Effect]) -> list[Effect]:
    """The same effects, each told whether it is shown among so many at once."""
    tested = sorted((e.p, at) for at, e in enumerate(effects) if e.p is not None)
    shown: set[int] = set()
    for rank, (p, at) in enumerate(tested):
        if p >= ALPHA / (len(tested) - rank):
            break
        shown.add(at)
    return [replace(effect, is_shown=at in shown) for at, effect in enumerate(effects)]


def _splits(by: str, baseline: Columns, other: Columns, first: Ints, second: Ints) -> list[Split]:
    """Quarters of the pairs by the length that was asked, shortest first."""
    asked = baseline.output_tokens_asked if by == "output" else baseline.prompt_tokens_asked
    lengths = asked[first]
    if len(lengths) < 4 * FEWEST_PER_UNIT:
        return []
    edges = np.quantile(lengths, (0.25, 0.5, 0.75))
    quarter = np.searchsorted(edges, lengths)
    found = []
    for number in np.unique(quarter):
        rows = quarter == number
        units = _units(baseline, first[rows])
        effects = [
            _latency_effect(name, baseline, other, first[rows], second[rows], units)
            for name in LATENCIES
        ]
        found.append(
            Split(
                by=by,
                low=int(lengths[rows].min()),
                high=int(lengths[rows].max()),
                effects=tuple(effect for effect in effects if effect is not None),
            )
        )
    return found if len(found) > 1 else []


def student_t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) of Student's t, by Simpson's rule over theta with t = sqrt(freedom) tan(theta).

    Absolute error below 1e-9; Abramowitz and Stegun 26.7.
    """
    theta = np.linspace(0.0, math.atan(abs(t) / math.sqrt(freedom)), 2001)
    heights = np.cos(theta) ** (freedom - 1)
    weights = np.full(len(theta), 2.0)
    weights[1::2] = 4.0
    weights[[0, -1]] = 1.0
    area = float((heights * weights).sum()) * (theta[1] - theta[0]) / 3
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    half = area * scale / math.sqrt(math.pi)
    return 0.5 + math.copysign(half, t)


def student_t_quantile(share: float, freedom: int) -> float:
    """The t below which `share` of Student's t lies, by bisection to 1e-10."""
    low, high = -1e6, 1e6
    while high - low > 1e-10 * max(1.0, abs(low)):
        middle = (low + high) / 2
        if student_t_cdf(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2
