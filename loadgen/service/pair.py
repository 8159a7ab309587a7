"""Two runs side by side: `python -m loadgen.service.pair RUN_DIR RUN_DIR` prints it as JSON.

Each target of the second is held against the one of that name in the first, or else against the one
in its place. Where both runs sent the same bytes, differences are also paired by request, with how
sure they are: of chance alone, since what drifted between two runs is in no interval. It reads
records, so it is a process of its own beside the service.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from loadgen.archive import Run, read_run
from loadgen.columns import Columns
from loadgen.compare import figures, ratio_of
from loadgen.errors import LoadgenError
from loadgen.paired import compare_paired
from loadgen.slo import Slo
from loadgen.stats import summarise


def compare_runs(first: Path, second: Path) -> dict[str, Any]:
    """What the records of two runs come to, and their ratios (second / first).

    Raises RunDirectoryError where one of them is no run.
    """
    a, b = read_run(first), read_run(second)
    is_same_trace = (a.header.trace_sha256, a.header.seed) == (b.header.trace_sha256, b.header.seed)
    own, other = _columns(a), _columns(b)
    goodput = a.header.config["output"].get("goodput")
    slo = Slo.of(goodput) if goodput else None
    pairs = []
    for place, name in enumerate(other):
        against = name if name in own else list(own)[min(place, len(own) - 1)]
        before = figures(summarise(own[against], _percentiles(a), slo))
        after = figures(summarise(other[name], _percentiles(a), slo))
        pairs.append(
            {
                "a": against,
                "b": name,
                "figures_a": before,
                "figures_b": after,
                "ratio": ratio_of(after, before),
                "paired": asdict(compare_paired(own[against], other[name], slo))
                if is_same_trace
                else None,
            }
        )
    return {"a": _said(a), "b": _said(b), "same_trace": is_same_trace, "pairs": pairs}


def _columns(run: Run) -> dict[str, Columns]:
    return {target.name: Columns.of(run.of_target(target.name)) for target in run.header.targets}


def _percentiles(run: Run) -> tuple[float, ...]:
    return tuple(run.header.config["output"]["metric_percentiles"])


def _said(run: Run) -> dict[str, Any]:
    header = run.header
    return {
        "run_id": header.run_id,
        "label": header.label,
        "kind": header.kind,
        "started_at": header.started_at,
        "trace_sha256": header.trace_sha256,
    }


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(orjson.dumps(compare_runs(Path(sys.argv[1]), Path(sys.argv[2]))))
    except LoadgenError as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
