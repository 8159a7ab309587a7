"""A prefix cache as far as a trace tells of it: blocks of 512 prompt tokens, by their ids.

A replica remembers the ids that it saw last, as many as its KV cache could hold; of a prompt, the
leading blocks that it remembers need no prefill. Blocks are not shared in the count of `kv.py`, and
a prompt is remembered from its arrival on, so that this is somewhat kind to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.trace.blocks import HASH_BLOCK_TOKENS


class PrefixCache:
    """The ids of `kv_tokens` worth of blocks, least recently used first."""

    def __init__(self, kv_tokens: int) -> None:
        self._most = kv_tokens // HASH_BLOCK_TOKENS
        self._known: dict[int, None] = {}

    def take(self, ids: Sequence[int]) -> int:
        """Tokens of a prompt that are known; its blocks are known from now on."""
        hits = 0
        for block in ids:
            if block not in self._known:
                break
            hits += 1
        for block in ids:
            self._known.pop(block, None)
            self._known[block] = None
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return hits * HASH_BLOCK_TOKENS
