"""Records as a table: one row a request, one column a field; as Parquet by Arrow, or as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.record import RequestRecord

_AT_ONCE: Final = 8192
_TYPES: Final = {
    "seq": pa.int64(),
    "parent": pa.int64(),
    "gang": pa.int64(),
    "block": pa.int32(),
    "repeat": pa.int32(),
    "worker": pa.int32(),
    "http_status": pa.int32(),
    "chunk_s": pa.list_(pa.float64()),
    "chunk_tokens": pa.list_(pa.int32()),
}


def _type_of(name: str) -> pa.DataType:
    if name in _TYPES:
        return _TYPES[name]
    if name.endswith("_s"):
        return pa.float64()
    return pa.int64() if "_tokens_" in name else pa.string()


SCHEMA: Final = pa.schema([(f.name, _type_of(f.name)) for f in fields(RequestRecord)])


def write_parquet(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write all records, warm-up included, some thousand at a time; whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    remaining = iter(records)
    with pq.ParquetWriter(partial, SCHEMA) as writer:
        while batch := list(islice(remaining, _AT_ONCE)):
            columns = {name: [getattr(record, name) for record in batch] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, schema=SCHEMA))
    partial.replace(path)


def write_csv(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write all records, warm-up included; whole or not at all.

    Lists are JSON arrays. A text that a spreadsheet would take for a formula gets a quote in front:
    texts come from servers.
    """
    partial = path.with_name(f".{path.name}.part")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(SCHEMA.names)
        for record in records:
            writer.writerow([_cell(getattr(record, name)) for name in SCHEMA.names])
    partial.replace(path)


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return orjson.dumps(value).decode()
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
