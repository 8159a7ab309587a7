"""The instrument measured with itself: this machine's ceiling and error, against the truth server.

The truth server (`truth.py`) runs beside it and stamps its send time into each chunk, so the
client's error is known event by event. Both share the machine, so ceilings are given per second of
the *client's* processor time: what one worker with a core of its own would hold. The result is
stored, and a run's header carries it (`ceiling.py`). It knows no target but the truth server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen import ceiling
from loadgen.archive import Run, read_run
from loadgen.config import RunConfig
from loadgen.errors import LoadgenError
from loadgen.progress import Progress
from loadgen.record import RequestRecord
from loadgen.run import run

_TOKENS: Final = 64
_READY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement: what the truth server does, and what is asked of it."""

    requests: int
    rate: float | None
    """Arrivals a second of an open loop with exponential gaps; None: a closed loop."""
    streams: int | None = None
    """Width of the closed loop."""
    tokens: int = _TOKENS
    ttft_ms: float = 100.0
    itl_ms: float = 20.0
    workers: int = 1
    stamps: bool = False
    """Keep the truth's stamps, so that errors are known; it costs a little."""
    transport: str = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a load; errors are client minus truth, in milliseconds."""

    requests: int
    failures: int
    events: int
    wall_s: float
    cpu_s: float
    """Of all workers."""
    truth_cpu_share: float
    lag_p99_ms: float
    loop_lag_p99_ms: float
    rate_achieved: float | None
    """Sent rate / asked rate."""
    ttft_err_p50_ms: float | None
    ttft_err_p99_ms: float | None
    chunk_err_p50_ms: float | None
    chunk_err_p99_ms: float | None

    @property
    def events_per_s(self) -> float:
        return self.events / self.wall_s

    @property
    def cpu_us_per_event(self) -> float:
        return 1e6 * self.cpu_s / self.events

    @property
    def cpu_us_per_request(self) -> float:
        return 1e6 * self.cpu_s / self.requests


def check(progress: Progress) -> dict[str, Any]:
    """Measure this machine in under 20 s; the result is what `ceiling.save` keeps.

    Raises KeyboardInterrupt if stopped: a part of it is no result.
    """
    progress.say("error: 150 requests/s of 64 tokens, about 10,000 events/s")
    error = measure(Load(requests=450, rate=150.0, stamps=True))
    progress.say("ceiling for streams: 500 at once, a chunk each 20 ms")
    streams = measure(Load(requests=1000, rate=None, streams=500))
    progress.say("ceiling for requests: 200 at once, of 4 tokens")
    requests = measure(
        Load(requests=4000, rate=None, streams=200, tokens=4, ttft_ms=2.0, itl_ms=1.0)
    )
    cores = len(os.sched_getaffinity(0))
    events_per_worker = round(1e6 / streams.cpu_us_per_event)
    requests_per_worker = round(1e6 / requests.cpu_us_per_request)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": ceiling.key(),
        "cores": cores,
        "events_per_s_per_worker": events_per_worker,
        "events_per_s_in_all": events_per_worker * cores,
        "requests_per_s_per_worker": requests_per_worker,
        "requests_per_s_in_all": requests_per_worker * cores,
        "ttft_err_p50_ms": error.ttft_err_p50_ms,
        "ttft_err_p99_ms": error.ttft_err_p99_ms,
        "chunk_err_p50_ms": error.chunk_err_p50_ms,
        "chunk_err_p99_ms": error.chunk_err_p99_ms,
        "lag_p99_ms": error.lag_p99_ms,
        "failures": error.failures + streams.failures + requests.failures,
        "loads": {
            "error": asdict(error),
            "streams": asdict(streams),
            "requests": asdict(requests),
        },
    }


def measure(load: Load) -> Measured:
    """Put one load on a truth server of its own, and read what the records say.

    Raises KeyboardInterrupt if stopped.
    """
    scratch_directory = tempfile.TemporaryDirectory(prefix="loadgen-selfcheck-")
    with scratch_directory as scratch, truth_server(load) as url:
        finished = asyncio.run(run(_config(load, url, Path(scratch)), [], Progress(quiet=True)))
        if finished.was_interrupted:
            raise KeyboardInterrupt
        stats = _truth_stats(url)
        return _read(load, read_run(finished.path), stats["cpu_s"])


def _config(load: Load, url: str, scratch: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "targets": [{"name": "truth", "base_url": url}],
            "generate": {
                "num_prompts": load.requests,
                "request_rate": load.rate or "inf",
                "arrival": "exponential",
                "input_len": 20,
                "output_len": load.tokens,
            },
            "request": {"keep_text": load.stamps, "transport": load.transport},
            "load": {
                "closed_loop": load.rate is None,
                "max_concurrency": load.streams,
                "workers": load.workers,
                "num_warmups": 2,
            },
            "output": {"result_dir": scratch},
        }
    )


def truth_process(*flags: str) -> AbstractContextManager[str]:
    """A truth server with these flags as a process of its own; its URL."""
    return server_process("the truth server", "loadgen.truth", *flags)


@contextmanager
def server_process(name: str, module: str, *words: str) -> Iterator[str]:
    """A Python module as a process of its own that prints its URL first; raises LoadgenError.

    A terminal's Ctrl-C does not reach it: it serves until the context ends.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise LoadgenError(f"{name} did not start; its error is above")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def truth_server(load: Load) -> AbstractContextManager[str]:
    """A truth server that stamps its text; its URL."""
    return truth_process(
        *("--stamp", "text", "--ttft-ms", str(load.ttft_ms), "--itl-ms", str(load.itl_ms))
    )


def _truth_stats(url: str) -> dict[str, Any]:
    from loadgen.client.http import httpx

    stats: dict[str, Any] = httpx.get(f"{url}/stats", trust_env=False).json()
    return stats


def _read(load: Load, done: Run, truth_cpu_s: float) -> Measured:
    records = list(done.of_target("truth"))
    good = [record for record in records if record.is_ok]
    wall_s = max(h.wall_s for h in done.health)
    ttft_ms, chunk_ms = _errors_ms(good, done.epoch_s or 0.0) if load.stamps else ([], [])
    lags_ms = [1e3 * record.schedule_lag_s for record in records]
    asked, sent = (_span([getattr(r, name) for r in records]) for name in ("due_s", "start_s"))
    return Measured(
        requests=len(records),
        failures=len(records) - len(good),
        events=sum(h.chunks for h in done.health),
        wall_s=wall_s,
        cpu_s=sum(h.cpu_s for h in done.health),
        truth_cpu_share=truth_cpu_s / wall_s,
        lag_p99_ms=_percentile(lags_ms, 99) or 0.0,
        loop_lag_p99_ms=max(1e3 * h.loop_lag_p99_s for h in done.health),
        rate_achieved=asked / sent if load.rate is not None else None,
        ttft_err_p50_ms=_percentile(ttft_ms, 50),
        ttft_err_p99_ms=_percentile(ttft_ms, 99),
        chunk_err_p50_ms=_percentile(chunk_ms, 50),
        chunk_err_p99_ms=_percentile(chunk_ms, 99),
    )


def _errors_ms(records: Sequence[RequestRecord], epoch_s: float) -> tuple[list[float], list[float]]:
    """(errors of each first chunk, errors of every chunk): arrival minus the truth's stamp."""
    first: list[float] = []
    every: list[float] = []
    for record in records:
        stamps = [float(word) for word in (record.text or "").split()]
        errors = [
            1e3 * (at_s + epoch_s - stamp)
            for at_s, stamp in zip(record.chunk_s, stamps, strict=True)
        ]
        first.append(errors[0])
        every += errors
    return first, every


def _span(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _percentile(values: Sequence[float], percentile: float) -> float | None:
    return round(float(np.percentile(values, percentile)), 4) if values else None
