"""--split-gain: the second target once more in padded gangs, against truth servers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.runs.conftest import Finished, call, events_of, records_of, truth

pytestmark = pytest.mark.slow

MEASURED = (0, 4)
LENGTHS = (2, 20, 3, 5, 30, 4, 2, 6, 3, 9, 12, 2)
SIZE = 4


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve requests that all wait, of lengths as uneven as LENGTHS."""
    rows = [{"timestamp": 0, "input_length": 8, "output_length": tokens} for tokens in LENGTHS]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def split(trace: Path, slow: str, fast: str, *words: str) -> Finished:
    done = call(
        *("compare", str(trace), "--target", f"slow={slow}", "--target", f"fast={fast}"),
        *("--split-gain", str(SIZE), "--json", "--quiet"),
        *("--result-dir", str(trace.parent / "runs"), *words),
    )
    assert done.code in MEASURED, done.stderr
    return done


def useful_rate(records: list[dict[str, Any]]) -> float:
    """Useful tokens a second, from the journal's lines alone."""
    blocks = {record["block"] for record in records}
    spans = [
        max(r["end_s"] for r in records if r["block"] == block)
        - min(r["start_s"] for r in records if r["block"] == block)
        for block in blocks
    ]
    return sum(LENGTHS[record["seq"]] for record in records) / sum(spans)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_second_target_is_sent_padded_gangs(quick: str, trace: Path, blocks: int) -> None:
    """Turn by turn A B C, C B A; the third in gangs, each asked and served its longest."""
    with truth("--ttft-ms", "40", "--itl-ms", "10") as slow:
        done = split(trace, slow, quick, "--blocks", str(blocks))
    turns = [event for event in events_of(done.path) if event["event"] == "turn"]
    order = ["slow", "fast", "fast.gangs"]
    assert [turn["target"] for turn in turns] == order + order[::-1] * (blocks - 1)
    records = records_of(done.path)
    of = {name: [r for r in records if r["target"] == name] for name in order}
    for name in order[:2]:
        assert all(r["output_tokens_asked"] == LENGTHS[r["seq"]] for r in of[name])
        assert all(r["output_tokens_wanted"] is None and r["gang"] is None for r in of[name])
    ganged = sorted(of["fast.gangs"], key=lambda r: int(r["seq"]))
    assert [r["seq"] for r in ganged] == list(range(len(LENGTHS)))
    gangs: list[list[dict[str, Any]]] = []
    for block in range(blocks):
        rows = [r for r in ganged if r["block"] == block]
        gangs += [rows[first : first + SIZE] for first in range(0, len(rows), SIZE)]
    for gang in gangs:
        longest = max(LENGTHS[r["seq"]] for r in gang)
        assert {r["output_tokens_asked"] for r in gang} == {longest}
        assert {r["output_tokens_served"] for r in gang} == {longest}
        assert {r["outcome"] for r in gang} == {"ok"}
    for before, after in pairwise(sorted(gangs, key=lambda gang: float(gang[0]["start_s"]))):
        assert min(r["start_s"] for r in after) >= max(r["end_s"] for r in before)
    told = done.summary["targets"]["fast.gangs"]
    assert told["useful_output_tokens"] == sum(LENGTHS)
    assert told["output_tokens"] == sum(len(g) * g[0]["output_tokens_asked"] for g in gangs)
    comparison = json.loads((done.path / "comparison.json").read_bytes())
    rate = {name: useful_rate(own) for name, own in of.items()}
    assert comparison["split"]["engine"] == pytest.approx(rate["fast.gangs"] / rate["slow"])
    assert comparison["split"]["policy"] == pytest.approx(rate["fast"] / rate["fast.gangs"])
    assert comparison["split"]["total"] == pytest.approx(rate["fast"] / rate["slow"])
    rules = {reason["rule"] for reason in done.summary["reasons"]}
    assert not rules & {"length_shortfall", "error_share", "rate_shortfall", "unfinished"}


def test_four_blocks_give_intervals(quick: str, trace: Path) -> None:
    """With four blocks each factor has an interval around it, and the report says the split."""
    done = split(trace, quick, quick, "--blocks", "4", "--cool-down", "0.05")
    found = json.loads((done.path / "comparison.json").read_bytes())["split"]
    assert found["blocks"] == 4
    for factor in ("engine", "policy", "total"):
        low, high = found["intervals"][factor]
        assert low < high
    assert "is the engine" in (done.path / "report.html").read_text()


def test_a_target_that_holds_no_length(quick: str, trace: Path) -> None:
    """Gangs cannot be padded where an answer ends by itself: one line, and nothing is sent."""
    with truth("--reject", "ignore_eos,min_tokens", "--eos-after", "3") as url:
        done = call(
            *("compare", str(trace), "--target", f"a={quick}", "--target", f"b={url}"),
            *("--split-gain", "4", "--result-dir", str(trace.parent / "runs")),
        )
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "--split-gain: gangs are padded by holding" in done.stderr
    assert not (trace.parent / "runs").exists()


def test_a_row_that_may_end_by_itself(trace: Path) -> None:
    """`ignore_eos` false in a row's sampling leaves its answer alone; the others are held."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    for row in rows[::2]:
        row["sampling"] = {"ignore_eos": False, "temperature": 0.7}
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with truth("--eos-after", "3", "--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("run", str(trace), "--base-url", url, "--json", "--quiet", "--num-warmups", "0"),
            *("--result-dir", str(trace.parent / "runs")),
        )
        assert done.code in MEASURED, done.stderr
        for record in records_of(done.path):
            wanted = LENGTHS[record["seq"]]
            natural = record["seq"] % 2 == 0
            assert record["outcome"] == "ok"
            assert record["output_tokens_served"] == (min(3, wanted) if natural else wanted)
        refused = call(
            *("compare", str(trace), "--target", f"a={url}", "--target", f"b={url}"),
            *("--split-gain", "4", "--dry-run"),
        )
    assert refused.code == 2
    assert "may end by themselves" in refused.stderr
