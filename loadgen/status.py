"""A run as it goes on, in files of its directory: for whoever watches it from another process.

    live.json      how far it is now, four times a second; at its end its exit code and its error
    live.jsonl     the course of it, one line a second at first, ever fewer later
    metrics.prom   what `--metrics-port` would serve, once a second

It reads what the exporter shows, on a thread of the parent's process: the workers that measure
never see it. A run that was killed leaves a `live.json` that has not ended. It keeps no figure.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from prometheus_client import CollectorRegistry, generate_latest

from loadgen.clock import monotonic
from loadgen.errors import LoadgenError, RunDirectoryError
from loadgen.exporter import Exporter
from loadgen.journal import HEADER, write_whole
from loadgen.live import LATENCY_BOUNDS_S, LiveCounters
from loadgen.machine import this_process
from loadgen.search_files import SEARCH

LIVE: Final = "live.json"
COURSE: Final = "live.jsonl"
METRICS: Final = "metrics.prom"
EVERY_S: Final = 0.25
_METRICS_EVERY_S: Final = 1.0
_RECENT: Final = 8
"""Looks over which rates and recent latencies are told: two seconds."""
_COURSE_S: Final = 1.0
_COURSE_SLOWS_S: Final = 300.0
"""The course has a line every max(1, elapsed / 300) s: a week has some 2,600 of them."""


class StatusFile:
    """Writes `live.json` into `path`, from `began` to `ended`."""

    def __init__(self, path: Path, exporter: Exporter) -> None:
        self._path = path
        self._exporter = exporter
        self._registry = CollectorRegistry()
        self._registry.register(exporter)
        self._run_id: str | None = None
        self._began_s: float | None = None
        self._was_active = False
        self._recent: dict[str, deque[tuple[float, LiveCounters]]] = {}
        self._next_metrics_s = 0.0
        self._next_course_s = 0.0
        self._state: dict[str, Any] = {
            "schema_version": 1,
            "state": "starting",
            "process": this_process(),
        }
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, daemon=True, name="status")

    def begin(self) -> None:
        self._write()
        self._thread.start()

    def end(self, exit_code: int, error: str | None = None) -> None:
        """Write the outcome; nothing is written after it."""
        self._is_over.set()
        self._thread.join()
        self._look(monotonic(), is_last=True)
        self._state |= {"state": "ended", "exit_code": exit_code, "error": error}
        self._write()

    def _keep_writing(self) -> None:
        while not self._is_over.wait(EVERY_S):
            with suppress(OSError):  # a disk that is full for a moment: the next look tells more
                self._look(monotonic())
                self._write()

    def _write(self) -> None:
        self._state |= {"at": round(time.time(), 3)}
        write_whole(self._path / LIVE, orjson.dumps(self._state))

    def _look(self, now_s: float, *, is_last: bool = False) -> None:
        live = self._exporter.newest
        if live is None:
            return
        if self._began_s is None:  # of the first run, where there are several: points of a sweep
            self._began_s = now_s
        if live.run_id != self._run_id:
            self._run_id = live.run_id
            self._recent.clear()
        is_active = live.is_active
        if is_active or self._was_active:
            self._state["elapsed_s"] = round(now_s - self._began_s, 2)
        targets = {
            name: self._target(name, counters, now_s) | {"active": active}
            for name, (counters, active) in live.counters().items()
        }
        self._state |= {
            "state": "running" if is_active else "reporting",
            "run_id": live.run_id,
            "requests": live.requests,
            "targets": targets,
        }
        if (is_active and now_s >= self._next_course_s) or (self._was_active and not is_active):
            elapsed_s: float = self._state["elapsed_s"]
            self._next_course_s = now_s + max(_COURSE_S, elapsed_s / _COURSE_SLOWS_S)
            course = {name: _course(target) for name, target in targets.items()}
            line = {"t": elapsed_s, "targets": course}
            with (self._path / COURSE).open("ab", buffering=0) as file:
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._was_active = is_active
        if now_s >= self._next_metrics_s or is_last:
            self._next_metrics_s = now_s + _METRICS_EVERY_S
            write_whole(self._path / METRICS, generate_latest(self._registry))

    def _target(self, name: str, live: LiveCounters, now_s: float) -> dict[str, Any]:
        recent = self._recent.setdefault(name, deque(maxlen=_RECENT + 1))
        recent.append((now_s, live))
        then_s, before = recent[0]
        passed_s = now_s - then_s
        ttft = live.ttft_s.counts - before.ttft_s.counts
        return {
            "due": live.due,
            "sent": live.sent,
            "in_flight": live.in_flight,
            "done": live.done,
            "failed": live.failed,
            "good": live.good,
            "tokens": live.tokens,
            "outcomes": {str(key): count for key, count in live.outcomes.items() if count},
            "tokens_per_s": round((live.tokens - before.tokens) / passed_s, 1)
            if passed_s
            else None,
            "requests_per_s": round((live.done - before.done) / passed_s, 2) if passed_s else None,
            "ttft_p50_ms": _percentile_ms(ttft, 0.5),
            "ttft_p99_ms": _percentile_ms(ttft, 0.99),
        }


_IN_COURSE: Final = ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "in_flight", "done", "failed")


def _course(target: Mapping[str, Any]) -> dict[str, Any]:
    return {key: target[key] for key in _IN_COURSE}


def _percentile_ms(counts: np.ndarray[Any, Any], share: float) -> float | None:
    """By linear interpolation within a bucket: a picture of the moment, and no result."""
    total = int(counts.sum())
    if total == 0:
        return None
    up_to = np.cumsum(counts)
    bucket = int(np.searchsorted(up_to, share * total))
    if bucket >= len(LATENCY_BOUNDS_S):
        return LATENCY_BOUNDS_S[-1] * 1000
    low = LATENCY_BOUNDS_S[bucket - 1] if bucket else 0.0
    before = int(up_to[bucket - 1]) if bucket else 0
    inside = (share * total - before) / int(counts[bucket])
    return round((low + (LATENCY_BOUNDS_S[bucket] - low) * inside) * 1000, 2)


def make_run_dir(path: Path) -> None:
    """Raises RunDirectoryError where it cannot be made, or holds a run, a sweep or a search."""
    if (path / HEADER).exists():
        raise RunDirectoryError(f"--run-dir: {path} holds a run; give another directory")
    if (path / SEARCH).exists():
        raise RunDirectoryError(
            f"--run-dir: {path} holds a sweep or a search; give another directory, or go on with "
            "it by --resume"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"--run-dir: {path}: {error.strerror}") from None


@contextmanager
def status_in(path: Path | None, exporter: Exporter) -> Iterator[StatusFile | None]:
    """Keep the files of `path` while the context lasts, and the error that ends it, if one does."""
    if path is None:
        yield None
        return
    status = StatusFile(path, exporter)
    status.begin()
    try:
        yield status
    except LoadgenError as error:
        status.end(2, str(error))
        raise
    except KeyboardInterrupt:
        status.end(130, "interrupted")
        raise
    except BaseException as error:
        status.end(1, f"a bug of loadgen ({type(error).__name__}); its log has more")
        raise
