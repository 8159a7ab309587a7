"""Records as an Arrow table, for Parquet: one row a request, one column a field."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.journal import whole_file
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
    remaining = iter(records)
    with whole_file(path) as partial, pq.ParquetWriter(partial, SCHEMA) as writer:
        while batch := list(islice(remaining, _AT_ONCE)):
            columns = {name: [getattr(record, name) for record in batch] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, schema=SCHEMA))
