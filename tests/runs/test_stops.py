"""Ctrl-C once and twice, kills of loadgen and of a worker, stalls: nothing finished is lost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
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

    def cut_off(self) -> None:
        """Ctrl-C twice, the second one once the first was taken."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        while "interrupted" not in self.process.stderr.readline():
            pass
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> Finished:
        return _ended(self.process)


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
    running.cut_off()
    done = running.ended()
    assert done.code == 130
    outcomes = done.summary["targets"]["target"]["outcomes"]
    assert outcomes["ok"] > 0
    assert outcomes["cancelled"] > 0
    assert set(outcomes) <= {"ok", "cancelled", "dropped"}
    assert len(records_of(running.path)) == sum(outcomes.values())


def test_ctrl_c_twice_ends_a_worker_that_hangs(running: Running) -> None:
    """A worker that does nothing any more is killed a while after; what had ended is kept, and the
    report says that it is not all."""
    os.kill(running.workers()[0], signal.SIGSTOP)
    running.cut_off()
    done = running.ended()
    assert done.code == 130
    assert done.summary["verdict"] == "INVALID"
    assert "worker_lost" in {reason["rule"] for reason in done.summary["reasons"]}
    assert {r["worker"] for r in records_of(running.path)} == {0, 1}


def test_a_run_whose_progress_nobody_reads_is_stopped(slow_server: str, tmp_path: Path) -> None:
    """A closed pipe at standard error, as after `2>&1 | head`, keeps no stop from taking effect."""
    for stop in ((), ("--max-duration", "3")):
        results = tmp_path / f"runs{len(stop)}"
        process = _started(slow_server, results, "2000", *stop)
        assert process.stderr is not None
        process.stderr.close()
        if not stop:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == (4 if stop else 130)  # of 2,000 requests few were sent
        (path,) = results.iterdir()
        assert (path / "report.html").exists()
        assert len(records_of(path)) < 1000
        assert process.stdout is not None
        process.stdout.close()


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


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_the_run_and_loses_no_finished_record(
    running: Running, victim: int
) -> None:
    """The other worker drains at once, the results say which one was lost and how the other fared,
    and what both had is kept."""
    before, killed_s = lines_of(running.path), time.monotonic()
    os.kill(running.workers()[victim], signal.SIGKILL)
    done = running.ended()
    assert time.monotonic() - killed_s < 10, "of the 20 s that were left"
    assert done.code == 4
    assert f"worker {victim} ended unexpectedly" in done.summary["stopped"]
    target = done.summary["targets"]["target"]
    assert target["requests"] == len(records_of(running.path))
    assert set(target["outcomes"]) <= {"ok", "dropped"}
    assert lines_of(running.path) >= before
    assert {r["worker"] for r in records_of(running.path)} == {0, 1}
    assert [health["worker"] for health in done.summary["workers"]] == [1 - victim]
    reasons = {reason["rule"] for reason in done.summary["reasons"]}
    assert {"worker_lost", "unfinished"} <= reasons
    assert (running.path / "report.html").exists()


def test_a_parent_that_stalls(quick: str, tmp_path: Path) -> None:
    """A parent that does not run for 10 s, as where its terminal takes no more, goes on as before:
    a hard stop that was reached meanwhile holds, and a turn that ended meanwhile is whole."""
    stopping = _started(quick, tmp_path / "stopping", "600", "--max-output-tokens-total", "800")
    ending = _started(quick, tmp_path / "ending", "180")
    for process in (stopping, ending):
        process.send_signal(signal.SIGSTOP)
    time.sleep(10)
    for process in (stopping, ending):
        process.send_signal(signal.SIGCONT)
    done = _ended(stopping)
    assert done.stderr.count("Traceback") == 0
    assert "--max-output-tokens-total" in (done.summary["stopped"] or "")
    assert done.summary["targets"]["target"]["requests"] < 400
    done = _ended(ending)
    assert done.stderr.count("Traceback") == 0
    assert done.summary["stopped"] is None
    assert len(records_of(done.path)) == 180
    assert len(done.summary["workers"]) == 1


def _started(url: str, results: Path, requests: str, *words: str) -> subprocess.Popen[str]:
    """A run of requests of 4 tokens, 20 a second; its worker reports since a second."""
    process = subprocess.Popen(
        command(
            *("run", "--base-url", url, "--num-prompts", requests, "--request-rate", "20"),
            *("--arrival", "constant", "--output-len", "4", "--workers", "1", "--json"),
            *("--result-dir", str(results), *words),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    while sum(map(lines_of, results.glob("*"))) < 20:
        assert process.poll() is None, process.communicate()[1]
    return process


def _ended(process: subprocess.Popen[str]) -> Finished:
    stdout, stderr = process.communicate(timeout=60)
    return Finished(process.returncode, stdout, stderr)


def _wait_gone(pid: int) -> None:
    """Wait for a process that is no child of ours; the test's own timeout bounds it."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)
