"""Ids of prompt blocks: equal ids mean equal text. Flat columns, however many there are.

A trace has blocks of 512 tokens (Mooncake's). Ids of smaller blocks are put together: a block of
512 gets one id for each run of small ids that occurs, so that what was equal stays equal; what two
prompts share beyond their last whole common block is lost. It knows no file format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

HASH_BLOCK_TOKENS: Final = 512


class BlockIds(Sequence[tuple[int, ...]]):
    """For each row the ids of its blocks, as one flat array and the rows' offsets in it."""

    __slots__ = ("flat", "offsets")

    def __init__(self, flat: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        self.flat = flat
        self.offsets = offsets

    @staticmethod
    def of(rows: Iterable[Sequence[int]]) -> BlockIds:
        """The rows' ids; each below 2^63."""
        if isinstance(rows, BlockIds):
            return rows
        kept = list(rows)
        lengths = np.fromiter(map(len, kept), dtype=np.int64, count=len(kept))
        flat = np.fromiter(chain.from_iterable(kept), dtype=np.int64, count=int(lengths.sum()))
        return BlockIds(flat, _offsets(lengths))

    @staticmethod
    def joined(parts: Sequence[BlockIds]) -> BlockIds:
        """One after another."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return BlockIds(np.concatenate([part.flat for part in parts]), _offsets(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        index = range(len(self))[row]
        return tuple(self.flat[self.offsets[index] : self.offsets[index + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            a == tuple(b) for a, b in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # it compares by content

    @property
    def are_shared(self) -> bool:
        """Whether any id stands twice."""
        return len(np.unique(self.flat)) < len(self.flat)

    def take(self, order: NDArray[np.int64]) -> BlockIds:
        """The rows in another order, or some of them."""
        lengths = np.diff(self.offsets)[order]
        offsets = _offsets(lengths)
        shift = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths)
        return BlockIds(self.flat[shift + np.arange(offsets[-1])], offsets)

    def fitted(self, input_length: NDArray[np.int64]) -> tuple[BlockIds, int]:
        """Exactly ceil(tokens / 512) ids a row, and how many rows had to be changed.

        Surplus ids are cut; a missing block becomes one that no other prompt has.
        """
        needed = -(-input_length // HASH_BLOCK_TOKENS)
        lengths = np.diff(self.offsets)
        changed = int((needed != lengths).sum())
        if not changed:
            return self, 0
        offsets = _offsets(needed)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], needed)
        is_there = place < np.repeat(lengths, needed)
        flat = np.empty(int(offsets[-1]), dtype=np.int64)
        flat[is_there] = self.flat[(np.repeat(self.offsets[:-1], needed) + place)[is_there]]
        missing = int((~is_there).sum())
        flat[~is_there] = fresh_ids(self.flat, missing)
        return BlockIds(flat, offsets), changed


class Regrouping:
    """Ids of blocks of `block_tokens`, which divides 512, as ids of blocks of 512."""

    def __init__(self, block_tokens: int) -> None:
        self._each = HASH_BLOCK_TOKENS // block_tokens
        self._ids: dict[tuple[int, ...], int] = {}

    def __call__(self, small: Sequence[int]) -> tuple[int, ...]:
        if self._each == 1:
            return tuple(small)
        runs = (tuple(small[at : at + self._each]) for at in range(0, len(small), self._each))
        return tuple(self._ids.setdefault(run, len(self._ids)) for run in runs)


def fresh_ids(taken: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` ids that are not among `taken`: those after the greatest, or the lowest free ones."""
    first = int(taken.max(initial=-1)) + 1
    if first + count < 2**63:
        return np.arange(first, first + count)
    free = np.setdiff1d(np.arange(len(taken) + count), taken)
    return free[:count]


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))
