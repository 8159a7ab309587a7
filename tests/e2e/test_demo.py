"""The demo as a user runs it: its own servers, its own run directory, its last line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, records_of

pytestmark = pytest.mark.slow


def test_the_demo_compares_both_servers(tmp_path: Path) -> None:
    """64 waiting requests: 2,435 output tokens on both sides, none failed, vLLM ahead."""
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--request-rate", "inf", "--result-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = Path(done.stdout.splitlines()[-1])
    comparison = json.loads((run / "comparison.json").read_bytes())
    for name in ("static", "vllm"):
        assert comparison["targets"][name]["output_tokens"] == 2435
        assert comparison["targets"][name]["completed"] == 64
        assert comparison["targets"][name]["failed"] == 0
        assert len(records_of(run, name)) == 64
    assert comparison["ratio"]["output_tokens_per_s"] > 1
    assert comparison["verdict"] in ("VALID", "SUSPECT")
    report = (run / "report.html").read_text()
    assert "static" in report
    assert "<svg" in report
    assert not _servers_of(tmp_path)


@pytest.mark.long
def test_an_interrupt_stops_both_servers(tmp_path: Path) -> None:
    """Ctrl-C during the demo ends it with 130 and leaves no server behind."""
    demo = subprocess.Popen(
        [ROOT / "scripts" / "demo", "--num-prompts", "500", "--result-dir", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("static: due"):
            break
    assert len(_servers_of(tmp_path)) >= 2
    os.killpg(demo.pid, signal.SIGINT)  # a terminal sends it to the whole group
    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert not _servers_of(tmp_path)
    (run,) = tmp_path.glob("*-compare-*")
    assert (run / "report.html").exists()


def _servers_of(scratch: Path) -> list[int]:
    """Processes whose standard output is a log of this demo's servers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            log = os.readlink(entry / "fd" / "1")
        except OSError:
            continue
        if log.startswith(str(scratch / ".demo")):
            found.append(int(entry.name))
    return found
