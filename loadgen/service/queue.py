"""One run at a time, and others in line: two that measure at once would spoil each other's numbers.

The line is the folder's queued runs, by the time they were asked for, so it survives a restart;
what a run must not have on disk (a key) waits in memory and is lost with it. `tick` does everything
that time does: it sees ends, starts the next, cuts off what does not drain, prunes. Runs that the
command line starts beside the service are listed, and not waited for. It knows no HTTP.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.clock import monotonic
from loadgen.journal import HEADER, new_run_path, write_whole
from loadgen.search_files import SEARCH
from loadgen.service import process
from loadgen.service.refusal import Refusal
from loadgen.service.runs import (
    JOB,
    LOCK,
    LOG,
    OVER,
    Folder,
    Row,
    State,
    is_held,
    read_json,
    read_row,
    remove,
    tail_of,
    to_prune,
)
from loadgen.service.settings import Settings
from loadgen.service.spec import KINDS, Spec
from loadgen.service.traces import Traces
from loadgen.status import LIVE

RETRY_AFTER_S: Final = 30
KILL_AFTER_S: Final = 20.0
"""A run that was cut off and has not ended by then is killed."""
_BETWEEN_SIGNALS_S: Final = 0.5
"""Two signals of a kind that come at once are one to a process."""
_LEAST_FREE_BYTES: Final = 256 * 2**20
_LOST_SECRETS: Final = (
    "its key or another secret was given once and is not kept: the service was started anew before "
    "its turn came; start it again"
)


@dataclass(slots=True)
class _Stop:
    """How far a run's stop has come."""

    asked_at_s: float
    cut_at_s: float
    is_cut: bool = False
    kill_at_s: float = float("inf")


class Queue:
    """The line, and the run whose turn it is."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings
        self.folder = Folder(settings.runs)
        self.traces = Traces(settings)
        self._environment = environment
        self._line: list[str] = []
        self._secret: dict[str, Spec] = {}  # of those in line, and of what repeats
        self._running: dict[str, process.Child | None] = {}  # None: adopted
        self._stops: dict[str, _Stop] = {}
        self._next_start_s = 0.0
        self._lock = threading.RLock()  # each public method is whole, whichever thread calls it

    def recover(self) -> None:
        """Find what an earlier service left: who waits, and who still runs."""
        for row in reversed(self.folder.rows()):
            if not row.is_ours:
                continue
            if row.state is State.QUEUED:
                self._line.append(row.id)
            elif row.state is State.RUNNING:
                self._running[row.id] = None

    @property
    def waiting(self) -> list[str]:
        """Ids in line, the next one first."""
        return list(self._line)

    def jobs_waiting(self) -> list[dict[str, Any]]:
        """What those in line asked for."""
        return [read_json(self.folder.path / run_id / JOB) for run_id in self.waiting]

    def add(self, spec: Spec) -> str:
        """Put a run in line and return its id; raises Refusal where there is no place for it."""
        with self._lock:
            if len(self._line) >= self.settings.flags.max_queue:
                raise Refusal(
                    429,
                    f"{len(self._line)} runs wait already; stop one, or come again later",
                    {"Retry-After": str(RETRY_AFTER_S)},
                )
            self._check_disk()
            trace = spec.content.get("trace")
            if trace is not None:
                self.traces.path(trace)
            job = {
                "schema_version": 1,
                "kind": spec.kind,
                "keep": spec.keep,
                "repeat": spec.repeat,
                "has_secrets": spec.has_secrets,
                "config": spec.shown,
            }
            return self._enqueue(job, spec if spec.has_secrets else None)

    def _enqueue(self, job: dict[str, Any], secret: Spec | None) -> str:
        now = datetime.now(UTC)
        path = new_run_path(self.settings.runs, job["kind"], now)
        job |= {"id": path.name, "created_at": now.isoformat(timespec="microseconds")}
        write_whole(path / JOB, orjson.dumps(job, option=orjson.OPT_INDENT_2))
        if secret is not None:
            self._secret[path.name] = secret
        self._line.append(path.name)
        return path.name

    def has(self, spec: Spec) -> bool:
        """Whether the same is in line or running already."""
        jobs = (read_json(self.folder.path / name / JOB) for name in (*self._line, *self._running))
        return any((job.get("kind"), job.get("config")) == (spec.kind, spec.shown) for job in jobs)

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self._existing(self.settings.runs)).free
        if free < _LEAST_FREE_BYTES:
            raise Refusal(507, "the disk is nearly full; remove runs, or raise its size")
        used = sum(row.bytes for row in self.folder.rows())
        if used > self.settings.flags.max_disk_gib * 2**30:
            raise Refusal(
                507, "runs take all of max_disk_gib, and none may be pruned; remove or release some"
            )

    @staticmethod
    def _existing(path: Path) -> Path:
        return next(
            parent for parent in (path.resolve(), *path.resolve().parents) if parent.exists()
        )

    def stop(self, run_id: str) -> State:
        """Once: leave the line, or send nothing more; again: cut off. Raises Refusal."""
        with self._lock:
            row = self.folder.row(run_id)
            if row is None:
                raise Refusal(404, "no such run")
            if run_id in self._line:
                self._line.remove(run_id)
                self._secret.pop(run_id, None)
                self._over(run_id, State.STOPPED, "stopped before its turn")
                return State.STOPPED
            if row.state.has_ended or run_id not in self._running:
                raise Refusal(
                    409,
                    "it has ended"
                    if row.state.has_ended
                    else "the service did not start it; stop it where it was started",
                )
            if (stop := self._stops.get(run_id)) is None:
                now_s = monotonic()
                self._stops[run_id] = _Stop(now_s, now_s + self.settings.flags.drain)
                process.interrupt(self.folder.path / run_id)
            else:
                stop.cut_at_s = stop.asked_at_s + _BETWEEN_SIGNALS_S
            return State.RUNNING

    def _cut(self, run_id: str, stop: _Stop) -> None:
        if not stop.is_cut:
            stop.is_cut, stop.kill_at_s = True, monotonic() + KILL_AFTER_S
            process.interrupt(self.folder.path / run_id)

    def keep(self, run_id: str, *, keep: bool) -> None:
        """Whether a run is kept from pruning; raises Refusal."""
        path = self.folder.directory(run_id)
        job = {} if path is None else read_json(path / JOB)
        if path is None or not job:
            raise Refusal(404, "no such run of the service")
        write_whole(path / JOB, orjson.dumps(job | {"keep": keep}, option=orjson.OPT_INDENT_2))

    def tick(self) -> None:
        """Do what is due."""
        with self._lock:
            for run_id, child in list(self._running.items()):
                path = self.folder.path / run_id
                if child.has_ended if child is not None else not is_held(path / LOCK):
                    self._ended(run_id, child)
                elif (stop := self._stops.get(run_id)) is not None:
                    if monotonic() >= stop.kill_at_s:
                        process.kill(self.folder.path / run_id)
                    elif monotonic() >= stop.cut_at_s:
                        self._cut(run_id, stop)
            if not self._running and self._line and monotonic() >= self._next_start_s:
                self._start(self._line.pop(0))

    def _start(self, run_id: str) -> None:
        path = self.folder.path / run_id
        job = read_json(path / JOB)
        spec = self._secret.get(run_id)
        if not job.get("repeat"):
            self._secret.pop(run_id, None)
        if not job:  # removed while it waited
            return
        if spec is None and job["has_secrets"]:
            self._over(run_id, State.FAILED, _LOST_SECRETS)
            return
        content: dict[str, Any] = dict(job["config"] if spec is None else spec.content)
        try:
            if content.get("trace") is not None:
                content["trace"] = str(self.traces.path(content["trace"]))
            key = self._key_of(spec, content)
            self._running[run_id] = process.start(
                path,
                KINDS[job["kind"]].words,
                orjson.dumps(content),
                process.environment_of_child(self._environment, self.settings.allowed_text, key),
            )
        except (Refusal, OSError) as error:
            self._running.pop(run_id, None)
            self._over(run_id, State.FAILED, f"could not be started: {error}")

    def _key_of(self, spec: Spec | None, content: dict[str, Any]) -> str | None:
        """The run's key; the command takes it under one name, whatever it is called here."""
        request = dict(content.get("request", {}))
        name = request.pop("api_key_env", None)
        if name is not None:
            content["request"] = request
            return self._environment.get(name)
        return None if spec is None else spec.api_key

    def _ended(self, run_id: str, child: process.Child | None) -> None:
        path = self.folder.path / run_id
        del self._running[run_id]
        stop = self._stops.pop(run_id, None)
        if read_json(path / LIVE).get("state") != "ended":
            code = None if child is None else child.process.returncode
            last = tail_of(path / LOG).strip().rpartition("\n")[2].removeprefix("loadgen: ")
            if stop is not None:
                had_begun = (path / HEADER).exists() or (path / SEARCH).exists()
                why = "did not end when it was cut off" if had_begun else "had not begun to send"
                self._over(run_id, State.STOPPED, why)
            elif code in (1, 2):
                self._over(run_id, State.FAILED, last or f"ended with code {code}")
            else:
                self._over(run_id, State.INTERRUPTED, last or "its process was killed")
        if child is not None:
            child.release()
        self._next_start_s = monotonic() + self.settings.flags.rest
        self.prune()
        self._repeat(run_id)

    def _repeat(self, run_id: str) -> None:
        """What repeats goes to the end of the line again, unless somebody stopped it."""
        path = self.folder.path / run_id
        job, row = read_json(path / JOB), read_row(path)
        secret = self._secret.pop(run_id, None)
        if not job.get("repeat") or row is None or row.state is State.STOPPED:
            return
        self._enqueue(job, secret)

    def _over(self, run_id: str, state: State, error: str) -> None:
        over = {"state": str(state), "error": error, "at": datetime.now(UTC).isoformat()}
        write_whole(self.folder.path / run_id / OVER, orjson.dumps(over))

    def prune(self) -> list[Row]:
        """Remove the oldest runs that are too many; returns them."""
        flags = self.settings.flags
        gone = to_prune(self.folder.rows(), flags.keep_runs, flags.max_disk_gib * 2**30)
        for row in gone:
            remove(self.folder.path / row.id)
        return gone
