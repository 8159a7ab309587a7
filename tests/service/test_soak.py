"""Many runs: memory stays flat, series and the list stay bounded. By hand: scripts/test --long."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from tests.service.conftest import service

RUNS = int(os.environ.get("LOADGEN_SOAK_RUNS", "1000"))
LIST_S = 0.2
GROWTH_BYTES = 8 << 20
_PER_RUN_BYTES = 4096
"""What the list keeps of each run."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_a_thousand_runs(tmp_path: Path, quick: str) -> None:
    """After them the list answers in under 200 ms, and the service is no larger than after some."""
    with service(tmp_path / "runs", "--keep-runs", str(2 * RUNS), "--max-queue", "10") as found:
        course = []
        for number in range(RUNS):
            found.wait(found.start(quick, requests=2, rate=1000))
            if (number + 1) % max(1, RUNS // 10) == 0:
                course.append(resident_bytes(found.process.pid))
        early, late = course[0], course[-1]
        times_s = []
        for _ in range(20):
            began_s = time.perf_counter()
            answer = found.client.get("/api/runs", params={"limit": 200})
            times_s.append(time.perf_counter() - began_s)
        text = found.client.get("/metrics").text
        grown = late - early
        print("MiB after each tenth:", *(f"{size / 2**20:.1f}" for size in course))
        print(f"{RUNS} runs: list {statistics.median(times_s) * 1000:.1f} ms,")
        print(f"max {max(times_s) * 1000:.1f} ms; memory +{grown / 2**20:.1f} MiB;")
        print(f"{len(text.splitlines())} lines of metrics")
        assert answer.json()["total"] == RUNS
        assert statistics.median(times_s) < LIST_S
        assert grown < GROWTH_BYTES + _PER_RUN_BYTES * RUNS
        assert len(text.splitlines()) < 5000


@pytest.mark.slow
def test_the_list_of_a_thousand_runs(tmp_path: Path, quick: str) -> None:
    """A folder of a thousand finished runs is listed in under 200 ms, from the second time on."""
    with service(tmp_path / "runs", "--keep-runs", "2000") as found:
        run_id = found.start(quick, requests=2)
        found.wait(run_id)
        model = found.runs / run_id
        for number in range(1000):
            copy = found.runs / f"copy-{number}"
            copy.mkdir()
            for name in ("header.json", "summary.json", "live.json", "job.json"):
                os.link(model / name, copy / name)
        found.client.get("/api/runs")
        times_s = []
        for _ in range(10):
            began_s = time.perf_counter()
            answer = found.client.get("/api/runs", params={"limit": 200})
            times_s.append(time.perf_counter() - began_s)
        assert answer.json()["total"] == 1001
        assert statistics.median(times_s) < LIST_S, times_s
