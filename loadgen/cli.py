"""The command line: one short function a command, and the exit code.

    0 finished (failed requests and SUSPECT included)   1 our own bug
    2 bad usage, config or input, or a target not ready   3 a gate failed   4 verdict INVALID
    130 interrupted

A user's mistake gives one line on standard error, never a traceback.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop
from rich.console import Console

from loadgen import __version__
from loadgen.archive import Run, read_run
from loadgen.ceiling import save
from loadgen.columns import Columns
from loadgen.config import (
    CompareConfig,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    RoundsConfig,
    RunConfig,
    TargetConfig,
)
from loadgen.errors import ConfigError, LoadgenError
from loadgen.exporter import Exporter
from loadgen.flags import Parser, add_flags, take, validate
from loadgen.gate import Finding, judge_gates, read_gate
from loadgen.journal import write_whole
from loadgen.progress import Progress
from loadgen.report import Result, rebuild
from loadgen.report.gates import as_junit, as_markdown
from loadgen.report.text import print_result
from loadgen.report.vllm import as_vllm_result
from loadgen.run import Finished, describe_load, run
from loadgen.selfcheck import check
from loadgen.trace_cli import add_trace
from loadgen.verdict import Grade

USAGE: Final = 2
GATE_FAILED: Final = 3
INVALID: Final = 4
INTERRUPTED: Final = 130

_TABLE_COLUMNS: Final = 100
_AWAY_S: Final = 5.0
"""Between two tries of a round that could not begin."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parsed = build_parser().parse_args(words)
        parsed.command_line = ["loadgen", *words]
        code: int = parsed.call(parsed)
        return code
    except LoadgenError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # whoever read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """All commands with their flags; the tests compare it with the documentation."""
    parser = Parser(
        prog="loadgen",
        description="Load tests for OpenAI-compatible LLM endpoints.",
        epilog="example: loadgen run --base-url http://127.0.0.1:8000 --num-prompts 50",
    )
    parser.add_argument("--version", action="version", version=f"loadgen {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_trace(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_report(commands)
    _add_check(commands)
    _add_selfcheck(commands)
    return parser


def run_one(arguments: argparse.Namespace) -> int:
    """Replay a trace on one target."""
    target = {"name": "target", "base_url": arguments.base_url}
    return _finish(arguments, [validate(TargetConfig, target)])


def compare(arguments: argparse.Namespace) -> int:
    """Replay one trace on several targets, in turn."""
    targets = [_target_of(text) for text in arguments.target]
    if len(targets) < 2:
        raise ConfigError("--target: a comparison needs two or more; for one, `loadgen run`")
    return _finish(arguments, targets)


def _target_of(text: str) -> TargetConfig:
    name, separator, url = text.partition("=")
    if not separator or "://" in name:
        raise ConfigError("--target: each must be NAME=URL, as in vllm=http://127.0.0.1:8000")
    try:
        return validate(TargetConfig, {"name": name, "base_url": url})
    except ConfigError as error:
        raise ConfigError(f"--target NAME=URL: {error}") from None


def report(arguments: argparse.Namespace) -> int:
    """Make all results of a run directory anew, and print them; or export them."""
    if arguments.export is not None:
        return _export(arguments)
    if arguments.output is not None or arguments.target is not None:
        raise ConfigError("--output, --target: they go with --export")
    result = rebuild(arguments.run_directory)
    _show(result, as_json=arguments.json)
    return INVALID if result.verdict.grade is Grade.INVALID else 0


def _export(arguments: argparse.Namespace) -> int:
    if arguments.output is None:
        raise ConfigError("--export: give the file to write by -o FILE")
    run_read = read_run(arguments.run_directory)
    target = _target_in(run_read, arguments.target)
    percentiles = run_read.header.config["output"]["metric_percentiles"]
    content = as_vllm_result(run_read.header, run_read.of_target(target), target, percentiles)
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.output, orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigError(f"--output: {arguments.output}: {error.strerror}") from None
    print(arguments.output)
    return 0


def _target_in(run_read: Run, asked: str | None) -> str:
    """The target that was asked for, or the only one; raises ConfigError."""
    names = [target.name for target in run_read.header.targets]
    if asked is None and len(names) == 1:
        return names[0]
    if asked not in names:
        raise ConfigError(f"--target: the run's targets are {', '.join(names)}; name one of them")
    return asked


def check_gates(arguments: argparse.Namespace) -> int:
    """Hold a run against gates; exit code 3 where one fails, 4 where the run is INVALID."""
    gates = [read_gate(text) for text in arguments.expression]
    result = rebuild(arguments.run_directory)
    target = _target_in(result.run, arguments.target)
    baseline = None
    if arguments.baseline is not None:
        before = read_run(arguments.baseline)
        names = [own.name for own in before.header.targets]
        own = target if target in names else _target_in(before, None)
        baseline = Columns.of(before.of_target(own))
    findings = judge_gates(gates, result.columns[target], baseline, result.slo)
    for finding in findings:
        print(finding.text)
    _write_findings(arguments, result.run.header.run_id, findings)
    if result.verdict.grade is Grade.INVALID:
        print("the run is INVALID: its gates say nothing (loadgen report has the reasons)")
        return INVALID
    return 0 if all(finding.passed for finding in findings) else GATE_FAILED


def _write_findings(
    arguments: argparse.Namespace, run_id: str, findings: Sequence[Finding]
) -> None:
    try:
        if arguments.junit is not None:
            write_whole(arguments.junit, as_junit(run_id, findings))
        if arguments.github_summary:
            path = os.environ.get("GITHUB_STEP_SUMMARY")
            if not path:
                raise ConfigError("--github-summary: GITHUB_STEP_SUMMARY is not set")
            with open(path, "a", encoding="utf-8") as file:
                file.write(as_markdown(run_id, findings))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None


def selfcheck(arguments: argparse.Namespace) -> int:
    """Measure this machine's ceiling and error, and keep the result for later runs."""
    result = check(Progress(quiet=arguments.quiet))
    path = save(result)
    if arguments.json:
        _print_json({"path": str(path), **result})
        return 0
    for name in ("worker", "in all"):
        key = name.replace("worker", "per_worker").replace(" ", "_")
        print(
            f"ceiling {name}: {result[f'events_per_s_{key}']:,} events/s, "
            f"{result[f'requests_per_s_{key}']:,} requests/s of 4 tokens"
        )
    print(
        f"error of TTFT at 10,000 events/s: p50 {result['ttft_err_p50_ms']:.2f} ms, "
        f"p99 {result['ttft_err_p99_ms']:.2f} ms; schedule lag p99 {result['lag_p99_ms']:.2f} ms"
    )
    print(f"kept in {path}: later runs on this machine carry it")
    return 0


def _finish(arguments: argparse.Namespace, targets: list[TargetConfig]) -> int:
    config = _run_config(arguments, targets)
    if arguments.dry_run:
        return _say_what_would_be_sent(config, as_json=arguments.json)
    rounds = validate(RoundsConfig, take(RoundsConfig, arguments))
    progress = Progress(quiet=arguments.quiet)
    with _exporting(config.output, progress) as exporter:
        code = _do_rounds(config, rounds, arguments, progress, exporter)
        if config.output.linger and code != INTERRUPTED:
            _linger(exporter, progress)
    return code


def _do_rounds(
    config: RunConfig,
    rounds: RoundsConfig,
    arguments: argparse.Namespace,
    progress: Progress,
    exporter: Exporter,
) -> int:
    """All rounds; the exit code of the last. A target that is away between two is waited for."""
    code = 0
    paths: list[Path] = []
    numbers = itertools.count(1) if rounds.rounds == 0 else range(1, rounds.rounds + 1)
    for number in numbers:
        if number > 1:
            time.sleep(rounds.rest)
        try:
            finished: Finished = uvloop.run(run(config, arguments.command_line, progress, exporter))
        except LoadgenError as error:
            if number == 1:
                raise
            progress.say(f"round {number}: {error}")
            time.sleep(_AWAY_S)
            continue
        result = rebuild(finished.path)
        finished.live.judged(result.verdict.grade)
        _show(result, as_json=arguments.json)
        paths.append(finished.path)
        if rounds.keep_runs is not None:
            for path in paths[: -rounds.keep_runs]:
                shutil.rmtree(path, ignore_errors=True)
            paths = paths[-rounds.keep_runs :]
        if finished.was_interrupted:
            return INTERRUPTED
        code = INVALID if result.verdict.grade is Grade.INVALID else 0
    return code


@contextmanager
def _exporting(output: OutputConfig, progress: Progress) -> Iterator[Exporter]:
    """An exporter, served where the configuration asks for it."""
    exporter = Exporter()
    if output.metrics_port is not None:
        url = exporter.serve(output.metrics_host, output.metrics_port)
        progress.say(f"metrics: {url}")
    try:
        yield exporter
    finally:
        exporter.close()


def _linger(exporter: Exporter, progress: Progress) -> None:
    progress.say("waiting until the metrics are scraped once more; Ctrl-C ends it")
    try:
        if not exporter.linger():
            progress.say("nobody scraped the metrics")
    except KeyboardInterrupt:
        pass


def _api_key_of(arguments: argparse.Namespace) -> str | None:
    """What --api-key or --api-key-file gives; raises ConfigError."""
    if arguments.api_key is not None and arguments.api_key_file is not None:
        raise ConfigError("--api-key: leave it out, or --api-key-file")
    flag, key = "--api-key", arguments.api_key
    if arguments.api_key_file is not None:
        flag = "--api-key-file"
        try:
            key = arguments.api_key_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise ConfigError(f"{flag}: {arguments.api_key_file}: {reason}") from None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{flag}: must be printable ASCII, on one line")
    return key or None


def _say_what_would_be_sent(config: RunConfig, *, as_json: bool) -> int:
    load = describe_load(config)
    if as_json:
        _print_json(load)
        return 0
    for name, url in load.pop("targets").items():
        print(f"target {name}: {url}")
    for name, value in load.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name.replace('_', ' ')}: {'as long as it takes' if value is None else shown}")
    return 0


def _run_config(arguments: argparse.Namespace, targets: list[TargetConfig]) -> RunConfig:
    drawn = take(GeneratorConfig, arguments)
    request = validate(RequestConfig, take(RequestConfig, arguments))
    if (api_key := _api_key_of(arguments)) is not None:  # from here on in the environment only
        os.environ[request.api_key_env] = api_key
    if arguments.trace is not None and drawn:
        flag = "--" + next(iter(drawn)).replace("_", "-")
        raise ConfigError(f"{flag}: the trace is given by {arguments.trace}; leave one of them out")
    return validate(
        RunConfig,
        {
            "trace": arguments.trace,
            "generate": validate(GeneratorConfig, drawn),
            "targets": targets,
            "request": request,
            "load": validate(LoadConfig, take(LoadConfig, arguments)),
            "compare": validate(CompareConfig, take(CompareConfig, arguments)),
            "output": validate(OutputConfig, take(OutputConfig, arguments)),
        },
    )


def _show(result: Result, *, as_json: bool) -> None:
    if as_json:
        shown = {"run_directory": str(result.run.path), **result.as_json()}
        if len(result.summaries) > 1:
            shown["comparison"] = result.comparison()
        _print_json(shown)
        return
    console = Console(width=None if sys.stdout.isatty() else _TABLE_COLUMNS, highlight=False)
    print_result(result, console)
    console.print(f"report: {result.run.path / 'report.html'}", soft_wrap=True, markup=False)


def _print_json(content: dict[str, Any]) -> None:
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.write(orjson.dumps(content, option=option).decode())


def _add_run(commands: Any) -> None:
    command = commands.add_parser(
        "run",
        help="replay a trace on one endpoint",
        description="Replay a trace on one endpoint, or draw one from laws and replay that. "
        "An API key is read from OPENAI_API_KEY.",
        epilog="example: loadgen run trace.jsonl --base-url https://llm.example.com/v1 --model m",
    )
    command.add_argument(
        "--base-url",
        "--url",
        required=True,
        metavar="URL",
        help="the endpoint, with or without /v1",
    )
    _add_run_flags(command, run_one)


def _add_compare(commands: Any) -> None:
    command = commands.add_parser(
        "compare",
        help="replay one trace on several endpoints",
        description="Replay one trace on several endpoints in turn; the first is the baseline.",
        epilog="example: loadgen compare trace.jsonl --target static=http://127.0.0.1:8001 "
        "--target vllm=http://127.0.0.1:8002",
    )
    command.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="an endpoint; give two or more",
    )
    add_flags(command, "order of the targets", CompareConfig)
    _add_run_flags(command, compare)


def _add_run_flags(command: argparse.ArgumentParser, call: Any) -> None:
    command.add_argument(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE",
        help="trace file (JSONL); without it, one is drawn by the trace flags",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.add_argument(
        "--dry-run", action="store_true", help="say what would be sent, and send nothing"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key; others on this machine can read a command line: prefer --api-key-env",
    )
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file that holds the API key alone"
    )
    add_flags(command, "requests", RequestConfig)
    add_flags(command, "load", LoadConfig)
    add_flags(command, "rounds", RoundsConfig)
    add_flags(command, "results", OutputConfig)
    add_flags(command, "trace, where no file is given", GeneratorConfig)
    command.set_defaults(call=call)


def _add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="make the results of a run directory anew",
        description="Make summary, comparison, Parquet and HTML anew from a run's records, "
        "also where the run was killed.",
        epilog="example: loadgen report runs/20260101T120000Z-compare-1a2b",
    )
    command.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="a directory in runs/")
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.add_argument(
        "--export",
        choices=["vllm"],
        help="write one target's records in another tool's form: vllm is the detailed result of "
        "`vllm bench serve`, by its own formulas",
    )
    command.add_argument("--target", metavar="NAME", help="the target to export, where several are")
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to export to")
    command.set_defaults(call=report)


def _add_check(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        help="hold a run against gates, for CI",
        description="Hold a run against gates. Absolute: 'ttft_p99<500ms', 'error_share<=1%'. "
        "Relative to a baseline run: 'output_throughput>-5%' (at most 5 % less), 'e2e_p50<+10%'; "
        "a change within the noise does not fail. Metrics: output_throughput, request_throughput, "
        "goodput, good_share, error_share, and ttft, tpot, itl, e2e, ttft_from_due, e2e_from_due, "
        "schedule_lag with _mean, _median or a percentile such as _p99. Exit code 3: a gate "
        "failed; 4: the run is INVALID.",
        epilog="example: loadgen check runs/new ttft_p99<500ms --baseline runs/old",
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


def _add_selfcheck(commands: Any) -> None:
    command = commands.add_parser(
        "selfcheck",
        help="measure this machine's ceiling and error",
        description="Measure, in under 20 s, how many events and requests a second this machine's "
        "client can take, and how far its times are off, against a server whose timing is known. "
        "Run it on a quiet machine; later runs carry the result and are judged by it.",
        epilog="example: loadgen selfcheck",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.set_defaults(call=selfcheck)
