"""Stops that take effect whatever else fails, and a status that goes on after a full disk."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen import status
from loadgen.errors import RunDirectoryError
from loadgen.exporter import Exporter
from loadgen.progress import Progress
from loadgen.run import Conductor
from loadgen.status import LIVE, StatusFile
from loadgen.workers import _Member


class _Full:
    """An event log on a disk that is full."""

    def stopped(self, reason: str) -> None:
        raise RunDirectoryError("events.jsonl: No space left on device")


class _Drained:
    """Workers that remember what they were told."""

    is_drained = False

    def drain(self) -> None:
        self.is_drained = True


def test_a_stop_that_cannot_be_written_down_holds_all_the_same() -> None:
    """A full disk or a closed standard error keeps no hard stop from reaching the workers."""
    read, write = os.pipe()
    os.close(read)
    closed = os.fdopen(write, "w")
    workers: Any = _Drained()
    log: Any = _Full()
    nothing: Any = None
    conductor = Conductor(nothing, [workers], log, Progress(closed), nothing, 0.0)
    conductor._stop("--max-duration 3: the time is up")
    assert workers.is_drained
    with pytest.raises(BrokenPipeError):
        closed.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_loads_takes_no_signal(number: signal.Signals) -> None:
    """A terminal's Ctrl-C, or a supervisor's SIGTERM to all, is the parent's from the start."""

    async def start_and_signal() -> int | None:
        member = _Member(0)
        for _ in range(5):
            member.process.send_signal(number)
            await asyncio.sleep(0.01)
        member.hang_up()
        await member.leave()
        return member.process.poll()

    assert asyncio.run(start_and_signal()) == 0


def test_the_status_goes_on_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails is one look that is missing; the next ones are there."""
    whole, tried = status.write_whole, []

    def full_for_a_moment(path: Path, data: bytes) -> None:
        tried.append(orjson.loads(data)["at"])
        if 1 < len(tried) < 4:
            raise OSError(28, "No space left on device")
        whole(path, data)

    monkeypatch.setattr(status, "write_whole", full_for_a_moment)
    monkeypatch.setattr(status, "EVERY_S", 0.01)
    file = StatusFile(tmp_path, Exporter())
    file.begin()
    first = orjson.loads((tmp_path / LIVE).read_bytes())["at"]
    for _ in range(1000):
        if len(tried) > 10:
            break
        file._is_over.wait(0.01)
    assert orjson.loads((tmp_path / LIVE).read_bytes())["at"] >= tried[4] > first
    file.end(0)
