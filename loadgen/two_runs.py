"""Two runs side by side, target against target: figures of both, their ratios, and pairs.

Where both sent the same bytes, differences are also paired by request, with how sure they are: of
chance alone, since what drifted between two runs is in no interval. It knows records, and not who
asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.archive import Run
from loadgen.columns import Columns
from loadgen.compare import figures, ratio_of
from loadgen.paired import Comparison, compare_paired
from loadgen.slo import Slo
from loadgen.stats import Summary, summarise


@dataclass(frozen=True, slots=True)
class Side:
    """One target of one run."""

    run: Run
    target: str
    columns: Columns

    @staticmethod
    def of(run: Run, target: str) -> Side:
        """Reads its records; raises RunDirectoryError."""
        return Side(run, target, Columns.of(run.of_target(target)))


@dataclass(frozen=True, slots=True)
class TwoCompared:
    """What `b` is, against `a`."""

    a: Summary
    b: Summary
    ratio: dict[str, Any]
    """b / a, figure by figure."""
    paired: Comparison | None
    """None: they did not send the same bytes."""


def is_same_work(a: Run, b: Run) -> bool:
    """Whether both sent the same bytes: one trace, and one seed of its prompts."""
    return (a.header.trace_sha256, a.header.seed) == (b.header.trace_sha256, b.header.seed)


def compare_two(a: Side, b: Side) -> TwoCompared:
    """By the percentiles and the SLOs of the first."""
    output = a.run.header.config["output"]
    goodput, percentiles = output.get("goodput"), tuple(output["metric_percentiles"])
    slo = Slo.of(goodput) if goodput else None
    before, after = summarise(a.columns, percentiles, slo), summarise(b.columns, percentiles, slo)
    return TwoCompared(
        a=before,
        b=after,
        ratio=ratio_of(figures(after), figures(before)),
        paired=compare_paired(a.columns, b.columns, slo) if is_same_work(a.run, b.run) else None,
    )
