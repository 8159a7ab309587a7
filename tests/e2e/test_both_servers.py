"""The command line against both real servers on the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servers.local import ServerProcess
from tests.e2e.conftest import call, records_of

pytestmark = pytest.mark.slow

Both = tuple[ServerProcess, ServerProcess]


def test_compare_holds_lengths_and_bytes_on_both_servers(
    both_servers: Both, model: Path, tmp_path: Path
) -> None:
    """Prompt and output tokens are exactly those asked, on both servers, by their own usage."""
    static, vllm = both_servers
    done = call(
        *("compare", "--target", f"static={static.base_url}", "--target", f"vllm={vllm.base_url}"),
        *("--preset", "lesson1", "--num-prompts", "12", "--request-rate", "inf", "--json"),
        *("--tokenizer", str(model), "--result-dir", str(tmp_path)),
    )
    assert done.code == 0, done.stderr
    run = done.run_directory()
    for target in ("static", "vllm"):
        records = records_of(run, target)
        assert [r["outcome"] for r in records] == ["ok"] * 12
        for record in records:
            assert record["prompt_tokens_served"] == record["prompt_tokens_asked"]
            assert record["output_tokens_served"] == record["output_tokens_asked"]
            assert record["token_source"] == "continuous_usage"
            assert sum(record["chunk_tokens"]) <= record["output_tokens_served"]
            assert (
                record["due_s"]
                <= record["start_s"]
                <= record["sent_s"]
                <= record["first_byte_s"]
                <= record["first_token_s"]
                <= record["last_token_s"]
                <= record["end_s"]
            )
    header = json.loads((run / "header.json").read_bytes())
    assert {tuple(t["features"]) for t in header["targets"]} == {
        (
            "ignore_eos",
            "min_tokens",
            "stream_options.continuous_usage_stats",
            "stream_options.include_usage",
        )
    }
    comparison = json.loads((run / "comparison.json").read_bytes())
    assert set(comparison["targets"]) == {"static", "vllm"}
    rows = map(json.loads, (run / "trace.jsonl").read_bytes().splitlines())
    expected = sum(row["output_length"] for row in rows)
    for figures in comparison["targets"].values():
        assert figures["output_tokens"] == expected
        assert figures["failed"] == 0
        for latency in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            assert set(figures[latency]) >= {"mean", "p50", "p90", "p99"}
    assert comparison["ratio"]["output_tokens"] == 1.0
    assert comparison["ratio"]["duration_s"] == pytest.approx(
        comparison["targets"]["vllm"]["duration_s"] / comparison["targets"]["static"]["duration_s"]
    )


@pytest.mark.parametrize("transport", ["socket", "httpx"])
def test_chat_runs_on_both_servers(both_servers: Both, tmp_path: Path, transport: str) -> None:
    """The chat endpoint works on both servers and over both transports, without a tokenizer."""
    for server in both_servers:
        done = call(
            *("run", "--base-url", f"{server.base_url}/v1/", "--endpoint", "/v1/chat/completions"),
            *("--num-prompts", "4", "--request-rate", "inf", "--output-len", "9", "--json"),
            *("--transport", transport, "--result-dir", str(tmp_path)),
        )
        assert done.code == 0, done.stderr
        records = records_of(done.run_directory(), "target")
        assert [r["outcome"] for r in records] == ["ok"] * 4
        assert {r["output_tokens_served"] for r in records} == {9}
        assert all(r["first_token_s"] > r["sent_s"] for r in records)


def test_without_streaming_there_is_no_ttft(both_servers: Both, tmp_path: Path) -> None:
    """--no-stream gives tokens and E2E, and no TTFT, ITL or TPOT."""
    done = call(
        *("run", "--base-url", both_servers[0].base_url, "--no-stream", "--json"),
        *("--num-prompts", "3", "--request-rate", "inf", "--output-len", "5"),
        *("--result-dir", str(tmp_path)),
    )
    assert done.code == 0, done.stderr
    target = json.loads(done.stdout)["targets"]["target"]
    assert target["completed"] == 3
    assert target["output_tokens"] == 15
    assert target["ttft_s"] is None
    assert target["tpot_s"] is None
    assert target["e2e_s"]["n"] == 3


def test_requests_over_the_context_are_refused_before_the_run(
    both_servers: Both, tmp_path: Path
) -> None:
    """A trace that cannot fit the model is one line, exit code 2, and no run directory."""
    done = call(
        *("run", "--base-url", both_servers[1].base_url, "--num-prompts", "2"),
        *("--input-len", "2000", "--output-len", "100", "--result-dir", str(tmp_path / "r")),
    )
    assert done.code == 2
    assert "serves at most 2048" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "r").exists()


def test_a_model_that_is_not_served_is_told(both_servers: Both, tmp_path: Path) -> None:
    """The server's own words about the model come back in one line, with exit code 2."""
    for server in both_servers:
        done = call(
            *("run", "--base-url", server.base_url, "--model", "nope", "--quiet"),
            *("--result-dir", str(tmp_path / "r")),
        )
        assert done.code == 2
        assert len(done.stderr.splitlines()) == 1
        assert "does not exist" in done.stderr
    assert not (tmp_path / "r").exists()
