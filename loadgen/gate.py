"""Gates for CI: what a run must meet, alone or beside a baseline run. Pure.

    ttft_p99<500ms        absolute
    error_share<=1%       absolute: a share
    output_throughput>-5% relative: at most 5 % less than the baseline's
    e2e_p50<+10%          relative: at most 10 % more

A relative gate must tell a change from noise: it fails where the change breaks the limit *and* the
records leave no more than a 5 % chance that it does not, by a bootstrap over stretches of each run
(seeded). What breaks the limit within the noise passes, and says so. Latencies and shares have a
stretch for every eight requests; rates have one a block, and too few of either tell no noise: then
the change counts as it stands. It knows records as columns, and no files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from loadgen.columns import Columns, Flags, Floats
from loadgen.errors import ConfigError
from loadgen.slo import Slo
from loadgen.units import FEWEST_PER_UNIT, stretches

CHANCE: Final = 0.05
_RESAMPLES: Final = 1000
_SEED: Final = 20_240_229
_FEWEST_UNITS: Final = 4

LATENCIES: Final = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "itl": "itl_s",
    "e2e": "e2e_s",
    "e2el": "e2e_s",
    "ttft_from_due": "ttft_from_due_s",
    "e2e_from_due": "e2e_from_due_s",
    "schedule_lag": "schedule_lag_s",
}
OF_SLO: Final = ("goodput", "good_share")
RATES: Final = ("output_throughput", "request_throughput", "goodput")
SHARES: Final = ("good_share", "error_share")
_PART: Final = re.compile(r"(.+)_(mean|median|p\d+(?:\.\d+)?)")
_GATE: Final = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|<|>)\s*([+-]?)(\d+(?:\.\d+)?)\s*(%|ms|s)?\s*")
_PARTS: Final = {"ms": 1000, "s": 1, "%": 100, "": 1}
"""A limit is divided by these, since 95 * 0.01 is more than 0.95."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One expression, read."""

    text: str
    metric: str
    is_upper: bool
    """The value must lie below the limit; else above."""
    is_inclusive: bool
    limit: float
    """In seconds, a share, or a plain number; of a relative gate, the change as a share."""
    is_relative: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """How one gate turned out."""

    gate: Gate
    passed: bool
    value: float | None
    """In the gate's own terms; None: the records do not have it, which fails."""
    text: str


def read_gate(text: str) -> Gate:
    """Raises ConfigError, which names what cannot be read."""
    match = _GATE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r}: not an expression such as 'ttft_p99<500ms' or 'output_throughput>-5%'"
        )
    metric, sign, direction, number = match[1], match[2], match[3], match[4]
    unit = match[5] or ""
    _measure_of(metric)  # raises for a metric that there is not
    is_relative = bool(direction)
    if is_relative and unit != "%":
        raise ConfigError(f"{text!r}: a change has a sign and a %, as in -5%")
    is_latency = metric not in (*RATES, *SHARES)
    if not is_relative and is_latency != (unit in ("ms", "s")):
        wanted = "ms or s, as in 500ms" if is_latency else "no unit, or % of a share"
        raise ConfigError(f"{text!r}: {metric} has {wanted}")
    limit = float(f"{direction}{number}") / _PARTS[unit]
    return Gate(text.strip(), metric, sign[0] == "<", sign.endswith("="), limit, is_relative)


def judge_gates(
    gates: Sequence[Gate],
    run: Columns,
    baseline: Columns | None,
    slo: Slo | None,
    *,
    counted: bool = False,
) -> list[Finding]:
    """Each gate against the run's records, and the baseline's; raises ConfigError without one.

    `counted`: a second of the records is an iteration, and is told as one.
    """
    return [_judge(gate, run, baseline, slo, counted) for gate in gates]


def _judge(
    gate: Gate, run: Columns, baseline: Columns | None, slo: Slo | None, counted: bool
) -> Finding:
    if gate.metric in OF_SLO and slo is None:
        text = f"{gate.text}: FAILED: no {gate.metric}: give the run --goodput"
        return Finding(gate, False, None, text)
    measure = _measure_of(gate.metric)
    value = measure.value(run, slo)
    if value is None:
        return Finding(gate, False, None, f"{gate.text}: the run has no {gate.metric}")
    if not gate.is_relative:
        passed = _holds(gate, value)
        said = "is" if passed else "FAILED: it is"
        return Finding(
            gate, passed, value, f"{gate.text}: {said} {_show(gate.metric, value, counted)}"
        )
    if baseline is None:
        raise ConfigError(f"{gate.text!r}: a change needs --baseline RUN")
    before = measure.value(baseline, slo)
    if before is None:
        return Finding(gate, False, None, f"{gate.text}: the baseline has no {gate.metric}")
    change = _change(before, value)
    more = "up from 0" if math.isinf(change) else f"{change:+.1%}"
    was, now = (_show(gate.metric, figure, counted) for figure in (before, value))
    shown = f"{more} ({was} before, {now} now)"
    if _holds(gate, change):
        return Finding(gate, True, change, f"{gate.text}: is {shown}")
    chance = _chance_that_it_holds(gate, measure, run, baseline, slo)
    if chance is not None and chance > CHANCE:
        text = f"{gate.text}: is {shown}, within the noise (p = {chance:.2f}): not shown to fail"
        return Finding(gate, True, change, text)
    sure = f", {measure.unknown_noise}" if chance is None else f", p = {chance:.3f}"
    return Finding(gate, False, change, f"{gate.text}: FAILED: it is {shown}{sure}")


def _holds(gate: Gate, value: float) -> bool:
    if value == gate.limit:
        return gate.is_inclusive
    return (value < gate.limit) == gate.is_upper


class Measure:
    """A metric as pieces, one a unit of a run: any choice of units can be put together."""

    unknown_noise: ClassVar[str] = f"noise unknown below {_FEWEST_UNITS * FEWEST_PER_UNIT} requests"
    """Said where there are too few pieces."""

    def value(self, c: Columns, slo: Slo | None) -> float | None:
        """Of a whole run; None where its records do not have it."""
        return self.of(self.pieces(c, slo))

    def pieces(self, c: Columns, slo: Slo | None) -> list[Floats]:
        raise NotImplementedError

    def of(self, pieces: Sequence[Floats]) -> float | None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Latency(Measure):
    """A mean or a percentile of a latency; a piece is the latencies of a stretch of the trace."""

    attribute: str
    percentile: float | None
    """None: the mean."""

    def pieces(self, c: Columns, slo: Slo | None) -> list[Floats]:
        return [self._values(c.only(rows)) for rows in _stretches(c)]

    def _values(self, c: Columns) -> Floats:
        if self.attribute == "itl_s":
            return c.itl_s()
        counted = c.was_sent if self.attribute == "schedule_lag_s" else c.is_ok
        values: Floats = getattr(c, self.attribute)[counted]
        return values[~np.isnan(values)]

    def of(self, pieces: Sequence[Floats]) -> float | None:
        values = np.concatenate(pieces) if pieces else np.empty(0)
        if not len(values):
            return None
        if self.percentile is None:
            return float(values.mean())
        return float(np.percentile(values, self.percentile))


@dataclass(frozen=True, slots=True)
class Share(Measure):
    """A share of all requests; a piece is (how many, of how many) of a stretch of the trace."""

    metric: str

    def pieces(self, c: Columns, slo: Slo | None) -> list[Floats]:
        counted = ~c.is_ok if self.metric == "error_share" else (slo or Slo()).are_met_by(c)
        return [np.array([counted[rows].sum(), rows.sum()], float) for rows in _stretches(c)]

    def of(self, pieces: Sequence[Floats]) -> float | None:
        return _quotient(pieces)


@dataclass(frozen=True, slots=True)
class Rate(Measure):
    """Something a second; a piece is (how much, seconds) of a block, since a turn has one span."""

    unknown_noise: ClassVar[str] = (
        f"noise unknown below {_FEWEST_UNITS} blocks: compare --blocks {_FEWEST_UNITS}"
    )
    metric: str

    def pieces(self, c: Columns, slo: Slo | None) -> list[Floats]:
        if self.metric == "output_throughput" and not c.tells_output_tokens:
            return []
        counted = {
            "output_throughput": np.maximum(c.output_tokens_served, 0),
            "request_throughput": c.is_ok,
            "goodput": (slo or Slo()).are_met_by(c),
        }[self.metric]
        return [np.array([counted[turn].sum(), c.span_s(turn)], float) for turn in c.turns()]

    def of(self, pieces: Sequence[Floats]) -> float | None:
        return _quotient(pieces)


def _quotient(pieces: Sequence[Floats]) -> float | None:
    if not pieces:
        return None
    part, whole = np.sum(pieces, axis=0)
    return float(part / whole) if whole > 0 else None


def _measure_of(metric: str) -> Measure:
    """Raises ConfigError for a metric that there is not."""
    if metric in SHARES:
        return Share(metric)
    if metric in RATES:
        return Rate(metric)
    match = _PART.fullmatch(metric)
    if match is None or match[1] not in LATENCIES:
        raise ConfigError(
            f"{metric}: no such metric; there are {', '.join((*RATES, *SHARES))}, and "
            f"{', '.join(LATENCIES)}, each with _mean, _median or a percentile such as _p99"
        )
    attribute, part = LATENCIES[match[1]], match[2]
    if part == "mean":
        return Latency(attribute, None)
    percentile = 50.0 if part == "median" else float(part[1:])
    if not 0 < percentile < 100:
        raise ConfigError(f"{metric}: a percentile lies between 0 and 100")
    return Latency(attribute, percentile)


def _stretches(c: Columns) -> list[Flags]:
    """Some twenty consecutive stretches of the trace: neighbours share a queue."""
    numbers = np.empty(len(c), np.int64)
    numbers[np.argsort(c.seq, kind="stable")] = stretches(len(c))
    return [numbers == number for number in np.unique(numbers)]


def _chance_that_it_holds(
    gate: Gate, measure: Measure, run: Columns, baseline: Columns, slo: Slo | None
) -> float | None:
    """The share of resamples in which the gate holds; None where there are too few units."""
    sides = [measure.pieces(c, slo) for c in (baseline, run)]
    if min(map(len, sides)) < _FEWEST_UNITS:
        return None
    rng = np.random.default_rng(_SEED)
    held = 0
    for _ in range(_RESAMPLES):
        before, now = (
            measure.of([pieces[at] for at in rng.integers(0, len(pieces), len(pieces))])
            for pieces in sides
        )
        if before is not None and now is not None:
            held += _holds(gate, _change(before, now))
    return held / _RESAMPLES


def _change(before: float, now: float) -> float:
    """now / before - 1; of 0 before it is 0, or infinite."""
    if before == 0:
        return math.inf if now > 0 else 0.0
    return now / before - 1


def _show(metric: str, value: float, counted: bool) -> str:
    if metric in SHARES:
        return f"{value:.2%}"
    if metric in RATES:
        return f"{value:,.2f}/{'iteration' if counted else 's'}"
    return f"{value:,.1f} iterations" if counted else f"{value * 1000:,.1f} ms"
