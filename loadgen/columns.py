"""Records as columns: one pass over them, whatever their number, and then arithmetic on arrays.

A record of 64 chunks is some kilobytes as an object and half a kilobyte here, and 200,000 of them
are summed in a blink. Nothing is computed that the record's own properties do not say in words;
`tests/unit/test_columns.py` holds the two against each other. It knows neither files nor figures.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.record import Outcome, RequestRecord, TokenSource

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

OUTCOMES: Final = tuple(Outcome)
SOURCES: Final = tuple(TokenSource)
_UNKNOWN: Final = -1
_TIMES: Final = ("due_s", "start_s", "end_s", "first_token_s", "last_token_s")
_COUNTS: Final = (
    "seq",
    "block",
    "repeat",
    "prompt_tokens_asked",
    "prompt_tokens_served",
    "output_tokens_asked",
    "output_tokens_wanted",
    "output_tokens_served",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """n requests, each with c_i chunks. A time that never was is NaN, an unknown count is -1."""

    seq: Ints
    block: Ints
    repeat: Ints
    due_s: Floats
    start_s: Floats
    end_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    prompt_tokens_asked: Ints
    prompt_tokens_served: Ints
    output_tokens_asked: Ints
    output_tokens_wanted: Ints
    output_tokens_served: Ints
    outcome: Ints
    """Index into OUTCOMES."""
    source: Ints
    """Index into SOURCES, or -1."""
    chunk_s: Floats
    """Shape (sum of c_i,): all chunks, request by request."""
    chunk_tokens: Ints
    """As `chunk_s`; a chunk whose tokens are not told counts as one."""
    first_chunk: Ints
    """Shape (n + 1,): where each request's chunks begin; the last is their number."""

    @staticmethod
    def of(records: Iterable[RequestRecord] | Columns) -> Columns:
        """One pass over `records`."""
        if isinstance(records, Columns):
            return records
        times = {name: array("d") for name in _TIMES}
        counts = {name: array("q") for name in _COUNTS}
        outcome, source = array("b"), array("b")
        chunk_s, chunk_tokens = array("d"), array("i")
        first_chunk = array("q", [0])
        outcome_code = {member: code for code, member in enumerate(OUTCOMES)}
        source_code = {member: code for code, member in enumerate(SOURCES)}
        for record in records:
            for name, times_of in times.items():
                at_s = getattr(record, name)
                times_of.append(np.nan if at_s is None else at_s)
            for name, counts_of in counts.items():
                count = getattr(record, name)
                counts_of.append(_UNKNOWN if count is None else count)
            outcome.append(outcome_code[record.outcome])
            source.append(
                _UNKNOWN if record.token_source is None else source_code[record.token_source]
            )
            chunk_s.extend(record.chunk_s)
            chunk_tokens.extend(record.chunk_tokens or (1,) * len(record.chunk_s))
            first_chunk.append(len(chunk_s))
        known: dict[str, Any] = {name: np.frombuffer(values) for name, values in times.items()}
        known |= {name: np.frombuffer(values, dtype=np.int64) for name, values in counts.items()}
        return Columns(
            **known,
            outcome=np.frombuffer(outcome, dtype=np.int8).astype(np.int64),
            source=np.frombuffer(source, dtype=np.int8).astype(np.int64),
            chunk_s=np.frombuffer(chunk_s, dtype=np.float64),
            chunk_tokens=np.frombuffer(chunk_tokens, dtype=np.int32),
            first_chunk=np.frombuffer(first_chunk, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.seq)

    def only(self, rows: Flags) -> Columns:
        """The requests of these rows, shape (n,), in their order, with their chunks."""
        counts = np.diff(self.first_chunk)
        chunks = np.repeat(rows, counts)
        of_rows = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if field.name not in ("chunk_s", "chunk_tokens", "first_chunk")
        }
        return Columns(
            **of_rows,
            chunk_s=self.chunk_s[chunks],
            chunk_tokens=self.chunk_tokens[chunks],
            first_chunk=np.concatenate(([0], np.cumsum(counts[rows]))),
        )

    @property
    def turn(self) -> Ints:
        """The number of each request's turn: they ascend with repeats and blocks, with gaps."""
        turn: Ints = self.repeat * (self.block.max(initial=0) + 1) + self.block
        return turn

    def turns(self) -> list[Flags]:
        """The rows of each turn, in the order of repeats and blocks; shape (n,) each."""
        turn = self.turn
        return [turn == number for number in np.unique(turn)]

    @property
    def duplicates(self) -> int:
        """Requests beyond the first of the same row and repeat: no run writes any."""
        keys = self.repeat * (self.seq.max(initial=0) + 1) + self.seq
        return len(self) - len(np.unique(keys))

    def span_s(self, rows: Flags) -> float:
        """From the first start to the last end of those of `rows` that were sent; 0 of none."""
        sent = rows & self.was_sent
        return float(self.end_s[sent].max() - self.start_s[sent].min()) if sent.any() else 0.0

    @property
    def is_ok(self) -> Flags:
        is_ok: Flags = self.outcome == OUTCOMES.index(Outcome.OK)
        return is_ok

    @property
    def was_sent(self) -> Flags:
        was_sent: Flags = self.outcome != OUTCOMES.index(Outcome.DROPPED)
        return was_sent

    @property
    def tells_output_tokens(self) -> bool:
        """Whether a success tells its count; without successes, what failures gave is all."""
        told = self.output_tokens_served[self.is_ok] >= 0
        return not len(told) or bool(told.any())

    @property
    def useful_tokens(self) -> Ints:
        wanted = self.output_tokens_wanted
        limit = np.where(wanted >= 0, wanted, self.output_tokens_asked)
        useful: Ints = np.minimum(np.maximum(self.output_tokens_served, 0), limit)
        return useful

    @property
    def schedule_lag_s(self) -> Floats:
        return self.start_s - self.due_s

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.start_s

    @property
    def ttft_from_due_s(self) -> Floats:
        return self.first_token_s - self.due_s

    @property
    def e2e_s(self) -> Floats:
        return self.end_s - self.start_s

    @property
    def e2e_from_due_s(self) -> Floats:
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> Floats:
        """NaN up to one token."""
        later = self.output_tokens_served - 1
        spans_s = self.last_token_s - self.first_token_s
        tpot_s: Floats = np.full(len(self), np.nan)
        np.divide(spans_s, later, out=tpot_s, where=later > 0)
        return tpot_s

    def tokens_by_chunk(self) -> Floats:
        """Tokens of each chunk, as `chunk_s`: of a request whose total is known they sum to it.

        Where the total alone is told, its chunks are taken as equal.
        """
        counts = np.diff(self.first_chunk)
        sums = np.diff(np.concatenate(([0], np.cumsum(self.chunk_tokens)))[self.first_chunk])
        weight: Floats = np.ones(len(self))
        is_known = (self.output_tokens_served >= 0) & (sums > 0)
        np.divide(self.output_tokens_served, sums, out=weight, where=is_known)
        tokens: Floats = np.repeat(weight, counts) * self.chunk_tokens
        return tokens

    def icl_s(self) -> Floats:
        """Gaps between the chunks of each success, pooled."""
        return self._gaps()[0]

    def itl_s(self) -> Floats:
        """Gaps between the tokens of each success, pooled: each chunk's gap over its tokens."""
        gaps_s, tokens = self._gaps()
        if (tokens == 1).all():
            return gaps_s
        told = tokens > 0
        return np.repeat(gaps_s[told] / tokens[told], tokens[told])

    def _gaps(self) -> tuple[Floats, Ints]:
        """(gap before each later chunk of a success, that chunk's tokens)."""
        counts = np.diff(self.first_chunk)
        is_later = np.repeat(self.is_ok, counts)
        firsts = self.first_chunk[:-1][counts > 0]
        is_later[firsts] = False
        gaps_s = np.diff(self.chunk_s, prepend=np.nan)
        return gaps_s[is_later], self.chunk_tokens[is_later]
