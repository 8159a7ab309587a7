"""Where a gain comes from: the arithmetic of its factors, their intervals, and the words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import orjson
import pytest
from made_records import made_header, made_record, made_run

from loadgen.cli import main
from loadgen.columns import Columns
from loadgen.gain import GainSplit, split_gain
from loadgen.record import Outcome, RequestRecord
from loadgen.report import rebuild
from loadgen.report.figures import CONFIDENCE, answer_of, rows_of
from loadgen.report.split import split_in_words

T_995_OF_3 = 5.8409093097
"""Student's t at 0.995 for 3 degrees of freedom, from a table."""


def block(number: int, seconds: float, *, wanted: int = 10, asked: int = 10) -> list[RequestRecord]:
    """One block of two requests, which are served all that they ask within `seconds`."""
    return [
        made_record(
            2 * number + n,
            due=1000.0 * number,
            chunks=(1000.0 * number + seconds / 2, 1000.0 * number + seconds),
            asked=asked,
            served=asked,
            output_tokens_wanted=None if wanted == asked else wanted,
            block=number,
        )
        for n in range(2)
    ]


def split(*targets: list[list[RequestRecord]]) -> GainSplit | None:
    names = ("static", "vllm", "vllm.gangs")
    columns = {
        name: Columns.of([record for one in blocks for record in one])
        for name, blocks in zip(names, targets, strict=True)
    }
    return split_gain(columns)


def test_the_factors_multiply() -> None:
    """12 s, 2 s, and 5 s in gangs: an engine of 2.4x, a policy of 2.5x, 6x in all."""
    found = split([block(0, 12.0)], [block(0, 2.0)], [block(0, 5.0)])
    assert found is not None
    assert found.engine.ratio == pytest.approx(2.4)
    assert found.policy.ratio == pytest.approx(2.5)
    assert found.total.ratio == pytest.approx(6.0)
    assert (found.baseline, found.other, found.gangs) == ("static", "vllm", "vllm.gangs")


def test_padding_is_of_no_use() -> None:
    """Gangs that serve ten times what the trace wanted have no better an engine for that."""
    found = split([block(0, 12.0)], [block(0, 2.0)], [block(0, 5.0, asked=100)])
    assert found is not None
    assert found.engine.ratio == pytest.approx(2.4)
    assert found.policy.ratio == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("served", "asked", "wanted", "useful"),
    [(10, 10, None, 10), (40, 40, 10, 10), (7, 40, 10, 7), (None, 40, 10, 0), (12, 10, None, 10)],
    ids=["as asked", "padded", "cut short", "nothing", "too many"],
)
def test_useful_tokens(served: int | None, asked: int, wanted: int | None, useful: int) -> None:
    """What was served, as far as the trace wanted it; the columns say the same as the record."""
    record = made_record(0, served=served, asked=asked, output_tokens_wanted=wanted)
    assert record.useful_tokens == useful
    assert Columns.of([record]).useful_tokens.tolist() == [useful]


def test_intervals_are_students_over_the_blocks() -> None:
    """Four blocks: exp(mean of the logs -/+ t s / sqrt(4)), of each factor by itself."""
    seconds = {
        "static": [12.0, 13.0, 11.0, 12.5],
        "vllm": [2.0, 2.1, 2.2, 1.9],
        "gangs": [5.0, 5.5, 4.5, 5.2],
    }
    found = split(
        *([block(n, s) for n, s in enumerate(of_target)] for of_target in seconds.values())
    )
    assert found is not None
    for effect, slow, fast in (
        (found.engine, "static", "gangs"),
        (found.policy, "gangs", "vllm"),
        (found.total, "static", "vllm"),
    ):
        logs = np.log(np.array(seconds[slow]) / np.array(seconds[fast]))
        reach = T_995_OF_3 * float(logs.std(ddof=1)) / 2
        assert effect.ratio == pytest.approx(sum(seconds[slow]) / sum(seconds[fast]))
        assert effect.low == pytest.approx(math.exp(float(logs.mean()) - reach), rel=1e-6)
        assert effect.high == pytest.approx(math.exp(float(logs.mean()) + reach), rel=1e-6)
    told = found.as_json()
    assert told["blocks"] == 4
    assert told["intervals"]["engine"] == [found.engine.low, found.engine.high]


def test_three_blocks_have_no_interval() -> None:
    """Of fewer than four blocks an interval would be a guess: there is none."""
    found = split(*([block(n, s + n) for n in range(3)] for s in (12.0, 2.0, 5.0)))
    assert found is not None
    assert set(found.as_json()["intervals"].values()) == {None}
    assert "interval" not in split_in_words(found, CONFIDENCE)


def test_nothing_to_split() -> None:
    """Where one of the three gave nothing there are no factors, rather than factors of 0."""
    failed = [[made_record(0, outcome=Outcome.CONNECT)]]
    good = [block(0, 2.0)]
    for place in range(3):
        assert split(*(failed if n == place else good for n in range(3))) is None


def test_the_split_in_words() -> None:
    """One sentence: the whole, the engine's factor, the scheduling's, and how sure they are."""
    one = split([block(0, 12.0)], [block(0, 2.0)], [block(0, 5.0)])
    assert one is not None
    assert split_in_words(one, CONFIDENCE) == (
        "Of the 6.00x, 2.40x is the engine (vllm in the same padded batches) and 2.50x the "
        "scheduling (vllm's own, against those batches); the factors multiply."
    )
    four = split(
        *([block(n, s * (1 + n / 50)) for n in range(4)] for s in (12.0, 2.0)),
        [block(n, 5.0 * (1 + (n % 2) / 50)) for n in range(4)],
    )
    assert four is not None
    words = split_in_words(four, CONFIDENCE)
    assert f"2.4{words.partition(', 2.4')[2][:1]}x (2." in words
    assert words.endswith("99 % intervals over 4 blocks.")


def made_split_run(path: Path) -> Path:
    """A run directory of three legs, the last of which was sent gangs padded to 100 tokens."""
    header = made_header("static", "vllm", "vllm.gangs", requests=2)
    header.config["compare"] = {"split_gain": 2}
    records = [
        made_record(
            record.seq,
            target=name,
            chunks=record.chunk_s,
            asked=record.output_tokens_asked,
            served=record.output_tokens_served,
            output_tokens_wanted=record.output_tokens_wanted,
        )
        for name, of_target in (
            ("static", block(0, 12.0)),
            ("vllm", block(0, 2.0)),
            ("vllm.gangs", block(0, 5.0, asked=100)),
        )
        for record in of_target
    ]
    return made_run(path, header, records)


def test_the_results_of_a_split_run(tmp_path: Path) -> None:
    """comparison.json, answer, table and page have the split; pairs are of the targets alone."""
    path = made_split_run(tmp_path / "run")
    result = rebuild(path)
    comparison = orjson.loads((path / "comparison.json").read_bytes())
    assert comparison["split"] == {
        "gangs": "vllm.gangs",
        "engine": pytest.approx(2.4),
        "policy": pytest.approx(2.5),
        "total": pytest.approx(6.0),
        "intervals": {"engine": None, "policy": None, "total": None},
        "blocks": 1,
    }
    assert list(comparison["paired"]) == ["vllm"]
    assert comparison["targets"]["vllm.gangs"]["useful_output_tokens_per_s"] == pytest.approx(4.0)
    answer = answer_of(result.summaries, result.paired, result.gain)
    assert "Of the 6.00x, 2.40x is the engine" in answer
    assert "vllm.gangs" not in answer
    assert "2.40x is the engine" in (path / "report.html").read_text()
    rows = {row.title: row.cells for row in rows_of(result.summaries, result.percentiles)}
    assert rows["output tokens/s"][2] == "40.0"
    assert rows["useful tokens/s"] == ("1.7", "10.0", "4.0", "6.00x", "2.40x")


def test_useful_tokens_have_a_row_where_they_differ_alone(tmp_path: Path) -> None:
    """Without padding the table is what it was, and `split` is null."""
    header = made_header("a", "b", requests=1)
    records = [made_record(0, target=name, chunks=(1.0, 2.0), asked=2) for name in ("a", "b")]
    path = made_run(tmp_path / "run", header, records)
    result = rebuild(path)
    titles = [row.title for row in rows_of(result.summaries, result.percentiles)]
    assert "useful tokens/s" not in titles
    assert orjson.loads((path / "comparison.json").read_bytes())["split"] is None


SPLIT = (
    *("compare", "--target", "static=http://127.0.0.1:1", "--target", "vllm=http://127.0.0.1:2"),
    *("--num-prompts", "10", "--dry-run", "--split-gain", "4"),
)
ALL_WAIT = ("--request-rate", "inf")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--split-gain: generated has arrival times"),
        ((*ALL_WAIT, "--target", "c=http://127.0.0.1:3"), "--split-gain: needs two targets"),
        ((*ALL_WAIT, "--together"), "leave out --together"),
        ((*ALL_WAIT, "--workers", "2"), "leave out --workers"),
        ((*ALL_WAIT, "--gang", "4"), "leave out --gang"),
        ((*ALL_WAIT, "--ramp-up", "3"), "leave out --ramp-up"),
        ((*ALL_WAIT, "--no-ignore-eos"), "leave out --no-ignore-eos"),
        ((*ALL_WAIT, "--max-concurrency", "3"), "--max-concurrency: lets no batch fill"),
        ((*ALL_WAIT, "--split-gain", "0"), "--split-gain: "),
    ],
    ids=["open loop", "three", "together", "workers", "gang", "ramp", "natural", "cap", "size"],
)
def test_what_cannot_be_split(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is wrong with it, before any target is asked."""
    assert main([*SPLIT, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("name", ["b.gangs", "b" * 58], ids=["taken", "long"])
def test_the_third_name_must_be_free(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`NAME.gangs` must be a name that no target has, and no longer than names may be."""
    first, second = (name, "b") if name == "b.gangs" else ("a", name)
    words = ["--target", f"{first}=http://127.0.0.1:1", "--target", f"{second}=http://127.0.0.1:2"]
    assert main(["compare", *words, *ALL_WAIT, "--split-gain", "4", "--dry-run"]) == 2
    assert "rename a target" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [ALL_WAIT, ("--closed-loop", "--max-concurrency", "8")],
    ids=["all at once", "closed loop"],
)
def test_what_would_be_sent(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run names the third leg, and counts its padding block by block."""
    assert main([*SPLIT, *words, "--output-len", "7", "--blocks", "2", "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert list(told["targets"]) == ["static", "vllm", "vllm.gangs"]
    assert told["requests"] == 30
    assert told["output_tokens"] == 210
