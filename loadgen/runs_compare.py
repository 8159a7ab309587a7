"""`loadgen runs compare`: two runs of one trace, paired request by request.

The tables and intervals are those of `loadgen compare`. What is missing is its alternation: the
runs were made one after the other, so whatever drifted between them is in the difference, and the
output says so. It writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from loadgen.archive import Run, read_run
from loadgen.compare import figures
from loadgen.errors import ConfigError
from loadgen.record import SCHEMA_VERSION, RunHeader
from loadgen.report import read_result
from loadgen.report.simulated import (
    counts_iterations,
    differences_of,
    is_simulated,
    simulated_of,
)
from loadgen.report.text import print_figures, print_paired, print_verdict
from loadgen.report_cli import INVALID, print_json
from loadgen.two_runs import Side, compare_two
from loadgen.verdict import Grade

_TABLE_COLUMNS: Final = 100
CAVEAT: Final = (
    "The two runs were not made at one time: what drifted between them (the machine, its other "
    "load) is part of the difference, and no interval covers it."
)


def compare_runs(arguments: argparse.Namespace) -> int:
    """Print the two runs side by side; exit code 4 where one of them is INVALID."""
    runs = [read_run(path) for path in (arguments.run_a, arguments.run_b)]
    _check_same_trace(*runs)
    asked = arguments.target or []
    if len(asked) > 2:
        raise ConfigError("--target: at most two, of the first run and of the second")
    for_each = (*asked, *asked, None, None)  # one for both, one for each, or none
    targets = [
        run.one_target(one, how="give --target twice, for each run one")
        for run, one in zip(runs, for_each, strict=False)
    ]
    results = [read_result(run) for run in runs]
    if targets[0] == targets[1] and _are_one(runs):
        raise ConfigError(f"{arguments.run_b}: is the same run as {arguments.run_a}")
    run_names = _names(runs)
    names = targets if targets[0] != targets[1] else run_names
    headers = [run.header for run in runs]
    simulated = all(map(is_simulated, headers))
    notes = _notes(run_names, headers)
    found = compare_two(
        *(
            Side(result.run, target, result.columns[target])
            for result, target in zip(results, targets, strict=True)
        )
    )
    assert found.paired is not None  # they are of one trace
    summaries = dict(zip(names, (found.a, found.b), strict=True))
    paired = {names[1]: found.paired}
    if arguments.json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "baseline": names[0],
                "targets": {name: figures(summary) for name, summary in summaries.items()},
                "ratios": {names[1]: found.ratio},
                "paired": {name: asdict(found) for name, found in paired.items()},
                "verdicts": {
                    name: str(result.verdict.grade)
                    for name, result in zip(run_names, results, strict=True)
                },
                "caveat": None if simulated else CAVEAT,
                "notes": notes,
            }
        )
    else:
        console = Console(width=None if sys.stdout.isatty() else _TABLE_COLUMNS, highlight=False)
        counted = all(map(counts_iterations, headers))
        print_figures(summaries, results[0].percentiles, console, counted=counted)
        for note in notes:
            console.print(escape(note))
        print_paired(summaries, paired, console, is_simulated=simulated)
        if not simulated:
            console.print(CAVEAT)
        for name, result in zip(run_names, results, strict=True):
            print_verdict(result.verdict, console, f" of {escape(name)}")
    grades = [result.verdict.grade for result in results]
    return INVALID if Grade.INVALID in grades else 0


def _names(runs: Sequence[Run]) -> list[str]:
    """Run ids, or the paths of two runs of one id: --run-dir gives it, in whatever folder."""
    ids = [run.header.run_id for run in runs]
    return ids if ids[0] != ids[1] or _are_one(runs) else [str(run.path) for run in runs]


def _are_one(runs: Sequence[Run]) -> bool:
    return len({run.path.resolve() for run in runs}) == 1


def _notes(names: Sequence[str], headers: Sequence[RunHeader]) -> list[str]:
    """What is simulated, and what that does to the comparison."""
    said = [
        f"{name}: {sentence}"
        for name, header in dict(zip(names, headers, strict=True)).items()
        for sentence in simulated_of(header)
    ]
    return said + differences_of(*headers)


def _check_same_trace(a: Run, b: Run) -> None:
    first, second = (run.header.trace_sha256 for run in (a, b))
    if first != second:
        raise ConfigError(
            f"{b.path}: its trace is another ({second[:12]}, not {first[:12]}): requests can be "
            f"paired on one trace only; replay {a.path / 'trace.jsonl'} on the other target"
        )
    if a.header.seed != b.header.seed:
        raise ConfigError(
            f"{b.path}: its prompts are others (--prompt-seed {b.header.seed}, not "
            f"{a.header.seed}): the requests were not the same bytes"
        )


def add_compare_runs(actions: Any) -> None:
    """Give `loadgen runs` its action `compare`."""
    command = actions.add_parser(
        "compare",
        help="two runs of one trace, paired",
        description="Compare two runs of the same trace request by request, as `loadgen compare` "
        "does its targets. The first is the baseline.",
        epilog="example: loadgen runs compare runs/before runs/after",
    )
    command.add_argument("run_a", type=Path, metavar="RUN_A", help="the baseline's directory")
    command.add_argument("run_b", type=Path, metavar="RUN_B", help="the other run's directory")
    command.add_argument(
        "--target",
        action="append",
        metavar="NAME",
        help="the target to compare, where a run has several; twice, where the names differ",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(call=compare_runs)
