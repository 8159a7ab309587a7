"""The run directory: written as the run goes on, readable after kill -9.

    header.json            what was run; written before the first request
    trace.jsonl            the trace, byte for byte
    records-<worker>.jsonl one line a finished request, one unbuffered write each
    events.jsonl           turns that began, how the workers fared, why the run was stopped
    records.parquet  summary.json  comparison.json  report.html     made from the above at the end

This writes; `archive.py` reads. It knows how records are kept, and not what they mean.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.errors import RunDirectoryError
from loadgen.locks import hold
from loadgen.record import RequestRecord, RunHeader, WorkerHealth

HEADER: Final = "header.json"
TRACE: Final = "trace.jsonl"
EVENTS: Final = "events.jsonl"
JOB: Final = "job.json"
"""What a client of `loadgen serve` asked for; the service writes it."""


class _Lines:
    """A file of JSON lines that one process appends to: what had been appended survives a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._failure(error) from None
        self._is_torn = False

    def append(self, content: Any) -> None:
        """One write a line; raises RunDirectoryError.

        Answers in flight go on to end after an error, and a disk that was full may have room again:
        what a failed write has left is cut off, so that the next line does not follow half of one.
        Where it cannot be cut off, nothing more is written: a torn line is harmless at the end.
        """
        line = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
        if self._is_torn:
            raise RunDirectoryError(f"{self._path}: cannot be written: its last line is torn")
        written = 0
        try:
            while written < len(line):  # a signal or a full disk may cut a write short
                written += os.write(self._file, line[written:])
        except OSError as error:
            if written:
                self._cut_off(written)
            raise self._failure(error) from None

    def _cut_off(self, written: int) -> None:
        """Take back the last bytes of the file, which nobody else writes."""
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        except OSError:
            self._is_torn = True

    def _failure(self, error: OSError) -> RunDirectoryError:
        return RunDirectoryError(f"{self._path}: cannot be written: {error.strerror}")

    def hold(self) -> None:
        """Lock the file for as long as it is open, where the file system has locks."""
        with suppress(OSError):
            hold(self._file)

    def close(self) -> None:
        os.close(self._file)


class Journal:
    """Appends to the records of one worker."""

    def __init__(self, run_path: Path, worker: int = 0) -> None:
        self._lines = _Lines(run_path / f"records-{worker}.jsonl")

    def append(self, record: RequestRecord) -> None:
        """What had ended survives a kill; raises RunDirectoryError."""
        self._lines.append(record)

    def close(self) -> None:
        self._lines.close()


class EventLog:
    """Appends what happens to the run as a whole; the parent writes it."""

    def __init__(self, run_path: Path) -> None:
        self._lines = _Lines(run_path / EVENTS)
        self._lines.hold()  # until the run ends, however it ends: so readers know that it goes on

    def close(self) -> None:
        """Nothing more happens to the run."""
        self._lines.close()

    def run_began(self, epoch_s: float) -> None:
        """`epoch_s` is the run's start on this machine's monotonic clock, for other processes."""
        self._lines.append({"event": "run", "epoch_s": epoch_s})

    def turn_began(self, target: str, block: int, repeat: int, origin_s: float) -> None:
        """`origin_s` counts from the run's start: the due times of the turn count from there."""
        turn = {"target": target, "block": block, "repeat": repeat, "origin_s": round(origin_s, 6)}
        self._lines.append({"event": "turn", **turn})

    def worker_done(self, health: WorkerHealth) -> None:
        self._lines.append({"event": "worker", **asdict(health)})

    def stopped(self, reason: str) -> None:
        self._lines.append({"event": "stopped", "reason": reason})


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
    """Write what stands before the first request; nothing, where the header cannot be written."""
    head = orjson.dumps(header, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_whole(path / TRACE, trace)
    write_whole(path / HEADER, head)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, of this process alone, which takes the place of `path` at the end; after
    an error it is gone, and `path` is what it was."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
