"""`loadgen runs`: what is listed, labelled and removed, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_records import made_header, made_record, made_run

from loadgen.archive import read_header
from loadgen.cli import main
from loadgen.report import rebuild


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs, the middle one without results, and two things that are no run."""
    for day in (3, 1, 2):
        header = made_header(
            "a",
            run_id=f"r{day}",
            started_at=f"2026-01-0{day}T00:00:00.000+00:00",
            label=f"day {day}",
        )
        made_run(tmp_path / f"r{day}", header, [made_record(0, chunks=(0.1, 0.2))])
    for day in (1, 3):
        rebuild(tmp_path / f"r{day}")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "precious.txt").write_text("mine")
    (tmp_path / "file.txt").write_text("mine")
    return tmp_path


def test_the_list_is_by_age(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oldest first, with label, throughput and verdict; what is no run is left out."""
    assert main(["runs", "list", str(folder), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run_id"] for run in runs] == ["r1", "r2", "r3"]
    assert [run["verdict"] is None for run in runs] == [False, True, False]
    assert runs[0]["output_tokens_per_s"]["a"] == pytest.approx(10.0)
    assert main(["runs", "list", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "day 1" in table
    assert "not reported" in table


def test_a_label_is_changed(folder: Path) -> None:
    """In the header alone, which stays whole; an empty one takes it away."""
    before = read_header(folder / "r1")
    assert main(["runs", "label", str(folder / "r1"), "nightly"]) == 0
    after = read_header(folder / "r1")
    assert after.label == "nightly"
    assert after.trace_sha256 == before.trace_sha256
    assert main(["runs", "label", str(folder / "r1"), ""]) == 0
    assert read_header(folder / "r1").label is None


def test_prune_keeps_the_latest_and_what_is_no_run(folder: Path) -> None:
    """First only told, then done; files of others are never touched."""
    assert main(["runs", "prune", str(folder), "--keep", "1", "--dry-run"]) == 0
    assert (folder / "r1").exists()
    assert main(["runs", "prune", str(folder), "--keep", "1"]) == 0
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["file.txt", "notes", "r3"]
    assert (folder / "notes" / "precious.txt").exists()


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, and nothing is removed."""
    for words in (
        ["list", str(folder / "nowhere")],
        ["label", str(folder / "notes"), "x"],
        ["label", str(folder / "r1"), "x" * 201],
        ["prune", str(folder), "--keep", "-1"],
        ["prune", str(folder)],
    ):
        assert main(["runs", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert len(list(folder.iterdir())) == 5
