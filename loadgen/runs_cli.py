"""`loadgen runs`: the run directories of a folder, listed, shown, labelled, renamed and pruned.

It reads headers and summaries, and never records. A sweep or a search for a capacity is one row;
its points are not listed. Only what has a run's header is ever removed, so neither of these, and
nothing that the service was asked to keep.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.archive import is_kept, is_running, read_header, read_object, timed_figures
from loadgen.errors import ConfigError, RunDirectoryError
from loadgen.journal import HEADER, write_whole
from loadgen.record import RunHeader
from loadgen.report.facts import facts_of
from loadgen.report.simulated import counts_iterations, simulated_of
from loadgen.report_cli import print_json
from loadgen.runs_compare import add_compare_runs
from loadgen.search_files import course_of, header_of, result_of

_COLUMNS: Final = 120
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Listed:
    """One run directory; `summary` is empty where its results have not been made."""

    path: Path
    header: RunHeader
    summary: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        targets = timed_figures(self.summary)
        return {
            "run_id": self.header.run_id,
            "path": str(self.path),
            "kind": self.header.kind,
            "label": self.header.label,
            "started_at": self.header.started_at,
            "requests": self.header.requests,
            "trace_sha256": self.header.trace_sha256,
            "verdict": self.summary.get("verdict"),
            "output_tokens_per_s": {
                target.name: targets.get(target.name, {}).get("output_tokens_per_s")
                for target in self.header.targets
            },
        }


@dataclass(frozen=True, slots=True)
class ListedSearch:
    """One directory of a sweep or a search; `header` is what a run's header says of a run."""

    path: Path
    header: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """As `Listed`'s, with its points and its answer."""
        course = course_of(self.path) or {}
        return {
            "run_id": self.path.name,
            "path": str(self.path),
            "kind": self.header["kind"],
            "label": self.header["label"],
            "started_at": self.header["started_at"],
            "requests": sum(_whole(row.get("requests")) for row in course.get("rows", ())),
            "trace_sha256": self.header["trace_sha256"],
            "verdict": None,
            "output_tokens_per_s": {},
            "points": course.get("done"),
            "answer": result_of(self.path).get("answer"),
        }


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def list_runs(folder: Path) -> list[Listed | ListedSearch]:
    """The runs of a folder, oldest first; what is no run, or cannot be read, is left out, as is a
    link (`latest`): the run that it leads to is one already."""
    found: list[tuple[str, str, Listed | ListedSearch]] = []
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; runs are written to --result-dir")
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        if search := header_of(path):
            found.append((str(search["started_at"]), path.name, ListedSearch(path, search)))
            continue
        try:
            header = read_header(path)
        except RunDirectoryError:
            continue
        found.append(
            (header.started_at, path.name, Listed(path, header, read_object(path / "summary.json")))
        )
    return [run for _, _, run in sorted(found, key=lambda row: row[:2])]


def show_list(arguments: argparse.Namespace) -> int:
    """Print the runs of a folder, oldest first."""
    runs = list_runs(arguments.folder)
    if arguments.json:
        print_json({"runs": [run.as_json() for run in runs]})
        return 0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("run", "label", "requests", "output tokens/s", "verdict"):
        table.add_column(title, justify="right" if title == "requests" else "left")
    for run in runs:
        shown = run.as_json()
        rates = ", ".join(
            f"{name} {'-' if rate is None else f'{rate:,.1f}'}"
            for name, rate in shown["output_tokens_per_s"].items()
        )
        table.add_row(
            escape(run.path.name),
            escape(shown["label"] or ""),
            f"{shown['requests']:,}",
            escape(
                rates if isinstance(run, Listed) else shown["answer"] or f"{shown['points']} points"
            ),
            shown["verdict"] or ("not reported" if isinstance(run, Listed) else shown["kind"]),
        )
    Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False).print(table)
    return 0


def show_one(arguments: argparse.Namespace) -> int:
    """Print what a run was, and what it came to as far as its results were made."""
    path = arguments.run_directory
    run = Listed(path, read_header(path), read_object(path / "summary.json"))
    if arguments.json:
        print_json(run.as_json())
        return 0
    header, state = run.header, " (still going on)" if is_running(path) else ""
    console = Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    facts = [
        ("run", f"{header.run_id}{state}"),
        ("label", header.label or "-"),
        ("started", header.started_at),
        ("requests", f"{header.requests:,} to each target"),
        *facts_of(header),
        ("command", shlex.join(header.command)),
        ("verdict", run.summary.get("verdict", f"not reported: loadgen report {path}")),
    ]
    for name, value in facts:
        table.add_row(escape(name), escape(value))
    console.print(table)
    for reason in run.summary.get("reasons", ()):
        console.print(escape(f"  {reason['grade']} {reason['target']}: {reason['text']}"))
    for sentence in simulated_of(header):
        console.print(escape(sentence))
    counted = counts_iterations(header)
    for name, figures in run.summary.get("targets", {}).items():
        console.print(escape(f"{name}: {_headline(figures, counted)}"))
    return 0


def _headline(figures: dict[str, Any], counted: bool) -> str:
    """In words; `counted`: times are iterations."""
    rate = figures.get("output_tokens_per_s")
    said = [
        f"{figures['completed']:,} of {figures['requests']:,} requests ok",
        "no output tokens told"
        if rate is None
        else f"{rate:,.1f} output tokens/{'iteration' if counted else 's'}",
    ]
    for name, key in (("TTFT", "ttft_s"), ("E2E", "e2e_s")):
        if (found := figures.get(key)) is not None:
            factor, unit = (1, "iterations") if counted else (1000, "ms")
            p50, p99 = found["p50"] * factor, found["p99"] * factor
            said.append(f"{name} p50 {p50:,.1f} {unit}, p99 {p99:,.1f} {unit}")
    return ", ".join(said)


def rename(arguments: argparse.Namespace) -> int:
    """Rename a run's directory; its run id, which results and metrics refer to, stays."""
    path: Path = arguments.run_directory
    header = read_header(path)
    if not _NAME.fullmatch(arguments.name):
        raise ConfigError(
            "NEW_NAME: letters, digits, `.`, `_` and `-`, beginning with a letter or digit, at "
            "most 100; the directory stays in its folder"
        )
    if is_running(path):
        raise ConfigError(f"{path}: the run is still going on; rename it when it has ended")
    new = path.resolve().with_name(arguments.name)
    if os.path.lexists(new):
        raise ConfigError(f"{new}: exists already; choose another name")
    try:
        path.resolve().rename(new)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be renamed: {error.strerror}") from None
    print(f"{new}: its run id stays {header.run_id}")
    return 0


def label(arguments: argparse.Namespace) -> int:
    """Give a run another label; its directory keeps its name, which results refer to."""
    header = read_header(arguments.run_directory)
    if len(arguments.label) > 200:
        raise ConfigError("LABEL: at most 200 characters")
    file = arguments.run_directory / HEADER
    content = orjson.loads(file.read_bytes()) | {"label": arguments.label or None}
    try:
        write_whole(file, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    print(f"{header.run_id}: {arguments.label or 'no label'}; `loadgen report` renews its report")
    return 0


def prune(arguments: argparse.Namespace) -> int:
    """Remove all runs of a folder but the latest; with --dry-run only say which."""
    if arguments.keep < 0:
        raise ConfigError("--keep: a number from 0 on")
    runs = [run for run in list_runs(arguments.folder) if isinstance(run, Listed)]
    old = runs[: max(0, len(runs) - arguments.keep)]
    for run in old:
        if is_running(run.path):
            print(f"kept {run.path}: still going on")
            continue
        if is_kept(run.path):
            print(f"kept {run.path}: the service was asked to keep it")
            continue
        if not arguments.dry_run:
            shutil.rmtree(run.path)
        print(f"{'would remove' if arguments.dry_run else 'removed'} {run.path}")
    return 0


def add_runs(commands: Any) -> None:
    """Give the command line `loadgen runs`."""
    runs = commands.add_parser(
        "runs", help="list, show, compare, rename, prune runs", description="Runs on disk."
    )
    actions = runs.add_subparsers(title="actions", metavar="ACTION", required=True)
    command = actions.add_parser(
        "list",
        help="the runs of a folder",
        description="List the runs of a folder, oldest first.",
        epilog="example: loadgen runs list",
    )
    _add_folder(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(call=show_list)
    command = actions.add_parser(
        "show",
        help="what a run was and came to",
        description="Show one run: its targets, trace, versions, verdict and headline figures.",
        epilog="example: loadgen runs show runs/20260101T120000Z-run-1a2b",
    )
    _add_run_directory(command)
    command.add_argument("--json", action="store_true", help="print JSON, as `list` does")
    command.set_defaults(call=show_one)
    add_compare_runs(actions)
    command = actions.add_parser(
        "rename",
        help="give a run's directory another name",
        description="Rename a run's directory within its folder. The run id stays: reports, "
        "exports and Prometheus refer to it.",
        epilog="example: loadgen runs rename runs/20260101T120000Z-run-1a2b baseline",
    )
    _add_run_directory(command)
    command.add_argument("name", metavar="NEW_NAME", help="a name, no path")
    command.set_defaults(call=rename)
    command = actions.add_parser(
        "label",
        help="give a run another label",
        description="Give a run another label; its directory keeps its name.",
        epilog="example: loadgen runs label runs/20260101T120000Z-run-1a2b nightly",
    )
    _add_run_directory(command)
    command.add_argument("label", metavar="LABEL", help="the new label; empty: none")
    command.set_defaults(call=label)
    command = actions.add_parser(
        "prune",
        help="remove old runs",
        description="Remove all runs of a folder but the latest. What is no run stays.",
        epilog="example: loadgen runs prune --keep 20",
    )
    _add_folder(command)
    command.add_argument(
        "--keep", type=int, required=True, metavar="N", help="how many of the latest stay"
    )
    command.add_argument("--dry-run", action="store_true", help="say what would be removed")
    command.set_defaults(call=prune)


def _add_run_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="a directory in runs/")


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("runs"),
        metavar="FOLDER",
        help="folder that holds the run directories (default: runs)",
    )
