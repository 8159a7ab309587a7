"""Rows of a Parquet file, a batch at a time. Rows are told by their number, from 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadgen.errors import TraceError
from loadgen.trace.blocks import BlockIds
from loadgen.trace.csv_rows import Columns
from loadgen.trace.formats import MS_IN, TimeUnit
from loadgen.trace.rows import BrokenRows, Rows
from loadgen.trace.trace import MOST

_ROWS_AT_ONCE = 100_000


def read_parquet(
    path: Path, columns: Columns, broken: BrokenRows, batch_rows: int = _ROWS_AT_ONCE
) -> Iterator[Rows]:
    """The file's rows. Raises TraceError where it is no Parquet, or lacks a column."""
    try:
        with pq.ParquetFile(path) as file:
            names = _names(path, file, columns)
            first = 1
            for batch in file.iter_batches(batch_rows, columns=names):
                yield _rows(batch, columns, first, broken)
                first += batch.num_rows
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0][:200]
        raise TraceError(f"{path}: not a Parquet file that can be read ({reason})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _names(path: Path, file: pq.ParquetFile, columns: Columns) -> list[str]:
    there = file.schema_arrow.names
    for flag, name in (
        ("--time-column", columns.time),
        ("--input-column", columns.input),
        ("--output-column", columns.output),
    ):
        if name not in there:
            raise TraceError(
                f"{path}: no column {name!r} among {', '.join(there)[:200]}; name it by {flag}"
            )
    return [columns.time, columns.input, columns.output, *({"hash_ids"} & set(there))]


def _rows(batch: pa.RecordBatch, columns: Columns, first: int, broken: BrokenRows) -> Rows:
    number = np.arange(first, first + batch.num_rows)
    time, time_is_good = _times(batch[columns.time], columns)
    inputs, input_is_good = _tokens(batch[columns.input])
    outputs, output_is_good = _tokens(batch[columns.output])
    is_good = time_is_good & input_is_good & output_is_good
    for row in np.flatnonzero(~is_good).tolist():
        name = columns.time if not time_is_good[row] else columns.input
        name = name if not (time_is_good[row] and input_is_good[row]) else columns.output
        broken.take(int(number[row]), f"{name}: row {number[row]} holds no usable number")
    ids = None
    if "hash_ids" in batch.schema.names:
        lists = batch["hash_ids"].cast(pa.list_(pa.int64())).fill_null([])
        offsets = np.concatenate(([0], np.cumsum(pc.list_value_length(lists).to_numpy())))
        ids = BlockIds(pc.list_flatten(lists).to_numpy(), offsets.astype(np.int64))
    return Rows(number, time, inputs, outputs, ids).where(is_good)


def _times(column: pa.Array, columns: Columns) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    is_there = ~np.asarray(column.is_null())
    if columns.unit is TimeUnit.ISO:
        if not pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ns"))
        stamps = column.cast(pa.timestamp("ns", column.type.tz)).cast("int64").fill_null(0)
        return stamps.to_numpy(), is_there
    times = column.cast(pa.float64()).fill_null(0.0).to_numpy() * MS_IN[columns.unit]
    return times, is_there & np.isfinite(times)


def _tokens(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = column.cast(pa.float64()).fill_null(-1.0).to_numpy()
    is_good = np.isfinite(values) & (values >= 0) & (values <= MOST) & (values == np.rint(values))
    return np.where(is_good, values, 0).astype(np.int64), is_good
