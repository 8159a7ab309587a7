"""The second lesson's trace: its rows, its flags, and what is sent of it."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadgen.cli import main
from loadgen.trace import read_trace
from loadgen.trace.lesson2 import Lesson2Config, lesson2

LIMITS = [500, 10, 15, 200, 150, 10, 30, 600]


def written(tmp_path: Path, *words: str) -> list[dict[str, object]]:
    path = tmp_path / "lesson2.jsonl"
    assert main(["trace", "lesson2", "-o", str(path), *words]) == 0
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_the_lessons_requests(tmp_path: Path) -> None:
    """160 rows at 0 ms: eight prompts in the lesson's order, twenty times, with its limits."""
    rows = written(tmp_path)
    assert len(rows) == 160
    assert {row["timestamp"] for row in rows} == {0.0}
    assert [row["output_length"] for row in rows] == LIMITS * 20
    assert len({row["prompt"] for row in rows}) == 8
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in rows[:8]] * 20
    assert all(row["sampling"] == {"temperature": 0.7, "top_p": 0.95} for row in rows)
    meta = orjson.loads((tmp_path / "lesson2.meta.json").read_bytes())
    assert meta["lesson2"] == {"scale": 1.0, "natural": False, "repeats": 1}


def test_it_is_read_again(tmp_path: Path) -> None:
    """The file is a trace like any other, whose equal prompts have equal block ids."""
    written(tmp_path, "--natural")
    trace, _ = read_trace(tmp_path / "lesson2.jsonl")
    assert trace.duration_s == 0
    assert trace.payload is not None
    assert trace.hash_ids is not None
    for seq in range(8, 160):
        assert trace.payload[seq]["prompt"] == trace.payload[seq % 8]["prompt"]
        assert list(trace.hash_ids[seq]) == list(trace.hash_ids[seq % 8])
    assert trace.payload[0]["sampling"]["ignore_eos"] is False


@pytest.mark.parametrize(
    ("scale", "limits"),
    [(0.2, [100, 2, 3, 40, 30, 2, 6, 120]), (0.01, [5, 1, 1, 2, 2, 1, 1, 6])],
    ids=["a fifth", "a hundredth"],
)
def test_scaled_limits(scale: float, limits: list[int]) -> None:
    """Limits are scaled and rounded, and none falls below a token."""
    trace = lesson2(Lesson2Config(scale=scale))
    assert trace.output_length.tolist() == limits * 20


def test_repeats_are_the_whole_lesson_again() -> None:
    """Each of four blocks of four repeats is the lesson's 160 requests."""
    once = lesson2(Lesson2Config())
    four = lesson2(Lesson2Config(repeats=4))
    assert len(four) == 640
    assert four.output_length.reshape(4, 160).tolist() == [once.output_length.tolist()] * 4


def test_prompts_are_counted() -> None:
    """By the tokenizer that is given, or else by words and punctuation marks."""
    assert lesson2(Lesson2Config(), len).input_length[1] == len(
        "In one word: what is the capital of Portugal?"
    )
    assert lesson2(Lesson2Config()).input_length[1] == 11


@pytest.mark.parametrize(
    "words",
    [("--scale", "0"), ("--repeats", "0"), ("--tokenizer", "nowhere"), ("--scale", "nan")],
    ids=" ".join,
)
def test_a_wrong_flag(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the flag, and no file is written."""
    assert main(["trace", "lesson2", "-o", str(tmp_path / "l.jsonl"), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words[0] in err
    assert not list(tmp_path.iterdir())
