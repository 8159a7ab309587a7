"""The embedded model behind the static server, against plain transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from running import Static

from servers.local import start_static

hf: Any = transformers


@pytest.fixture(scope="module")
def served(embedded_model: Path, log_dir: Path) -> Iterator[Static]:
    """The embedded model in float32, in batches of 4."""
    arguments = ["--dtype", "float32", "--max-wait", "500", "--max-model-len", "2048"]
    with (
        start_static(
            embedded_model, log_dir / "embedded.log", batch_size=4, arguments=arguments
        ) as process,
        httpx.Client(base_url=process.base_url, timeout=120) as client,
    ):
        process.wait_ready(180)
        yield Static(process, client)


def test_greedy_equals_generate(served: Static, embedded_model: Path) -> None:
    """In one padded batch, each row's greedy text is what `generate` gives for its prompt alone."""
    prompts = [
        "Once upon a time in a distant land",
        "The three primary colours are",
        "import asyncio\n\nasync def main",
        "Paris is the capital of France. Berlin is the capital of",
    ]
    before = served.metric("static_batch_rows_count")
    answers = served.together(*[{"prompt": prompt, "max_tokens": 20} for prompt in prompts])
    assert served.metric("static_batch_rows_count") == before + 1
    tokenizer = hf.AutoTokenizer.from_pretrained(embedded_model)
    model = hf.AutoModelForCausalLM.from_pretrained(embedded_model, dtype=torch.float32)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        whole = model.generate(**ids, max_new_tokens=20, do_sample=False)[0]
        made = whole[ids["input_ids"].shape[1] :]
        assert answer["choices"][0]["text"] == tokenizer.decode(made, skip_special_tokens=True)
        assert answer["usage"]["completion_tokens"] == len(made)


def test_it_knows_paris(served: Static) -> None:
    """Through its chat template the model answers as vLLM's capture does, and ends by itself."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = served.chat(messages=messages).json()
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 37
    assert answer["usage"]["completion_tokens"] == 8
