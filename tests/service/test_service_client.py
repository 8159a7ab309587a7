"""Ctrl-C of `run --service`: what it says of a stop is what the service did."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runs.conftest import command
from tests.service.conftest import ENVIRONMENT, Serving, service, wait_until

pytestmark = pytest.mark.slow


@contextmanager
def following(serving: Serving, target: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A client whose run has ended some requests; `log` has what it says."""
    words = ("run", "--service", serving.url, "--base-url", target, "--num-prompts", "2000")
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command(*words, "--request-rate", "20", "--output-len", "5"),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env=ENVIRONMENT,
        ) as process,
    ):
        try:
            wait_until(lambda: "is in line" in log.read_text(), "the run is in line", 30)
            serving.wait_for_records(run_of(log), 3)
            yield process
        finally:
            process.kill()


def run_of(log: Path) -> str:
    """The id of the client's run."""
    return log.read_text().splitlines()[0].split()[1]


def said_after(log: Path, word: str) -> str:
    """The line that has this word, once it is there."""
    wait_until(lambda: word in log.read_text(), f"it says {word!r}", 30)
    return next(line for line in log.read_text().splitlines() if word in line)


def test_ctrl_c_leaves_a_service_that_is_gone(quick: str, tmp_path: Path) -> None:
    """The first says that nothing was stopped, and why; the next ends the client, not the run."""
    log = tmp_path / "client.log"
    with (
        service(tmp_path / "runs") as serving,
        following(serving, quick, log) as process,
    ):
        run_id = run_of(log)
        try:
            serving.end(signal.SIGKILL)
            process.send_signal(signal.SIGINT)
            said = said_after(log, "not stopped")
            assert "does not answer" in said
            assert run_id in said
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
            assert f"{run_id} goes on" in log.read_text()
            assert "stopping" not in log.read_text()
            assert serving.get_file(run_id, "live.json")["state"] == "running"
        finally:
            os.killpg(serving.pid_of(run_id), signal.SIGKILL)


def test_ctrl_c_waits_no_minute_for_a_service_that_hangs(quick: str, tmp_path: Path) -> None:
    """One that takes the connection and does not answer is given up within seconds."""
    log = tmp_path / "client.log"
    with (
        service(tmp_path / "runs") as serving,
        following(serving, quick, log) as process,
    ):
        run_id = run_of(log)
        try:
            serving.process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            begun_s = time.monotonic()
            assert "timed out" in said_after(log, "not stopped")
            assert time.monotonic() - begun_s < 15
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
        finally:
            serving.end(signal.SIGKILL)
            os.killpg(serving.pid_of(run_id), signal.SIGKILL)


def test_ctrl_c_stops_a_run(serving: Serving, quick: str, tmp_path: Path) -> None:
    """A service that takes it ends the run, and the client with it."""
    log = tmp_path / "client.log"
    with following(serving, quick, log) as process:
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again cuts off" in said_after(log, "stopping")
        assert process.wait(timeout=30) == 130
    assert serving.get(run_of(log))["state"] == "stopped"
