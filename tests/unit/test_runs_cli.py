"""`loadgen runs`: what is listed, labelled and removed, and what is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import made_header, made_record, made_run

from loadgen.archive import read_header, read_run
from loadgen.cli import main
from loadgen.journal import EventLog
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


def test_prune_leaves_what_the_service_was_asked_to_keep(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose job says `keep` stays, and so does one that only waits."""
    (folder / "r1" / "job.json").write_text('{"keep": true}')
    (folder / "r2" / "job.json").write_text('{"keep": false}')
    (folder / "waits").mkdir()
    (folder / "waits" / "job.json").write_text('{"keep": false}')
    assert main(["runs", "prune", str(folder), "--keep", "0"]) == 0
    assert "asked to keep" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["file.txt", "notes", "r1", "waits"]


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


def test_a_run_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its trace, targets, verdict and headline figures; without results it says how to get them."""
    assert main(["runs", "show", str(folder / "r1")]) == 0
    shown = capsys.readouterr().out
    for part in ("day 1", "0" * 64, "http://127.0.0.1:8000", "SUSPECT", "1 of 1 requests ok",
                 "10.0 output tokens/s", "TTFT p50 100.0 ms"):  # fmt: skip
        assert part in shown, part
    assert main(["runs", "show", str(folder / "r2")]) == 0
    assert "not reported: loadgen report" in capsys.readouterr().out
    assert main(["runs", "show", str(folder / "r1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == "r1"


def test_a_run_is_renamed(folder: Path) -> None:
    """The directory moves within its folder, the run id stays, and its report can be made anew."""
    assert main(["runs", "rename", str(folder / "r1"), "baseline"]) == 0
    assert not (folder / "r1").exists()
    assert read_header(folder / "baseline").run_id == "r1"
    assert rebuild(folder / "baseline").run.header.label == "day 1"


@pytest.mark.parametrize(
    "name",
    ["r2", "file.txt", "notes", "../up", "a/b", "..", ".hidden", "", "-x", "a\nb", "x" * 101],
)
def test_a_name_that_is_taken_or_no_name(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rename never replaces anything, and never leaves the folder."""
    before = sorted(path.name for path in folder.rglob("*"))
    assert main(["runs", "rename", str(folder / "r1"), "--", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_run_that_goes_on_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither renamed nor pruned, and shown as going on."""
    log = EventLog(folder / "r1")
    try:
        assert main(["runs", "rename", str(folder / "r1"), "other"]) == 2
        assert main(["runs", "prune", str(folder), "--keep", "0"]) == 0
        assert main(["runs", "show", str(folder / "r1")]) == 0
    finally:
        log.close()
    assert "still going on" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["file.txt", "notes", "r1"]


def two_runs(folder: Path, *, seed: int = 0, trace: str = "0" * 64) -> tuple[str, str]:
    """The second is half as fast, request by request."""
    for name, slower in (("before", 1.0), ("after", 2.0)):
        records = [
            made_record(
                n,
                asked=2,
                due=n * 9.0,
                chunks=(n * 9.0 + slower, n * 9.0 + 2 * slower * (1 + n % 3)),
            )
            for n in range(64)
        ]
        header = made_header("a", requests=64, run_id=name)
        if name == "after":
            header = replace(header, seed=seed, trace_sha256=trace)
        made_run(folder / name, header, records)
    return str(folder / "before"), str(folder / "after")


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the ratios of their requests, with the warning that they were not made at one time."""
    assert main(["runs", "compare", *two_runs(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "before"
    ratios = {effect["metric"]: effect["ratio"] for effect in found["paired"]["after"]["others"]}
    assert ratios["ttft_s"] == pytest.approx(2.0)
    assert ratios["e2e_s"] == pytest.approx(2.0)
    assert "drifted" in found["caveat"]
    assert main(["runs", "compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "after / before" in shown
    assert "drifted between them" in shown
    assert sorted(path.name for path in (tmp_path / "after").iterdir()) == [
        "header.json", "records-0.jsonl", "trace.jsonl",
    ]  # fmt: skip


def test_two_runs_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Directories of one name in two folders go by their paths; one directory twice is refused."""
    sides = [Path(two_runs(tmp_path / folder)[at]) for at, folder in enumerate("xy")]
    for side in sides:
        made_run(
            side.parent / "out", replace(read_header(side), run_id="out"), read_run(side).records()
        )
    paths = [str(side.parent / "out") for side in sides]
    assert main(["runs", "compare", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == paths[0]
    assert list(found["targets"]) == list(found["verdicts"]) == paths
    assert found["ratios"][paths[1]]["ttft_s"]["p50"] == pytest.approx(2.0)
    assert main(["runs", "compare", *paths]) == 0
    assert "y/out" in "".join(capsys.readouterr().out.split())
    assert main(["runs", "compare", paths[0], f"{paths[0]}/../out"]) == 2
    assert "is the same run as" in capsys.readouterr().err


def simulated(folder: Path, name: str) -> str:
    """A copy of `before` that says it counts iterations."""
    before = folder / "before"
    header = read_header(before)
    header = replace(
        header, kind="simulate", run_id=name, config=header.config | {"costs": {"a": "iterations"}}
    )
    return str(made_run(folder / name, header, read_run(before).records()))


def test_simulations_are_compared_in_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of them are told as such, without noise or drift; no figure is in ms."""
    two_runs(tmp_path)
    paths = [simulated(tmp_path, name) for name in ("s1", "s2")]
    assert main(["runs", "compare", *paths]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "TTFT p50, iterations 1.0 1.0" in shown
    assert "s2: simulated, not measured" in shown
    assert "there is no noise" in shown
    assert ", ms" not in shown
    assert "drifted" not in shown
    assert main(["runs", "compare", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["caveat"] is None
    assert found["notes"][0].startswith("s1: simulated, not measured")


def test_a_simulation_beside_a_measurement_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs is the model's error too, and iterations are no seconds."""
    before, _ = two_runs(tmp_path)
    assert main(["runs", "compare", before, simulated(tmp_path, "s1")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "one is simulated and the other measured" in shown
    assert "one counts iterations and the other seconds" in shown
    assert "drifted" in shown


def test_a_simulation_is_shown_in_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its headline is neither in ms nor a second's, and says that nothing was measured."""
    two_runs(tmp_path)
    path = simulated(tmp_path, "s1")
    rebuild(Path(path))
    assert main(["runs", "show", path]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "simulated, not measured" in shown
    assert "TTFT p50 1.0 iterations" in shown
    assert "output tokens/iteration" in shown


@pytest.mark.parametrize(
    ("other", "words", "said"),
    [
        ({"trace": "1" * 64}, [], "its trace is another"),
        ({"seed": 1}, [], "its prompts are others"),
        ({}, ["--target", "nobody"], "--target"),
        ({}, ["--target", "a", "--target", "a", "--target", "a"], "at most two"),
    ],
    ids=["trace", "prompts", "target", "targets"],
)
def test_what_cannot_be_compared(
    other: dict[str, Any],
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another trace, other prompts, an unknown target: one line, exit code 2."""
    assert main(["runs", "compare", *two_runs(tmp_path, **other), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def search(path: Path, day: int, **more: object) -> Path:
    """A sweep's state, as far as a list reads it."""
    path.mkdir()
    run = {"targets": [{"base_url": "http://127.0.0.1:9"}], "output": {"label": "bends"}}
    state = {
        "kind": "sweep",
        "config": {"run": run, "rates": [1, 2]},
        "started_at": f"2026-01-0{day}T12:00:00.000+00:00",
        "trace_sha256": "5" * 64,
        "points_in_all": 2,
        "points": [{"load": 1, "requests": 30}],
    }
    (path / "search.json").write_text(json.dumps(state | more))
    return path


def test_a_sweep_is_one_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its age among the runs, with its kind and points; an odd one is left out."""
    search(folder / "s", 2)
    search(folder / "odd", 2, kind=["sweep"], points=3)
    (folder / "torn").mkdir()
    (folder / "torn" / "search.json").write_text('{"kind": "swe')
    assert main(["runs", "list", str(folder), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run_id"] for run in runs] == ["r1", "r2", "s", "r3"]
    row = runs[2]
    assert (row["kind"], row["label"], row["points"], row["requests"]) == ("sweep", "bends", 1, 30)
    (folder / "s" / "sweep.json").write_text('{"kind": "sweep", "answer": "It bends at 2."}')
    assert main(["runs", "list", str(folder)]) == 0
    assert "It bends at 2." in capsys.readouterr().out


def test_what_is_kept_is_not_pruned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the service was asked to keep stays, and so do its line and sweeps."""
    (folder / "r1" / "job.json").write_text('{"keep": true}')
    (folder / "r2" / "job.json").write_text('{"keep": false}')
    (folder / "waits").mkdir()
    (folder / "waits" / "job.json").write_text('{"keep": false, "kind": "run"}')
    search(folder / "s", 1)
    assert main(["runs", "prune", str(folder), "--keep", "0"]) == 0
    assert "asked to keep it" in capsys.readouterr().out
    left = {path.name for path in folder.iterdir()}
    assert left == {"r1", "waits", "s", "notes", "file.txt"}


def test_a_link_is_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The customary `latest` is not listed beside its run, and never pruned in its place."""
    (folder / "latest").symlink_to(folder / "r3")
    assert main(["runs", "prune", str(folder), "--keep", "1"]) == 0
    assert [path.name for path in sorted(folder.glob("r?"))] == ["r3"]
    assert main(["runs", "show", str(folder / "latest")]) == 0
    assert "r3" in capsys.readouterr().out
