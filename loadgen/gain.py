"""Where the gain of one server over another comes from: its engine, or its scheduling. Pure.

The same requests are sent three times: to the baseline, whose batches are static; to the other; and
to the other in gangs of the baseline's batch size, each padded to its longest output and waited
for. So the third is the other's engine under the baseline's policy, and the ratios multiply:

    total = other / baseline = (in gangs / baseline) x (other / in gangs) = engine x policy

each of useful tokens a second: those that the trace wanted, so that padding does not count.
It knows neither how gangs are sent (`schedule.py`) nor what is said of them (`report/split.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.columns import Columns
from loadgen.paired import Effect, Rates, rate_effect, rates_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GainSplit:
    """The factors of a gain; each with an interval of its own where there are enough blocks."""

    baseline: str
    other: str
    gangs: str
    """The other's name where it was sent gangs."""
    engine: Effect
    policy: Effect
    total: Effect

    def as_json(self) -> dict[str, Any]:
        """`split` in `comparison.json`."""
        factors = {"engine": self.engine, "policy": self.policy, "total": self.total}
        return {
            "gangs": self.gangs,
            **{name: effect.ratio for name, effect in factors.items()},
            "intervals": {
                name: [effect.low, effect.high] if effect.has_interval else None
                for name, effect in factors.items()
            },
            "blocks": self.total.units,
        }


def split_gain(columns: dict[str, Columns]) -> GainSplit | None:
    """Of baseline, other, and other in gangs, in this order; None where one gave nothing."""
    baseline, other, gangs = columns
    static, own, ganged = (_useful(c) for c in columns.values())
    engine = rate_effect("engine", static, ganged)
    policy = rate_effect("policy", ganged, own)
    total = rate_effect("total", static, own)
    if engine is None or policy is None or total is None:
        return None
    return GainSplit(
        baseline=baseline, other=other, gangs=gangs, engine=engine, policy=policy, total=total
    )


def _useful(c: Columns) -> Rates:
    return rates_of(c, c.useful_tokens)
