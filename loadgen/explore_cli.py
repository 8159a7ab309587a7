"""`loadgen sweep` and `loadgen capacity`: their flags and files, and what they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop
from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.config import GeneratorConfig, LoadConfig, OutputConfig, RequestConfig
from loadgen.config_file import read_config as read_file
from loadgen.config_file import trace_and_laws, under_flags
from loadgen.errors import ConfigError
from loadgen.exploration import describe_points, read_config
from loadgen.explore_config import SECTIONS, CapacityConfig, PointsConfig, SweepConfig, config_of
from loadgen.exporter import Exporter
from loadgen.flags import add_flags, take
from loadgen.probing import capacity
from loadgen.progress import Progress
from loadgen.report.curves import Curve, columns_of, rows_of
from loadgen.report_cli import INVALID, print_json
from loadgen.run_flags import (
    add_api_key_flags,
    add_config_flag,
    exporting,
    keep_api_key,
    linger,
    targets_of_file,
)
from loadgen.status import make_run_dir, status_in
from loadgen.sweep import sweep

INTERRUPTED: Final = 130
_TABLE_COLUMNS: Final = 140
_PARTS: Final[dict[str, type[BaseModel]]] = {
    "generate": GeneratorConfig,
    "request": RequestConfig,
    "load": LoadConfig,
    "output": OutputConfig,
}
_NOT_OF_A_RUN: Final = {
    "generate": {"num_prompts", "request_rate"},
    "load": {"max_concurrency", "closed_loop", "gang", "gang_pad"},
}
"""What the points say in place of the run."""

Config = TypeVar("Config", bound=PointsConfig)


@dataclass(frozen=True, slots=True)
class Explored:
    """What a sweep or a search came to."""

    path: Path
    curve: Curve
    was_interrupted: bool
    is_invalid: bool


def run_sweep(arguments: argparse.Namespace) -> int:
    """One run at each of several loads."""
    config = _config("sweep", SweepConfig, arguments)

    async def work(progress: Progress, exporter: Exporter) -> Explored:
        done = await sweep(config, arguments.command_line, progress, exporter, arguments.resume)
        return Explored(done.path, done.curve, done.was_interrupted, done.curve.has_refused)

    return _explore(arguments, config, work)


def run_capacity(arguments: argparse.Namespace) -> int:
    """The highest rate under an SLO."""
    config = _config("capacity", CapacityConfig, arguments)

    async def work(progress: Progress, exporter: Exporter) -> Explored:
        done = await capacity(config, arguments.command_line, progress, exporter, arguments.resume)
        return Explored(done.path, done.curve, done.was_interrupted, done.found is None)

    return _explore(arguments, config, work)


def _explore(
    arguments: argparse.Namespace,
    config: PointsConfig,
    work: Callable[[Progress, Exporter], Coroutine[Any, Any, Explored]],
) -> int:
    """Do it and print it; the exit code."""
    if arguments.dry_run:
        print_json(describe_points(config))
        return 0
    output = config.run.output
    run_dir = output.run_dir
    if run_dir is not None and arguments.resume is not None:
        run_dir = arguments.resume  # wherever it lies now
    elif run_dir is not None:
        make_run_dir(run_dir)
    progress = Progress(quiet=arguments.quiet)
    with exporting(output, progress) as exporter, status_in(run_dir, exporter) as status:
        done = uvloop.run(work(progress, exporter))
        _show(done.path, done.curve, as_json=arguments.json)
        code = INTERRUPTED if done.was_interrupted else INVALID if done.is_invalid else 0
        if status is not None:
            status.end(code)
        if output.linger and not done.was_interrupted:
            linger(exporter, progress)
    return code


def _config(kind: str, model: type[Config], arguments: argparse.Namespace) -> Config:
    """Of flags over a file, or of a directory that is gone on with; raises ConfigError."""
    of_points = take(model, arguments)
    flags = {
        part: {
            name: value
            for name, value in take(fields, arguments).items()
            if name not in _NOT_OF_A_RUN.get(part, ())
        }
        for part, fields in _PARTS.items()
    }
    if arguments.resume is not None:
        if arguments.config is not None:
            raise ConfigError("--config: --resume goes on with what is stored; leave one out")
        said: dict[str, Any] = dict(flags)
        if arguments.trace is not None:
            said["trace"] = arguments.trace
        given = {"run": said, **of_points}
        config = read_config(kind, model, arguments.resume, given, arguments.base_url)
        keep_api_key(arguments, config.run.request)
        return config
    content = read_file(arguments.config, SECTIONS[kind])
    trace, drawn = trace_and_laws(arguments.trace, flags["generate"], content)
    content = {name: under_flags(content, name, flags[name]) for name in _PARTS} | {
        "trace": trace,
        "generate": drawn,
        "targets": targets_of_file(arguments, content),
        kind: under_flags(content, kind, of_points),
    }
    if arguments.base_url is not None:
        content["targets"] = [{"name": "target", "base_url": arguments.base_url}]
    if not content["targets"]:
        raise ConfigError("--base-url: which endpoint? As in --base-url http://127.0.0.1:8000")
    config = config_of(kind, model, content)
    keep_api_key(arguments, config.run.request)
    return config


def _show(path: Path, curve: Curve, *, as_json: bool) -> None:
    if as_json:
        print_json({"directory": str(path), **curve.as_json()})
        return
    console = Console(width=None if sys.stdout.isatty() else _TABLE_COLUMNS, highlight=False)
    if curve.points:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns_of(curve):
            table.add_column(column, justify="right")
        for row in rows_of(curve):
            table.add_row(*map(escape, row))
        console.print(table)
    console.print(escape(curve.answer))
    if curve.points:
        console.print(f"report: {path / 'report.html'}", soft_wrap=True, markup=False)


def add_explore(commands: Any) -> None:
    """Give the command line `loadgen sweep` and `loadgen capacity`."""
    command = commands.add_parser(
        "sweep",
        help="one run at each of several loads",
        description="One run at each of several loads, in ascending order: rates of an open loop, "
        "widths of a closed one, or sizes of gangs. It ends in a table and a latency-throughput "
        "curve with its knee marked.",
        epilog="example: loadgen sweep trace.jsonl --base-url http://127.0.0.1:8000 "
        "--rates 1,2,4,8",
    )
    _add_flags(command, "points", SweepConfig, set(), run_sweep)
    command = commands.add_parser(
        "capacity",
        help="the highest rate under an SLO",
        description="Search for the highest rate at which enough requests meet every limit of "
        "--goodput: double the rate until a probe fails, then bisect. Exit code 4: a probe was "
        "INVALID, and no capacity was found.",
        epilog="example: loadgen capacity --base-url http://127.0.0.1:8000 "
        "--goodput ttft:500 tpot:50 e2el:10000 --share 0.95",
    )
    _add_flags(command, "search", CapacityConfig, {"ramp_up"}, run_capacity)


def _add_flags(
    command: argparse.ArgumentParser,
    title: str,
    model: type[PointsConfig],
    leave_out: set[str],
    call: Any,
) -> None:
    command.add_argument(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE",
        help="trace file (JSONL); without it, one is drawn by the trace flags",
    )
    command.add_argument(
        "--base-url", "--url", metavar="URL", help="the endpoint, with or without /v1"
    )
    command.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on with what was stopped in this directory, by its own flags; no others are "
        "needed, but secrets, which are not kept",
    )
    add_config_flag(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    command.add_argument(
        "--dry-run", action="store_true", help="say as JSON what would be sent, and send nothing"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    add_api_key_flags(command)
    add_flags(command, title, model, {"run"})
    for group, part in (
        ("requests", "request"),
        ("load", "load"),
        ("results", "output"),
        ("trace, where no file is given", "generate"),
    ):
        add_flags(command, group, _PARTS[part], _NOT_OF_A_RUN.get(part, set()) | leave_out)
    command.set_defaults(call=call)
