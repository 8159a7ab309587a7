"""`vllm bench serve`, vLLM's own load generator, against the static server."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import MODEL_NAME, Static

from servers.local import REPOSITORY, servers_python

_REQUESTS = 12
_OUTPUT_TOKENS = 10


def bench(static: Static, tokenizer: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """The result of `vllm bench serve` as it writes it."""
    command = [servers_python(), "-m", "servers.vllm.serve", "bench", "serve"]
    command += ["--base-url", static.process.base_url, "--tokenizer", str(tokenizer)]
    command += ["--model", MODEL_NAME, "--seed", "1", "--temperature", "0", "--disable-tqdm"]
    command += ["--dataset-name", "random", "--num-prompts", str(_REQUESTS), "--ignore-eos"]
    command += ["--random-input-len", "20", "--random-output-len", str(_OUTPUT_TOKENS)]
    command += ["--save-result", "--save-detailed", "--result-filename", "result.json"]
    command += ["--result-dir", str(folder)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    done = subprocess.run(
        [*command, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
    ids=["openai", "openai-chat"],
)
def test_vllm_bench_serve(
    static: Static, small_model: Path, tmp_path: Path, backend: str, endpoint: str
) -> None:
    """vLLM's bench completes every request without an error and counts every token, and so does the
    server.
    """
    told = "static_generation_tokens_total"
    before = static.metric(told)
    arguments = ["--backend", backend, "--endpoint", endpoint]
    result = bench(static, small_model, tmp_path, *arguments)
    assert (result["completed"], result["failed"]) == (_REQUESTS, 0)
    assert result["errors"] == [""] * _REQUESTS
    assert result["total_output_tokens"] == _REQUESTS * _OUTPUT_TOKENS
    assert result["output_lens"] == [_OUTPUT_TOKENS] * _REQUESTS
    assert all(ttft_s > 0 for ttft_s in result["ttfts"])
    assert static.metric(told) - before == result["total_output_tokens"]
