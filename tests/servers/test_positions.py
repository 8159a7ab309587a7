"""Positions inside a batch: a row that has ended is decoded on, and that harms nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from running import engine_config

from servers.static.engine import Engine
from servers.static.wire import Row

CONTEXT = 64
ROWS = (
    Row(prompt_ids=tuple(range(5, 55)), max_tokens=10, ignore_eos=True),
    Row(prompt_ids=(6, 7, 8), max_tokens=55, ignore_eos=True),
    Row(prompt_ids=tuple(range(9, 29)), max_tokens=CONTEXT - 20, ignore_eos=True),
    Row(prompt_ids=tuple(range(20, CONTEXT - 1 + 20)), max_tokens=1, ignore_eos=True),
)
"""Each fits into the context; the longest prompt and the longest answer together take twice it."""

hf: Any = transformers
SHAPE = {"vocab_size": 96, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 2}


def gpt2() -> Any:
    """Learned positions, as many as the context has."""
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            **SHAPE, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
        )
    )


def opt() -> Any:
    """Learned positions behind an offset of two."""
    return hf.OPTForCausalLM(
        hf.OPTConfig(
            **SHAPE,
            hidden_size=16,
            num_hidden_layers=2,
            ffn_dim=32,
            num_attention_heads=2,
            max_position_embeddings=CONTEXT,
            word_embed_proj_dim=16,
            init_std=0.5,
        )
    )


def long_rope() -> Any:
    """Rotary embeddings that change for the whole batch once a position passes the 60th."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 9.0]}
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **SHAPE,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=CONTEXT,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": CONTEXT - 4,
                **factors,
            },
            initializer_range=0.5,
        )
    )


class Kept:
    """The parent's end of the wire: keeps each step's token ids and sends nothing."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def send(self, message: list[int]) -> None:
        self.steps.append(message)

    def waiting(self) -> bool:
        return False


def answers(engine: Engine, rows: Sequence[Row]) -> list[list[int]]:
    """The token ids of each row of one batch, up to its own end."""
    kept: Any = Kept()
    engine.run(rows, kept)
    return [
        [step[index] for step in kept.steps[: row.max_tokens]] for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("make", "rows"),
    [
        pytest.param(gpt2, ROWS, id="gpt2"),
        pytest.param(opt, ROWS, id="opt"),
        pytest.param(long_rope, ROWS[:2], id="longrope"),
    ],
)
def test_the_end_of_one_row_is_not_the_end_of_another(
    tmp_path: Path, make: Any, rows: Sequence[Row], cache: str
) -> None:
    """Rows that fit the context are answered in one batch as alone, whatever their lengths."""
    torch.manual_seed(1)
    make().save_pretrained(tmp_path)
    engine = Engine(replace(engine_config(tmp_path, "float32"), cache=cache, max_model_len=CONTEXT))
    alone = [answers(engine, [row])[0] for row in rows]
    assert answers(engine, rows) == alone
    assert [len(tokens) for tokens in alone] == [row.max_tokens for row in rows]
    assert len(set(alone[1])) > 4  # they say something
