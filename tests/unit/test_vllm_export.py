"""The export under vLLM's names: its keys, its formulas, where they differ from ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_records import made_header, made_record, made_run

from loadgen.cli import main
from loadgen.record import Outcome, Phase, RequestRecord
from loadgen.report.vllm import as_vllm_result

KEYS = set(
    """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness
    max_concurrency duration completed failed total_input_tokens total_output_tokens
    request_throughput request_goodput output_throughput total_token_throughput
    max_output_tokens_per_s max_concurrent_requests input_lens output_lens ttfts itls latencies
    start_times generated_texts errors""".split()
) | {
    f"{part}_{name}_ms"
    for part in ("mean", "median", "std", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
}
RECORDS = [
    made_record(0, due=0.0, chunks=(0.2, 0.4, 0.6), end=0.7, asked=3, prompt=10, text="one"),
    made_record(1, due=1.0, chunks=(1.1,), end=1.2, asked=1, prompt=20),
    made_record(
        2,
        due=2.0,
        chunks=(2.5, 2.6),
        end=3.0,
        asked=9,
        prompt=30,
        outcome=Outcome.TRUNCATED,
        error="it ended",
    ),
]


def exported(records: list[RequestRecord], **output: Any) -> dict[str, Any]:
    header = made_header("a", requests=len(records))
    header.config["request"] = {"tokenizer": None}
    header.config["output"] |= output
    header.config.update({"trace": "t.jsonl", "generate": {}})
    return as_vllm_result(header, records, "a", (50.0, 99.0))


def test_the_keys_are_vllms() -> None:
    """All of them, and percentiles that were asked for beside."""
    content = exported(RECORDS)
    assert content.keys() >= KEYS
    assert content.keys() - KEYS == {f"p50_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el")}


def test_figures_by_hand() -> None:
    """Successes alone count; a latency ends with the last chunk, and TPOT comes from that."""
    content = exported(RECORDS)
    assert (content["num_prompts"], content["completed"], content["failed"]) == (3, 2, 1)
    assert content["duration"] == pytest.approx(3.0)
    assert content["total_input_tokens"] == 30
    assert content["total_output_tokens"] == 4
    assert content["output_throughput"] == pytest.approx(4 / 3)
    assert content["request_throughput"] == pytest.approx(2 / 3)
    assert content["total_token_throughput"] == pytest.approx(34 / 3)
    assert content["mean_ttft_ms"] == pytest.approx(150)
    assert content["mean_e2el_ms"] == pytest.approx((600 + 100) / 2)
    assert content["mean_tpot_ms"] == pytest.approx(200)  # of the first: one token has none
    assert content["median_itl_ms"] == pytest.approx(200)
    assert content["std_itl_ms"] == pytest.approx(0)
    assert content["request_goodput"] is None
    assert content["request_rate"] == pytest.approx(1.0)


def test_details_are_in_seconds_and_in_the_traces_order() -> None:
    """One entry a request, failures too, with nothing where there is nothing."""
    content = exported(list(reversed(RECORDS)))
    assert content["input_lens"] == [10, 20, 30]
    assert content["output_lens"] == [3, 1, 0]
    assert content["ttfts"] == pytest.approx([0.2, 0.1, 0.5])
    assert content["itls"][0] == pytest.approx([0.2, 0.2])
    assert content["latencies"] == pytest.approx([0.6, 0.1, 0.6])
    assert content["generated_texts"] == ["one", "", ""]
    assert content["errors"] == ["", "", "it ended"]


def test_goodput_and_peaks() -> None:
    """Goodput where an objective was given; the fullest second, and the most requests at once."""
    content = exported(RECORDS, goodput={"ttft": 150})
    assert content["request_goodput"] == pytest.approx(1 / 3)
    assert content["max_output_tokens_per_s"] == 3
    assert content["max_concurrent_requests"] == 1
    together = [made_record(n, due=0.0, chunks=(0.5, 2.5)) for n in range(4)]
    assert exported(together)["max_concurrent_requests"] == 4


def test_turns_of_others_are_not_its_duration() -> None:
    """In blocks that alternate, and with requests that were never sent, rates are of its turns."""
    one = made_record(0, due=0.0, chunks=(0.5,), end=1.0, asked=1, block=0)
    two = made_record(1, due=30.0, chunks=(30.5,), end=31.0, asked=1, block=1)
    never = made_record(2, due=99.0, chunks=(), end=99.0, outcome=Outcome.DROPPED)
    content = exported([one, two, never])
    assert content["duration"] == pytest.approx(2.0)
    assert content["request_throughput"] == pytest.approx(1.0)


def test_nothing_succeeded() -> None:
    """Zeros, as vLLM has them, and no crash."""
    content = exported([made_record(0, outcome=Outcome.CONNECT)])
    assert content["completed"] == 0
    assert content["mean_ttft_ms"] == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report RUN --export vllm [--target NAME] -o FILE`; warm-up is left out."""
    header = made_header("a", "b", requests=3)
    header.config["request"] = {"tokenizer": None}
    warm = made_record(0, due=-1.0, chunks=(-0.5,), phase=Phase.WARMUP)
    run = made_run(tmp_path / "run", header, [warm, *RECORDS])
    file = tmp_path / "deep" / "vllm.json"
    words = ["report", str(run), "--export", "vllm"]
    assert main([*words, "--target", "a", "-o", str(file)]) == 0
    assert json.loads(file.read_bytes())["num_prompts"] == 3
    assert not (run / "summary.json").exists()
    capsys.readouterr()
    for wrong in (["-o", str(file)], ["--target", "c", "-o", str(file)], ["--target", "a"]):
        assert main([*words, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["report", str(run), "-o", str(file)]) == 2


def test_a_simulation(tmp_path: Path) -> None:
    """It has no requests or load to tell of: those keys are null, and the rest is there."""
    words = ["simulate", "--num-prompts", "5", "--result-dir", str(tmp_path), "--quiet"]
    assert main(words) == 0
    (run,) = tmp_path.iterdir()
    file = tmp_path / "vllm.json"
    assert (
        main(["report", str(run), "--export", "vllm", "--target", "static", "-o", str(file)]) == 0
    )
    content = json.loads(file.read_bytes())
    assert (content["completed"], content["tokenizer_id"]) == (5, None)
