"""The KV cache as a count of blocks: granted before tokens are computed, freed when one ends.

Blocks of a sequence need not be adjacent, so that a count is all there is to know. No block is
shared: there is no prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.sim.policy import Sequence


class KvBlocks:
    """`total` blocks of `block_tokens` tokens each."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.free = total
        self.block_tokens = block_tokens

    def needed(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)

    def has_room(self, tokens: int) -> bool:
        """Whether a new sequence of so many tokens could be granted its blocks."""
        return self.needed(tokens) <= self.free

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Grant what `sequence` lacks to hold so many tokens: all of it, or nothing and False."""
        lacks = self.needed(tokens) - sequence.blocks
        if lacks > self.free:
            return False
        if lacks > 0:
            self.free -= lacks
            sequence.blocks += lacks
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks."""
        self.free += sequence.blocks
        sequence.blocks = 0

    def iterations_that_fit(self, decoding: Iterable[Sequence], most: int) -> int:
        """Up to `most` iterations, each of which makes all of `decoding` a token longer, for which
        there are blocks; 1 where not even that is sure."""
        size = self.block_tokens
        held = [(sequence.cached + size - 1, sequence.blocks) for sequence in decoding]
        while most > 1 and sum((top + most) // size - own for top, own in held) > self.free:
            most //= 2
        return most
