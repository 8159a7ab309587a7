"""The search for a capacity: the highest rate at which enough requests meet every SLO. Pure.

From what each probed rate gave, it says which rate to probe next, or what was found: it doubles the
rate until a probe fails (or halves it until one passes), then bisects geometrically. It is a
function of what was seen and nothing else, so a search goes on after a kill as if there had been
none. It knows neither targets nor files.

A probe passes or fails where the interval of its good share lies wholly on one side of the asked
share. Neighbours share a queue, so the interval is Wilson's (1927) over an effective number of
requests: their number over the design effect between stretches, as Korn and Graubard do (Survey
Methodology 24, 1998). Where it lies across, the rate is looked at again, and in the end counted by
its point estimate, which is said.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.columns import Columns, Floats, Ints
from loadgen.paired import student_t_quantile
from loadgen.slo import Slo
from loadgen.units import stretches

CONFIDENCE: Final = 0.95
_Z: Final = 1.959964
_GROWTH: Final = 0.02
"""A queue grows where, all but surely, latency rises by more than this for each second of load:
the rate is then over what is served by as much."""
_SURE: Final = 0.99
_WARM_SHARE: Final = 0.25
"""Of the load, left out of the growth: a queue that begins empty fills up."""
_FEWEST_UNITS: Final = 4
_FEWEST_LOOKS: Final = 2
"""At the two rates that a search ends between: one stretch of arrivals may be a kind one."""


@dataclass(frozen=True, slots=True)
class Look:
    """One run at a rate, as far as the search needs it."""

    units: tuple[tuple[int, int], ...]
    """(good requests, requests) of each stretch, in the order of their due times."""
    growth: float | None = None
    """Seconds of latency from due that a second of load adds, at the least (99 %); None: too few
    requests to tell."""

    @property
    def grows(self) -> bool:
        return self.growth is not None and self.growth > _GROWTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is looked for, and where."""

    share: float
    start_rate: float
    min_rate: float
    max_rate: float
    tolerance: float
    """Ends where the failed rate is at most this share above the passed one."""
    max_looks: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """How a trial turned out."""

    passed: bool
    is_sure: bool
    """By its interval, or by its queue; else by its point estimate."""
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate, with all looks at it."""

    rate: float
    looks: tuple[Look, ...]

    @property
    def units(self) -> tuple[tuple[int, int], ...]:
        return tuple(unit for look in self.looks for unit in look.units)

    @property
    def requests(self) -> int:
        return sum(size for _, size in self.units)

    @property
    def share(self) -> float:
        """Good requests over all that were due."""
        return sum(good for good, _ in self.units) / max(1, self.requests)

    @property
    def interval(self) -> tuple[float, float]:
        return share_interval(self.units)

    def ruling(self, goal: Goal) -> Ruling | None:
        """None: it has to be looked at (again)."""
        if not self.looks:
            return None
        low, high = self.interval
        shown = f"{_percent(self.share)} good ({_percent(low)} to {_percent(high)})"
        if high < goal.share:
            return Ruling(False, True, shown)
        grows = all(look.grows for look in self.looks)
        if low >= goal.share and not grows:
            return Ruling(True, True, shown)
        if len(self.looks) < goal.max_looks:
            return None
        if grows:
            return Ruling(False, True, f"{shown}, but its queue grew to the end")
        return Ruling(self.share >= goal.share, False, f"{shown}, by its point estimate")


@dataclass(frozen=True, slots=True)
class Ask:
    """Look at this rate next; `look` counts from 0."""

    rate: float
    look: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The end of a search."""

    trials: tuple[Trial, ...]
    """In the order in which they were made."""
    passed: Trial | None
    """The highest that passed; None: not even the lowest rate did."""
    failed: Trial | None
    """The lowest that failed; None: not even the highest rate did."""

    @property
    def rate(self) -> float | None:
        """Requests a second: between the two (their geometric mean), or the only one there is.

        None: nothing passed.
        """
        if self.passed is None or self.failed is None:
            return None if self.passed is None else self.passed.rate
        return math.sqrt(self.passed.rate * self.failed.rate)


def search(looks: Mapping[float, Sequence[Look]], goal: Goal) -> Ask | Found:
    """What to do next, from all looks so far, by rate.

    At most `max_looks` looks at each of about log2(max_rate / min_rate) + log2(1 / tolerance)
    rates.
    """
    trials: list[Trial] = []
    passed: Trial | None = None
    failed: Trial | None = None
    rate: float | None = goal.start_rate
    while rate is not None:
        trial = Trial(rate, tuple(looks.get(rate, ())))
        ruling = trial.ruling(goal)
        if ruling is None:
            return Ask(rate, len(trial.looks))
        trials.append(trial)
        if ruling.passed:
            passed = trial
        else:
            failed = trial
        rate = _next_rate(passed, failed, goal)
    for end in (passed, failed):
        if end is not None and len(end.looks) < min(_FEWEST_LOOKS, goal.max_looks):
            return Ask(end.rate, len(end.looks))
    return Found(trials=tuple(trials), passed=passed, failed=failed)


def _next_rate(passed: Trial | None, failed: Trial | None, goal: Goal) -> float | None:
    if passed is None:
        assert failed is not None
        return max(failed.rate / 2, goal.min_rate) if failed.rate > goal.min_rate else None
    if failed is None:
        return min(passed.rate * 2, goal.max_rate) if passed.rate < goal.max_rate else None
    if failed.rate <= passed.rate * (1 + goal.tolerance):
        return None
    return float(f"{math.sqrt(passed.rate * failed.rate):.4g}")  # a rate that can be read aloud


def look_at(c: Columns, slo: Slo, requests: int) -> Look:
    """What the measured records of one open-loop run say; of its `requests`, those without a
    record are not good."""
    order = np.lexsort((c.seq, c.due_s))
    c_good = slo.are_met_by(c)[order]
    unit = stretches(len(c))
    sizes = np.bincount(unit)
    good = np.bincount(unit, weights=c_good).astype(np.int64)
    units = list(zip(good.tolist(), sizes.tolist(), strict=True))
    if (missing := requests - len(c)) > 0:
        units.append((0, missing))
    return Look(tuple(units), _growth(c, order))


def share_interval(units: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Where the share of good requests lies, with CONFIDENCE, from (good, all) of each unit.

    (0, 1) of fewer than two units, which do not tell how they differ.
    """
    if len(units) < 2:
        return 0.0, 1.0
    good, sizes = np.array(units, dtype=np.float64).T
    n = float(sizes.sum())
    share = float(good.sum()) / n
    spread = float(((good - share * sizes) ** 2).sum()) * len(units) / (len(units) - 1) / n**2
    binomial = share * (1 - share) / n
    effect = max(1.0, spread / binomial) if binomial > 0 else 1.0
    effective = n / effect * (_Z / _t(0.5 + CONFIDENCE / 2, len(units) - 1)) ** 2
    return _wilson(share, effective)


def _wilson(share: float, n: float) -> tuple[float, float]:
    centre = share + _Z**2 / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


_t = functools.lru_cache(maxsize=256)(student_t_quantile)


def _growth(c: Columns, order: Ints) -> float | None:
    """The lower bound (99 %) of the slope of E2E from due over due time, output length held.

    Least squares over the successes; the variance allows for neighbours that depend on each other
    (Liang and Zeger's, over stretches). A rate that is over what is served by a share g has a slope
    of g where requests are served in turn.
    """
    rows = order[int(_WARM_SHARE * len(order)) :]
    rows = rows[c.is_ok[rows]]
    unit = stretches(len(rows))
    groups = int(unit.max(initial=-1)) + 1
    due_s = c.due_s[rows]
    if groups < _FEWEST_UNITS or not np.ptp(due_s) > 0:
        return None
    columns = [np.ones(len(rows)), due_s - due_s.mean()]
    lengths = c.output_tokens_served[rows].astype(np.float64)
    if np.ptp(lengths) > 0:
        columns.append(lengths - lengths.mean())
    x = np.column_stack(columns)
    y = c.e2e_from_due_s[rows]
    inverse = np.linalg.pinv(x.T @ x)
    slopes: Floats = inverse @ (x.T @ y)
    scores = x * (y - x @ slopes)[:, None]
    sums = np.column_stack([np.bincount(unit, weights=column) for column in scores.T])
    variance = inverse @ (sums.T @ sums) @ inverse * groups / (groups - 1)
    error = math.sqrt(max(0.0, float(variance[1, 1])))
    return float(slopes[1]) - _t(_SURE, groups - 1) * error


def in_words(found: Found, goal: Goal, target: str, goodput_ms: Mapping[str, float]) -> str:
    """The answer in sentences, with its certainty; `target` as it is to be called."""
    limits = " and ".join(f"{name} <= {limit:g} ms" for name, limit in goodput_ms.items())
    asked = f"{_percent(goal.share)} of requests good"
    if found.rate is None:
        assert found.failed is not None
        return (
            f"Under {limits}, {target} does not serve even {found.failed.rate:g} requests/s with "
            f"{asked}: {_told(found.failed, goal)}."
        )
    if found.failed is None:
        assert found.passed is not None
        return (
            f"Under {limits}, {target} serves at least {found.rate:g} requests/s ({asked}): "
            f"{_told(found.passed, goal)}; nothing higher was tried."
        )
    assert found.passed is not None
    return (
        f"Under {limits}, {target} serves {found.rate:.3g} requests/s ({asked}; between "
        f"{found.passed.rate:g}, which passed, and {found.failed.rate:g}, which failed). "
        f"{_told(found.passed, goal)}. {_told(found.failed, goal)}."
    )


def _told(trial: Trial, goal: Goal) -> str:
    ruling = trial.ruling(goal)
    assert ruling is not None
    return f"At {trial.rate:g}: {ruling.text}, {trial.requests} requests"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
