"""The bare script that the static server is held against: `generate` on batch after batch.

`python -m bench.bare_generate MODEL` reads one JSON line of batches, each a list of
[token ids, output tokens], says `ready`, and then, for each further line, runs all batches once and
prints the seconds that it took. It needs the servers' environment.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers

from servers.bfloat16 import automatic_dtype, cpu_has_bfloat16, own_dtype


def main(directory: str) -> None:
    automatic: Any = transformers.AutoModelForCausalLM
    own = own_dtype(directory)
    dtype = automatic_dtype(own, on_cuda=False, has_bfloat16=cpu_has_bfloat16())
    model = automatic.from_pretrained(directory, dtype=dtype).eval()
    pad = model.config.eos_token_id
    batches = [_tensors(rows, pad) for rows in json.loads(sys.stdin.readline())]
    warm = torch.full((len(batches[0][0]), 8), pad)
    _generate(model, warm, torch.ones_like(warm), 4, pad)
    print("ready", flush=True)
    for _ in sys.stdin:
        started_s = time.perf_counter()
        for input_ids, mask, tokens in batches:
            _generate(model, input_ids, mask, tokens, pad)
        print(time.perf_counter() - started_s, flush=True)


def _tensors(rows: list[Any], pad: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(left-padded ids, mask, the longest output), for one batch."""
    width = max(len(prompt) for prompt, _ in rows)
    input_ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(input_ids)
    for row, (prompt, _) in enumerate(rows):
        input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return input_ids, mask, max(tokens for _, tokens in rows)


def _generate(
    model: Any, input_ids: torch.Tensor, mask: torch.Tensor, tokens: int, pad: int
) -> None:
    model.generate(
        input_ids=input_ids,
        attention_mask=mask,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=pad,
    )


if __name__ == "__main__":
    main(sys.argv[1])
