"""Rows of a Parquet file, a batch at a time. Rows are told by their number, from 1.

Its columns have types: one that does not go with the unit of time, or is no number of tokens, is
refused before any row is read. Arrow itself would take whole numbers for dates, as ns since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadgen.errors import TraceError
from loadgen.trace.blocks import BlockIds
from loadgen.trace.csv_rows import Columns, parse_stamp_ns, quick_stamps_ns
from loadgen.trace.formats import MS_IN, TimeUnit
from loadgen.trace.rows import BrokenRow, BrokenRows, Rows
from loadgen.trace.trace import MOST

_ROWS_AT_ONCE: Final = 100_000
_IDS: Final = "hash_ids"
_PER_S: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_YEARS_S: Final = (-2_208_988_800, 4_102_444_800)
"""From 1900 to 2100, as in a CSV file: no difference of two such times is beyond 64 bits of ns."""


def read_parquet(
    path: Path, columns: Columns, broken: BrokenRows, batch_rows: int = _ROWS_AT_ONCE
) -> Iterator[Rows]:
    """The file's rows. Raises TraceError where it is no Parquet, or a column is missing or of a
    type that does not do."""
    try:
        with pq.ParquetFile(path) as file:
            names = _names(path, file.schema_arrow, columns)
            first = 1
            for batch in file.iter_batches(batch_rows, columns=names):
                yield _rows(batch, columns, first, broken)
                first += batch.num_rows
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0][:200]
        raise TraceError(f"{path}: not a Parquet file that can be read ({reason})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _names(path: Path, schema: pa.Schema, columns: Columns) -> list[str]:
    there = schema.names
    for flag, name, unit in (
        ("--time-column", columns.time, columns.unit),
        ("--input-column", columns.input, None),
        ("--output-column", columns.output, None),
    ):
        if there.count(name) != 1:
            some = "more than one" if name in there else "no"
            raise TraceError(
                f"{path}: {some} column {name!r} among {', '.join(there)[:200]}; name it by {flag}"
            )
        kind = schema.field(name).type
        problem = _mismatch(_plain(kind), unit)
        if problem is not None:
            shown = str(kind)[:80]
            raise TraceError(
                f"{path}: column {name!r} is {shown}: {problem}; name another by {flag}"
            )
    ids = [_IDS] if _IDS in there else []
    for name in ids:
        if there.count(name) > 1 or not _holds_ids(schema.field(name).type):
            shown = str(schema.field(name).type)[:80]
            raise TraceError(
                f"{path}: column {name!r} is {shown}: lists of whole numbers are needed; "
                "write the file without it"
            )
    return list(dict.fromkeys([columns.time, columns.input, columns.output, *ids]))


def _mismatch(kind: pa.DataType, unit: TimeUnit | None) -> str | None:
    """Why a column of the type holds no times of the unit, or no tokens (None); None if it may."""
    if unit is TimeUnit.ISO:
        if pa.types.is_timestamp(kind) or _is_text(kind):
            return None
        return "--time-unit iso needs timestamps or strings; numbers need s, ms, us or ns"
    if _is_number(kind):
        return None
    if unit is None:
        return "numbers of tokens are needed"
    return f"--time-unit {unit} needs numbers; timestamps and strings need iso"


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _holds_ids(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    return is_list and (_is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def _rows(batch: pa.RecordBatch, columns: Columns, first: int, broken: BrokenRows) -> Rows:
    number = np.arange(first, first + batch.num_rows)
    time, time_is_good = _times(batch[columns.time], columns.unit)
    inputs, input_is_good = _tokens(batch[columns.input])
    outputs, output_is_good = _tokens(batch[columns.output])
    ids, ids_are_good = None, np.ones(batch.num_rows, dtype=np.bool_)
    if _IDS in batch.schema.names:
        try:
            ids, ids_are_good = _block_ids(batch[_IDS])
        except pa.ArrowInvalid:
            raise TraceError(
                f"{broken.name}: {_IDS}: lists of whole numbers below 2^63 are needed"
            ) from None
    time_is = "date and time" if columns.unit is TimeUnit.ISO else "number"
    checks = (
        (columns.time, time_is, time_is_good),
        (columns.input, "number", input_is_good),
        (columns.output, "number", output_is_good),
        (_IDS, "list of numbers", ids_are_good),
    )
    is_good = time_is_good & input_is_good & output_is_good & ids_are_good
    for row in np.flatnonzero(~is_good).tolist():
        name, what = next((name, what) for name, what, good in checks if not good[row])
        broken.take(int(number[row]), f"{name}: row {number[row]} holds no usable {what}")
    return Rows(number, time, inputs, outputs, ids).where(is_good)


def _times(column: pa.Array, unit: TimeUnit) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """ns since 1970 for dates, ms for numbers; and which of them are good."""
    if unit is not TimeUnit.ISO:
        times = _numbers(column) * MS_IN[unit]
        return times, np.isfinite(times)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        return _text_times(column)
    per_s = _PER_S[column.type.unit]
    stamps = column.cast(pa.int64()).fill_null(_YEARS_S[1] * per_s).to_numpy()
    is_good = (stamps >= _YEARS_S[0] * per_s) & (stamps < _YEARS_S[1] * per_s)
    return np.where(is_good, stamps, 0) * (_PER_S["ns"] // per_s), is_good


def _text_times(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    texts = column.cast(pa.string()).fill_null("")
    quick = quick_stamps_ns(texts)
    if quick is not None:
        return quick, np.ones(len(texts), dtype=np.bool_)
    stamps = np.zeros(len(texts), dtype=np.int64)
    is_good = np.zeros(len(texts), dtype=np.bool_)
    for row, text in enumerate(texts.to_pylist()):
        try:
            stamps[row] = parse_stamp_ns(text, "")
        except BrokenRow:
            continue
        is_good[row] = True
    return stamps, is_good


def _tokens(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = _numbers(column)
    is_good = np.isfinite(values) & (values >= 0) & (values <= MOST) & (values == np.rint(values))
    return np.where(is_good, values, 0).astype(np.int64), is_good


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    """Floats, as those of a text file are; nan where there is none."""
    floats = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _block_ids(column: pa.Array) -> tuple[BlockIds, NDArray[np.bool_]]:
    """The rows' ids, none where there is no list; and which rows hold no null among them."""
    lists = column.cast(pa.list_(pa.int64())).fill_null([])
    lengths = pc.list_value_length(lists).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    flat = pc.list_flatten(lists)
    row = np.repeat(np.arange(len(lists)), lengths)
    is_good = np.ones(len(lists), dtype=np.bool_)
    is_good[row[np.asarray(flat.is_null())]] = False
    return BlockIds(flat.fill_null(0).to_numpy(), offsets), is_good
