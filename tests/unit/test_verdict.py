"""Each rule of the verdict: planted, it speaks; not planted, it is silent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_records import made_header, made_record

from loadgen.record import Outcome, RequestRecord, RunHeader, TokenSource
from loadgen.stats import summarise
from loadgen.verdict import LAG_FLOOR_S, THRESHOLDS, Grade, Verdict, judge

N = 200
TTFT_S = 1.0


def sound(n: int = N, *, lag_s: float = 0.0, every_s: float = 1.0) -> list[RequestRecord]:
    """Records with nothing wrong: on time, exact lengths, usage told; TTFT 1 s, 4 tokens each."""
    return [
        made_record(
            seq,
            due=seq * every_s,
            start=seq * every_s + lag_s,
            chunks=tuple(seq * every_s + lag_s + TTFT_S + k * 0.1 for k in range(4)),
        )
        for seq in range(n)
    ]


def judged(
    records: Sequence[RequestRecord],
    header: RunHeader | None = None,
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0),
) -> Verdict:
    header = header or made_header(requests=len(records))
    return judge(header, {"a": summarise(records, percentiles)}, percentiles)


def rules(verdict: Verdict) -> dict[str, Grade]:
    return {reason.rule: reason.grade for reason in verdict.reasons}


def failing(count: int, n: int = 1000) -> list[RequestRecord]:
    """`n` sound records, of which `count` failed instead."""
    records = sound(n)
    for seq in range(count):
        records[seq] = made_record(seq, due=float(seq), end=seq + 1.0, outcome=Outcome.HTTP_5XX)
    return records


def test_a_sound_run_is_valid() -> None:
    """Nothing wrong gives VALID, without a reason."""
    assert judged(sound()) == Verdict(Grade.VALID, ())


def test_the_table_of_thresholds_is_in_the_documentation() -> None:
    """Every rule with thresholds stands in docs/verdict.md, with these numbers in per cent."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "verdict.md").read_text()
    for rule, threshold in THRESHOLDS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{rule}` |"))
        numbers = [float(found) / 100 for found in re.findall(r"\| ([0-9.]+) % ", row)]
        assert numbers == [pytest.approx(threshold.suspect), pytest.approx(threshold.invalid)]


SHARE = THRESHOLDS["schedule_lag_share"]


@pytest.mark.parametrize(
    ("lag_s", "expected"),
    [
        (0.0, None),
        (SHARE.suspect * TTFT_S * 0.99, None),
        (SHARE.suspect * TTFT_S * 1.01, Grade.SUSPECT),
        (SHARE.invalid * TTFT_S * 0.99, Grade.SUSPECT),
        (SHARE.invalid * TTFT_S * 1.01, Grade.INVALID),
    ],
)
def test_schedule_lag(lag_s: float, expected: Grade | None) -> None:
    """A client that is late by a share of the TTFT speaks; one that is not is silent."""
    assert rules(judged(sound(lag_s=lag_s))).get("schedule_lag_share") == expected


def test_schedule_lag_below_the_floor_is_no_reason() -> None:
    """On a very fast server a small lag is noise, however large its share."""
    lag_s = LAG_FLOOR_S * 0.9
    records = [
        made_record(
            n, due=float(n), start=n + lag_s, chunks=tuple(n + 0.012 + k / 1e3 for k in range(4))
        )
        for n in range(N)
    ]
    assert rules(judged(records)) == {}


def test_schedule_lag_without_ttft() -> None:
    """Where answers are not streamed there is no TTFT, and a late client is still a late client."""
    records = [
        made_record(
            n, due=float(n), start=n + 3.0, end=n + 4.0, served=4, token_source=TokenSource.USAGE,
            prompt_tokens_served=10,
        )
        for n in range(N)
    ]  # fmt: skip
    assert judged(records).grade is Grade.INVALID


def test_waiting_under_a_cap_that_was_asked_for_is_not_the_clients_fault() -> None:
    """A slow server under --max-concurrency makes requests wait: no reason to call the client late.

    Two requests at a time of 1.3 s each, all due at once, as in `--request-rate inf
    --max-concurrency 2`: the load is the one that was asked for.
    """
    records = [
        made_record(
            n, start=n // 2 * 1.3, chunks=tuple(n // 2 * 1.3 + 1.0 + k / 10 for k in range(4))
        )
        for n in range(N)
    ]
    load = {"load": {"max_concurrency": 2}, "output": {"metric_percentiles": [50.0, 90.0, 99.0]}}
    verdict = judged(records, made_header(requests=N, config=load))
    assert verdict.grade is not Grade.INVALID
    assert not any("client was late" in reason.text for reason in verdict.reasons)


RATE = THRESHOLDS["rate_shortfall"]


@pytest.mark.parametrize(
    ("shortfall", "expected"),
    [
        (0.0, None),
        (-0.5, None),
        (RATE.suspect * 0.9, None),
        (RATE.suspect * 1.1, Grade.SUSPECT),
        (RATE.invalid * 0.9, Grade.SUSPECT),
        (RATE.invalid * 1.1, Grade.INVALID),
    ],
)
def test_rate_shortfall(shortfall: float, expected: Grade | None) -> None:
    """A client that sent fewer requests a second than asked speaks; one that sent more does not."""
    records = [
        made_record(
            n, due=n / 100, start=n / 100 / (1 - shortfall), chunks=(1e3, 1001.0, 1002.0, 1003.0)
        )
        for n in range(N)
    ]
    assert rules(judged(records)).get("rate_shortfall") == expected


ERRORS = THRESHOLDS["error_share"]


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (0, None),
        (round(ERRORS.suspect * 1000), None),
        (round(ERRORS.suspect * 1000) + 1, Grade.SUSPECT),
        (round(ERRORS.invalid * 1000), Grade.SUSPECT),
        (round(ERRORS.invalid * 1000) + 1, Grade.INVALID),
    ],
)
def test_error_share(failed: int, expected: Grade | None) -> None:
    """Failures above a share of all requests speak, and name their outcomes."""
    verdict = judged(failing(failed))
    assert rules(verdict).get("error_share") == expected
    for reason in verdict.reasons:
        if reason.rule == "error_share":
            assert f"http_5xx {failed}" in reason.text


def test_dropped_requests_are_failures() -> None:
    """A request that was due and never sent is not a good one."""
    records = sound(50) + [
        made_record(n, due=float(n), outcome=Outcome.DROPPED) for n in range(50, 100)
    ]
    assert rules(judged(records))["error_share"] is Grade.INVALID


LENGTH = THRESHOLDS["length_shortfall"]


def asking(asked: int, n: int = N) -> list[RequestRecord]:
    """Records of 1,000 output tokens each, where `asked` were asked for."""
    return [
        made_record(
            n,
            due=float(n),
            chunks=tuple(n + 1 + k / 10 for k in range(4)),
            served=1000,
            asked=asked,
        )
        for n in range(n)
    ]


@pytest.mark.parametrize(
    ("shortfall", "expected"),
    [
        (0.0, None),
        (LENGTH.suspect * 0.8, None),
        (LENGTH.suspect * 1.2, Grade.SUSPECT),
        (LENGTH.invalid * 0.9, Grade.SUSPECT),
        (LENGTH.invalid * 1.1, Grade.INVALID),
    ],
)
def test_length_shortfall(shortfall: float, expected: Grade | None) -> None:
    """Output tokens that fall short of those asked speak."""
    records = asking(round(1000 / (1 - shortfall)))
    assert rules(judged(records)).get("length_shortfall") == expected


def test_length_shortfall_beside_a_failure() -> None:
    """One failed request does not silence the rule: it is over the successes."""
    records = asking(2000)
    records[0] = made_record(0, asked=2000, end=1.0, outcome=Outcome.HTTP_5XX)
    assert rules(judged(records)).get("length_shortfall") is Grade.INVALID


PROMPT = THRESHOLDS["prompt_length_error"]


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (1000, None),
        (round(1000 * (1 + PROMPT.suspect * 0.9)), None),
        (round(1000 * (1 + PROMPT.suspect * 1.1)), Grade.SUSPECT),
        (round(1000 * (1 - PROMPT.suspect * 1.1)), Grade.SUSPECT),
        (round(1000 * (1 + PROMPT.invalid * 1.1)), Grade.INVALID),
        (0, None),
    ],
)
def test_prompt_length_error(served: int, expected: Grade | None) -> None:
    """Prompts that came out longer or shorter than asked speak; unknown lengths do not."""
    records = [
        made_record(
            n,
            due=float(n),
            chunks=(n + 1.0, n + 1.1),
            asked=2,
            prompt=1000,
            prompt_tokens_served=served,
        )
        for n in range(N)
    ]
    assert rules(judged(records)).get("prompt_length_error") == expected


def test_tokens_counted_by_chunks_are_suspect() -> None:
    """Without usage the tokens are a guess, and the verdict says so."""
    records = [
        made_record(n, due=float(n), chunks=(n + 1.0, n + 1.1), token_source=TokenSource.CHUNKS)
        for n in range(N)
    ]
    assert rules(judged(records)) == {"tokens_by_chunks": Grade.SUSPECT}


@pytest.mark.parametrize("source", [TokenSource.USAGE, TokenSource.CONTINUOUS_USAGE])
def test_tokens_counted_by_the_server_are_no_reason(source: TokenSource) -> None:
    """Usage is exact."""
    records = [
        made_record(n, due=float(n), chunks=(n + 1.0, n + 1.1), asked=2, token_source=source)
        for n in range(N)
    ]
    assert rules(judged(records)) == {}


@pytest.mark.parametrize(
    ("n", "percentile", "speaks"),
    [
        (99, 99.0, True),
        (100, 99.0, False),
        (9, 90.0, True),
        (10, 90.0, False),
        (999, 99.9, True),
        (1000, 99.9, False),
        (4, 80.0, True),
        (5, 80.0, False),
        (20, 95.0, False),
        (2, 50.0, False),
    ],
)
def test_few_samples(n: int, percentile: float, speaks: bool) -> None:
    """A percentile p needs n (1 - p) >= 1, where 1 is enough; it gives SUSPECT at most."""
    verdict = judged(sound(n), percentiles=(percentile,))
    assert rules(verdict) == ({"few_samples": Grade.SUSPECT} if speaks else {})


def test_few_samples_counts_successes() -> None:
    """Percentiles are over successes, so failures are no samples."""
    assert "few_samples" in rules(judged(failing(901)))


def test_unfinished() -> None:
    """Requests without a record mean that the run was cut short: SUSPECT, INVALID below half."""
    assert "unfinished" not in rules(judged(sound(), made_header(requests=N)))
    assert rules(judged(sound(), made_header(requests=N + 1)))["unfinished"] is Grade.SUSPECT
    assert rules(judged(sound(), made_header(requests=2 * N)))["unfinished"] is Grade.SUSPECT
    assert rules(judged(sound(), made_header(requests=2 * N + 1)))["unfinished"] is Grade.INVALID


@pytest.mark.parametrize("records", [[], failing(5, 5)], ids=["no records", "failures alone"])
def test_no_success(records: list[RequestRecord]) -> None:
    """Without one success there is nothing to speak of."""
    assert rules(judged(records, made_header(requests=5)))["no_success"] is Grade.INVALID


def test_the_worst_grade_of_all_targets_comes_first() -> None:
    """The verdict is the worst of all targets; its reasons start with the worst, and name them."""
    suspect, invalid = sound(50), failing(500)
    summaries = {
        "good": summarise(sound(1000)),
        "few": summarise(suspect),
        "bad": summarise(invalid),
    }
    verdict = judge(made_header("good", "few", "bad", requests=50), summaries, (99.0,))
    assert verdict.grade is Grade.INVALID
    assert [(r.grade, r.target) for r in verdict.reasons] == [
        (Grade.INVALID, "bad"),
        (Grade.SUSPECT, "few"),
    ]


def test_a_slow_server_is_no_reason() -> None:
    """Latency of minutes says nothing against the measurement."""
    records = [
        made_record(n, due=float(n), chunks=tuple(n + 300.0 + k * 10 for k in range(4)))
        for n in range(N)
    ]
    assert judged(records).grade is Grade.VALID
