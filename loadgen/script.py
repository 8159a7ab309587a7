"""What each row of a trace says: its own text, or one that is made of its length and blocks.

The same trace, seed and recipe give the same, in whatever order rows are asked for. It knows
neither targets nor when a row is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.client.openai import Prompt
from loadgen.prompts import PromptMaker
from loadgen.trace import Trace
from loadgen.trace.blocks import HASH_BLOCK_TOKENS


class Script:
    """Prompts of one trace."""

    def __init__(self, trace: Trace, maker: PromptMaker) -> None:
        self._trace = trace
        self._maker = maker
        blocks = -(-trace.input_length // HASH_BLOCK_TOKENS)
        self._first_block = np.cumsum(blocks) - blocks

    def prompt(self, row: int) -> Prompt:
        """What row `row` sends."""
        own = self._own(row)
        if (said := own.get("messages") or own.get("prompt")) is not None:
            prompt: Prompt = said
            return prompt
        tokens = int(self._trace.input_length[row])
        return self._as_sent(self._maker.prompt(self._blocks(row), tokens))

    def _own(self, row: int) -> Mapping[str, Any]:
        return {} if self._trace.payload is None else self._trace.payload[row]

    def _as_sent(self, words: Sequence[str]) -> Prompt:
        return self._maker.ids(words) if self._maker.recipe.as_ids else " ".join(words)

    def _blocks(self, row: int) -> Sequence[int | str]:
        """Ids of the row's blocks; without any, those that the trace's file would have."""
        if self._trace.hash_ids is None:
            first = int(self._first_block[row])
            tokens = int(self._trace.input_length[row])
            return range(first, first - (-tokens // HASH_BLOCK_TOKENS))
        return self._trace.hash_ids[row] or (f"row {row}",)
