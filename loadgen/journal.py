"""The run directory: written as the run goes on, readable after kill -9.

    header.json            what was run; written before the first request
    trace.jsonl            the trace, byte for byte
    records-<worker>.jsonl one line a finished request, one unbuffered write each
    events.jsonl           turns that began, how the workers fared, why the run was stopped
    records.parquet  summary.json  comparison.json  report.html     made from the above at the end

A torn last line of records is left out; everything else that was finished is read. It knows how
records are kept, and not what they mean.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.errors import RunDirectoryError
from loadgen.record import (
    SCHEMA_VERSION,
    Outcome,
    Phase,
    RequestRecord,
    RunHeader,
    TargetInfo,
    TokenSource,
    WorkerHealth,
)

HEADER: Final = "header.json"
TRACE: Final = "trace.jsonl"
EVENTS: Final = "events.jsonl"
_RECORD_FIELDS: Final = frozenset(field.name for field in fields(RequestRecord))
_HEALTH_FIELDS: Final = frozenset(field.name for field in fields(WorkerHealth))
_HEADER_FIELDS: Final = frozenset(field.name for field in fields(RunHeader))


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, read."""

    path: Path
    header: RunHeader
    records: tuple[RequestRecord, ...]
    torn_lines: int
    """Lines that a kill cut short: requests that had not finished being written."""
    health: tuple[WorkerHealth, ...] = ()
    """How each worker fared in each turn that it finished."""
    stopped: str | None = None
    """Why the run ended before its trace did, if it did."""
    epoch_s: float | None = None
    """The run's start on the monotonic clock of the machine it ran on."""

    def of_target(self, name: str) -> list[RequestRecord]:
        """Measured records of one target, in the order of the trace."""
        return sorted(
            (
                record
                for record in self.records
                if record.target == name and record.phase is Phase.MEASURED
            ),
            key=lambda record: (record.block, record.repeat, record.seq),
        )


class Journal:
    """Appends to the records of one worker."""

    def __init__(self, run_path: Path, worker: int = 0) -> None:
        self._path = run_path / f"records-{worker}.jsonl"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: RequestRecord) -> None:
        """One write a record: what had ended survives a kill; raises RunDirectoryError."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        try:
            written = os.write(self._file, line)
            while written < len(line):  # a signal or a full disk may cut a write short
                written += os.write(self._file, line[written:])
        except OSError as error:
            raise RunDirectoryError(f"{self._path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._file)


class EventLog:
    """Appends what happens to the run as a whole; the parent writes it."""

    def __init__(self, run_path: Path) -> None:
        self._path = run_path / EVENTS

    def run_began(self, epoch_s: float) -> None:
        """`epoch_s` is the run's start on this machine's monotonic clock, for other processes."""
        self._append({"event": "run", "epoch_s": epoch_s})

    def turn_began(self, target: str, block: int, repeat: int, origin_s: float) -> None:
        """`origin_s` counts from the run's start: the due times of the turn count from there."""
        turn = {"target": target, "block": block, "repeat": repeat, "origin_s": round(origin_s, 6)}
        self._append({"event": "turn", **turn})

    def worker_done(self, health: WorkerHealth) -> None:
        self._append({"event": "worker", **asdict(health)})

    def stopped(self, reason: str) -> None:
        self._append({"event": "stopped", "reason": reason})

    def _append(self, event: dict[str, Any]) -> None:
        with self._path.open("ab", buffering=0) as file:
            file.write(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))


def new_run_path(result_dir: Path, kind: str, started: datetime) -> Path:
    """Make and return a fresh directory, such as `runs/20261129T140301Z-compare-5f3a`."""
    stamp = started.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        result_dir.mkdir(parents=True, exist_ok=True)
        while True:
            path = result_dir / f"{stamp}-{kind}-{secrets.token_hex(2)}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise RunDirectoryError(f"{result_dir}: cannot hold results: {error.strerror}") from None


def begin_run(path: Path, header: RunHeader, trace: bytes) -> None:
    """Write what stands before the first request."""
    write_whole(path / TRACE, trace)
    write_whole(path / HEADER, orjson.dumps(header, option=orjson.OPT_INDENT_2) + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(data)
    partial.replace(path)


def read_run(path: Path) -> Run:
    """Read a run directory, finished or torn; raises RunDirectoryError."""
    header = _read_header(path)
    records: list[RequestRecord] = []
    torn = 0
    for file in sorted(path.glob("records-*.jsonl")):
        lines, is_torn = _read_lines(file)
        torn += is_torn
        for number, line in enumerate(lines, 1):
            try:
                records.append(_record(line))
            except (KeyError, TypeError, ValueError) as error:
                raise RunDirectoryError(f"{file}:{number}: not a record ({error})") from None
    events, _ = _read_lines(path / EVENTS) if (path / EVENTS).exists() else ([], False)
    health = [
        WorkerHealth(**{key: value for key, value in event.items() if key in _HEALTH_FIELDS})
        for event in events
        if event.get("event") == "worker"
    ]
    reasons = [event["reason"] for event in events if event.get("event") == "stopped"]
    epochs = [event["epoch_s"] for event in events if event.get("event") == "run"]
    return Run(
        path,
        header,
        tuple(records),
        torn,
        tuple(health),
        reasons[0] if reasons else None,
        epochs[0] if epochs else None,
    )


def _read_lines(file: Path) -> tuple[list[dict[str, Any]], bool]:
    """(a file's JSON lines, whether a kill cut the last one short); raises RunDirectoryError."""
    lines = file.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            if number == len(lines):  # it has no newline: a kill cut it
                return rows, True
            raise RunDirectoryError(f"{file}:{number}: not JSON ({error})") from None
    return rows, False


def _read_header(path: Path) -> RunHeader:
    file = path / HEADER
    try:
        raw = orjson.loads(file.read_bytes())
    except OSError as error:
        raise RunDirectoryError(
            f"{path}: not a run directory: {HEADER}: {error.strerror}"
        ) from None
    except orjson.JSONDecodeError as error:
        raise RunDirectoryError(f"{file}: not JSON ({error})") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{file}: schema version {version}; this loadgen reads up to {SCHEMA_VERSION}"
        )
    try:
        known: dict[str, Any] = {key: raw[key] for key in raw.keys() & _HEADER_FIELDS}
        known["targets"] = tuple(
            TargetInfo(**{**target, "features": tuple(target["features"])})
            for target in raw["targets"]
        )
        known["command"] = tuple(raw["command"])
        return RunHeader(**known)
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"{file}: not a run header ({error})") from None


def _record(raw: dict[str, Any]) -> RequestRecord:
    known: dict[str, Any] = {key: raw[key] for key in raw.keys() & _RECORD_FIELDS}
    known["phase"] = Phase(raw["phase"])
    known["outcome"] = Outcome(raw["outcome"])
    source = raw.get("token_source")
    known["token_source"] = None if source is None else TokenSource(source)
    known["chunk_s"] = tuple(raw.get("chunk_s", ()))
    tokens = raw.get("chunk_tokens")
    known["chunk_tokens"] = None if tokens is None else tuple(tokens)
    return RequestRecord(**known)
