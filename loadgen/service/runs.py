"""The runs of a folder, whoever started them: what their files say of each, and what it takes.

    job.json       what a client asked for, secrets struck out; written when it is queued
    process.json   the process that does it, once it was started
    over.json      that the service ended it, or saw it end, without its own word
    lock           held by the run's process for as long as it lives
    result.txt, log.txt   what the command printed

beside the files of a run directory. A run's state follows from these alone, so a service that was
killed finds what there is. It starts and stops nothing, and keeps nothing but what it has read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from loadgen.archive import is_running, read_object, timed_figures
from loadgen.journal import HEADER, JOB
from loadgen.locks import is_held
from loadgen.search_files import SEARCH, course_of, goes_on, has_ended, header_of, result_of
from loadgen.status import LIVE

PROCESS: Final = "process.json"
OVER: Final = "over.json"
LOCK: Final = "lock"
RESULT: Final = "result.txt"
LOG: Final = "log.txt"
RUN_ID: Final = re.compile(r"(?!compare$)[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A name that is one step of a path and no other: no separator, no dot in front. `compare` is the
route of two runs."""
_SHOWN: Final = ("targets", "generate", "load", "compare", "sweep", "capacity", "fleet")
"""What is told of the configuration of a run that the service did not start: it names files."""
_STOPPED_CODE: Final = 130
_LOG_BYTES: Final = 2000


class State(StrEnum):
    """Where a run is; from `finished` on it has ended."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"

    @property
    def has_ended(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


_ENDS: Final = {str(state): state for state in State if state.has_ended}


@dataclass(frozen=True, slots=True)
class Row:
    """One run, as a list shows it."""

    id: str
    kind: str
    state: State
    label: str | None
    created_at: str
    """When it was queued, or begun: ISO 8601 in UTC."""
    started_at: str | None
    targets: tuple[str, ...]
    requests: int | None
    trace_sha256: str | None
    verdict: str | None
    output_tokens_per_s: dict[str, float | None]
    ttft_p50_ms: dict[str, float | None]
    exit_code: int | None
    error: str | None
    answer: str | None
    """What a sweep or a search for a capacity found, in a sentence."""
    keep: bool
    repeat: bool
    is_ours: bool
    """Whether the service started it, or will."""
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """What the API tells of it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"state": str(self.state)}


class Folder:
    """The run directories under one folder. Rows of runs that have ended are kept, and read again
    when their directory changed, so that a list of a thousand takes a thousand looks and no more.

    `running` has the ids of runs whose end the service has not seen yet: until it has said how they
    ended, they go on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.running: set[str] = set()
        self._rows: dict[str, tuple[int, Row]] = {}

    def rows(self) -> list[Row]:
        """All runs, the newest first."""
        found: dict[str, tuple[int, Row]] = {}
        rows = []
        for entry in _directories(self.path):
            try:
                stamp = entry.stat(follow_symlinks=False).st_mtime_ns
            except FileNotFoundError:
                continue  # it is just being pruned
            known = self._rows.get(entry.name)
            if known is not None and known[0] == stamp:
                found[entry.name] = known
                rows.append(known[1])
            elif (row := self.row(entry.name)) is not None:
                if row.state.has_ended:
                    found[entry.name] = stamp, row
                rows.append(row)
        self._rows = found
        return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)

    def directory(self, run_id: str) -> Path | None:
        """The directory of a run that exists."""
        if not RUN_ID.fullmatch(run_id):
            return None
        path = self.path / run_id
        is_run = any((path / name).is_file() for name in (JOB, HEADER, SEARCH))
        return path if is_run and not path.is_symlink() else None

    def row(self, run_id: str) -> Row | None:
        path = self.directory(run_id)
        row = None if path is None else read_row(path)
        if row is not None and row.state is State.INTERRUPTED and run_id in self.running:
            return replace(row, state=State.RUNNING)
        return row


def _directories(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    yield entry
    except FileNotFoundError:
        return


def read_row(path: Path) -> Row | None:
    """What the files of a directory say; None where it is no run, or is just being removed.

    Where they hold what no run writes, the row says so, and is none of the service's: it is neither
    started nor pruned.
    """
    job, header = read_object(path / JOB), read_object(path / HEADER) or header_of(path)
    if not job and not header:
        return None
    try:
        return _row_of(path, job, header)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _unreadable(path, f"its files are not those of a run: {error}")


def _unreadable(path: Path, error: str) -> Row:
    return Row(
        id=path.name,
        kind="unreadable",
        state=State.INTERRUPTED,
        label=None,
        created_at="",
        started_at=None,
        targets=(),
        requests=None,
        trace_sha256=None,
        verdict=None,
        output_tokens_per_s={},
        ttft_p50_ms={},
        exit_code=None,
        error=error,
        answer=None,
        keep=False,
        repeat=False,
        is_ours=False,
        bytes=_size_of(path),
    )


def _row_of(path: Path, job: Mapping[str, Any], header: Mapping[str, Any]) -> Row:
    """Raises what reading odd files raises: they may hold any JSON object."""
    summary = read_object(path / "summary.json")
    state, live = _state_of(path, job, header, summary)
    over = read_object(path / OVER)
    targets = _target_names(job, header)
    figures = timed_figures(summary)
    return Row(
        id=path.name,
        kind=str(header.get("kind") or job.get("kind") or "run"),
        state=state,
        label=_text(header.get("label") or job.get("config", {}).get("output", {}).get("label")),
        created_at=str(job.get("created_at") or header.get("started_at") or ""),
        started_at=_text(header.get("started_at")),
        targets=targets,
        requests=_number(header.get("requests")),
        trace_sha256=_text(header.get("trace_sha256")),
        verdict=_text(summary.get("verdict")),
        output_tokens_per_s={
            name: _number(figures.get(name, {}).get("output_tokens_per_s")) for name in targets
        },
        ttft_p50_ms={n: _p50_ms(figures.get(n, {}).get("ttft_s")) for n in targets},
        exit_code=_number(live.get("exit_code")),
        error=_text(over.get("error") or live.get("error") or None),
        answer=result_of(path).get("answer"),
        keep=bool(job.get("keep")),
        repeat=bool(job.get("repeat")),
        is_ours=bool(job),
        bytes=_size_of(path),
    )


def _state_of(
    path: Path, job: Mapping[str, Any], header: Mapping[str, Any], summary: Mapping[str, Any]
) -> tuple[State, dict[str, Any]]:
    live = read_object(path / LIVE)
    if live.get("state") == "ended":
        code = live.get("exit_code")
        if code == _STOPPED_CODE:
            return State.STOPPED, live
        return (State.FINISHED if code in (0, 4) else State.FAILED), live
    if (path / SEARCH).is_file() and goes_on(path):  # also one that the command line resumed
        return State.RUNNING, live
    if over := read_object(path / OVER):
        return _ENDS.get(str(over.get("state")), State.INTERRUPTED), live
    if job:
        if is_held(path / LOCK):
            return State.RUNNING, live
        was_started = (path / PROCESS).exists() or bool(live) or bool(header)
        return (State.INTERRUPTED if was_started else State.QUEUED), live
    if (path / SEARCH).is_file():
        return (State.FINISHED if has_ended(path) else State.INTERRUPTED), live
    if summary:
        return State.FINISHED, live
    return (State.RUNNING if is_running(path) else State.INTERRUPTED), live


def _target_names(job: Mapping[str, Any], header: Mapping[str, Any]) -> tuple[str, ...]:
    targets = header.get("targets") or job.get("config", {}).get("targets") or ()
    return tuple(str(target.get("name", "target")) for target in targets)


def _p50_ms(distribution: Any) -> float | None:
    value = distribution.get("p50") if isinstance(distribution, dict) else None
    return float(value) * 1000 if isinstance(value, int | float) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> Any:
    """What is a number; None in place of anything else."""
    return value if isinstance(value, int | float) else None


def _size_of(path: Path) -> int:
    """Bytes on disk."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):  # a point of a sweep
                    total += _size_of(Path(entry.path))
    except OSError:
        pass  # it is just being removed
    return total


def matching(rows: Sequence[Row], wanted: Mapping[str, str | None]) -> list[Row]:
    """The rows whose state, kind and verdict are as wanted, and whose label and targets hold the
    wanted words; None asks for nothing."""

    def holds(row: Row) -> bool:
        exact = {"state": str(row.state), "kind": row.kind, "verdict": row.verdict}
        for name, value in exact.items():
            if wanted.get(name) is not None and wanted[name] != value:
                return False
        label, target = wanted.get("label"), wanted.get("target")
        if label is not None and label.lower() not in (row.label or "").lower():
            return False
        return target is None or any(target.lower() in name.lower() for name in row.targets)

    return [row for row in rows if holds(row)]


def to_prune(
    rows: Sequence[Row], keep_runs: int, most_bytes: float, spared: str | None = None
) -> list[Row]:
    """Which runs go, of the service's own that have ended and are not kept, until at most
    `keep_runs` of them are left and all of the service's take at most `most_bytes`.

    What repeats and failed goes first, so that it never pushes out results; then the oldest. The
    run `spared` stays: it has just ended, and nobody has seen its results.
    """
    mine = [row for row in rows if row.is_ours and row.state.has_ended and not row.keep]
    mine.sort(key=lambda row: (not _failed_repeat(row), row.created_at, row.id))
    total = sum(row.bytes for row in rows if row.is_ours)
    left, gone = len(mine), []
    for row in mine:
        if left <= keep_runs and total <= most_bytes:
            break
        if row.id == spared:
            continue
        gone.append(row)
        left -= 1
        total -= row.bytes
    return gone


def _failed_repeat(row: Row) -> bool:
    return row.repeat and row.state in (State.FAILED, State.INTERRUPTED)


def remove(path: Path) -> None:
    """Remove a run; what is half removed is no run any more."""
    for name in (JOB, HEADER, SEARCH):
        with suppress(OSError):
            (path / name).unlink()
    shutil.rmtree(path, ignore_errors=True)


def detail(path: Path, row: Row) -> dict[str, Any]:
    """Everything that is known of one run: its row, what was asked for, how far it is, results."""
    job, header = read_object(path / JOB), read_object(path / HEADER) or header_of(path)
    config = job.get("config") or header.get("config")
    config = config if isinstance(config, dict) else {}
    progress = progress_of(path)
    if progress is not None and row.state.has_ended:
        progress["state"] = "ended"  # one that was killed could not say so
    return {
        **row.as_json(),
        "config": {key: value for key, value in config.items() if job or key in _SHOWN},
        "trace": config.get("trace") if job else None,
        "progress": progress,
        "summary": read_object(path / "summary.json") or None,
        "comparison": read_object(path / "comparison.json") or None,
        "curve": result_of(path) or None,
        "points": course_of(path),
        "log": tail_of(path / LOG),
        "has_report": (path / "report.html").is_file(),
    }


def progress_of(path: Path) -> dict[str, Any] | None:
    """`live.json` without the process that wrote it."""
    live = read_object(path / LIVE)
    live.pop("process", None)
    if live and (course := course_of(path)) is not None:
        live["points"] = {key: course[key] for key in ("done", "of", "load")}
    return live or None


def tail_of(path: Path) -> str:
    """The end of a text."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
