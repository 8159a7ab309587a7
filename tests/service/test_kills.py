"""What a kill leaves, of a run or of the service, at any moment: finished records, and truth."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.runs.conftest import children_of, lines_of
from tests.service.conftest import Serving, service, start_service, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def found(folder: Path) -> Iterator[Serving]:
    with service(folder) as running:
        yield running


def test_a_killed_run_is_interrupted(found: Serving, quick: str) -> None:
    """Its finished records are all there, the report is made when asked for, and the next runs."""
    run_id = found.start(quick, requests=500, rate=50)
    found.wait_for_records(run_id, 20)
    os.kill(found.pid_of(run_id), signal.SIGKILL)
    finished = found.wait(run_id)
    assert finished["state"] == "interrupted"
    wait_until(lambda: not workers_of(found, run_id), "its workers end", 10)
    lines = lines_of(found.runs / run_id)
    table = pq.read_table(io.BytesIO(found.client.get(f"/api/runs/{run_id}/records").content))
    assert table.num_rows == lines >= 20
    assert found.client.get(f"/api/runs/{run_id}/report").status_code == 200
    told = found.get(run_id)
    assert told["verdict"] in ("SUSPECT", "INVALID")
    assert "unfinished" in {reason["rule"] for reason in told["summary"]["reasons"]}
    assert found.wait(found.start(quick))["state"] == "finished"
    assert f'loadgen_run_active{{run="{run_id}"}}' not in found.client.get("/metrics").text


def test_a_stop_outlives_the_service(folder: Path, slow: str) -> None:
    """A run that was asked to stop, and drains as the service is killed, is cut off by the next."""
    with service(folder, "--drain", "2") as first:
        load = {"num_warmups": 0}
        run_id = first.start(slow, requests=500, rate=20, tokens=500, load=load)
        wait_until(lambda: first.in_flight(run_id) > 0, "it sends", 60)
        assert first.client.delete(f"/api/runs/{run_id}").status_code == 202
        first.end(signal.SIGKILL)
    with service(folder, "--drain", "2") as again:
        assert again.wait(run_id)["state"] == "stopped"


def workers_of(found: Serving, run_id: str) -> list[str]:
    """Processes whose working directory is the run's."""
    here = str((found.runs / run_id).resolve())
    owners = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and os.readlink(process / "cwd") == here:
                owners.append(process.name)
        except OSError:
            continue
    return owners


def test_a_killed_service_leaves_its_run_alone(folder: Path, quick: str) -> None:
    """The run goes on, the next service finds it, and it ends as if nothing had been."""
    first = start_service(folder)
    running = first.start(quick, requests=300, rate=60)
    waiting = first.start(quick, requests=5)
    lost = first.start(quick, requests=5, api_key="sk-something-secret")
    first.wait_for_records(running, 20)
    pid = first.pid_of(running)
    first.end(signal.SIGKILL)
    os.kill(pid, 0)
    with service(folder) as second:
        assert second.get(running)["state"] == "running"
        assert second.get(waiting)["state"] == "queued"
        ended = second.wait(running)
        assert ended["state"] == "finished"
        assert ended["summary"]["targets"]["target"]["completed"] == 300
        assert second.wait(waiting)["state"] == "finished"
        told = second.wait(lost)
        assert told["state"] == "failed"
        assert "is not kept" in told["error"]


def test_a_run_that_outlived_its_service_is_stopped_by_the_next(folder: Path, quick: str) -> None:
    """An adopted run drains like any other."""
    first = start_service(folder)
    running = first.start(quick, requests=2000, rate=50)
    first.wait_for_records(running, 10)
    first.end(signal.SIGKILL)
    with service(folder) as second:
        assert second.client.delete(f"/api/runs/{running}").status_code == 202
        assert second.wait(running)["state"] == "stopped"


def test_a_run_that_ended_while_nobody_looked(folder: Path, quick: str) -> None:
    """Finished or killed in the absence of a service: the next one says which."""
    first = start_service(folder)
    well = first.start(quick, requests=60, rate=60)
    first.wait_for_records(well, 2)
    first.end(signal.SIGKILL)
    wait_until(lambda: (folder / well / "report.html").exists(), "it ends by itself", 60)
    second = start_service(folder)
    assert second.wait(well)["state"] == "finished"
    killed = second.start(quick, requests=600, rate=60)
    second.wait_for_records(killed, 10)
    pid = second.pid_of(killed)
    second.end(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    with service(folder) as third:
        assert third.get(killed)["state"] == "interrupted"
        assert third.client.get(f"/api/runs/{killed}/report").status_code == 200


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6, 1.0, 2.0])
def test_a_service_killed_at_any_moment(folder: Path, quick: str, delay_s: float) -> None:
    """However early: the run is done once, and not twice."""
    first = start_service(folder)
    run_id = first.start(quick, requests=30, rate=60)
    time.sleep(delay_s)
    first.end(signal.SIGKILL)
    with service(folder) as second:
        found = second.wait(run_id)
        assert found["state"] == "finished", found["error"]
        assert found["summary"]["targets"]["target"]["completed"] == 30
        assert lines_of(folder / run_id) == 31
        assert second.client.get("/api/runs").json()["total"] == 1


@pytest.mark.parametrize("delay_s", [0.2, 0.7, 1.2])
def test_a_run_killed_at_any_moment(found: Serving, quick: str, delay_s: float) -> None:
    """Before it began to send, or while it negotiates: it is interrupted, and the queue goes on."""
    run_id = found.start(quick, requests=200, rate=50)
    found.wait(run_id, "running")
    time.sleep(delay_s)
    os.kill(found.pid_of(run_id), signal.SIGKILL)
    assert found.wait(run_id)["state"] == "interrupted"
    assert found.wait(found.start(quick))["state"] == "finished"


def test_runs_leave_no_process_behind(found: Serving, quick: str) -> None:
    """Finished children are reaped: no zombie stays."""
    for _ in range(3):
        found.wait(found.start(quick, requests=2))
    wait_until(lambda: children_of(found.process.pid) == [], "no child is left", 10)


def test_a_run_of_the_command_line_that_was_killed(
    found: Serving, quick: str, tmp_path: Path
) -> None:
    """Its own word about its process tells a run that goes on from one that was killed."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "loadgen", "run", "--base-url", quick, "--quiet"),
            *("--num-prompts", "500", "--request-rate", "50", "--output-len", "3"),
            *("--result-dir", str(found.runs)),
        ]
    )
    rows: list[dict[str, str]] = []

    def is_listed() -> bool:
        rows[:] = found.client.get("/api/runs").json()["runs"]
        return bool(rows) and rows[0]["state"] == "running"

    wait_until(is_listed, "it is listed", 30)
    process.kill()
    process.wait()
    assert found.wait(rows[0]["id"])["state"] == "interrupted"
