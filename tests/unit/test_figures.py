"""The rows of the results table: what is shown, and a dash for what does not exist."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import made_header, made_record, made_run
from rich.console import Console

from loadgen.columns import Columns
from loadgen.paired import Comparison, compare_paired
from loadgen.record import Outcome, RequestRecord, RunHeader, TokenSource
from loadgen.report import rebuild
from loadgen.report.figures import answer_of, columns_of, failures_of, pairs_of, prompts_of, rows_of
from loadgen.report.text import print_result
from loadgen.stats import Summary, summarise

PERCENTILES = (50.0, 90.0, 99.0)
SLOW_RECORDS = [made_record(n, start=0.001, chunks=(2.001, 3.001, 4.001)) for n in range(2)]
FAST_RECORDS = [made_record(n, start=0.001, chunks=(1.001, 1.501, 2.001)) for n in range(2)]
NOTHING_RECORDS = [made_record(0, outcome=Outcome.CONNECT)]
SLOW, FAST, NOTHING = map(summarise, (SLOW_RECORDS, FAST_RECORDS, NOTHING_RECORDS))


def paired(records: dict[str, list[RequestRecord]]) -> dict[str, Comparison]:
    """Of each target but the first, against the first."""
    first, *others = (Columns.of(own) for own in records.values())
    return {
        name: compare_paired(first, other)
        for name, other in zip(list(records)[1:], others, strict=True)
    }


def answer(records: dict[str, list[RequestRecord]]) -> str:
    summaries = {name: summarise(own) for name, own in records.items()}
    return answer_of(summaries, paired(records))


def cells(
    summaries: dict[str, Summary], percentiles: tuple[float, ...] = PERCENTILES
) -> dict[str, tuple[str, ...]]:
    return {row.title: row.cells for row in rows_of(summaries, percentiles)}


def test_columns() -> None:
    """Targets come first, then the ratio of each to the first."""
    assert columns_of({"a": SLOW}) == ["a"]
    assert columns_of({"a": SLOW, "b": FAST, "c": FAST}) == ["a", "b", "c", "b / a", "c / a"]


def test_rows_of_two_targets() -> None:
    """Counts and rates as they are, latencies in ms, ratios with an x."""
    found = cells({"a": SLOW, "b": FAST})
    assert found["requests ok"] == ("2", "2", "1.00x")
    assert found["duration, s"] == ("4.00", "2.00", "0.50x")
    assert found["requests/s"] == ("0.500", "1.000", "2.00x")
    assert found["output tokens/s"] == ("1.5", "3.0", "2.00x")
    assert found["TTFT p50, ms"] == ("2,000.0", "1,000.0", "0.50x")
    assert found["ITL mean, ms"] == ("1,000.0", "500.0", "0.50x")
    assert found["TPOT p99, ms"] == ("1,000.0", "500.0", "0.50x")
    assert found["E2E p90, ms"] == ("4,000.0", "2,000.0", "0.50x")
    assert found["schedule lag p99, ms"] == ("1.0", "1.0", "")


def test_rows_of_what_was_asked() -> None:
    """Asked and sent rate, lag, the latencies from due, and the steady throughput."""
    records = [
        made_record(n, due=float(n), start=n + 0.1, chunks=(n + 0.5, n + 0.6)) for n in range(3)
    ]
    twice = [
        made_record(n, due=float(n), start=n + 0.1, chunks=(n + 1.0, n + 1.2)) for n in range(3)
    ]
    found = cells({"a": summarise(records), "b": summarise(twice)})
    assert found["requests/s asked"] == ("1.000", "1.000", "")
    assert found["requests/s sent"] == ("1.000", "1.000", "")
    assert found["schedule lag p99, ms"] == ("100.0", "100.0", "")
    assert found["TTFT from due p99, ms"] == ("500.0", "1,000.0", "2.00x")
    assert found["E2E from due p99, ms"] == ("600.0", "1,200.0", "2.00x")
    assert found["steady tokens/s"] == ("2.0", "1.5", "0.75x")


def test_every_row_has_a_cell_for_every_column() -> None:
    """No cell is missing, whatever the targets have."""
    for summaries in ({"a": SLOW}, {"a": NOTHING, "b": FAST}, {"a": SLOW, "b": NOTHING, "c": FAST}):
        width = len(columns_of(summaries))
        assert {len(row.cells) for row in rows_of(summaries, PERCENTILES)} == {width}


def test_a_dash_for_what_does_not_exist() -> None:
    """A missing figure is a dash; a count of 0 is a 0."""
    found = cells({"a": SLOW, "b": NOTHING})
    assert found["requests ok"] == ("2", "0", "0.00x")
    assert found["requests failed"] == ("0", "1", "-")
    assert found["TTFT p50, ms"] == ("2,000.0", "-", "-")
    assert found["requests/s"] == ("0.500", "-", "-")


def test_asked_percentiles_are_the_rows() -> None:
    """The table shows the percentiles that were asked for, and no other."""
    summary = summarise([made_record(0, chunks=(1.0, 2.0))], (99.9,))
    found = cells({"a": summary}, (99.9,))
    assert "TTFT p99.9, ms" in found
    assert "TTFT p50, ms" not in found


def test_the_answer_in_one_sentence() -> None:
    """The sentence gives the ratio of output tokens a second."""
    assert answer({"a": SLOW_RECORDS, "b": FAST_RECORDS}) == (
        "On this trace b gave 2.00x the output tokens/s of a; how sure that is needs --blocks 4 or "
        "more to tell."
    )
    assert answer({"a": SLOW_RECORDS}) == ""
    assert "cannot be compared" in answer({"a": NOTHING_RECORDS, "b": FAST_RECORDS})


def alternating(pace_s: float, seed: int) -> list[RequestRecord]:
    """80 requests in 8 blocks, of 5 tokens each, one each `pace_s` but for chance."""
    rng, records = np.random.default_rng(seed), []
    for n in range(80):
        start = 1000.0 * (n // 10) + n % 10
        gap = pace_s * float(rng.uniform(0.9, 1.1))
        chunks = tuple(start + gap * (k + 1) for k in range(5))
        records.append(made_record(n, due=start, chunks=chunks, asked=5, block=n // 10))
    return records


def test_the_answer_says_how_sure_it_is() -> None:
    """With blocks there is an interval, and a difference that chance could make is called none."""
    same = answer({"a": alternating(0.5, 1), "b": alternating(0.5, 2)})
    assert same.startswith("No difference is shown between the output tokens/s of b and a: ")
    assert "Request by request, no difference is shown between their E2E: " in same
    faster = answer({"a": alternating(1.5, 1), "b": alternating(0.4, 2)})
    assert "the output tokens/s of a (99 % interval" in faster
    assert "8 blocks" in faster
    assert "Request by request, its E2E was 0.2" in faster


def test_the_table_of_pairs() -> None:
    """All requests, then quarters by length; a cell has an interval where there is one."""
    records = {"a": SLOW_RECORDS, "b": FAST_RECORDS}
    (table,) = pairs_of(paired(records), "a")
    assert table.title == "b / a"
    assert table.columns == ("TTFT", "TPOT", "E2E")
    assert [(row.title, row.cells) for row in table.rows] == [("all", ("0.50x", "0.50x", "0.50x"))]
    many = {
        name: [
            made_record(
                n,
                due=n,
                chunks=tuple(n + pace * (k + 1) for k in range(2 + n % 8)),
                asked=2 + n % 8,
            )
            for n in range(80)
        ]
        for name, pace in (("a", 0.2), ("b", 0.1))
    }
    (table,) = pairs_of(paired(many), "a")
    assert [row.title for row in table.rows][:2] == ["all", "output 2 to 3 tokens"]
    assert pairs_of({}, "a") == []


def test_small_ratios_keep_their_digits() -> None:
    """A two-hundredth is not 0.00x."""
    records = {
        "a": [made_record(n, due=n, chunks=(n + 2.0, n + 2.1)) for n in range(3)],
        "b": [made_record(n, due=n, chunks=(n + 0.01, n + 0.11)) for n in range(3)],
    }
    (table,) = pairs_of(paired(records), "a")
    assert table.rows[0].cells == ("0.005x", "1.00x", "0.052x")


def test_failures_by_outcome() -> None:
    """Failures are counted by outcome; a run without any gives nothing."""
    records = [made_record(0, chunks=(1.0,))] + [
        made_record(n, outcome=outcome)
        for n, outcome in enumerate([Outcome.TRUNCATED, Outcome.HTTP_5XX, Outcome.HTTP_5XX], 1)
    ]
    assert failures_of(summarise(records)) == "http_5xx 2, truncated 1"
    assert failures_of(SLOW) == ""


@pytest.mark.parametrize("name", ["a", "[red]a[/red]", "a[/]"], ids=repr)
def test_the_terminal_shows_names_as_they_are(name: str, tmp_path: Path) -> None:
    """Square brackets in a target's name are text, not the terminal library's mark-up."""
    records = [
        made_record(0, target=name, chunks=(1.0, 2.0)),
        made_record(1, target=name, end=1.0, outcome=Outcome.HTTP_5XX),
    ]
    path = made_run(tmp_path / "run", made_header(name, requests=3), records)
    out = io.StringIO()
    print_result(rebuild(path), Console(file=out, width=100))
    shown = out.getvalue()
    assert f"{name} failures: http_5xx 1" in shown
    assert "Verdict: INVALID" in shown
    assert f"INVALID {name}: 1 of 2 requests failed (50.0%): http_5xx 1" in shown


def test_the_terminal_says_what_itl_stands_on(tmp_path: Path) -> None:
    """Where the server does not tell the tokens of a chunk, the table says it; else it does not."""
    shown = {}
    for source in (TokenSource.USAGE, TokenSource.CONTINUOUS_USAGE):
        records = [made_record(0, chunks=(1.0, 2.0), token_source=source)]
        path = made_run(tmp_path / source, made_header("a"), records)
        out = io.StringIO()
        print_result(rebuild(path), Console(file=out, width=100))
        shown[source] = out.getvalue()
    assert "ITL counts each as one" in shown[TokenSource.USAGE]
    assert "ITL counts each as one" not in shown[TokenSource.CONTINUOUS_USAGE]


def test_tokens_that_are_chunks_are_not_compared() -> None:
    """Where one side's tokens are guessed from its chunks, no ratio of them is headlined."""
    guessed = [made_record(n, chunks=(1.0, 2.0), token_source=TokenSource.CHUNKS) for n in range(2)]
    assert "cannot be compared" in answer({"a": SLOW_RECORDS, "b": guessed})
    assert "x the output tokens/s" in answer({"a": SLOW_RECORDS, "b": FAST_RECORDS})


def test_a_target_that_gave_nothing_has_no_ratio() -> None:
    """0.00x would be a speed; there is none."""
    assert "gave nothing" in answer({"a": SLOW_RECORDS, "b": NOTHING_RECORDS})


def test_how_far_prompts_were_off() -> None:
    """Mean and largest distance of the server's count from what was asked; a dash without one."""
    records = [
        made_record(n, chunks=(1.0, 2.0), prompt=10, prompt_tokens_served=served)
        for n, served in enumerate((10, 13, 9, None))
    ]
    failed = made_record(
        4, chunks=(1.0,), outcome=Outcome.TRUNCATED, prompt=10, prompt_tokens_served=99
    )
    summary = summarise([*records, failed])
    assert summary.prompt_tokens_off_mean == pytest.approx(4 / 3)
    assert summary.prompt_tokens_off_max == 3
    found = cells({"a": summary, "b": NOTHING})
    assert found["prompt tokens off, mean / max"] == ("1.3 / 3", "-", "")


def header_of(made_with: str, *fixed: int | None, **more: Any) -> RunHeader:
    header = made_header(*"ab"[: len(fixed)], prompts={"made_with": made_with} | more)
    targets = zip(header.targets, fixed, strict=True)
    return replace(
        header, targets=tuple(replace(t, fixed_prompt_tokens=tokens) for t, tokens in targets)
    )


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (made_header("a"), []),
        (header_of("tokenizer", 0), ["prompts: by the tokenizer, exact"]),
        (header_of("tokenizer", 30, 30), ["exact", "a counts 30 tokens", "b counts 30 tokens"]),
        (header_of("tokenizer", 10, 25), ["exact", "that much shorter", "the text is 10 shorter"]),
        (header_of("tokenizer", None), ["by the tokenizer", "does not count prompts as"]),
        (header_of("calibration", 0, tokens_per_word=1.25), ["1.25 tokens a word"]),
        (header_of("words", None), ["a word for a token"]),
        (header_of("a later one", None), ["prompts: a later one"]),
    ],
    ids=["older", "exact", "template", "differ", "another", "calibration", "words", "unknown"],
)
def test_what_prompts_were_measured_with(header: RunHeader, said: list[str]) -> None:
    """One sentence for the way, and one for each target that counts more than the text."""
    sentences = prompts_of(header)
    assert len(sentences) == len(said)
    for sentence, part in zip(sentences, said, strict=True):
        assert part in sentence


def test_a_latency_that_nobody_has_has_no_rows() -> None:
    """Answers that did not stream have no TTFT, ITL and TPOT, and no rows of dashes for them."""
    whole = [make_whole(n) for n in range(2)]
    found = cells({"a": summarise(whole), "b": summarise(whole)})
    assert not [title for title in found if title.startswith(("TTFT mean", "ITL", "TPOT"))]
    assert found["E2E mean, ms"][0] != "-"
    assert cells({"a": SLOW, "b": summarise(whole)})["TTFT mean, ms"][1] == "-"


def make_whole(seq: int) -> RequestRecord:
    """An answer that came in one piece."""
    return replace(made_record(seq), chunk_s=(), first_token_s=None, last_token_s=None)


def test_what_nobody_told_is_a_dash_everywhere() -> None:
    """Answers without counts, and a target without a turn, have no tokens, duration or ratio."""
    untold = [made_record(n, end=n + 1.0) for n in range(3)]
    records = {"a": untold, "b": FAST_RECORDS, "c": []}
    found = cells({name: summarise(own) for name, own in records.items()})
    assert found["output tokens"] == ("-", "6", "-", "-", "-")
    assert found["output tokens/s"] == ("-", "3.0", "-", "-", "-")
    assert found["duration, s"][2:] == ("-", "0.67x", "-")
    said = answer(records)
    assert "b and a cannot be compared: answers told no usage." in said
    assert "c and a cannot be compared: one of them gave nothing." in said
    some = {"a": [*FAST_RECORDS[:-1], untold[-1]], "b": FAST_RECORDS}
    assert "b and a cannot be compared: answers told no usage." in answer(some)
