"""Rows of a foreign file on their way to a trace: columns, and what becomes of broken ones.

Readers make `Rows`, some thousand at a time; `importing.py` filters and joins them. It knows no
format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import TraceError
from loadgen.trace.blocks import BlockIds

TokenCounter = Any
"""From a list of texts to the list of their token counts."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in the file's order."""

    line: NDArray[np.int64]
    """Where each stands: its line, or its number where the format has no lines."""
    time: NDArray[Any]
    """ms as floats, or ns since 1970 as whole numbers."""
    input_length: NDArray[np.int64]
    output_length: NDArray[np.int64]
    hash_ids: BlockIds | None = None
    payload: Sequence[Mapping[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.line)

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """The rows for which `chosen` holds."""
        if chosen.all():
            return self
        index = np.flatnonzero(chosen)
        return Rows(
            self.line[index],
            self.time[index],
            self.input_length[index],
            self.output_length[index],
            None if self.hash_ids is None else self.hash_ids.take(index),
            None if self.payload is None else [self.payload[row] for row in index.tolist()],
        )


class BrokenRow(Exception):
    """A row that cannot be read: what is wrong with which column."""


@dataclass(slots=True)
class BrokenRows:
    """Rows that cannot be read: counted, or the first one refused, once it is needed."""

    name: str
    """The file's, for the error."""
    are_dropped: bool
    count: int = 0
    pending: list[tuple[int, str]] = field(default_factory=list)
    """(line, problem) of the rows since the last call of `settle`."""

    def take(self, line: int, problem: str) -> None:
        """One more broken row."""
        self.pending.append((line, problem))

    def settle(self, last_line: int | None = None) -> None:
        """Count the rows up to `last_line` and forget the rest, which nobody asked for.

        Raises TraceError for the first one where they are not to be dropped.
        """
        needed = [row for row in self.pending if last_line is None or row[0] <= last_line]
        self.pending.clear()
        if needed and not self.are_dropped:
            line, problem = needed[0]
            raise TraceError(
                f"{self.name}:{line}: {problem}; mend it, or leave such rows out: --broken drop"
            )
        self.count += len(needed)
