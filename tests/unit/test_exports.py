"""Exports: Markdown for a pull request, records as CSV and Parquet, JSON, plots as files."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_records import made_header, made_record, made_run

from loadgen.cli import main
from loadgen.record import Outcome, Phase
from loadgen.report.table import SCHEMA

EVIL = '=HYPERLINK("http://evil.example","x")'
MARKUP = "<img src=x> [a](http://evil.example) | @someone `x` **b**"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with failures whose texts came from a hostile server."""
    header = made_header("a", "b", requests=6, label=MARKUP)
    good = [
        made_record(n, target=name, due=n * 0.5, chunks=(n + 1.0, n + 2.0), chunk_tokens=(1, 3))
        for name in ("a", "b")
        for n in range(5)
    ]
    bad = [
        made_record(5, target=name, end=4.0, outcome=Outcome.HTTP_5XX, error=error)
        for name, error in (("a", EVIL), ("b", 'two\nlines, "quoted"'))
    ]
    warm = made_record(0, target="a", chunks=(0.5,), phase=Phase.WARMUP)
    return made_run(tmp_path_factory.mktemp("runs") / "run", header, [*good, *bad, warm])


def export(run: Path, kind: str, to: Path) -> Path:
    assert main(["report", str(run), "--export", kind, "-o", str(to)]) == 0
    return to


def test_csv_holds_what_parquet_holds(run: Path, tmp_path: Path) -> None:
    """The same columns and the same records in the same order, warm-up included."""
    with export(run, "csv", tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(export(run, "parquet", tmp_path / "r.parquet")).to_pylist()
    assert len(rows) == len(table) == 13
    assert list(rows[0]) == SCHEMA.names
    for row, own in zip(rows, table, strict=True):
        for name, value in own.items():
            if isinstance(value, list):
                assert json.loads(row[name]) == value
            elif isinstance(value, float):
                assert float(row[name]) == value
            elif name != "error":
                assert row[name] == ("" if value is None else str(value))
    assert 'two\nlines, "quoted"' in {row["error"] for row in rows}


def test_no_cell_of_the_csv_is_a_formula(run: Path, tmp_path: Path) -> None:
    """What a spreadsheet would compute gets an apostrophe before it; numbers stay numbers."""
    with export(run, "csv", tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert f"'{EVIL}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))]
    assert all(float(cell) < 0 for cell in cells if cell.startswith("-"))


def test_markdown_for_a_pull_request(run: Path, tmp_path: Path) -> None:
    """Verdict, reasons and a table with the answer; no link, mention or mark-up of others."""
    text = export(run, "markdown", tmp_path / "r.md").read_text()
    assert "**Verdict: INVALID**" in text
    assert "1 of 6 requests failed" in text
    assert "|  | a | b | b / a |" in text
    assert "| output tokens/s |" in text
    assert "Latencies are of the requests that succeeded: a 5 of 6, b 5 of 6." in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}
    assert "\\<img" in text
    assert not re.search(r"(?<!\\)[<\[`]", text)
    assert "://" not in text
    assert "@someone" not in text


def test_json_is_the_summary_and_the_comparison(run: Path, tmp_path: Path) -> None:
    """Under the schema's version, as `--json` prints them."""
    content = json.loads(export(run, "json", tmp_path / "r.json").read_bytes())
    assert content["schema_version"] == content["comparison"]["schema_version"] == 1
    assert content["targets"]["a"]["completed"] == 5
    assert content["comparison"]["baseline"] == "a"


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plots_are_written_as_files(kind: str, run: Path, tmp_path: Path) -> None:
    """One file a plot, in the report's order, each of its kind."""
    assert main(["report", str(run), "--plots", str(tmp_path / "p"), "--format", kind]) == 0
    files = sorted((tmp_path / "p").iterdir())
    assert len(files) == 10
    assert files[0].name == f"01-output-tokens-per-second-over-time.{kind}"
    for file in files:
        if kind == "png":
            assert file.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.fromstring(file.read_text()).tag.endswith("svg")


def test_an_export_leaves_the_run_as_it_was(run: Path, tmp_path: Path) -> None:
    """Nothing is written into the run directory by an export."""
    before = sorted(path.name for path in run.iterdir())
    export(run, "markdown", tmp_path / "r.md")
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        ["--export", "csv"],
        ["--export", "csv", "-o", "x", "--target", "a"],
        ["--export", "vllm", "-o", "x"],
        ["--format", "png"],
        ["-o", "x"],
        ["--plots", "/dev/null/x"],
        ["--export", "markdown", "-o", "/dev/null/x"],
    ],
    ids=" ".join,
)
def test_mistakes(words: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, and exit code 2."""
    assert main(["report", str(run), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_needs_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --schema the run directory must be named."""
    assert main(["report"]) == 2
    assert "RUN_DIR" in capsys.readouterr().err


def test_what_cannot_be_written_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A results file that is in the way, or a disk that is full, is told with its path."""
    (run / "report.html").unlink(missing_ok=True)
    (run / "report.html").mkdir()
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "report.html" in said[0]
    assert not list(run.glob(".*.part"))
