"""Lesson 2 as a user runs it, with tiny limits: its own servers, what it prints, its last line."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, records_of

pytestmark = pytest.mark.slow


def test_the_lesson_on_both_servers(tmp_path: Path) -> None:
    """160 requests a leg, all held to their limits; the figures printed are the run's own."""
    done = subprocess.run(
        [
            *(ROOT / "scripts" / "lesson2", "--scale", "0.02", "--repeats", "1"),
            *("--result-dir", tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *lines, last = done.stdout.splitlines()
    run = Path(last)
    comparison = json.loads((run / "comparison.json").read_bytes())
    for name in ("static", "vllm", "vllm.gangs"):
        records = records_of(run, name)
        assert len(records) == 160
        assert all(r["output_tokens_served"] == r["output_tokens_asked"] for r in records)
    for gang in range(10):
        asked = [r["output_tokens_asked"] for r in records if r["gang"] == gang]
        assert asked == [12] * 16
    ratio = comparison["ratio"]["requests_per_s"]
    assert f"improvement: {100 * (ratio - 1):.0f} %" in lines
    split = comparison["split"]
    assert split["engine"] * split["policy"] == pytest.approx(split["total"])
    assert split["total"] == pytest.approx(ratio)  # the same tokens on both sides
    assert re.search(r"useful tokens/s: engine \d+\.\d\dx, scheduling \d+\.\d\dx", done.stdout)
    assert comparison["verdict"] in ("VALID", "SUSPECT")
