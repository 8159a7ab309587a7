"""Exports: read back they are the trace, up to the rounding that each format states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.config import GeneratorConfig
from loadgen.errors import TraceError
from loadgen.trace import Trace, read_trace, write_trace
from loadgen.trace.blocks import BlockIds
from loadgen.trace.export import TICK_MS, ExportFormat, export
from loadgen.trace.files import write_whole
from loadgen.trace.generate import generate
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Source, import_trace

SMALL = Trace(
    np.array([0.0, 0.40004, 0.4, 1499.99996, 90_061_001.0]),
    np.array([1, 512, 513, 7, 100_000]),
    np.array([9, 1, 2, 3, 4]),
)
SMALL = Trace(np.sort(SMALL.timestamp_ms), SMALL.input_length, SMALL.output_length)


def content(form: ExportFormat, tmp_path: Path, trace: Trace = SMALL, **options: Any) -> str:
    export(trace, form, tmp_path / "out", **options)
    return (tmp_path / "out").read_text()


def test_azure(tmp_path: Path) -> None:
    """Dates with seven digits, from the moment that is asked for, over a month's end."""
    start_ns = 1_706_659_200 * 10**9  # 2024-01-31 00:00:00
    assert content(ExportFormat.AZURE, tmp_path, start_ns=start_ns).splitlines() == [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-01-31 00:00:00.0000000,1,9",
        "2024-01-31 00:00:00.0004000,512,1",
        "2024-01-31 00:00:00.0004000,513,2",
        "2024-01-31 00:00:01.5000000,7,3",
        "2024-02-01 01:01:01.0010000,100000,4",
    ]


def test_burstgpt(tmp_path: Path) -> None:
    """Whole seconds, and the columns that its readers look for."""
    assert content(ExportFormat.BURSTGPT, tmp_path).splitlines()[:5] == [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "0,loadgen,1,9,10,API log",
        "0,loadgen,512,1,513,API log",
        "0,loadgen,513,2,515,API log",
        "1,loadgen,7,3,10,API log",
    ]


def test_mooncake(tmp_path: Path) -> None:
    """Whole ms, and ids of 512-token blocks: without ids other tools send empty prompts."""
    rows = [orjson.loads(line) for line in content(ExportFormat.MOONCAKE, tmp_path).splitlines()]
    assert [row["timestamp"] for row in rows] == [0, 0, 0, 1500, 90_061_001]
    assert all(isinstance(row["timestamp"], int) for row in rows)
    assert [len(row["hash_ids"]) for row in rows] == [1, 1, 2, 1, 196]
    assert rows[3].keys() == {"timestamp", "input_length", "output_length", "hash_ids"}


def test_csv(tmp_path: Path) -> None:
    """Times as they are."""
    assert content(ExportFormat.CSV, tmp_path).splitlines()[1:3] == ["0.0,1,9", "0.4,512,1"]


def test_what_is_lost_is_told(tmp_path: Path) -> None:
    """How far times move, which now fall together, and what text and ids are left out."""
    trace = Trace(
        SMALL.timestamp_ms,
        SMALL.input_length,
        SMALL.output_length,
        BlockIds.of([[1], [1], [1, 2], [3], [4]]),
        ({"prompt": "x"}, {}, {}, {}, {}),
    )
    loss = export(trace, ExportFormat.BURSTGPT, tmp_path / "b")
    said = list(loss.lines(ExportFormat.BURSTGPT))
    assert "rounded to whole seconds" in said[0]
    assert f"up to {loss.most_moved_ms:g} ms" in said[0]
    assert loss.most_moved_ms == pytest.approx(499.99996)
    assert "2 more request(s)" in said[0]
    assert "1 prompt(s)" in said[1]
    assert "block ids" in said[2]
    assert list(export(SMALL, ExportFormat.CSV, tmp_path / "c").lines(ExportFormat.CSV)) == []
    parquet = export(trace, ExportFormat.PARQUET, tmp_path / "p")
    assert [line[:8] for line in parquet.lines(ExportFormat.PARQUET)] == ["the text"]


@pytest.mark.parametrize("form", list(ExportFormat))
def test_sessions_and_sampling_are_lost_with_a_word(form: ExportFormat, tmp_path: Path) -> None:
    """No format of others carries them: how many rows had some is told, apart from text."""
    payload = ({"session_id": "a"}, {"session_id": "a", "delay": 5}, {"sampling": {"seed": 1}})
    trace = Trace(np.arange(3) * 1000.0, np.full(3, 9), np.full(3, 2), None, payload)
    said = list(export(trace, form, tmp_path / "x").lines(form))
    assert said[-1] == "sessions, delays and sampling of 3 request(s) are left out"
    assert not any("text of" in line for line in said)


gaps = st.floats(0, 1e7) | st.sampled_from([0.0, 0.5, 1.0, 1e-4, 1e-7])
token = st.integers(1, 10_000_000)
traces = st.lists(st.tuples(gaps, token, st.integers(1, 10_000)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=40)
@given(rows=traces)
@pytest.mark.parametrize("form", list(ExportFormat))
def test_the_way_there_and_back(form: ExportFormat, rows: Any, tmp_path_factory: Any) -> None:
    """Export, then import: the same lengths in order, and times moved by half a tick at most."""
    folder = tmp_path_factory.mktemp("back")
    times = np.cumsum([gap for gap, _, _ in rows])
    trace = Trace(
        times - times[0],
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows]),
    )
    if form is ExportFormat.MOONCAKE:  # a block an id: keep the file small
        trace = Trace(trace.timestamp_ms, trace.input_length % 5000 + 1, trace.output_length)
    export(trace, form, folder / "there")
    back, counts = import_trace(Source(form, folder / "there", ImportConfig()))
    assert back.input_length.tolist() == trace.input_length.tolist()
    assert back.output_length.tolist() == trace.output_length.tolist()
    assert counts.kept == len(trace)
    if form in TICK_MS:
        slack = 1e-6 + 1e-12 * trace.timestamp_ms[-1]
        assert np.abs(back.timestamp_ms - trace.timestamp_ms).max() <= TICK_MS[form] / 2 + slack
    else:
        assert back.timestamp_ms.tolist() == trace.timestamp_ms.tolist()


def test_parquet_keeps_block_ids(tmp_path: Path) -> None:
    """A Parquet export carries the ids, and an import takes them up."""
    ids = BlockIds.of([[1], [1], [1, 2], [3], list(range(196))])
    trace = Trace(SMALL.timestamp_ms, SMALL.input_length, SMALL.output_length, ids)
    export(trace, ExportFormat.PARQUET, tmp_path / "p")
    assert pq.read_table(tmp_path / "p").column_names == [
        "timestamp_ms", "input_tokens", "output_tokens", "hash_ids",
    ]  # fmt: skip
    back, counts = import_trace(Source("parquet", tmp_path / "p", ImportConfig()))
    assert back.hash_ids == ids
    assert counts.block_ids_fitted == 0


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from([0.01, 8.0, 5000.0]),
    block_bytes=st.integers(20, 3000),
)
def test_generate_write_read_import(
    n: int, seed: int, rate: float, block_bytes: int, tmp_path_factory: Any
) -> None:
    """A drawn trace is read and imported exactly as it was drawn, to the last bit."""
    folder = tmp_path_factory.mktemp("exact")
    trace = generate(GeneratorConfig(num_prompts=n, seed=seed, request_rate=rate))
    write_trace(folder / "t.jsonl", trace, {})
    again, data = read_trace(folder / "t.jsonl")
    brought, _ = import_trace(
        Source("loadgen", folder / "t.jsonl", ImportConfig(), block_bytes=block_bytes)
    )
    for other in (again, brought):
        assert other.timestamp_ms.tolist() == trace.timestamp_ms.tolist()
        assert other.input_length.tolist() == trace.input_length.tolist()
        assert other.output_length.tolist() == trace.output_length.tolist()
    write_trace(folder / "u.jsonl", brought, {})
    assert (folder / "u.jsonl").read_bytes() == data


def test_a_long_trace_is_written_in_pieces(tmp_path: Path) -> None:
    """More rows than a piece has: ids go on from piece to piece, and all rows are read back."""
    trace = generate(GeneratorConfig(num_prompts=120_000, input_len=600, request_rate=100))
    write_trace(tmp_path / "t.jsonl", trace, {})
    again, _ = read_trace(tmp_path / "t.jsonl")
    assert again.timestamp_ms.tolist() == trace.timestamp_ms.tolist()
    assert again.hash_ids is not None
    flat = BlockIds.of(again.hash_ids).flat
    assert flat.tolist() == list(range(240_000))
    for form in ExportFormat:
        export(again, form, tmp_path / form)
        back, _ = import_trace(Source(form, tmp_path / form, ImportConfig()))
        assert len(back) == 120_000


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A folder in the way: an error, and no piece of a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        export(SMALL, ExportFormat.CSV, tmp_path / "file" / "out.csv")
    with pytest.raises(TraceError, match="a file name is needed"):
        export(SMALL, ExportFormat.CSV, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a file: what was there stays, and nothing else does."""
    (tmp_path / "out").write_bytes(b"old")

    def torn() -> Any:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole((tmp_path / "out", torn()))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"
