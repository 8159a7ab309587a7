"""In which order targets have their turns, and runs that are done over and over."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadgen import cli
from loadgen.errors import TargetNotReady
from loadgen.run import run
from tests.runs.conftest import ENVIRONMENT, call, command, events_of, records_of

pytestmark = pytest.mark.slow

MEASURED = (0, 4)
DRAW = ("--num-prompts", "16", "--request-rate", "60", "--output-len", "5", "--json", "--quiet")


def compare(url: str, path: Path, *words: str) -> tuple[Path, dict[str, Any]]:
    """A comparison of a server with itself; its run directory and its summary."""
    done = call(
        *("compare", "--target", f"a={url}", "--target", f"b={url}", *DRAW),
        *("--result-dir", str(path), *words),
    )
    assert done.code in MEASURED, done.stderr
    return done.path, done.summary


def test_targets_alternate_in_blocks(quick: str, tmp_path: Path) -> None:
    """A B, B A, A B: each row once a target, turn after turn, warm-up at the first one only."""
    run, summary = compare(quick, tmp_path, "--blocks", "3", "--num-warmups", "2")
    turns = [event for event in events_of(run) if event["event"] == "turn"]
    assert [(turn["target"], turn["block"]) for turn in turns] == [
        *(("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2))
    ]
    records = records_of(run)
    for name in ("a", "b"):
        ours = sorted((r for r in records if r["target"] == name), key=lambda r: r["seq"])
        assert [r["seq"] for r in ours] == list(range(16))
        assert [r["block"] for r in ours] == [0] * 5 + [1] * 5 + [2] * 6
        assert summary["targets"][name]["completed"] == 16
    spans = [
        (
            min(r["start_s"] for r in records if (r["target"], r["block"]) == key),
            max(r["end_s"] for r in records if (r["target"], r["block"]) == key),
        )
        for key in ((turn["target"], turn["block"]) for turn in turns)
    ]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    for name in ("a", "b"):
        own = [
            end - start
            for (start, end), turn in zip(spans, turns, strict=True)
            if turn["target"] == name
        ]
        assert abs(summary["targets"][name]["duration_s"] - sum(own)) < 1e-4
    lines = b"".join(file.read_bytes() for file in run.glob("records-*.jsonl")).splitlines()
    assert sum(json.loads(line)["phase"] == "warmup" for line in lines) == 2 * 2


def test_targets_together(quick: str, tmp_path: Path) -> None:
    """Both at once, block by block, each by workers of its own, with the same due times."""
    run, _ = compare(quick, tmp_path, "--together", "--workers", "2", "--blocks", "2")
    turns = [event for event in events_of(run) if event["event"] == "turn"]
    assert [turn["block"] for turn in turns] == [0, 0, 1, 1]
    records = records_of(run)
    by_target = {name: {r["seq"]: r for r in records if r["target"] == name} for name in ("a", "b")}
    assert {r["worker"] for r in by_target["a"].values()} == {0, 1}
    assert {r["worker"] for r in by_target["b"].values()} == {2, 3}
    for seq in range(16):
        assert abs(by_target["a"][seq]["due_s"] - by_target["b"][seq]["due_s"]) < 0.1


def test_a_rest_between_turns(quick: str, tmp_path: Path) -> None:
    """--cool-down lies between the end of a turn and the beginning of the next."""
    run, _ = compare(quick, tmp_path, "--cool-down", "0.7")
    first, second = [event for event in events_of(run) if event["event"] == "turn"]
    ended = max(r["end_s"] for r in records_of(run) if r["target"] == "a")
    assert second["origin_s"] - ended > 0.7
    assert first["target"] == "a"


def test_rounds_are_runs_of_their_own(quick: str, tmp_path: Path) -> None:
    """Three rounds leave three run directories, or as many of the latest as --keep-runs says."""
    words = ("run", "--base-url", quick, *DRAW, "--rounds", "3", "--result-dir")
    done = call(*words, str(tmp_path / "all"))
    assert done.code in MEASURED, done.stderr
    assert len(list((tmp_path / "all").iterdir())) == 3
    done = call(*words, str(tmp_path / "two"), "--keep-runs", "2")
    kept = sorted((tmp_path / "two").iterdir())
    assert len(kept) == 2
    assert all((path / "report.html").exists() for path in kept)


def test_a_round_that_cannot_begin_is_told(
    quick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are done all the same, and the exit code is that of the worst."""
    began: list[str] = []

    async def away_at_the_second(*given: Any) -> Any:
        began.append("")
        if len(began) == 2:
            raise TargetNotReady("gone")
        return await run(*given)

    monkeypatch.setattr(cli, "run", away_at_the_second)
    monkeypatch.setattr(cli, "_AWAY_S", 0.0)
    words = ("run", "--base-url", quick, *DRAW, "--rounds", "3", "--result-dir", str(tmp_path))
    assert cli.main(words) == cli.USAGE
    assert len(list(tmp_path.iterdir())) == 2


def test_rounds_go_on_until_they_are_stopped(quick: str, tmp_path: Path) -> None:
    """--rounds 0 ends with Ctrl-C, and what was done is there."""
    process = subprocess.Popen(
        command(
            *("run", "--base-url", quick, *DRAW, "--rounds", "0", "--rest", "0.1"),
            *("--keep-runs", "3", "--result-dir", str(tmp_path)),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    deadline_s = time.monotonic() + 60
    seen: set[str] = set()
    while len(seen) < 4 and time.monotonic() < deadline_s:
        seen |= {path.name for path in tmp_path.iterdir()}
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert len(seen) >= 4
    assert 2 <= len(list(tmp_path.iterdir())) <= 4


def test_more_blocks_than_requests(quick: str, tmp_path: Path) -> None:
    """One line, before anything is sent."""
    done = call(
        *("compare", "--target", f"a={quick}", "--target", f"b={quick}", "--num-prompts", "3"),
        *("--blocks", "4", "--result-dir", str(tmp_path / "runs")),
    )
    assert done.code == 2
    assert "--blocks" in done.stderr
    assert not (tmp_path / "runs").exists()
