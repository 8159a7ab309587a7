"""Prompts have the asked number of tokens by the real servers' own count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servers.local import ServerProcess
from tests.e2e.conftest import call, records_of

pytestmark = pytest.mark.slow

LONG = pytest.mark.long
"""Each takes half a minute; the two others go through the same code, and all are tested without
models in tests/client/test_sizing.py."""
Both = tuple[ServerProcess, ServerProcess]
LENGTHS = ("--input-mean", "80", "--input-cv", "0.9", "--input-min", "45", "--input-max", "600")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param("tokenizer", ("--endpoint", "completions"), id="completions"),
        pytest.param("calibration", ("--endpoint", "chat"), id="probed chat"),
        pytest.param("tokenizer", ("--endpoint", "chat"), id="chat", marks=LONG),
        pytest.param("calibration", ("--endpoint", "completions"), id="probed", marks=LONG),
        pytest.param("token_ids", ("--token-ids",), id="ids", marks=LONG),
    ],
)
def test_a_hundred_prompts_are_exact(
    both_servers: Both, model: Path, tmp_path: Path, how: str, words: tuple[str, ...]
) -> None:
    """With the model's tokenizer, and without one, for completions, chat and token ids."""
    given = () if how == "calibration" else ("--tokenizer", str(model))
    done = call(
        "compare",
        *(
            f"--target={name}={s.base_url}"
            for name, s in zip(("a", "b"), both_servers, strict=True)
        ),
        *("--num-prompts", "100", *LENGTHS, "--output-len", "1", "--request-rate", "inf"),
        *("--max-concurrency", "16", "--json", "--result-dir", str(tmp_path), *words, *given),
    )
    assert done.code in (0, 4), done.stderr
    run = done.run_directory()
    header = json.loads((run / "header.json").read_bytes())
    assert header["prompts"]["made_with"] == how
    for name in ("a", "b"):
        off = [r["prompt_tokens_served"] - r["prompt_tokens_asked"] for r in records_of(run, name)]
        assert off == [0] * 100


def test_a_conversation_is_exact_and_shares_its_history(
    both_servers: Both, model: Path, tmp_path: Path
) -> None:
    """Turns of a chat have their whole length, the template of each exchange counted in."""
    file = tmp_path / "t.jsonl"
    rows = [
        {
            "timestamp": turn + session,
            "input_length": 60 + 80 * turn,
            "output_length": 8,
            "session_id": f"s{session}",
            "delay": 5,
        }
        for session in range(3)
        for turn in range(4)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for server in both_servers:
        done = call(
            *("run", str(file), "--base-url", server.base_url, "--endpoint", "chat", "--json"),
            *("--tokenizer", str(model), "--result-dir", str(tmp_path / "runs")),
        )
        assert done.code in (0, 4), done.stderr
        records = records_of(done.run_directory(), "target")
        assert len(records) == 12
        assert all(r["prompt_tokens_served"] == r["prompt_tokens_asked"] for r in records)
