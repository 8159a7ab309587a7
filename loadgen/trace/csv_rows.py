"""Rows of a CSV file: whole blocks at once through Arrow, and line by line where that fails.

Both ways give the same rows: the fast one takes only what the slow one reads alike, and any block
that holds anything else (a blank line, a quoted or broken field, a number such as `12.0`) goes
through the slow one, which knows the line and the column. A quoted field may not hold a line end.
Columns are found by name, never by position.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from loadgen.errors import TraceError
from loadgen.trace.formats import MS_IN, TimeUnit
from loadgen.trace.reading import BLOCK_BYTES, line_blocks
from loadgen.trace.rows import BrokenRow, BrokenRows, Rows
from loadgen.trace.trace import MOST

_INT: Final = r"^[0-9]{1,9}$"
_WHOLE: Final = re.compile(r"([0-9]{1,18})(\.0*)?", re.ASCII)
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_STAMP: Final = r"(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9]:[0-5][0-9]"
_NAIVE: Final = rf"^{_STAMP}(\.[0-9]{{1,9}})?$"
_ZONED: Final = rf"^{_STAMP}(\.[0-9]{{1,9}})?(Z|[+-][0-9]{{2}}:[0-9]{{2}})$"
_ISO: Final = re.compile(rf"({_STAMP})(?:\.([0-9]+))?(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the three columns, each with the flag that overrides it, and the time's unit."""

    time: str
    input: str
    output: str
    unit: TimeUnit


def read_csv(
    path: Path, columns: Columns, broken: BrokenRows, block_bytes: int = BLOCK_BYTES
) -> Iterator[Rows]:
    """The file's rows. Raises TraceError where there is no header with these columns."""
    header: _Header | None = None
    for line, block in line_blocks(path, block_bytes):
        while header is None and block:
            head, _, rest = block.partition(b"\n")
            if head.strip():
                header = _Header.of(head, columns, f"{path}:{line}")
            line, block = line + 1, rest  # what follows that line
        if header is None or not block:
            continue
        fast = _fast(block, header, columns.unit)
        if fast is None:
            yield _slow(line, block, header, columns, broken)
        else:
            time, inputs, outputs = fast
            yield Rows(line + np.arange(len(time)), time, inputs, outputs)
    if header is None:
        raise TraceError(f"{path}: holds no header; {_needs(columns)}")


@dataclass(frozen=True, slots=True)
class _Header:
    delimiter: str
    width: int
    at: tuple[int, int, int]
    """Places of time, input and output."""

    @staticmethod
    def of(head: bytes, columns: Columns, where: str) -> _Header:
        try:
            text = head.decode().strip("\r\n ")
        except UnicodeDecodeError:
            raise TraceError(f"{where}: not UTF-8 text; {_needs(columns)}") from None
        delimiter = max(",;\t", key=text.count)
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])]
        lower = [name.lower() for name in names]
        at = []
        for flag, name in (
            ("--time-column", columns.time),
            ("--input-column", columns.input),
            ("--output-column", columns.output),
        ):
            if name.lower() not in lower:
                shown = ", ".join(names)[:200]
                raise TraceError(
                    f"{where}: no column {name!r} among {shown}; name it by {flag}, or import it "
                    "as another format"
                )
            at.append(lower.index(name.lower()))
        return _Header(delimiter, len(names), (at[0], at[1], at[2]))


def _needs(columns: Columns) -> str:
    return f"the first line must name {columns.time}, {columns.input} and {columns.output}"


def _fast(
    block: bytes, header: _Header, unit: TimeUnit
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]] | None:
    """The block's three columns, or None where a row needs a closer look."""
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    names = [str(place) for place in range(header.width)]
    chosen = [names[place] for place in header.at]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            arrow_csv.ParseOptions(delimiter=header.delimiter),
            arrow_csv.ConvertOptions(
                include_columns=sorted(set(chosen)), column_types=dict.fromkeys(chosen, pa.string())
            ),
        )
        if table.num_rows != lines:
            return None
        time = _fast_time(table[chosen[0]], unit)
        inputs, outputs = (_fast_tokens(table[name]) for name in chosen[1:])
    except pa.ArrowInvalid:
        return None
    if time is None or inputs is None or outputs is None:
        return None
    return time, inputs, outputs


def _fast_tokens(column: pa.ChunkedArray) -> NDArray[np.int64] | None:
    if not pc.all(pc.match_substring_regex(column, _INT), min_count=0).as_py():
        return None
    tokens: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return None if (tokens > MOST).any() else tokens


def _fast_time(column: pa.ChunkedArray, unit: TimeUnit) -> NDArray[Any] | None:
    if unit is TimeUnit.ISO:
        return quick_stamps_ns(column)
    if not pc.all(pc.match_substring_regex(column, _NUMBER), min_count=0).as_py():
        return None
    times: NDArray[Any] = column.cast(pa.float64()).to_numpy() * MS_IN[unit]
    return times if np.isfinite(times).all() else None


def quick_stamps_ns(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64] | None:
    """ns since 1970 of strings without nulls, or None where one needs `parse_stamp_ns`."""
    try:
        for pattern, zone in ((_NAIVE, None), (_ZONED, "UTC")):
            if pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py():
                stamps: NDArray[np.int64] = (
                    column.cast(pa.timestamp("ns", zone)).cast("int64").to_numpy()
                )
                return stamps
    except pa.ArrowInvalid:  # the thirtieth of February
        pass
    return None


def _slow(
    first_line: int, block: bytes, header: _Header, columns: Columns, broken: BrokenRows
) -> Rows:
    lines: list[int] = []
    times: list[float] = []
    tokens: list[tuple[int, int]] = []
    for line, raw in enumerate(block.split(b"\n"), first_line):
        if not raw.strip():
            continue
        try:
            fields = _fields(raw, header)
            time = parse_time(fields[header.at[0]], columns.unit, columns.time)
            pair = (
                parse_tokens(fields[header.at[1]], columns.input),
                parse_tokens(fields[header.at[2]], columns.output),
            )
        except BrokenRow as problem:
            broken.take(line, str(problem))
            continue
        lines.append(line)
        times.append(time)
        tokens.append(pair)
    kind = np.int64 if columns.unit is TimeUnit.ISO else np.float64
    both = np.array(tokens, dtype=np.int64).reshape(-1, 2)
    return Rows(
        np.array(lines, dtype=np.int64), np.array(times, dtype=kind), both[:, 0], both[:, 1]
    )


def _fields(raw: bytes, header: _Header) -> Sequence[str]:
    text = raw.decode(errors="replace").strip("\r\n")
    try:
        fields = next(csv.reader([text], delimiter=header.delimiter), [])
    except csv.Error as error:
        raise BrokenRow(f"not CSV ({error})") from None
    if len(fields) != header.width:
        raise BrokenRow(f"{header.width} columns are needed, it has {len(fields)}")
    return fields


def parse_tokens(text: str, column: str) -> int:
    """A number of tokens from 0; raises BrokenRow."""
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        raise BrokenRow(f"{column}: a whole number of tokens is needed, got {text.strip()[:60]!r}")
    return checked_tokens(int(match[1]), column)


def checked_tokens(tokens: int, column: str) -> int:
    """The number, where it can be one of tokens; raises BrokenRow."""
    if not 0 <= tokens <= MOST:
        raise BrokenRow(f"{column}: {tokens} tokens are not possible")
    return tokens


def parse_time(text: str, unit: TimeUnit, column: str) -> float | int:
    """ns since 1970 for dates, ms for numbers; raises BrokenRow."""
    text = text.strip()
    if unit is TimeUnit.ISO:
        return parse_stamp_ns(text, column)
    if not re.match(_NUMBER, text, re.ASCII) or not math.isfinite(float(text) * MS_IN[unit]):
        raise BrokenRow(f"{column}: a number ({unit}) is needed, got {text[:60]!r}; --time-unit?")
    return float(text) * MS_IN[unit]


def parse_stamp_ns(text: str, column: str) -> int:
    """`2023-11-16 18:17:03.9799600`, with up to nine digits and a zone or none, as ns since 1970.

    Further digits are cut. strptime's %f and a float of seconds would both lose digits.
    """
    match = _ISO.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
        zone = match[4] or "Z"
        if zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            if hours > 23 or minutes > 59:
                raise ValueError
            ahead = timedelta(hours=hours, minutes=minutes)
            moment = moment - ahead if zone[0] == "+" else moment + ahead
    except ValueError:
        raise BrokenRow(
            f"{column}: a date and time is needed, such as 2023-11-16 18:17:03.9799600, "
            f"got {text[:60]!r}; --time-unit?"
        ) from None
    since = moment - _EPOCH
    fraction_ns = int((match[3] or "")[:9].ljust(9, "0"))
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + fraction_ns
