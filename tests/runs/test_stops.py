"""Ctrl-C once and twice, kills of loadgen and of a worker: nothing finished is lost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.conftest import (
    ENVIRONMENT,
    Finished,
    call,
    children_of,
    command,
    lines_of,
    records_of,
    truth,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slow_server() -> Iterator[str]:
    """Answers take 20 ms and then 100 ms for each of their tokens."""
    with truth("--ttft-ms", "20", "--itl-ms", "100") as url:
        yield url


class Running:
    """A run of 2,000 requests at 100 a second in two workers, some of which have ended."""

    def __init__(self, url: str, results: Path) -> None:
        self.results = results
        self.process = subprocess.Popen(
            command(
                *("run", "--base-url", url, "--num-prompts", "2000", "--request-rate", "100"),
                *("--output-len", "10", "--workers", "2", "--json"),
                *("--result-dir", str(results)),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        while not any(lines_of(path) > 20 for path in self._paths()):
            assert self.process.poll() is None, self.process.communicate()[1]

    def _paths(self) -> list[Path]:
        return list(self.results.iterdir()) if self.results.exists() else []

    @property
    def path(self) -> Path:
        (path,) = self._paths()
        return path

    def workers(self) -> list[int]:
        return children_of(self.process.pid)

    def ended(self) -> Finished:
        stdout, stderr = self.process.communicate(timeout=60)
        return Finished(self.process.returncode, stdout, stderr)


@pytest.fixture
def running(slow_server: str, tmp_path: Path) -> Iterator[Running]:
    run = Running(slow_server, tmp_path / "runs")
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.communicate()


def test_ctrl_c_once_drains(running: Running) -> None:
    """Nothing more is sent, what is in flight ends well, and there is a report; exit code 130."""
    running.process.send_signal(signal.SIGINT)
    done = running.ended()
    assert done.code == 130
    target = done.summary["targets"]["target"]
    assert 0 < target["requests"] < 2000
    assert set(target["outcomes"]) <= {"ok", "dropped"}
    assert "interrupted" in done.summary["stopped"]
    assert (running.path / "report.html").exists()


def test_ctrl_c_twice_cuts_off(running: Running) -> None:
    """What is in flight ends as cancelled, at once, each with its record."""
    running.process.send_signal(signal.SIGINT)
    assert running.process.stderr is not None
    while "interrupted" not in running.process.stderr.readline():
        pass
    running.process.send_signal(signal.SIGINT)
    done = running.ended()
    assert done.code == 130
    outcomes = done.summary["targets"]["target"]["outcomes"]
    assert outcomes["ok"] > 0
    assert outcomes["cancelled"] > 0
    assert set(outcomes) <= {"ok", "cancelled", "dropped"}
    assert len(records_of(running.path)) == sum(outcomes.values())


def test_ctrl_c_in_a_terminal_reaches_the_workers_too(slow_server: str, tmp_path: Path) -> None:
    """A terminal signals the whole group: the workers leave it to the parent, and drain."""
    run = Running(slow_server, tmp_path / "runs")
    for pid in (*run.workers(), run.process.pid):
        os.kill(pid, signal.SIGINT)
    done = run.ended()
    assert done.code == 130
    assert set(done.summary["targets"]["target"]["outcomes"]) <= {"ok", "dropped"}


def test_a_killed_parent_loses_no_finished_record(running: Running) -> None:
    """After kill -9 the workers end too, and `report` reads every record that was finished."""
    workers = running.workers()
    running.process.kill()
    running.process.communicate()
    for pid in workers:
        _wait_gone(pid)
    finished = lines_of(running.path)
    assert finished > 20
    done = call("report", str(running.path), "--json")
    assert done.code in (0, 4)
    target = done.summary["targets"]["target"]
    assert target["requests"] == len(records_of(running.path)) >= finished - 1
    assert "unfinished" in {reason["rule"] for reason in done.summary["reasons"]}


def test_a_killed_worker_ends_the_run_and_loses_no_finished_record(running: Running) -> None:
    """The other worker drains, the results say which one was lost, and what it had is kept."""
    victim = running.workers()[0]
    before = lines_of(running.path)
    os.kill(victim, signal.SIGKILL)
    done = running.ended()
    assert done.code == 4
    assert "worker" in done.summary["stopped"]
    target = done.summary["targets"]["target"]
    assert target["requests"] == len(records_of(running.path))
    assert lines_of(running.path) >= before
    assert {r["worker"] for r in records_of(running.path)} == {0, 1}
    assert (running.path / "report.html").exists()


def _wait_gone(pid: int) -> None:
    """Wait for a process that is no child of ours; the test's own timeout bounds it."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
