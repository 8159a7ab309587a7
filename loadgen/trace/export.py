"""A trace in others' formats. Times are rounded here and nowhere else, and what is lost is told.

Mooncake has whole ms, Azure 100 ns, BurstGPT whole seconds; CSV and Parquet keep what we have.
Sources of the formats: `formats.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadgen.trace.blocks import BlockIds
from loadgen.trace.files import write_whole
from loadgen.trace.trace import TEXT_KEYS, Trace, trace_pieces

_ROWS_AT_ONCE: Final = 50_000


class ExportFormat(StrEnum):
    """Formats that a trace can be written in."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    CSV = "csv"
    PARQUET = "parquet"


TICK_MS: Final = {
    ExportFormat.MOONCAKE: 1.0,
    ExportFormat.AZURE: 1e-4,
    ExportFormat.BURSTGPT: 1000.0,
}
"""What times are rounded to; the others are not rounded."""
_TICK_WORDS: Final = {
    ExportFormat.MOONCAKE: "whole ms",
    ExportFormat.AZURE: "100 ns",
    ExportFormat.BURSTGPT: "whole seconds",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """What an export does not carry."""

    most_moved_ms: float
    rows_in_one_tick: int
    """Rows that share their time with the row before, and did not in the trace."""
    texts: int
    block_ids: bool
    others: int = 0
    """Rows with a session or with sampling of their own."""

    def lines(self, form: ExportFormat) -> Iterator[str]:
        """Each loss as a sentence."""
        if form in TICK_MS:
            yield (
                f"times are rounded to {_TICK_WORDS[form]}: moved by up to {self.most_moved_ms:g} "
                f"ms; {self.rows_in_one_tick:,} more request(s) share the time of the one before"
            )
        if self.texts:
            yield f"the text of {self.texts:,} prompt(s) is left out; lengths stay"
        if self.others:
            yield f"sessions, delays and sampling of {self.others:,} request(s) are left out"
        if self.block_ids:
            yield "block ids are left out: prompts that shared text no longer do"


def export(trace: Trace, form: ExportFormat, path: Path, start_ns: int = 0) -> Loss:
    """Write `path` whole or not at all; `start_ns` is the first arrival, for a format with dates.

    Raises TraceError where it cannot be written.
    """
    ticks = _ticks(trace, form)
    pieces: Iterable[bytes]
    if form is ExportFormat.MOONCAKE:
        assert ticks is not None
        pieces = trace_pieces(replace(trace, timestamp_ms=ticks, payload=None))  # type: ignore[arg-type]
    elif form is ExportFormat.AZURE:
        assert ticks is not None
        pieces = _azure(trace, ticks, start_ns)
    elif form is ExportFormat.BURSTGPT:
        assert ticks is not None
        pieces = _burstgpt(trace, ticks)
    elif form is ExportFormat.CSV:
        pieces = _csv(trace)
    else:
        pieces = [_parquet(trace)]
    write_whole((path, pieces))
    return _loss(trace, form, ticks)


def _ticks(trace: Trace, form: ExportFormat) -> NDArray[np.int64] | None:
    if form not in TICK_MS:
        return None
    return np.rint(trace.timestamp_ms / TICK_MS[form]).astype(np.int64)


def _loss(trace: Trace, form: ExportFormat, ticks: NDArray[np.int64] | None) -> Loss:
    moved, together = 0.0, 0
    if ticks is not None:
        moved = float(np.abs(ticks * TICK_MS[form] - trace.timestamp_ms).max())
        is_new = (np.diff(ticks) == 0) & (np.diff(trace.timestamp_ms) > 0)
        together = int(is_new.sum())
    texts = sum(bool(own.keys() & TEXT_KEYS) for own in trace.payload or ())
    others = sum(bool(own.keys() - TEXT_KEYS) for own in trace.payload or ())
    keeps_ids = form in (ExportFormat.MOONCAKE, ExportFormat.PARQUET)
    ids = None if trace.hash_ids is None or keeps_ids else BlockIds.of(trace.hash_ids)
    return Loss(moved, together, texts, ids is not None and ids.are_shared, others)


def _azure(trace: Trace, ticks: NDArray[np.int64], start_ns: int) -> Iterator[bytes]:
    yield b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    stamps = (start_ns + ticks * 100).astype("datetime64[ns]")
    for part in _parts(trace):
        times = np.datetime_as_string(stamps[part], unit="ns").tolist()
        yield _lines(
            (f"{time[:10]} {time[11:-2]}" for time in times),
            trace.input_length[part],
            trace.output_length[part],
        )


def _burstgpt(trace: Trace, ticks: NDArray[np.int64]) -> Iterator[bytes]:
    yield b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for part in _parts(trace):
        rows = zip(
            ticks[part].tolist(),
            trace.input_length[part].tolist(),
            trace.output_length[part].tolist(),
            strict=True,
        )
        yield "".join(f"{t},loadgen,{i},{o},{i + o},API log\n" for t, i, o in rows).encode()


def _csv(trace: Trace) -> Iterator[bytes]:
    yield b"timestamp_ms,input_tokens,output_tokens\n"
    for part in _parts(trace):
        times = orjson.dumps(trace.timestamp_ms[part].tolist()).decode()[1:-1].split(",")
        yield _lines(times, trace.input_length[part], trace.output_length[part])


def _parquet(trace: Trace) -> bytes:
    columns = {
        "timestamp_ms": pa.array(trace.timestamp_ms),
        "input_tokens": pa.array(trace.input_length, pa.int64()),
        "output_tokens": pa.array(trace.output_length, pa.int64()),
    }
    if trace.hash_ids is not None:
        ids = BlockIds.of(trace.hash_ids)
        columns["hash_ids"] = pa.LargeListArray.from_arrays(ids.offsets, ids.flat)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _parts(trace: Trace) -> Iterator[slice]:
    for start in range(0, len(trace), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)


def _lines(times: Iterable[str], inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> bytes:
    rows = zip(times, inputs.tolist(), outputs.tolist(), strict=True)
    return "".join(f"{time},{asked},{answer}\n" for time, asked, answer in rows).encode()
