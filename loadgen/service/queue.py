"""One run at a time, and others in line: two that measure at once would spoil each other's numbers.

The line is the folder's queued runs, by the time they were asked for, so it survives a restart;
what a run must not have on disk (a key) waits in memory and is lost with it. `tick` does everything
that time does: it sees ends, starts the next, cuts off what does not drain, prunes; what goes wrong
with one run ends that run, and never the line. Runs that the command line starts beside the service
are listed, and not waited for. It knows no HTTP.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.archive import read_object
from loadgen.clock import monotonic
from loadgen.journal import HEADER, JOB, new_run_path, write_whole
from loadgen.locks import is_held
from loadgen.search_files import SEARCH
from loadgen.service import process
from loadgen.service.refusal import Refusal
from loadgen.service.runs import (
    LOCK,
    LOG,
    OVER,
    Folder,
    Row,
    State,
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
_FIRST_RETRY_S: Final = 10.0
_LONGEST_RETRY_S: Final = 3600.0
"""What repeats and fails waits from the first up to the second, twice as long each time."""
_LEAST_FREE_BYTES: Final = 256 * 2**20
_LOST_SECRETS: Final = (
    "its key or another secret was given once and is not kept: the service was started anew before "
    "its turn came; start it again"
)
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A run in line, or whose turn it is."""

    id: str
    spec: Spec | None = None
    """What it must not have on disk; None where there is nothing, or it was lost."""
    not_before_s: float = 0.0
    child: process.Child | None = None
    """None before its turn, and of a run that an earlier service started."""
    asked_at_s: float | None = None
    """When it was asked to stop."""
    cut_at_s: float = float("inf")
    kill_at_s: float = float("inf")
    is_cut: bool = False


class Queue:
    """The line, and the run whose turn it is."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings
        self.folder = Folder(settings.runs)
        self.traces = Traces(settings)
        self.ticked_at_s = monotonic()
        """When `tick` last came to its end."""
        self._environment = environment
        self._line: list[_Entry] = []
        self._running: dict[str, _Entry] = {}
        self._last: str | None = None  # the run that ended last, which is not pruned
        self._next_start_s = 0.0
        self._lock = threading.RLock()  # each public method is whole, whichever thread calls it

    def recover(self) -> None:
        """Find what an earlier service left: who waits, who still runs, and what is to repeat."""
        with self._lock:
            self.traces.remove_partial()
            rows = self.folder.rows()
            for row in reversed(rows):
                if not row.is_ours:
                    continue
                if row.state is State.QUEUED:
                    self._line.append(_Entry(row.id))
                elif row.state is State.RUNNING:
                    # A search that the command line resumed is running, and holds no such lock.
                    if is_held(self.folder.path / row.id / LOCK):
                        entry = _Entry(row.id)
                        if self._job(row.id).get("is_asked_to_stop"):
                            self._cut_later(entry)
                        self._runs(entry)
                else:
                    self._last = row.id
            _tried("runs that repeat", partial(self._resume, rows))
            _tried("pruning", self.prune)

    def _resume(self, rows: list[Row]) -> None:
        """What repeats and ended while there was no service goes to the end of the line again."""
        seen = set()
        for row in rows:
            if not row.is_ours or not row.repeat:
                continue
            job = self._job(row.id)
            same = orjson.dumps([job.get("kind"), job.get("config")], option=orjson.OPT_SORT_KEYS)
            if same not in seen and row.state.has_ended:  # the newest of its like has ended
                self._repeat(_Entry(row.id))
            seen.add(same)

    @property
    def waiting(self) -> list[str]:
        """Ids in line, the next one first."""
        return [entry.id for entry in self._line]

    def traces_in_use(self) -> set[str]:
        """Those that runs in line need, and the one that runs."""
        with self._lock:
            ids = [*self.waiting, *self._running]
        configs = (self._job(run_id).get("config") for run_id in ids)
        found = (config.get("trace") for config in configs if isinstance(config, dict))
        return {trace for trace in found if isinstance(trace, str)}

    def _job(self, run_id: str) -> dict[str, Any]:
        return read_object(self.folder.path / run_id / JOB)

    def _write_job(self, run_id: str, job: Mapping[str, Any]) -> None:
        data = orjson.dumps(job, option=orjson.OPT_INDENT_2)
        write_whole(self.folder.path / run_id / JOB, data)

    def add(self, spec: Spec) -> str:
        """Put a run in line and return its id; raises Refusal where there is no place for it."""
        with self._lock:
            if len(self._line) >= self.settings.flags.max_queue:
                raise Refusal(
                    429,
                    f"{len(self._line)} runs wait already; stop one, or come again later",
                    {"Retry-After": str(RETRY_AFTER_S)},
                )
            self.prune()
            self._check_disk()
            trace = spec.content.get("trace")
            if trace is not None:
                self.traces.path(trace)
            shown = spec.shown
            has_secrets = spec.api_key is not None or shown != spec.content
            job = {
                "schema_version": 1,
                "kind": spec.kind,
                "keep": spec.keep,
                "repeat": spec.repeat,
                "has_secrets": has_secrets,
                "config": shown,
            }
            try:
                return self._enqueue(job, spec if has_secrets else None)
            except OSError as error:
                raise Refusal(507, f"the run cannot be written: {error.strerror}") from None

    def _enqueue(self, job: Mapping[str, Any], spec: Spec | None, wait_s: float = 0.0) -> str:
        now = datetime.now(UTC)
        path = new_run_path(self.settings.runs, job["kind"], now)
        created_at = now.isoformat(timespec="microseconds")
        try:
            self._write_job(path.name, {**job, "id": path.name, "created_at": created_at})
        except OSError:
            remove(path)
            raise
        self._line.append(_Entry(path.name, spec, monotonic() + wait_s))
        return path.name

    def ensure(self, spec: Spec) -> None:
        """Put a run in line, unless the same waits or runs already; of that, what is not on disk is
        known again. Raises Refusal."""
        with self._lock:
            for entry in (*self._line, *self._running.values()):
                job = self._job(entry.id)
                if (job.get("kind"), job.get("config")) == (spec.kind, spec.shown):
                    entry.spec = spec
                    return
            self.add(spec)

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self._existing(self.settings.runs)).free
        if free < _LEAST_FREE_BYTES:
            raise Refusal(507, "the disk is nearly full; remove runs, or raise its size")
        rows = self.folder.rows()
        used = sum(row.bytes for row in rows if row.is_ours and row.id != self._last)
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
            waiting = next((entry for entry in self._line if entry.id == run_id), None)
            if waiting is not None:
                self._over(run_id, State.STOPPED, "stopped before its turn")
                self._line.remove(waiting)
                return State.STOPPED
            entry = self._running.get(run_id)
            if row.state.has_ended or entry is None:
                raise Refusal(
                    409,
                    "it has ended"
                    if row.state.has_ended
                    else "the service did not start it; stop it where it was started",
                )
            if entry.asked_at_s is None:
                _tried(run_id, partial(self._repeats_no_more, run_id))
                _tried(run_id, partial(self._note_stop, run_id))
                self._cut_later(entry)
                process.interrupt(self.folder.path / run_id)
            else:
                entry.cut_at_s = entry.asked_at_s + _BETWEEN_SIGNALS_S
            return State.RUNNING

    def _note_stop(self, run_id: str) -> None:
        """Written down, because a service that is started meanwhile must cut it off in its time."""
        self._write_job(run_id, self._job(run_id) | {"is_asked_to_stop": True})

    def _cut_later(self, entry: _Entry) -> None:
        entry.asked_at_s = monotonic()
        entry.cut_at_s = entry.asked_at_s + self.settings.flags.drain

    def keep(self, run_id: str, *, keep: bool) -> None:
        """Whether a run is kept from pruning; raises Refusal."""
        with self._lock:
            job = {} if self.folder.directory(run_id) is None else self._job(run_id)
            if not job:
                raise Refusal(404, "no such run of the service")
            self._write_job(run_id, job | {"keep": keep})

    def tick(self) -> None:
        """Do what is due."""
        with self._lock:
            for entry in list(self._running.values()):
                self._safely(entry, self._look_after)
            now_s = monotonic()
            if not self._running and now_s >= self._next_start_s:
                due = next((entry for entry in self._line if now_s >= entry.not_before_s), None)
                if due is not None:
                    self._line.remove(due)
                    self._safely(due, self._start)
            self.ticked_at_s = monotonic()

    def _safely(self, entry: _Entry, act: Callable[[_Entry], None]) -> None:
        """What fails ends this run, and never the line."""
        try:
            act(entry)
        except Exception as error:  # noqa: BLE001 - the others' turns must come, whatever this was
            _log.exception("%s", entry.id)
            with suppress(OSError):
                process.kill(self.folder.path / entry.id)
            why = f"the service could not go on with it: {error!r}; its log has more"
            self._finish(entry, State.FAILED, why)

    def _look_after(self, entry: _Entry) -> None:
        path = self.folder.path / entry.id
        child = entry.child
        if child.has_ended if child is not None else not is_held(path / LOCK):
            self._finish(entry, *self._end_of(entry))
        elif monotonic() >= entry.kill_at_s:
            process.kill(path)
        elif monotonic() >= entry.cut_at_s and not entry.is_cut:
            entry.is_cut, entry.kill_at_s = True, monotonic() + KILL_AFTER_S
            process.interrupt(path)

    def _start(self, entry: _Entry) -> None:
        path = self.folder.path / entry.id
        job = self._job(entry.id)
        if not job:  # removed while it waited
            return
        if entry.spec is None and job["has_secrets"]:
            self._finish(entry, State.FAILED, _LOST_SECRETS)
            return
        _tried("pruning", self.prune)
        content: dict[str, Any] = dict(job["config"] if entry.spec is None else entry.spec.content)
        try:
            self._check_disk()
            if content.get("trace") is not None:
                content["trace"] = str(self.traces.path(content["trace"]))
            key = self._key_of(entry.spec, content)
            entry.child = process.start(
                path,
                KINDS[job["kind"]].words,
                orjson.dumps(content),
                process.environment_of_child(self._environment, self.settings.allowed_text, key),
            )
        except (Refusal, OSError) as error:
            self._finish(entry, State.FAILED, f"could not be started: {error}")
        else:
            self._runs(entry)

    def _runs(self, entry: _Entry) -> None:
        self._running[entry.id] = entry
        self.folder.running.add(entry.id)

    def _key_of(self, spec: Spec | None, content: dict[str, Any]) -> str | None:
        """The run's key; the command takes it under one name, whatever it is called here."""
        request = dict(content.get("request", {}))
        name = request.pop("api_key_env", None)
        if name is not None:
            content["request"] = request
            return self._environment.get(name)
        return None if spec is None else spec.api_key

    def _end_of(self, entry: _Entry) -> tuple[State | None, str]:
        """How a run ended that could not say so itself, and why; None where it did."""
        path = self.folder.path / entry.id
        if read_object(path / LIVE).get("state") == "ended":
            return None, ""
        code = None if entry.child is None else entry.child.process.returncode
        last = tail_of(path / LOG).strip().rpartition("\n")[2].removeprefix("loadgen: ")
        if entry.asked_at_s is not None:
            had_begun = (path / HEADER).exists() or (path / SEARCH).exists()
            why = "did not end when it was cut off" if had_begun else "had not begun to send"
            return State.STOPPED, why
        if code in (1, 2):
            return State.FAILED, last or f"ended with code {code}"
        return State.INTERRUPTED, last or "its process was killed"

    def _finish(self, entry: _Entry, state: State | None, error: str) -> None:
        """The end of a turn, however it came; each step is taken whatever became of the others."""
        self._running.pop(entry.id, None)
        self._last = entry.id
        self._next_start_s = monotonic() + self.settings.flags.rest
        if state is not None:
            _tried(entry.id, partial(self._over, entry.id, state, error))
        if entry.child is not None:
            _tried(entry.id, entry.child.release)
        self.folder.running.discard(entry.id)
        _tried("pruning", self.prune)
        _tried(entry.id, partial(self._repeat, entry))

    def _repeat(self, entry: _Entry) -> None:
        """What repeats goes to the end of the line again, unless somebody stopped it or its secrets
        are lost; the more often it failed, the later."""
        job, row = self._job(entry.id), self.folder.row(entry.id)
        if not job.get("repeat") or job.get("is_over") or row is None or row.state is State.STOPPED:
            return
        if job["has_secrets"] and entry.spec is None:
            _log.warning("%s: is not repeated: %s", entry.id, _LOST_SECRETS)
            return
        failures = 0 if row.state is State.FINISHED else int(job.get("failures", 0)) + 1
        wait_s = min(_FIRST_RETRY_S * 2.0 ** min(failures - 1, 20), _LONGEST_RETRY_S)
        again = {**job, "keep": False, "failures": failures}
        self._enqueue(again, entry.spec, wait_s if failures else 0.0)
        self._repeats_no_more(entry.id)

    def _repeats_no_more(self, run_id: str) -> None:
        """Written down, because a service that is started later must not repeat it."""
        job = self._job(run_id)
        if job.get("repeat"):
            self._write_job(run_id, job | {"is_over": True})

    def _over(self, run_id: str, state: State, error: str) -> None:
        over = {"state": str(state), "error": error, "at": datetime.now(UTC).isoformat()}
        write_whole(self.folder.path / run_id / OVER, orjson.dumps(over))

    def prune(self) -> None:
        """Remove the oldest runs that are too many."""
        flags = self.settings.flags
        most_bytes = flags.max_disk_gib * 2**30
        for row in to_prune(self.folder.rows(), flags.keep_runs, most_bytes, self._last):
            remove(self.folder.path / row.id)


def _tried(what: str, step: Callable[[], object]) -> None:
    """Take a step that must not keep others from being taken."""
    try:
        step()
    except Exception:  # noqa: BLE001 - a full disk, or odd files: the log says which
        _log.exception("%s", what)
