"""Records as CSV: the Parquet file's columns, one record a row, safe to open in a spreadsheet.

RFC 4180 with a header row. Lists stand as JSON. A text that a spreadsheet would take for a formula
(it begins with = + - @, a tab or a carriage return, and may come from a server) gets a leading
apostrophe: https://owasp.org/www-community/attacks/CSV_Injection.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.journal import whole_file
from loadgen.record import RequestRecord
from loadgen.report.table import SCHEMA

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def write_csv(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write all records, warm-up included; whole or not at all."""
    with (
        whole_file(path) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(SCHEMA.names)
        for record in records:
            writer.writerow([_cell(getattr(record, name)) for name in SCHEMA.names])


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return orjson.dumps(value).decode()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
