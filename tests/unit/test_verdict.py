"""Each rule of the verdict: planted, it speaks; not planted, it is silent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import made_header, made_record

from loadgen.record import Outcome, RequestRecord, RunHeader, TokenSource, WorkerHealth
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


@pytest.mark.parametrize("prompt", [True, False], ids=["prompts", "outputs"])
def test_errors_of_lengths_do_not_cancel(prompt: bool) -> None:
    """Half far too short and half far too long are not the trace's, though the sum is."""
    served = [10, 190] * (N // 2)
    records = [
        made_record(
            n,
            due=float(n),
            chunks=(n + 1.0, n + 1.1),
            asked=2 if prompt else 100,
            prompt=100,
            served=2 if prompt else tokens,
            prompt_tokens_served=tokens if prompt else 100,
        )
        for n, tokens in enumerate(served)
    ]
    expected = (
        {"prompt_length_error": Grade.SUSPECT} if prompt else {"length_shortfall": Grade.INVALID}
    )
    assert rules(judged(records)) == expected


def test_an_answer_counted_by_chunks_silences_no_other() -> None:
    """The lengths of all others are weighed beside it."""
    records = asking(2000)
    records[0] = replace(records[0], token_source=TokenSource.CHUNKS)
    assert rules(judged(records)) == {
        "length_shortfall": Grade.INVALID,
        "tokens_by_chunks": Grade.SUSPECT,
    }


def test_a_burst_that_was_a_little_late() -> None:
    """A few milliseconds are no shortfall of the rate, however short the burst was."""
    records = [
        made_record(n, due=n / 1000, start=n / 900, chunks=(1.0 + n, 1.1 + n), asked=2)
        for n in range(50)
    ]
    assert "rate_shortfall" not in rules(judged(records))


def test_a_late_tail_is_a_shortfall() -> None:
    """However few of all it is that came late: the load was another."""
    records = [
        made_record(n, due=n / 100, start=n / 100 + 10 * (n > 990), chunks=(99.0, 99.1), asked=2)
        for n in range(1000)
    ]
    assert rules(judged(records))["rate_shortfall"] is Grade.INVALID


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


def health(**fields: float) -> WorkerHealth:
    """A worker that was never out of breath."""
    known: dict[str, Any] = {
        "worker": 0, "target": "a", "cpu_s": 1.0, "wall_s": 10.0, "loop_lag_p99_s": 0.001,
        "loop_lag_max_s": 0.002, "chunks": 1000,
    }  # fmt: skip
    return WorkerHealth(**(known | fields))


def judged_by(state: WorkerHealth, **header: Any) -> dict[str, Grade]:
    records = sound()
    made = made_header(requests=len(records), **header)
    summaries = {"a": summarise(records)}
    return rules(judge(made, summaries, (50.0, 90.0, 99.0), health=[state]))


LOOP = THRESHOLDS["loop_lag_share"]
CPU = THRESHOLDS["worker_cpu"]
CEILING = THRESHOLDS["ceiling_share"]


@pytest.mark.parametrize(
    ("rule", "fields", "expected"),
    [
        ("loop_lag_share", {"loop_lag_p99_s": LOOP.suspect * TTFT_S * 0.9}, None),
        ("loop_lag_share", {"loop_lag_p99_s": LOOP.suspect * TTFT_S * 1.1}, Grade.SUSPECT),
        ("loop_lag_share", {"loop_lag_p99_s": LOOP.invalid * TTFT_S * 1.1}, Grade.INVALID),
        ("worker_cpu", {"cpu_s": CPU.suspect * 10 * 0.99}, None),
        ("worker_cpu", {"cpu_s": CPU.suspect * 10 * 1.01}, Grade.SUSPECT),
        ("worker_cpu", {"cpu_s": CPU.invalid * 10 * 1.01}, Grade.INVALID),
    ],
)
def test_a_client_out_of_breath(
    rule: str, fields: dict[str, float], expected: Grade | None
) -> None:
    """A busy event loop and a busy core are reasons, above their thresholds and not below."""
    assert judged_by(health(**fields)).get(rule) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (CEILING.suspect * 0.9, None),
        (CEILING.suspect * 1.1, Grade.SUSPECT),
        (CEILING.invalid * 1.1, Grade.INVALID),
    ],
)
def test_load_near_the_self_checks_ceiling(share: float, expected: Grade | None) -> None:
    """Events a second are held against what the self-check found; without one, nothing is said."""
    state = health(chunks=int(10_000 * share * 10))
    ceiling = {"events_per_s_per_worker": 10_000}
    assert judged_by(state, self_check=ceiling).get("ceiling_share") == expected
    assert "ceiling_share" not in judged_by(state)


def test_counts_that_nobody_told() -> None:
    """Answers of unknown length are SUSPECT, and not short of what was asked."""
    untold = [made_record(n, due=float(n), end=n + 1.0) for n in range(N)]
    assert rules(judged(untold)) == {"tokens_untold": Grade.SUSPECT}
    (reason,) = judged([*untold[:3], *sound()[3:]]).reasons
    assert reason.rule == "tokens_untold"
    assert reason.text.startswith(f"3 of {N} answers do not tell")
    assert "leave these out" in reason.text
    assert "tokens_untold" not in rules(judged(failing(N, N)))


def test_prompt_counts_of_half_of_the_answers() -> None:
    """Where some answers tell no prompt count, the others alone are held against what was asked."""
    records = [
        record if record.seq % 2 else replace(record, prompt_tokens_served=None)
        for record in sound()
    ]
    assert rules(judged(records)) == {}


def test_an_idle_worker_is_not_out_of_breath() -> None:
    """A worker without a request, whose turns end at once, is not weighed; its turns are summed."""
    turns = [health(), *(health(worker=3, block=n, cpu_s=9e-5, wall_s=1e-4) for n in range(2))]
    turns += [health(worker=1, block=n, cpu_s=0.9 * n, wall_s=0.9) for n in range(2)]
    made = made_header(requests=N, self_check={"events_per_s_per_worker": 1200})
    found = rules(judge(made, {"a": summarise(sound())}, (50.0,), health=turns))
    assert found == {"ceiling_share": Grade.SUSPECT}  # 2,000 events in the 1.8 s of worker 1
    assert rules(judge(made, {"a": summarise(sound())}, (50.0,), health=turns[1:3])) == {}


def test_the_worst_of_several_workers_is_weighed() -> None:
    """One that is out of breath is not hidden by others; and each target has those of its turns."""
    fast, busy = health(), health(worker=1, cpu_s=9.9, loop_lag_p99_s=LOOP.invalid * TTFT_S * 1.1)
    made = made_header("a", "b", requests=N)
    summaries = {name: summarise(sound()) for name in "ab"}
    states = [fast, busy, *(replace(state, target="b", loop_lag_p99_s=0.001) for state in (fast,))]
    found = judge(made, summaries, (50.0,), health=states)
    assert {(reason.target, reason.rule) for reason in found.reasons} == {
        ("a", "loop_lag_share"),
        ("a", "worker_cpu"),
    }


def test_loop_lag_below_the_floor_is_no_reason() -> None:
    """Beside very fast answers a small lag of the event loop is noise, however large its share."""
    fast = [made_record(n, due=float(n), chunks=(n + 0.001,), asked=1) for n in range(N)]
    for lag_s, is_told in ((LAG_FLOOR_S * 0.9, False), (LAG_FLOOR_S * 1.1, True)):
        found = judge(
            made_header(requests=N),
            {"a": summarise(fast)},
            (50.0,),
            health=[health(loop_lag_p99_s=lag_s)],
        )
        assert ("loop_lag_share" in rules(found)) is is_told


def test_lag_beside_answers_that_took_no_time_is_invalid() -> None:
    """A median TTFT of 0 is divided by without an error: any lag is more than all of it."""
    records = [made_record(n, due=float(n), start=n + 0.5, chunks=(n + 0.5,) * 4) for n in range(N)]
    summaries = {"a": summarise(records)}
    busy = [health(loop_lag_p99_s=0.5)]
    found = rules(judge(made_header(requests=N), summaries, (50.0,), health=busy))
    assert found["schedule_lag_share"] is found["loop_lag_share"] is Grade.INVALID


def bursts(share: float, n: int = 100) -> list[RequestRecord]:
    """Streams of 16 chunks, of which `share` came all at one moment."""
    records = []
    for seq in range(n):
        step_s = 0.0 if seq < share * n else 0.02
        chunks = tuple(seq + TTFT_S + k * step_s for k in range(16))
        records.append(made_record(seq, due=float(seq), chunks=chunks, asked=16))
    return records


BUFFERED = THRESHOLDS["buffered_share"]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, None),
        (BUFFERED.suspect - 0.02, None),
        (BUFFERED.suspect + 0.02, Grade.SUSPECT),
        (BUFFERED.invalid + 0.02, Grade.INVALID),
    ],
)
def test_a_proxy_that_holds_streams_back(share: float, expected: Grade | None) -> None:
    """Streams whose chunks all come at one moment are told; those with gaps are not."""
    assert rules(judged(bursts(share))).get("buffered_share") == expected


def test_gaps_are_of_one_answer_and_of_what_succeeded() -> None:
    """Answers at one moment are told by their own gaps alone, each whole, and failures by none."""
    ended = [replace(record, outcome=Outcome.TRUNCATED) for record in bursts(1.0, 30)]
    streamed = [replace(record, seq=record.seq + 30) for record in bursts(0.0, 70)]
    found = rules(judged([*ended, *streamed]))
    assert not found.keys() & {"buffered_share", "unstreamed_share"}
    at_once = [
        made_record(n, chunks=(5.0,) * 2 + (5.02,), served=100, asked=100, due=0.0)
        for n in range(N)
    ]  # the gap of 20 ms is all that tells these apart from answers in one piece
    assert "unstreamed_share" not in rules(judged(at_once))
    close = [
        made_record(n, due=float(n), chunks=tuple(n + 1 + k / 1000 for k in range(16)), asked=16)
        for n in range(N)
    ]  # 1,000 tokens/s, one by one
    assert not rules(judged(close)).keys() & {"buffered_share", "unstreamed_share"}


def test_a_server_that_merges_a_few_tokens_is_no_proxy() -> None:
    """Some chunks of one step in one read, and gaps between steps, are as a server sends."""
    records = [
        made_record(
            seq,
            due=float(seq),
            chunks=tuple(seq + 1.0 + (k // 2) * 0.02 for k in range(16)),
            asked=16,
        )
        for seq in range(100)
    ]
    assert "buffered_share" not in rules(judged(records))


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_an_answer_in_one_piece_is_no_stream(chunks: int) -> None:
    """100 tokens at one moment are told, in however few chunks; 8 a step, step by step, are not."""
    held = [
        made_record(n, due=float(n), chunks=(n + 5.0,) * chunks, served=100, asked=100)
        for n in range(N)
    ]
    assert rules(judged(held))["unstreamed_share"] is Grade.SUSPECT
    steps = [
        made_record(
            n,
            due=float(n),
            chunks=tuple(n + 1 + k / 10 for k in range(4)),
            served=32,
            asked=32,
            chunk_tokens=(8,) * 4,
        )
        for n in range(N)
    ]
    assert "unstreamed_share" not in rules(judged(steps))


def test_a_cap_that_holds_requests_back_is_told() -> None:
    """Waiting under a cap is SUSPECT at most, and a cap that never holds is no reason."""
    load = {"load": {"max_concurrency": 4}, "output": {"metric_percentiles": [50.0]}}
    waiting = judged(sound(lag_s=3.0), made_header(requests=N, config=load))
    assert rules(waiting) == {"held_back": Grade.SUSPECT}
    assert rules(judged(sound(), made_header(requests=N, config=load))) == {}
    barely = judged(sound(lag_s=LAG_FLOOR_S * 0.9), made_header(requests=N, config=load))
    assert rules(barely) == {}


def test_lag_in_a_closed_loop_is_the_clients() -> None:
    """Its width is no cap that holds requests back: they are due when a place is free."""
    load = {"load": {"max_concurrency": 4, "closed_loop": True}}
    found = rules(judged(sound(lag_s=3.0), made_header(requests=N, config=load)))
    assert found["schedule_lag_share"] is Grade.INVALID
    assert "held_back" not in found


def test_why_a_run_was_stopped_is_said() -> None:
    """The reason of an unfinished run is the one that stopped it."""
    records = sound(150)
    summaries = {"a": summarise(records)}
    verdict = judge(
        made_header(requests=N), summaries, (50.0,), stopped="--max-duration 5: the time is up"
    )
    (reason,) = verdict.reasons
    assert reason.rule == "unfinished"
    assert "--max-duration 5" in reason.text


def test_one_late_request_of_a_few_does_not_condemn_a_run() -> None:
    """The p99 of fewer than 100 is their maximum: SUSPECT at most."""
    records = sound(20)
    records[0] = made_record(0, start=5.0, chunks=(6.0, 6.1, 6.2, 6.3))
    assert rules(judged(records))["schedule_lag_share"] is Grade.SUSPECT


def test_records_that_are_there_twice() -> None:
    """A copied record makes the run INVALID and does not hide that another one is missing."""
    records = sound()
    found = judged([*records[1:], records[-1]])
    assert rules(found)["duplicated"] is Grade.INVALID
    assert "unfinished" in rules(found)
    assert "duplicated" not in rules(judged(records))
    again = [replace(record, repeat=1) for record in records]
    assert "duplicated" not in rules(judged([*records, *again]))
