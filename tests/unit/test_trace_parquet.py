"""Foreign Parquet files: the types of their columns, against the unit of time."""

from __future__ import annotations

import decimal
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadgen.errors import TraceError
from loadgen.trace import Trace
from loadgen.trace.formats import TimeUnit
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Counts, Source, import_trace

FIRST = datetime(2024, 1, 1)
DATES = [FIRST, FIRST + timedelta(seconds=1)]
TEXTS = ["2024-01-01 00:00:00", "2024-01-01 00:00:01.0000000"]
ZONED = ["2024-01-01T01:00:00+01:00", "2024-01-01T00:00:01Z"]
EPOCH_MS = [1_700_000_000_000, 1_700_000_001_000]


def of_type(value: Any) -> str:
    """A column's type, or the value itself: the name of a case."""
    return str(getattr(value, "type", value))


def bring(
    folder: Path, time: Any, inputs: Any = (5, 6), ids: Any = None, **options: Any
) -> tuple[Trace, Counts]:
    """The trace of a Parquet file of those columns."""
    columns = {"timestamp_ms": time, "input_tokens": list(inputs), "output_tokens": [7] * len(time)}
    if ids is not None:
        columns["hash_ids"] = ids
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return import_trace(
        Source("parquet", folder / "t.parquet", ImportConfig.model_validate(options))
    )


def refused(folder: Path, *columns: Any, **options: Any) -> str:
    """The one line that importing it gives, without the folder's name."""
    with pytest.raises(TraceError) as caught:
        bring(folder, *columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    return message.removeprefix(f"{folder}/")


@pytest.mark.parametrize("unit", [None, "s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    ("time", "kind"),
    [
        (pa.array(DATES), "timestamp[us]"),
        (pa.array(DATES, pa.timestamp("ns", "UTC")), "timestamp[ns, tz=UTC]"),
        (pa.array(TEXTS), "string"),
        (pa.array(["0", "1"]), "string"),
        (pa.array(TEXTS).dictionary_encode(), "dictionary<values=string"),
        (pa.array([[1.0], [2.0]]), "list<element: double>"),
        (pa.array([{"s": 1}, {"s": 2}]), "struct<s: int64>"),
        (pa.array([True, False]), "bool"),
        (pa.nulls(2), "null"),
    ],
    ids=of_type,
)
def test_no_numbers_for_a_unit_of_numbers(
    tmp_path: Path, time: Any, kind: str, unit: str | None
) -> None:
    """Dates, texts and nested columns are refused by file, column, type and flag, in any unit."""
    message = refused(tmp_path, time, **({} if unit is None else {"time_unit": unit}))
    assert message.startswith(f"t.parquet: column 'timestamp_ms' is {kind}")
    assert f"--time-unit {unit or 'ms'} needs numbers" in message


@pytest.mark.parametrize(
    ("time", "kind"),
    [
        (pa.array(EPOCH_MS), "int64"),
        (pa.array([0, 1], pa.uint8()), "uint8"),
        (pa.array([1.7e9, 1.8e9]), "double"),
        (pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")]), "decimal128(2, 1)"),
        (pa.array([date(2024, 1, 1), date(2024, 1, 2)]), "date32[day]"),
        (pa.array([[FIRST], [FIRST]]), "list<element: timestamp[us]>"),
        (pa.array([1, 2], pa.duration("s")), "duration[s]"),
        (pa.nulls(2), "null"),
    ],
    ids=of_type,
)
def test_no_dates_for_iso(tmp_path: Path, time: Any, kind: str) -> None:
    """Numbers are never taken for dates, in ns or in anything else: they need a unit."""
    message = refused(tmp_path, time, time_unit="iso")
    assert message.startswith(f"t.parquet: column 'timestamp_ms' is {kind}")
    assert "--time-unit iso needs timestamps or strings" in message


@pytest.mark.parametrize(
    "time",
    [
        *(pa.array(DATES, pa.timestamp(unit, zone)) for unit in ("s", "ms", "us", "ns")
          for zone in (None, "Asia/Tokyo")),
        pa.array(DATES).dictionary_encode(),
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(ZONED),
        pa.array([TEXTS[0], ZONED[1]]),
    ],
    ids=of_type,
)  # fmt: skip
def test_dates(tmp_path: Path, time: Any) -> None:
    """Timestamps of any resolution and texts, with a zone or none, are a second apart."""
    trace, counts = bring(tmp_path, time, time_unit="iso")
    assert trace.timestamp_ms.tolist() == [0.0, 1000.0]
    assert (counts.read, counts.broken_dropped) == (2, 0)


@pytest.mark.parametrize(
    ("time", "unit", "gap_ms"),
    [
        (pa.array(EPOCH_MS), "ms", 1000.0),
        (pa.array([0, 1], pa.uint8()), "s", 1000.0),
        (pa.array([0.5, 1.25], pa.float32()), "s", 750.0),
        (pa.array(np.array([0.5, 1.25], np.float16)), "ms", 0.75),
        (pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.75")]), "s", 1250.0),
        (pa.array([5, 7]).dictionary_encode(), "us", 0.002),
        (pa.array([1_700_000_000_000_000_000, 1_700_000_001_000_000_000]), "ns", 1000.0),
    ],
    ids=of_type,
)
def test_numbers(tmp_path: Path, time: Any, unit: str, gap_ms: float) -> None:
    """Numbers of any type have the unit that is told; ns since 1970 are not beyond a float."""
    trace, _ = bring(tmp_path, time, time_unit=unit)
    assert trace.timestamp_ms.tolist() == pytest.approx([0.0, gap_ms], abs=1e-3)


@pytest.mark.parametrize(
    "time",
    [
        pa.array([DATES[0], None, DATES[1]]),
        pa.array([DATES[0], datetime(9999, 12, 31), DATES[1]]),
        pa.array([DATES[0], datetime(1, 1, 1), DATES[1]]),
        pa.array([0, -(2**63), 10**18], pa.timestamp("ns")),
        pa.array([0, 2**63 - 1, 10**9], pa.timestamp("us")),
        pa.array([TEXTS[0], None, TEXTS[1]]),
        pa.array([TEXTS[0], "", TEXTS[1]]),
        pa.array([TEXTS[0], "2024-02-30 00:00:00", TEXTS[1]]),
        pa.array([TEXTS[0], "soon", ZONED[1]]),
    ],
    ids=["null", "9999", "year 1", "least", "most", "no text", "empty text", "no such day", "word"],
)
def test_rows_without_a_date(tmp_path: Path, time: Any) -> None:
    """A row whose date is none, or is no moment of 1900 to 2099, is a broken row, not the file."""
    message = refused(tmp_path, time, (5, 6, 7), time_unit="iso")
    assert "timestamp_ms: row 2 holds no usable date and time" in message
    trace, counts = bring(tmp_path, time, (5, 6, 7), time_unit="iso", broken="drop")
    assert trace.input_length.tolist() == [5, 7]
    assert counts.broken_dropped == 1


@pytest.mark.parametrize("column", ["input_tokens", "output_tokens"])
@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        (pa.array([[5], [6]]), "list<element: int64>"),
        (pa.array(["5", "6"]), "string"),
        (pa.array(DATES), "timestamp[us]"),
        (pa.array([True, True]), "bool"),
    ],
    ids=of_type,
)
def test_lengths_that_are_no_numbers(tmp_path: Path, column: str, tokens: Any, kind: str) -> None:
    """A column of lengths that holds no numbers is refused by file, column, type and flag."""
    table = {"timestamp_ms": [0, 1], "input_tokens": [5, 6], "output_tokens": [7, 8]}
    pq.write_table(pa.table(table | {column: tokens}), tmp_path / "t")
    flag = "--" + column.replace("tokens", "column").replace("_", "-")
    with pytest.raises(TraceError, match=re.escape(f"column {column!r} is {kind}: ")) as caught:
        import_trace(Source("parquet", tmp_path / "t", ImportConfig()))
    assert flag in str(caught.value)


def test_lengths_beyond_a_float(tmp_path: Path) -> None:
    """A length too great to be one is a broken row, as in every other format."""
    trace, counts = bring(tmp_path, [0, 1], (2**62 + 1, 6), broken="drop")
    assert (trace.input_length.tolist(), counts.broken_dropped) == ([6], 1)


@pytest.mark.parametrize(
    "ids",
    [pa.array([5, 6]), pa.array(["a", "b"]), pa.array([["a"], ["b"]]), pa.array([[[5]], [[6]]])],
    ids=of_type,
)
def test_block_ids_that_are_no_lists_of_numbers(tmp_path: Path, ids: Any) -> None:
    """Such a column is refused by its name and type."""
    message = refused(tmp_path, [0, 1], ids=ids)
    assert message.startswith(f"t.parquet: column 'hash_ids' is {ids.type}".split("<")[0])


@pytest.mark.parametrize(
    "ids",
    [pa.array([[1 << 63], [6]], pa.list_(pa.uint64())), pa.array([[0.5], [6.0]])],
    ids=["over 2^63", "half"],
)
def test_block_ids_that_are_no_whole_numbers(tmp_path: Path, ids: Any) -> None:
    """Fractions and numbers from 2^63 are refused by the name of the column."""
    assert refused(tmp_path, [0, 1], ids=ids).startswith("t.parquet: hash_ids: lists of whole")


def test_a_null_among_block_ids(tmp_path: Path) -> None:
    """A list with a null in it is a broken row, and never an id."""
    ids = pa.array([[5], None, [6, None], []])
    message = refused(tmp_path, [0, 1, 2, 3], (5, 6, 7, 8), ids)
    assert "hash_ids: row 3 holds no usable list of numbers" in message
    trace, _ = bring(tmp_path, [0, 1, 2, 3], (5, 6, 7, 8), ids, broken="drop")
    assert trace.input_length.tolist() == [5, 6, 8]
    assert trace.hash_ids is not None
    assert trace.hash_ids[0] == (5,)


@pytest.mark.parametrize(
    "ids",
    [
        pa.nulls(2),
        pa.array([[], None], pa.list_(pa.null())),
        pa.array([[5], [6]], pa.large_list(pa.int32())),
        pa.array([[5], [6]], pa.list_(pa.uint64(), 1)),
        pa.array([[5.0], [6.0]]),
    ],
    ids=of_type,
)
def test_block_ids_of_any_list(tmp_path: Path, ids: Any) -> None:
    """Lists of any kind are taken, and a column of nulls is one of empty lists."""
    trace, counts = bring(tmp_path, [0, 1], ids=ids)
    assert trace.hash_ids is not None
    assert counts.broken_dropped == 0
    wanted = [row for row in ids.to_pylist() if row]
    assert [list(row) for row in trace.hash_ids] == wanted or not wanted


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    """Of two columns of one name neither is taken."""
    column = pa.array([1, 2])
    names = ["timestamp_ms", "input_tokens", "output_tokens", "output_tokens"]
    pq.write_table(pa.table([column] * 4, names=names), tmp_path / "t")
    with pytest.raises(TraceError, match=r"more than one column 'output_tokens'.*--output-column"):
        import_trace(Source("parquet", tmp_path / "t", ImportConfig()))


def test_one_column_for_two(tmp_path: Path) -> None:
    """Prompts and outputs may have the same column."""
    trace, _ = bring(tmp_path, [0, 1], output_column="input_tokens")
    assert trace.output_length.tolist() == trace.input_length.tolist() == [5, 6]


@pytest.mark.parametrize("unit", list(TimeUnit))
def test_a_file_without_rows(tmp_path: Path, unit: TimeUnit) -> None:
    """No rows of the right types are no trace, which is told."""
    kind = pa.timestamp("us", "UTC") if unit is TimeUnit.ISO else pa.float64()
    empty = pa.array([], pa.int64())
    table = {"timestamp_ms": pa.array([], kind), "input_tokens": empty, "output_tokens": empty}
    pq.write_table(pa.table(table), tmp_path / "t")
    config = ImportConfig.model_validate({"time_unit": unit})
    with pytest.raises(TraceError, match="no row is left"):
        import_trace(Source("parquet", tmp_path / "t", config))


def test_a_window_of_dates(tmp_path: Path) -> None:
    """--from and --to take dates and seconds after the earliest row here too."""
    seconds = pa.array([FIRST.replace(tzinfo=UTC) + timedelta(seconds=n) for n in range(4)])
    for start in ("2024-01-01 00:00:01", "1"):
        window = {"time_unit": "iso", "from_time": start, "to_time": "3"}
        trace, counts = bring(tmp_path, seconds, (1, 2, 3, 4), **window)
        assert trace.input_length.tolist() == [2, 3]
        assert counts.outside_dropped == 2
