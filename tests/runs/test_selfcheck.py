"""The self-check measures a client whose error is known, and later runs carry what it found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from loadgen.selfcheck import Load, measure
from tests.runs.conftest import ENVIRONMENT, call, children_of, command

pytestmark = pytest.mark.slow


def test_errors_are_those_of_the_clock_that_both_share() -> None:
    """Arrival minus stamp is never negative, and small: the two processes read one clock."""
    done = measure(Load(requests=60, rate=30.0, tokens=16, stamps=True))
    assert done.failures == 0
    assert done.events == 60 * 16
    assert done.ttft_err_p50_ms is not None
    assert 0 < done.ttft_err_p50_ms < 20
    assert done.chunk_err_p50_ms is not None
    assert 0 < done.chunk_err_p50_ms < 20
    assert done.rate_achieved == pytest.approx(1.0, abs=0.05)
    assert done.cpu_us_per_event > 0


@pytest.mark.slow
def test_a_run_carries_the_stored_result(tmp_path: Path, quick: str) -> None:
    """`selfcheck` finishes within half a minute here, stores its result, and `run` reads it."""
    done = call("selfcheck", "--json", "--quiet", LOADGEN_CACHE=str(tmp_path))
    assert done.code == 0, done.stderr
    stored = json.loads((tmp_path / "selfcheck.json").read_bytes())
    assert stored["events_per_s_per_worker"] > 1000
    assert stored["requests_per_s_per_worker"] > 100
    assert stored["events_per_s_in_all"] == stored["cores"] * stored["events_per_s_per_worker"]
    assert stored["failures"] == 0
    run = call(
        *("run", "--base-url", quick, "--num-prompts", "3", "--request-rate", "inf", "--json"),
        *("--output-len", "3", "--result-dir", str(tmp_path / "runs")),
        LOADGEN_CACHE=str(tmp_path),
    )
    header = json.loads((run.path / "header.json").read_bytes())
    assert header["self_check"]["events_per_s_per_worker"] == stored["events_per_s_per_worker"]
    elsewhere = call(
        *("run", "--base-url", quick, "--num-prompts", "3", "--request-rate", "inf", "--json"),
        *("--output-len", "3", "--result-dir", str(tmp_path / "runs2")),
        LOADGEN_CACHE=str(tmp_path / "empty"),
    )
    assert json.loads((elsewhere.path / "header.json").read_bytes())["self_check"] is None


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """Ctrl-C in a terminal, amid a measurement: one line, nothing stored, no process left."""
    with subprocess.Popen(
        command("selfcheck", "--quiet"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"LOADGEN_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as process:
        try:
            deadline_s = time.monotonic() + 30
            while not any(file.stat().st_size for file in tmp_path.glob("*/*/records-*.jsonl")):
                assert time.monotonic() < deadline_s, "no records in half a minute"
                time.sleep(0.02)
            children = children_of(process.pid)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert (out, err) == ("", "loadgen: interrupted\n")
    assert not (tmp_path / "cache").exists()
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
