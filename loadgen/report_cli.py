"""The commands that read run directories, `report` and `check`: their flags, what they print."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console

from loadgen.archive import read_run
from loadgen.errors import ConfigError
from loadgen.gate import Finding, judge_gates, read_gate
from loadgen.journal import write_whole
from loadgen.report import Result, read_result, rebuild
from loadgen.report.csv_rows import write_csv
from loadgen.report.gates import SAYS_NOTHING, as_junit, as_markdown
from loadgen.report.markdown import result_as_markdown
from loadgen.report.plots import draw_run
from loadgen.report.schema import NAMES, schema_of
from loadgen.report.simulated import counts_iterations, differences_of, simulated_of
from loadgen.report.table import write_parquet
from loadgen.report.text import print_result
from loadgen.report.vllm import as_vllm_result
from loadgen.verdict import Grade

GATE_FAILED: Final = 3
INVALID: Final = 4

_TABLE_COLUMNS: Final = 100
_INDENTED: Final = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def report(arguments: argparse.Namespace) -> int:
    """Make all results of a run directory anew, and print them; or export them."""
    if arguments.schema is not None:
        print_json(schema_of(arguments.schema))
        return 0
    if arguments.run_directory is None:
        raise ConfigError("RUN_DIR: name the run directory, one of those in runs/")
    if arguments.export is not None:
        return _export(arguments)
    if arguments.output is not None or arguments.target is not None:
        raise ConfigError("--output, --target: they go with --export")
    if arguments.plots is not None:
        return _write_plots(arguments)
    if arguments.format is not None:
        raise ConfigError("--format: it goes with --plots")
    result = rebuild(arguments.run_directory)
    show(result, as_json=arguments.json)
    return INVALID if result.verdict.grade is Grade.INVALID else 0


def _export(arguments: argparse.Namespace) -> int:
    if arguments.output is None:
        raise ConfigError("--export: give the file to write by -o FILE")
    if arguments.target is not None and arguments.export != "vllm":
        raise ConfigError(f"--target: a {arguments.export} export holds all targets; leave it out")
    path, run_read = arguments.output, read_run(arguments.run_directory)
    target = run_read.one_target(arguments.target) if arguments.export == "vllm" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        match arguments.export:
            case "csv":
                write_csv(path, run_read.records())
            case "parquet":
                write_parquet(path, run_read.records())
            case "json":
                shown = orjson.dumps(_as_json(read_result(run_read)), option=_INDENTED)
                write_whole(path, shown)
            case "markdown":
                write_whole(path, result_as_markdown(read_result(run_read)).encode())
            case _:
                assert target is not None
                percentiles = run_read.header.config["output"]["metric_percentiles"]
                content = as_vllm_result(
                    run_read.header, run_read.of_target(target), target, percentiles
                )
                write_whole(path, orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigError(f"--output: {path}: {error.strerror}") from None
    print(path)
    return 0


def _write_plots(arguments: argparse.Namespace) -> int:
    """Each plot of a run as a file, numbered in the report's order."""
    kind = arguments.format or "svg"
    plots = draw_run(read_result(read_run(arguments.run_directory)))
    folder = arguments.plots
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, plot in enumerate(plots, 1):
            path = folder / f"{number:02}-{plot.slug}.{kind}"
            write_whole(path, plot.as_png() if kind == "png" else plot.as_svg().encode())
            print(path)
    except OSError as error:
        raise ConfigError(f"--plots: {folder}: {error.strerror}") from None
    return 0


def check_gates(arguments: argparse.Namespace) -> int:
    """Hold a run against gates; exit code 3 where one fails, 4 where the run is INVALID.

    Raises ConfigError where the baseline is INVALID, which no change can be measured from.
    """
    gates = [read_gate(text) for text in arguments.expression]
    result = rebuild(arguments.run_directory)
    target = result.run.one_target(arguments.target)
    header, grade = result.run.header, result.verdict.grade
    notes = simulated_of(header)
    notes += [f"{reason.grade} {reason.target}: {reason.text}" for reason in result.verdict.reasons]
    baseline = None
    if arguments.baseline is not None:
        before = _baseline(arguments.baseline)
        own = target if target in before.columns else before.run.one_target(None)
        baseline = before.columns[own]
        notes += differences_of(before.run.header, header)
        first, second = (one.run.header.trace_sha256[:12] for one in (before, result))
        if first != second:
            notes.append(
                f"the baseline's trace is another ({first}, not {second}): a change may be the "
                "trace's"
            )
    findings = judge_gates(
        gates, result.columns[target], baseline, result.slo, counted=counts_iterations(header)
    )
    for text in (*(finding.text for finding in findings), *notes):
        print(text)
    _write_findings(arguments, header.run_id, findings, grade, notes)
    if grade is Grade.INVALID:
        print(SAYS_NOTHING)
        return INVALID
    return 0 if all(finding.passed for finding in findings) else GATE_FAILED


def _baseline(path: Path) -> Result:
    result = read_result(read_run(path))
    if result.verdict.grade is Grade.INVALID:
        raise ConfigError(
            f"--baseline: {path}: is INVALID ({result.verdict.reasons[0].text}): no change can be "
            "measured from it; give a run that is not"
        )
    return result


def _write_findings(
    arguments: argparse.Namespace,
    run_id: str,
    findings: Sequence[Finding],
    grade: Grade,
    notes: Sequence[str],
) -> None:
    try:
        if arguments.junit is not None:
            write_whole(arguments.junit, as_junit(run_id, findings, grade, notes))
        if arguments.github_summary:
            path = os.environ.get("GITHUB_STEP_SUMMARY")
            if not path:
                raise ConfigError("--github-summary: GITHUB_STEP_SUMMARY is not set")
            with open(path, "a", encoding="utf-8") as file:
                file.write(as_markdown(run_id, findings, grade, notes))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None


def show(result: Result, *, as_json: bool) -> None:
    """Print a run's result, and where its report is."""
    if as_json:
        print_json({"run_directory": str(result.run.path), **_as_json(result)})
        return
    console = Console(width=None if sys.stdout.isatty() else _TABLE_COLUMNS, highlight=False)
    print_result(result, console)
    console.print(f"report: {result.run.path / 'report.html'}", soft_wrap=True, markup=False)


def _as_json(result: Result) -> dict[str, Any]:
    """The content of `summary.json`, and that of `comparison.json` in it where there is one."""
    shown = result.as_json()
    return shown | {"comparison": result.comparison()} if len(result.summaries) > 1 else shown


def print_json(content: dict[str, Any]) -> None:
    """Indented, to standard output."""
    sys.stdout.write(orjson.dumps(content, option=_INDENTED).decode())


def add_report(commands: Any) -> None:
    """Give the command line `loadgen report`."""
    command = commands.add_parser(
        "report",
        help="make the results of a run directory anew",
        description="Make summary, comparison, Parquet and HTML anew from a run's records, "
        "also where the run was killed.",
        epilog="example: loadgen report runs/20260101T120000Z-compare-1a2b",
    )
    command.add_argument(
        "run_directory", type=Path, nargs="?", metavar="RUN_DIR", help="a directory in runs/"
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.add_argument(
        "--export",
        choices=["markdown", "csv", "parquet", "json", "vllm"],
        help="write a file instead: markdown is for a pull request; csv and parquet hold the "
        "records; json the summary and the comparison; vllm one target's detailed result as of "
        "`vllm bench serve`, by its own formulas",
    )
    command.add_argument("--target", metavar="NAME", help="the target to export as vllm's")
    command.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="write each plot as a file instead"
    )
    command.add_argument(
        "--format", choices=["svg", "png"], help="of the files that --plots writes (default: svg)"
    )
    command.add_argument(
        "--schema",
        choices=list(NAMES),
        help="print the JSON Schema of summary.json or comparison.json instead; needs no RUN_DIR",
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to export to")
    command.set_defaults(call=report)


def add_check(commands: Any) -> None:
    """Give the command line `loadgen check`."""
    command = commands.add_parser(
        "check",
        help="hold a run against gates, for CI",
        description="Hold a run against gates. Absolute: 'ttft_p99<500ms', 'error_share<=1%'. "
        "Relative to a baseline run: 'output_throughput>-5%' (at most 5 % less), 'e2e_p50<+10%'; "
        "a change of a latency or a share within the noise does not fail (from 32 requests on), "
        "of a rate only where both runs have 4 blocks, as by compare --blocks 4. Metrics: "
        "output_throughput, request_throughput, goodput, good_share, error_share, and ttft, tpot, "
        "itl, e2e, ttft_from_due, e2e_from_due, schedule_lag with _mean, _median or a percentile "
        "such as _p99. Exit code 3: a gate failed; 4: the run is INVALID.",
        epilog="example: loadgen check runs/new 'ttft_p99<500ms' --baseline runs/old",
    )
    command.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="a directory in runs/")
    command.add_argument("expression", nargs="+", metavar="EXPRESSION", help="gates, in quotes")
    command.add_argument("--target", metavar="NAME", help="the target to check, where several are")
    command.add_argument(
        "--baseline", type=Path, metavar="RUN_DIR", help="the run that changes are measured from"
    )
    command.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML as well")
    command.add_argument(
        "--github-summary",
        action="store_true",
        help="append Markdown to the file that GITHUB_STEP_SUMMARY names",
    )
    command.set_defaults(call=check_gates)
