"""A run directory, read: finished, stopped or killed.

Records are read from their files each time they are asked for, one line after another, so that a
run of any size is read in little memory. A torn last line, which a kill leaves, is left out and
counted; anything else that is broken is an error with its place. It knows what `journal.py` writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.errors import ConfigError, RunDirectoryError
from loadgen.journal import EVENTS, HEADER, JOB
from loadgen.locks import is_held
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

_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory; its records are on disk."""

    path: Path
    header: RunHeader
    torn_lines: int
    """Lines that a kill cut short: requests that had not finished being written."""
    health: tuple[WorkerHealth, ...]
    """How each worker fared in each turn that it finished."""
    stopped: str | None
    """Why the run ended before its trace did, if it did."""
    is_running: bool
    """Whether the run goes on, in another process of this machine."""
    epoch_s: float | None
    """The run's start on the monotonic clock of the machine it ran on."""

    def records(self) -> Iterator[RequestRecord]:
        """All of them, warm-up included, worker by worker in the order in which they ended.

        Raises RunDirectoryError at a line that is no record.
        """
        for file in _record_files(self.path):
            for number, row in _rows(file):
                try:
                    yield _record(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise RunDirectoryError(f"{file}:{number}: not a record ({error})") from None

    def one_target(
        self, asked: str | None, flag: str = "--target", how: str = "name one of them"
    ) -> str:
        """The target that was asked for by `flag`, or the only one; raises ConfigError."""
        names = [target.name for target in self.header.targets]
        if asked is None and len(names) == 1:
            return names[0]
        if asked not in names:
            raise ConfigError(f"{flag}: {self.path.name} has {', '.join(names)}; {how}")
        return asked

    def of_target(self, name: str) -> Iterator[RequestRecord]:
        """Measured records of one target."""
        for record in self.records():
            if record.target == name and record.phase is Phase.MEASURED:
                yield record


def read_run(path: Path) -> Run:
    """Open a run directory; raises RunDirectoryError where it is none."""
    header = read_header(path)
    files = _record_files(path)
    events = path / EVENTS
    health: list[WorkerHealth] = []
    reasons: list[str] = []
    epochs: list[float] = []
    for number, event in _rows(events) if events.exists() else ():
        try:
            kind = event.get("event")
            if kind == "worker":
                health.append(WorkerHealth(**_known(WorkerHealth, event)))
            elif kind == "stopped":
                reasons.append(event["reason"])
            elif kind == "run":
                epochs.append(event["epoch_s"])
        except (KeyError, TypeError) as error:
            raise RunDirectoryError(f"{events}:{number}: not an event ({error})") from None
    return Run(
        path=path,
        header=header,
        torn_lines=sum(map(_ends_torn, files)),
        health=tuple(health),
        stopped="; ".join(dict.fromkeys(reasons)) or None,
        is_running=is_running(path),
        epoch_s=epochs[0] if epochs else None,
    )


def is_running(path: Path) -> bool:
    """Whether a run holds the lock on its events, as `journal.EventLog` does until it ends."""
    return is_held(path / EVENTS)


def is_kept(path: Path) -> bool:
    """Whether a client of `loadgen serve` asked that the run be never pruned."""
    return bool(read_object(path / JOB).get("keep"))


def timed_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by target of a `summary.json`, for lists that tell tokens/s and ms; {} of one that
    counts iterations, which has neither, whatever its keys are called."""
    is_timed = summary.get("time_unit", "seconds") == "seconds"
    figures: dict[str, Any] = summary.get("targets", {}) if is_timed else {}
    return figures


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; {} where there is none, or nothing that can be read."""
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _record_files(path: Path) -> list[Path]:
    return sorted(path.glob("records-*.jsonl"))


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, JSON object) of each whole line; raises RunDirectoryError."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not line.endswith(b"\n"):
                    return  # torn by a kill
                raise RunDirectoryError(f"{file}:{number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise RunDirectoryError(f"{file}:{number}: not a JSON object")
            yield number, row


def _ends_torn(file: Path) -> bool:
    """Whether the last line has neither its newline nor its end."""
    with file.open("rb") as data:
        start = data.seek(0, os.SEEK_END)
        tail = b""
        while start > 0 and b"\n" not in tail:
            size = min(start, _BLOCK_BYTES)
            start = data.seek(start - size)
            tail = data.read(size) + tail
    last = tail.rpartition(b"\n")[2]
    if not last.strip():
        return False
    try:
        orjson.loads(last)
    except orjson.JSONDecodeError:
        return True
    return False


def read_header(path: Path) -> RunHeader:
    """What was run at `path`; raises RunDirectoryError."""
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
        known = _known(RunHeader, raw)
        known["targets"] = tuple(
            TargetInfo(**_known(TargetInfo, target) | {"features": tuple(target["features"])})
            for target in raw["targets"]
        )
        known["command"] = tuple(raw["command"])
        header = RunHeader(**known)
        tuple(map(float, header.config["output"]["metric_percentiles"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{file}: not a run header ({error!r})") from None
    return header


def _record(row: dict[str, Any]) -> RequestRecord:
    known = _known(RequestRecord, row)
    for name in ("due_s", "start_s", "end_s"):
        known[name] = float(row[name])
    known["phase"] = Phase(row["phase"])
    known["outcome"] = Outcome(row["outcome"])
    source = row.get("token_source")
    known["token_source"] = None if source is None else TokenSource(source)
    known["chunk_s"] = tuple(row.get("chunk_s", ()))
    tokens = row.get("chunk_tokens")
    known["chunk_tokens"] = None if tokens is None else tuple(tokens)
    return RequestRecord(**known)


_FIELDS: Final = {
    kind: frozenset(field.name for field in fields(kind))
    for kind in (RequestRecord, RunHeader, TargetInfo, WorkerHealth)
}


def _known(kind: type[Any], row: dict[str, Any]) -> dict[str, Any]:
    """The keys of this version: a later one may have written more."""
    return {key: row[key] for key in row.keys() & _FIELDS[kind]}
