"""Two runs side by side: `python -m loadgen.service.pair RUN_DIR RUN_DIR` prints it as JSON.

Each target of the second is held against the one of that name in the first, or else against the one
in its place. It reads records, so it is a process of its own beside the service.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from loadgen.archive import Run, read_run
from loadgen.compare import figures
from loadgen.errors import LoadgenError
from loadgen.report.simulated import differences_of, simulated_of, time_unit
from loadgen.two_runs import Side, compare_two, is_same_work


def compare_runs(first: Path, second: Path) -> dict[str, Any]:
    """What the records of two runs come to, and their ratios (second / first).

    Raises RunDirectoryError where one of them is no run.
    """
    a, b = read_run(first), read_run(second)
    own = {name: Side.of(a, name) for name in _names(a)}
    pairs = []
    for place, name in enumerate(_names(b)):
        against = name if name in own else list(own)[min(place, len(own) - 1)]
        found = compare_two(own[against], Side.of(b, name))
        pairs.append(
            {
                "a": against,
                "b": name,
                "figures_a": figures(found.a),
                "figures_b": figures(found.b),
                "ratio": found.ratio,
                "paired": None if found.paired is None else asdict(found.paired),
            }
        )
    return {
        "a": _said(a),
        "b": _said(b),
        "same_trace": is_same_work(a, b),
        "notes": differences_of(a.header, b.header) or simulated_of(b.header),
        "pairs": pairs,
    }


def _names(run: Run) -> list[str]:
    return [target.name for target in run.header.targets]


def _said(run: Run) -> dict[str, Any]:
    header = run.header
    return {
        "run_id": header.run_id,
        "label": header.label,
        "kind": header.kind,
        "started_at": header.started_at,
        "trace_sha256": header.trace_sha256,
        "time_unit": time_unit(header),
    }


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(orjson.dumps(compare_runs(Path(sys.argv[1]), Path(sys.argv[2]))))
    except LoadgenError as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
