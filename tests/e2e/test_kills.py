"""What a kill leaves: of a server under load, and of loadgen itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.local import ServerProcess, start_static
from tests.e2e.conftest import (
    LOADGEN,
    LOOPBACK_ENVIRONMENT,
    READY_TIMEOUT_S,
    ROOT,
    call,
    records_of,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def static(random_model: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A static server of one test's own."""
    with start_static(random_model, tmp_path / "static.log", served_model_name="m") as server:
        yield server.wait_ready(READY_TIMEOUT_S)


def start_run(server: ServerProcess, results: Path) -> subprocess.Popen[str]:
    """A run of 200 requests at 20 a second, of which some have ended when this returns."""
    words = [
        *("run", "--base-url", server.base_url, "--num-prompts", "200", "--request-rate", "20"),
        *("--input-len", "10", "--output-len", "8"),
        *("--json", "--result-dir", str(results)),
    ]
    process = subprocess.Popen(
        [LOADGEN, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=LOOPBACK_ENVIRONMENT,
        cwd=ROOT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("target: due") and " done 0 " not in line:
            break
    return process


def test_a_server_killed_mid_run_leaves_a_finished_run(
    static: ServerProcess, tmp_path: Path
) -> None:
    """Its failures are records, counted by outcome, and there is a report that says so."""
    process = start_run(static, tmp_path / "runs")
    os.kill(static.pid, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    summary = json.loads(stdout)
    target = summary["targets"]["target"]
    assert process.returncode == 4, stderr
    assert summary["verdict"] == "INVALID"
    assert target["requests"] == 200
    assert target["completed"] > 0
    assert target["outcomes"]["connect"] > 0
    assert set(target["outcomes"]) <= {"ok", "connect", "truncated"}
    assert sum(target["outcomes"].values()) == 200
    report = (Path(summary["run_directory"]) / "report.html").read_text()
    assert "requests failed" in report


def test_a_killed_loadgen_leaves_every_finished_record(
    static: ServerProcess, tmp_path: Path
) -> None:
    """After kill -9 `loadgen report` reads the run directory, with every finished record."""
    process = start_run(static, tmp_path / "runs")
    process.kill()
    process.communicate(timeout=60)
    (run,) = (tmp_path / "runs").iterdir()
    (journal,) = run.glob("records-*.jsonl")
    finished = journal.read_bytes().count(b"\n")
    done = call("report", str(run), "--json")
    assert done.code in (0, 4), done.stderr
    summary = json.loads(done.stdout)
    warm_up = finished - len(records_of(run, "target"))
    assert summary["targets"]["target"]["requests"] == finished - warm_up > 0
    assert "unfinished" in {reason["rule"] for reason in summary["reasons"]}
    assert (run / "report.html").exists()


def test_ctrl_c_drains_and_twice_cuts(static: ServerProcess, tmp_path: Path) -> None:
    """One Ctrl-C sends nothing more and waits for answers; what it leaves is readable; exit 130."""
    process = start_run(static, tmp_path / "runs")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    target = json.loads(stdout)["targets"]["target"]
    assert 0 < target["requests"] < 200
    assert set(target["outcomes"]) == {"ok"}


def test_an_unreachable_target_is_one_line_and_code_2(tmp_path: Path) -> None:
    """A port where nobody listens: exit code 2, one line that says what to do, nothing written."""
    done = call(
        *("run", "--base-url", "http://127.0.0.1:9", "--ready-timeout", "0", "--quiet"),
        *("--result-dir", str(tmp_path / "runs")),
    )
    assert done.code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "does not answer" in done.stderr
    assert not (tmp_path / "runs").exists()
