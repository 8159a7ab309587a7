"""Foreign CSV files: every trap of the public ones, on small files made here."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import ConfigError, LoadgenError, TraceError
from loadgen.trace import Trace
from loadgen.trace.csv_rows import Columns, parse_stamp_ns, read_csv
from loadgen.trace.formats import TimeUnit
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Counts, Source, import_trace
from loadgen.trace.reading import line_blocks
from loadgen.trace.rows import BrokenRow, BrokenRows

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_2023 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319600,3180,8\r\n"
    b"2023-11-16 18:17:04.0319601,110,27"
)
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def bring(
    folder: Path, name: str, data: bytes, block_bytes: int = 4 << 20, **options: Any
) -> tuple[Trace, Counts]:
    """The trace of a file with that content."""
    path = folder / "file"
    path.write_bytes(data)
    config = ImportConfig.model_validate(options)
    return import_trace(Source(name, path, config, block_bytes=block_bytes))


def refused(folder: Path, name: str, data: bytes, **options: Any) -> str:
    """The one line that importing it gives, without the folder's name."""
    with pytest.raises(LoadgenError) as caught:
        bring(folder, name, data, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


def test_azure_of_2023(folder: Path) -> None:
    """Seven fraction digits, CRLF and no final newline: times are exact to 100 ns."""
    trace, counts = bring(folder, "azure", AZURE_2023)
    assert trace.timestamp_ms.tolist() == [0.0, 52.0, 52.0001]
    assert trace.input_length.tolist() == [4808, 3180, 110]
    assert trace.output_length.tolist() == [10, 8, 27]
    assert (counts.read, counts.kept) == (3, 3)


def test_azure_of_2024(folder: Path) -> None:
    """Rows with a zone, some of them without a fraction, in any mixture."""
    trace, _ = bring(
        folder,
        "azure",
        AZURE + b"2024-05-12 00:00:00+00:00,5,6\n2024-05-12 00:00:00.001163+00:00,7,8\n"
        b"2024-05-12 00:00:01+00:00,9,10\n",
    )
    assert trace.timestamp_ms.tolist() == [0.0, 1.163, 1000.0]


def test_zones_are_honoured_and_none_is_utc(folder: Path) -> None:
    """The same moment in three zones is one moment."""
    trace, _ = bring(
        folder,
        "azure",
        AZURE + b"2024-05-12 01:00:00+01:00,1,1\n2024-05-11T18:30:00.5-05:30,2,2\n"
        b"2024-05-12 00:00:00.25,3,3\n2024-05-12T00:00:01Z,4,4\n",
    )
    assert trace.timestamp_ms.tolist() == [0.0, 250.0, 500.0, 1000.0]
    assert trace.input_length.tolist() == [1, 3, 2, 4]


def test_burstgpt_is_read_by_name(folder: Path) -> None:
    """The third file has two more columns in the middle: columns are found by name."""
    first, _ = bring(folder, "burstgpt", BURST + b"5,ChatGPT,472,18,490,Conversation log\n")
    third, _ = bring(
        folder,
        "burstgpt",
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        b"Log Type\n5,abc,3.5,ChatGPT,472,18,490,Conversation log\n",
    )
    for trace in (first, third):
        assert (trace.input_length.tolist(), trace.output_length.tolist()) == ([472], [18])


def test_burstgpts_failures_and_equal_seconds(folder: Path) -> None:
    """Zero-response rows are counted and left out; the same second twice stays, in its order."""
    trace, counts = bring(
        folder,
        "burstgpt",
        BURST + b"5270414,GPT-4,10,1,11,API log\n5270420,GPT-4,30,0,30,API log\n"
        b"5270420,GPT-4,40,4,44,API log\n5270420,GPT-4,20,2,22,API log\n"
        b"5307553,GPT-4,50,5,55,API log\n",
    )
    assert trace.timestamp_ms.tolist() == [0.0, 6000.0, 6000.0, 37_139_000.0]
    assert trace.input_length.tolist() == [10, 40, 20, 50]
    assert (counts.read, counts.kept, counts.zero_dropped) == (5, 4, 1)


def test_vidur(folder: Path) -> None:
    """Float seconds from any start."""
    trace, _ = bring(
        folder,
        "vidur",
        b"arrived_at,num_prefill_tokens,num_decode_tokens\n3.5,10,20\n1.25,30,40\n",
    )
    assert trace.timestamp_ms.tolist() == [0.0, 2250.0]
    assert trace.input_length.tolist() == [30, 10]


@pytest.mark.parametrize("time", ["1700000000000", "1.5", "2024-01-01 00:00:00"])
@pytest.mark.parametrize("rows", [1, 3])
def test_times_of_another_kind(folder: Path, time: str, rows: int) -> None:
    """Numbers are no dates and dates are no numbers: the row is refused, and the flag named."""
    data = b"timestamp_ms,input_tokens,output_tokens\n" + f"{time},1,1\n".encode() * rows
    is_date = " " in time
    message = refused(folder, "csv", data, time_unit="ms" if is_date else "iso")
    needed = "a number (ms)" if is_date else "a date and time"
    assert message.startswith(f"file:2: timestamp_ms: {needed} is needed")
    assert f"got {time!r}; --time-unit?" in message


def test_a_csv_of_ones_own(folder: Path) -> None:
    """Names of columns and the unit can be said; semicolons, tabs and quotes are understood."""
    columns = {"time_column": "when", "input_column": "IN", "output_column": "out"}
    for data in (
        b"out;when;in\n7;1500000;5\n9;1000000;6\n",
        b"out\twhen\tin\n7\t1500000\t5\n9\t1000000\t6\n",
        b'"out","when","in"\n"7","1500000","5"\n9,"1000000",6\n',
        b" out , when , in \n 7 , 1500000 , 5 \n 9.0 , 1e6 , 6\n",
    ):
        trace, _ = bring(folder, "csv", data, time_unit="us", **columns)
        assert trace.timestamp_ms.tolist() == [0.0, 500.0]
        assert trace.input_length.tolist() == [6, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + AZURE_2023,
        b"\r\n\n" + AZURE_2023.replace(b"\r\n", b"\n\n \n"),
        AZURE_2023 + b"\r\n\r\n",
        gzip.compress(AZURE_2023),
        gzip.compress(AZURE_2023[:60]) + gzip.compress(AZURE_2023[60:]),
    ],
    ids=["BOM", "blank lines", "trailing blank lines", "gzip", "gzip in two members"],
)
def test_forms_of_a_good_file(folder: Path, data: bytes) -> None:
    """A BOM, blank lines and gzip change nothing."""
    trace, counts = bring(folder, "azure", data)
    assert trace.input_length.tolist() == [4808, 3180, 110]
    assert counts.broken_dropped == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no header"),
        (b"\n \n", "holds no header"),
        (AZURE, "no row is left"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pull"),
        (b"PK\x03\x04" + b"x" * 60, "zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 60, "zstd"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens".encode("utf-16"), "UTF-16"),
        (b"PAR1" + b"x" * 60, "as `parquet`"),
        (gzip.compress(AZURE_2023)[:-12], "broken gzip"),
        (b"<!DOCTYPE html>\n<html>\n", "no column 'TIMESTAMP' among <!DOCTYPE html>"),
        (b"\xff\xe9,b\n", "not UTF-8"),
        (BURST, "no column 'ContextTokens'"),
    ],
    ids=["empty", "blank", "header alone", "git-lfs pointer", "zip", "zstd", "UTF-16", "Parquet",
         "torn gzip", "HTML", "not UTF-8", "other format"],
)  # fmt: skip
def test_a_file_that_is_none(folder: Path, data: bytes, words: str) -> None:
    """What is no such file says what it is, and what to do."""
    assert words in refused(folder, "azure", data)


def test_a_missing_column_names_its_flag(folder: Path) -> None:
    """The line of the header, what is there, and the flag that helps."""
    message = refused(folder, "azure", b"\nTIMESTAMP,Context,GeneratedTokens\n1,2,3\n")
    assert message.startswith("file:2: no column 'ContextTokens' among TIMESTAMP, Context, ")
    assert "--input-column" in message


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        (b"2023-11-16 18:17:04,12,x", "GeneratedTokens", "'x'"),
        (b"2023-11-16 18:17:04,,5", "ContextTokens", "''"),
        (b"2023-11-16 18:17:04,-3,5", "ContextTokens", "'-3'"),
        (b"2023-11-16 18:17:04,1.5,5", "ContextTokens", "'1.5'"),
        (b"2023-11-16 18:17:04,1e3,5", "ContextTokens", "'1e3'"),
        (b"2023-11-16 18:17:04,0x10,5", "ContextTokens", "'0x10'"),
        (b"2023-11-16 18:17:04,1_000,5", "ContextTokens", "'1_000'"),
        (b"2023-11-16 18:17:04,999999999999,5", "ContextTokens", "999999999999 tokens"),
        (b"2023-11-16 18:17:04,12", "3 columns are needed", "it has 2"),
        (b"2023-11-16 18:17:04,12,5,6", "3 columns are needed", "it has 4"),
        (b'2023-11-16 18:17:04,"12,5', "3 columns are needed", "it has 2"),
        (b"2023-11-16 18:17:04,\xff,5", "ContextTokens", "\ufffd"),
        (b"2023-13-16 18:17:04,1,5", "TIMESTAMP", "2023-13-16"),
        (b"2023-11-31 18:17:04,1,5", "TIMESTAMP", "2023-11-31"),
        (b"2023-11-16 24:17:04,1,5", "TIMESTAMP", "24:17"),
        (b"2023-11-16 18:17:04+25:00,1,5", "TIMESTAMP", "+25:00"),
        (b"1700158623.98,1,5", "TIMESTAMP", "--time-unit"),
        (b",1,5", "TIMESTAMP", "''"),
    ],
    ids=lambda value: value.decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_broken_row(folder: Path, row: bytes, column: str, words: str) -> None:
    """It is named by file, line and column; or it is left out and counted, and the rest stays."""
    good = b"2023-11-16 18:17:03.9799600,4808,10\n"
    data = AZURE + good + b"\n" + row + b"\r\n" + good
    message = refused(folder, "azure", data)
    assert message.startswith(f"file:4: {column}")
    assert words in message
    assert "--broken drop" in message
    trace, counts = bring(folder, "azure", data, broken="drop")
    assert len(trace) == 2
    assert (counts.read, counts.kept, counts.broken_dropped) == (3, 2, 1)


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "", "--1", "1,5", "0x1p3", "١"])
def test_times_that_are_no_numbers(folder: Path, text: str) -> None:
    """Only finite decimal numbers are times."""
    data = f"timestamp_ms;input_tokens;output_tokens\n{text};1;1\n".encode()
    assert "timestamp_ms: a number (ms)" in refused(folder, "csv", data)


ROWS = AZURE + b"".join(
    f"2024-05-10 00:00:{second:02}.5,{tokens},{answer}\n".encode()
    for second, tokens, answer in ((9, 50, 5), (1, 0, 4), (3, 90, 20), (2, 70, 0), (4, 30, 3))
)


def test_zero_tokens(folder: Path) -> None:
    """Rows without a prompt or an answer: left out, taken as 1 token, or an error; and counted."""
    trace, counts = bring(folder, "azure", ROWS)
    assert (trace.input_length.tolist(), counts.zero_dropped) == ([90, 30, 50], 2)
    trace, counts = bring(folder, "azure", ROWS, zero="clamp")
    assert trace.input_length.tolist() == [1, 70, 90, 30, 50]
    assert trace.output_length.tolist() == [4, 1, 20, 3, 5]
    assert (counts.zero_clamped, counts.zero_dropped) == (2, 0)
    message = refused(folder, "azure", ROWS, zero="error")
    assert message.startswith("file:3: ContextTokens: 0 tokens")
    assert "--zero drop" in message


def test_over_the_context(folder: Path) -> None:
    """Rows over --max-context: left out, shortened to fit exactly, or an error; and counted."""
    trace, counts = bring(folder, "azure", ROWS, max_context=55)
    assert (trace.input_length.tolist(), counts.oversized_dropped) == ([30, 50], 1)
    trace, counts = bring(folder, "azure", ROWS, max_context=54, oversized="clamp")
    assert trace.input_length.tolist() == [53, 30, 50]
    assert trace.output_length.tolist() == [1, 3, 4]
    assert counts.oversized_clamped == 2
    message = refused(folder, "azure", ROWS, max_context=55, oversized="error")
    assert message.startswith("file:4: 110 tokens are over --max-context 55")


def test_a_window_of_seconds(folder: Path) -> None:
    """Seconds count from the earliest row, wherever it stands; the end is left out."""
    trace, counts = bring(folder, "azure", ROWS, zero="clamp", from_time="1", to_time="3")
    assert trace.input_length.tolist() == [70, 90]
    assert trace.timestamp_ms.tolist() == [0.0, 1000.0]
    assert (counts.read, counts.outside_dropped, counts.kept) == (5, 3, 2)


def test_a_window_of_dates(folder: Path) -> None:
    """A date and time is taken as such, from one end or both."""
    trace, _ = bring(folder, "azure", ROWS, from_time="2024-05-10 00:00:04.5")
    assert trace.input_length.tolist() == [30, 50]
    trace, _ = bring(
        folder, "azure", ROWS, from_time="2024-05-10T00:00:03Z", to_time="2024-05-10 00:00:09.5"
    )
    assert trace.input_length.tolist() == [90, 30]


def test_a_window_of_numbers(folder: Path) -> None:
    """Where times are numbers, a window is in seconds, whatever the unit."""
    data = b"timestamp_ms,input_tokens,output_tokens\n" + b"".join(
        f"{1000 * second + 7},{second + 1},1\n".encode() for second in range(10)
    )
    trace, _ = bring(folder, "csv", data, from_time="2", to_time="4.5")
    assert trace.input_length.tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("azure", {"from_time": "noon"}, "--from: must be seconds"),
        ("azure", {"to_time": "nan"}, "--to: must be seconds"),
        ("burstgpt", {"from_time": "2024-05-10 00:00:04"}, "--from: must be seconds after"),
        ("azure", {"from_time": "5", "to_time": "5"}, "--from: must lie before --to"),
        ("sharegpt", {"from_time": "5"}, "sharegpt has no times"),
        ("sharegpt", {"time_column": "t"}, "--time-column: sharegpt has no columns"),
        ("mooncake", {"block_tokens": 100}, "--block-tokens: must divide 512"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path, name: str, options: dict[str, Any], words: str
) -> None:
    """An option that makes no sense for the format or the file is refused by its flag."""
    data = ROWS if name == "azure" else BURST + b"5,m,1,1,2,l\n"
    assert words in refused(folder, name, data, **options)


def test_a_limit(folder: Path) -> None:
    """The first rows of the file that are kept, in its order, then sorted; no more is read."""
    data = ROWS + b"nonsense\n" * 3
    for block_bytes in (1, 50, 1 << 20):
        trace, counts = bring(
            folder, "azure", data, limit=2, block_bytes=block_bytes, broken="drop"
        )
        assert trace.input_length.tolist() == [90, 50]
        assert counts.kept == 2
        assert (counts.read, counts.zero_dropped, counts.broken_dropped) == (3, 1, 0)
        bring(folder, "azure", data, limit=2, block_bytes=block_bytes)
        message = refused(folder, "azure", data, limit=5, zero="clamp", max_context=95,
                          oversized="error")  # fmt: skip
        assert message.startswith("file:4: 110 tokens")
    assert "file:7: 3 columns" in refused(folder, "azure", data, limit=4)


def test_speedup(folder: Path) -> None:
    """Over 1 is faster: times are divided by it."""
    trace, _ = bring(folder, "azure", ROWS, speedup=4)
    assert trace.timestamp_ms.tolist() == [0.0, 250.0, 1500.0]


def test_dither(folder: Path) -> None:
    """Rows of one tick are spread over it, keep their order, and come out the same each time."""
    rows = [(tick * 3, tick * 1000 + place) for tick in range(200) for place in range(1, 9)]
    data = BURST + b"".join(f"{t},m,{i},1,1,l\n".encode() for t, i in rows)
    trace, _ = bring(folder, "burstgpt", data, dither=3)
    assert trace.input_length.tolist() == [i for _, i in rows]
    gaps = np.diff(trace.timestamp_ms)
    assert (gaps > 0).all()
    start = 3000.0 * np.array([i // 1000 for _, i in rows])
    inside = trace.timestamp_ms - start
    assert inside.max() - inside.min() < 3000
    within = np.sort((inside - inside.min()) / 3000)
    assert np.abs(within - np.linspace(0, 1, len(within))).max() < 0.05
    again, _ = bring(folder, "burstgpt", data, dither=3)
    other, _ = bring(folder, "burstgpt", data, dither=3, seed=1)
    assert again.timestamp_ms.tolist() == trace.timestamp_ms.tolist()
    assert other.timestamp_ms.tolist() != trace.timestamp_ms.tolist()


def test_drawn_arrivals(folder: Path) -> None:
    """--request-rate takes the place of the file's times; the order of rows stays theirs."""
    trace, _ = bring(folder, "azure", ROWS, request_rate=4, arrival="constant")
    assert trace.timestamp_ms.tolist() == [0.0, 250.0, 500.0]
    assert trace.input_length.tolist() == [90, 30, 50]


def test_nothing_is_deduplicated(folder: Path) -> None:
    """Equal rows all stay."""
    data = AZURE + b"2024-05-10 00:00:01,5,5\n" * 4
    trace, _ = bring(folder, "azure", data)
    assert trace.timestamp_ms.tolist() == [0.0] * 4


def test_no_row_is_left(folder: Path) -> None:
    """Where all rows are left out, the counts say why."""
    message = refused(folder, "azure", ROWS, max_context=2)
    assert "no row is left" in message
    assert "3 oversized dropped" in message


def test_a_missing_file(folder: Path) -> None:
    """A file that is not there, and a folder, are told."""
    for path in (folder / "none.csv", folder):
        with pytest.raises(TraceError, match="cannot be read"):
            import_trace(Source("azure", path, ImportConfig()))


fields = st.sampled_from(
    ["1", "12", "0", " 7 ", "7.0", "x", "", "-1", "123456789", "1000000000", '"5"', '"5', "0x1"]
)
stamps = st.sampled_from(
    [
        "2023-11-16 18:17:03.9799600", "2023-11-16 18:17:03", "2024-02-29T00:00:00.1Z",
        "2024-05-12 00:00:00.001163+00:00", "2024-05-12 00:00:00-05:30", "2024-02-30 00:00:00",
        "2024-05-12 00:00:00.1234567891", "2024-05-12 00:00:60", "12.5", " 2024-05-12 00:00:00 ",
        "2024-05-12 00:00:00+0100", "1850-01-01 00:00:00", "2024-05-12", "",
        "2024-05-12 00:00:00+24:00", "2024-05-12 00:00:00+23:59", "2024-05-12 00:00:00.5+14:75",
    ]
)  # fmt: skip
numbers = st.sampled_from(["0", "1.5", "1e3", "-2.", ".5", "+4", "1e400", "nan", "", "x", " 3 "])
ends = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.tuples(stamps, fields, fields, ends), min_size=1, max_size=12),
    block_bytes=st.integers(1, 200),
)
def test_any_cut_gives_the_same_rows(rows: Any, block_bytes: int, tmp_path_factory: Any) -> None:
    """Read whole, line by line or in odd pieces: the same rows on the same lines, fast or slow."""
    text = "".join(f"{t},{a},{b}{end}" for t, a, b, end in rows)
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(AZURE + text.encode())
    check_cuts(path, Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", TimeUnit.ISO),
               block_bytes)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(st.tuples(numbers, fields, fields, ends), min_size=1, max_size=12),
    block_bytes=st.integers(1, 200),
    unit=st.sampled_from([TimeUnit.S, TimeUnit.MS, TimeUnit.US, TimeUnit.NS]),
)
def test_any_cut_of_numbers(
    rows: Any, block_bytes: int, unit: TimeUnit, tmp_path_factory: Any
) -> None:
    """The same for times that are numbers."""
    text = "".join(f"{t},{a},{b}{end}" for t, a, b, end in rows)
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(b"t,a,b\n" + text.encode())
    check_cuts(path, Columns("t", "a", "b", unit), block_bytes)


junk = st.sampled_from(
    [b"a", b'"q"', b'a"b', b'"a"b', b"\xff", b'"a,b"', b'""', b'"a""b"', b'"', b""]
)


@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(st.tuples(junk, fields, ends), min_size=1, max_size=8),
    block_bytes=st.integers(1, 100),
)
def test_any_cut_with_other_columns(rows: Any, block_bytes: int, tmp_path_factory: Any) -> None:
    """What stands in columns that nobody asked for, however odd, changes nothing either."""
    lines = [b"%b,5,%b,7%b" % (text, a.encode(), end.encode()) for text, a, end in rows]
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(b"junk,t,a,b\n" + b"".join(lines))
    check_cuts(path, Columns("t", "a", "b", TimeUnit.S), block_bytes)


def check_cuts(path: Path, columns: Columns, block_bytes: int) -> None:
    """Whole, in pieces, and one line a block (where each takes the fast way if it can)."""
    found = []
    for size in (1 << 20, block_bytes, 1):
        broken = BrokenRows("f", are_dropped=True)
        rows = [
            row
            for part in read_csv(path, columns, broken, size)
            for row in zip(
                part.line.tolist(), part.time.tolist(), part.input_length.tolist(),
                part.output_length.tolist(), strict=True,
            )
        ]  # fmt: skip
        broken.settle()
        found.append((rows, broken.count))
    assert found[0] == found[1] == found[2]


@settings(deadline=None)
@given(
    moment=st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1), timezones=st.just(UTC)),
    digits=st.integers(0, 999_999_999),
)
def test_stamps_are_exact(moment: datetime, digits: int) -> None:
    """Nine digits of a fraction are kept, where a float since 1970 keeps seven."""
    whole = int(moment.replace(microsecond=0).timestamp())
    text = moment.strftime("%Y-%m-%d %H:%M:%S") + f".{digits:09}"
    assert parse_stamp_ns(text, "t") == whole * 1_000_000_000 + digits


def test_what_is_no_stamp() -> None:
    """A date alone is no moment."""
    with pytest.raises(BrokenRow, match=re.escape("t: a date and time is needed")):
        parse_stamp_ns("2024-05-12", "t")


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=300), block_bytes=st.integers(1, 64))
def test_blocks_are_the_file(data: bytes, block_bytes: int, tmp_path_factory: Any) -> None:
    """Blocks put together are the file, each ends at a line end, and lines are counted right."""
    data = b"0123456789" * 4 + b"\n" + data
    path = tmp_path_factory.mktemp("blocks") / "file"
    path.write_bytes(data)
    line, pieces = 1, []
    for number, block in line_blocks(path, block_bytes):
        assert number == line
        line += block.count(b"\n")
        pieces.append(block)
    assert b"".join(pieces) == data
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])


def test_a_line_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded where a file has no lines: that is an error."""
    monkeypatch.setattr("loadgen.trace.reading.LONGEST_LINE_BYTES", 1 << 20)
    message = refused(folder, "azure", AZURE + b"x" * (5 << 20))
    assert "file:2: a line of over 1 MiB" in message


def test_unknown_options_conflict() -> None:
    """Options that contradict each other are refused."""
    for options in (
        {"arrival_cv": 2.0},
        {"request_rate": 2.0, "speedup": 3.0},
        {"request_rate": 2.0, "dither": 3.0},
        {"oversized": "drop"},
        {"speedup": 0},
        {"limit": 0},
        {"zero": "keep"},
        {"broken": "clamp"},
    ):
        with pytest.raises(ValueError, match=r"(?s).+"):
            ImportConfig.model_validate(options)


def test_config_errors_are_ours(folder: Path) -> None:
    """What is wrong with options is a ConfigError, what is wrong with a file a TraceError."""
    path = folder / "f"
    path.write_bytes(b"[]")
    with pytest.raises(ConfigError):
        import_trace(Source("sharegpt", path, ImportConfig()))
