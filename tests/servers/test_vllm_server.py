"""vLLM's own server, started as the demo starts it."""

from pathlib import Path

import httpx
import pytest

from servers.local import _running_members, start_vllm


@pytest.mark.slow
def test_vllm_answers_and_leaves_nothing_behind(embedded_model: Path, tmp_path: Path) -> None:
    """Real vLLM serves the embedded model under its name, and stopping it ends every process."""
    waits: list[str] = []
    with start_vllm(embedded_model, tmp_path / "vllm.log", served_model_name="m") as process:
        process.wait_ready(180, lambda elapsed_s, state: waits.append(state))
        body = {"model": "m", "prompt": "Once upon", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{process.base_url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 8
        card = httpx.get(f"{process.base_url}/v1/models").json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("m", 2048)
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        chat = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 20}
        reply = httpx.post(f"{process.base_url}/v1/chat/completions", json=chat, timeout=60).json()
        # As many prompt tokens as the static server counts for the same conversation.
        assert reply["usage"]["prompt_tokens"] == 37
        assert len(_running_members(process.pid)) > 1
    assert waits
    assert "enable_prefix_caching=False" in process.log_path.read_text()
    assert _running_members(process.pid) == []
