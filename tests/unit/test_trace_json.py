"""Foreign JSONL, ShareGPT and Parquet files: keys, blocks, text and sessions, each trap by name."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import LoadgenError
from loadgen.trace import Trace
from loadgen.trace.blocks import BlockIds, Regrouping, fresh_ids
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Counts, Source, import_trace
from loadgen.trace.rows import BrokenRows
from loadgen.trace.sharegpt import read_sharegpt


def words(text: str) -> int:
    """A tokenizer for tests: a token a word, and one that it puts before every text."""
    return len(text.split()) + 1


def bring(
    folder: Path, name: str, data: bytes, block_bytes: int = 4 << 20, **options: Any
) -> tuple[Trace, Counts]:
    """The trace of a file with that content."""
    path = folder / "file"
    path.write_bytes(data)
    counter = words if options.pop("counted", False) else None
    config = ImportConfig.model_validate(options)
    return import_trace(Source(name, path, config, counter, block_bytes))


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def refused(folder: Path, name: str, data: bytes, **options: Any) -> str:
    """The one line that importing it gives, without the folder's name."""
    with pytest.raises(LoadgenError) as caught:
        bring(folder, name, data, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


MOONCAKE = lines(
    {"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": list(range(14))},
    {"timestamp": 3000, "input_length": 126195, "output_length": 26, "hash_ids": list(range(247))},
)


def test_mooncake(tmp_path: Path) -> None:
    """Whole ms, 512-token blocks, inputs beyond 100,000 tokens; equal times keep their order."""
    trace, counts = bring(tmp_path, "mooncake", MOONCAKE)
    assert trace.timestamp_ms.tolist() == [0.0, 3000.0, 3000.0]
    assert trace.input_length.tolist() == [6758, 600, 126195]
    assert trace.hash_ids == [tuple(range(14)), (46, 47), tuple(range(247))]
    assert counts.block_ids_fitted == 0


def test_block_ids_that_do_not_cover_the_prompt(tmp_path: Path) -> None:
    """Too many are cut, too few get blocks of their own; each such row is counted."""
    data = lines(
        {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [7, 8]},
        {"timestamp": 1, "input_length": 1025, "output_length": 1, "hash_ids": [7]},
        {"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [9]},
        {"timestamp": 3, "input_length": 1, "output_length": 1},
    )
    trace, counts = bring(tmp_path, "mooncake", data)
    assert trace.hash_ids is not None
    found = list(trace.hash_ids)
    assert found[0] == (7,)
    assert found[1][0] == 7
    assert found[2] == (9,)
    assert len({*found[1][1:], *found[3]} - {7, 8, 9}) == 3
    assert counts.block_ids_fitted == 3


def test_a_shortened_prompt_loses_its_last_blocks(tmp_path: Path) -> None:
    """--oversized clamp cuts ids with the prompt."""
    trace, _ = bring(tmp_path, "mooncake", MOONCAKE, max_context=1025, oversized="clamp")
    assert trace.hash_ids == [(0, 1), (46, 47), (0, 1)]
    assert trace.input_length.tolist() == [1024, 600, 1024]


def test_bailian(tmp_path: Path) -> None:
    """Float seconds; 16-token blocks become 512-token ones: equal runs of 32 stay equal."""
    shared = list(range(100, 132))
    data = lines(
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521,
         "output_length": 132, "type": "text", "turn": 1, "hash_ids": [*shared, 1]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.5, "input_length": 1040,
         "output_length": 7, "type": "text", "turn": 2, "hash_ids": [*shared, *range(32), 5]},
        {"chat_id": 3, "parent_chat_id": -1, "timestamp": 60.0, "input_length": 16,
         "output_length": 7, "type": "text", "turn": 1, "hash_ids": [100]},
    )  # fmt: skip
    trace, counts = bring(tmp_path, "bailian", data)
    assert trace.timestamp_ms == pytest.approx([0.0, 1114.0, 1500.0])
    assert trace.hash_ids is not None
    alone, first, second = trace.hash_ids
    assert [len(alone), len(first), len(second)] == [1, 2, 3]
    assert first[0] == second[0]
    assert len({*alone, *first, *second}) == 5
    assert counts.block_ids_fitted == 0


def test_loadgens_own(tmp_path: Path) -> None:
    """Our own file keeps prompts and messages, or lengths alone where that is asked."""
    data = lines(
        {"timestamp": 5.5, "input_length": 3, "output_length": 4, "prompt": "a b"},
        {"timestamp": 1.5, "input_length": 5, "output_length": 6,
         "messages": [{"role": "user", "content": "hi"}]},
    )  # fmt: skip
    trace, _ = bring(tmp_path, "loadgen", data)
    assert trace.timestamp_ms.tolist() == [0.0, 4.0]
    assert trace.payload == ({"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "a b"})
    bare, _ = bring(tmp_path, "loadgen", data, text=False)
    assert bare.payload is None
    assert bare.input_length.tolist() == [5, 3]


def test_vllms_custom_file(tmp_path: Path) -> None:
    """`prompt` and `output_tokens` without times: text is kept and counted, all are due at once."""
    data = lines({"prompt": "one two", "output_tokens": 10}, {"prompt": "three"})
    trace, _ = bring(tmp_path, "vllm", data, counted=True, output_len=256)
    assert trace.timestamp_ms.tolist() == [0.0, 0.0]
    assert trace.input_length.tolist() == [3, 2]
    assert trace.output_length.tolist() == [10, 256]
    assert trace.payload == ({"prompt": "one two"}, {"prompt": "three"})
    drawn, _ = bring(tmp_path, "vllm", data, counted=True, output_len=5, request_rate=2)
    assert drawn.duration_s > 0
    assert drawn.payload == trace.payload


def test_vllms_timed_trace(tmp_path: Path) -> None:
    """Seconds and 16-token blocks by default, as vLLM has them; ms where they are said to be."""
    row = {"timestamp": 2, "input_length": 20, "output_length": 3, "hash_ids": [4, 5]}
    data = lines({**row, "timestamp": 0}, row)
    trace, _ = bring(tmp_path, "vllm", data)
    assert trace.timestamp_ms.tolist() == [0.0, 2000.0]
    assert trace.hash_ids == [(0,), (0,)]
    trace, _ = bring(tmp_path, "vllm", data, time_unit="ms", block_tokens=512)
    assert trace.timestamp_ms.tolist() == [0.0, 2.0]
    assert trace.hash_ids == [(4,), (4,)]


def test_aiperfs_files(tmp_path: Path) -> None:
    """`text` with ms, and `text_input`, `messages` or lengths in Mooncake's keys."""
    data = lines(
        {"text": "a b c", "timestamp": 0, "output_length": 5},
        {"text_input": "d", "timestamp": 1500.5, "output_length": 6},
        {"messages": [{"role": "user", "content": "e f"}], "timestamp": 20, "output_length": 7},
        {"input_length": 9, "timestamp": 30, "output_length": 8, "hash_ids": [3]},
    )
    trace, _ = bring(tmp_path, "aiperf", data, counted=True)
    assert trace.timestamp_ms.tolist() == [0.0, 20.0, 30.0, 1500.5]
    assert trace.input_length.tolist() == [4, 3, 9, 2]
    assert trace.payload is not None
    assert trace.payload[0] == {"prompt": "a b c"}
    assert trace.payload[1] == {"messages": [{"role": "user", "content": "e f"}]}
    assert trace.payload[2] == {}


@pytest.mark.parametrize(
    ("name", "row", "column", "said"),
    [
        ("mooncake", b"{", "not JSON", ""),
        ("mooncake", b"[1]", "not a JSON object", ""),
        ("mooncake", b'{"input_length":1,"output_length":1}', "timestamp", "None"),
        ("mooncake", b'{"timestamp":"0","input_length":1,"output_length":1}', "timestamp", "'0'"),
        ("mooncake", b'{"timestamp":true,"input_length":1,"output_length":1}', "timestamp", "True"),
        ("mooncake", b'{"timestamp":0,"input_length":1.5,"output_length":1}', "input_length", ""),
        ("mooncake", b'{"timestamp":0,"input_length":-1,"output_length":1}', "input_length", "-1"),
        ("mooncake", b'{"timestamp":0,"input_length":"9","output_length":1}', "input_length", ""),
        ("mooncake", b'{"timestamp":0,"input_length":1}', "output_length", "--output-len"),
        ("mooncake", b'{"timestamp":0,"input_length":1,"output_length":true}', "output_length", ""),
        (
            "mooncake",
            b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["a"]}',
            "hash_ids",
            "whole numbers",
        ),
        (
            "mooncake",
            b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[18446744073709551615]}',
            "hash_ids",
            "2^63",
        ),
        ("vllm", b'{"prompt":"x","output_tokens":1}', "input_length", "--tokenizer"),
        ("vllm", b'{"prompt":7,"output_tokens":1}', "prompt", "text is needed"),
        (
            "aiperf",
            b'{"session_id":"s","turns":[{"text":"x"}]}',
            "session_id",
            "cannot be imported",
        ),
        ("aiperf", b'{"messages":["x"],"output_length":1}', "messages", "chat messages"),
        (
            "loadgen",
            b'{"timestamp":0,"input_length":1,"output_length":1,"delay":3}',
            "delay",
            "cannot be imported",
        ),
    ],
)  # fmt: skip
def test_a_broken_row(tmp_path: Path, name: str, row: bytes, column: str, said: str) -> None:
    """It is named by file, line and key; or it is left out and counted, and the rest stays."""
    good = b'{"timestamp":1,"input_length":5,"output_length":6}\n'
    if name in ("vllm", "aiperf"):
        good = b'{"input_length":5,"output_length":6}\n'
    data = b"\xef\xbb\xbf" + good + b"\r\n" + row + b"\r\n" + good
    message = refused(tmp_path, name, data)
    assert message.startswith(f"file:3: {column}")
    assert said in message
    trace, counts = bring(tmp_path, name, data, broken="drop")
    assert (len(trace), counts.read, counts.broken_dropped) == (2, 3, 1)


@pytest.mark.parametrize("name", ["mooncake", "bailian", "loadgen", "vllm", "aiperf"])
@pytest.mark.parametrize("time", [1_700_000_000_000, 1.5, "2024-01-01 00:00:00"], ids=repr)
def test_times_of_another_kind(tmp_path: Path, name: str, time: object) -> None:
    """Numbers are no dates and dates are no numbers: the row is refused, and the flag named."""
    data = lines({"timestamp": time, "input_length": 1, "output_length": 1})
    unit = "ms" if isinstance(time, str) else "iso"
    needed = "a number (ms)" if isinstance(time, str) else "a date and time"
    message = refused(tmp_path, name, data, time_unit=unit)
    assert message.startswith(f"file:1: timestamp: {needed} is needed, got {time!r}; --time-unit?")


def test_times_on_some_rows_only(tmp_path: Path) -> None:
    """Where the first row has no time, one that has is no row of the same file, and vice versa."""
    timed, bare = (
        {"input_length": 1, "output_length": 1, "timestamp": 3},
        {
            "input_length": 1,
            "output_length": 1,
        },
    )
    assert "have none" in refused(tmp_path, "aiperf", lines(bare, timed))
    assert "have one" in refused(tmp_path, "aiperf", lines(timed, bare))


rows = st.lists(
    st.fixed_dictionaries(
        {
            "timestamp": st.integers(0, 10_000) | st.floats(0, 1e6),
            "input_length": st.integers(0, 3000),
            "output_length": st.integers(0, 50),
        },
        optional={"hash_ids": st.lists(st.integers(0, 50), max_size=80)},
    ),
    min_size=1,
    max_size=10,
)


@settings(deadline=None, max_examples=60)
@given(rows=rows, block_bytes=st.integers(1, 300), name=st.sampled_from(["mooncake", "bailian"]))
def test_any_cut_gives_the_same_trace(
    rows: Any, block_bytes: int, name: str, tmp_path_factory: Any
) -> None:
    """Read whole or in odd pieces, plain or gzip: the same trace."""
    folder = tmp_path_factory.mktemp("cut")
    data = lines(*rows)
    whole, counts = bring(folder, name, data, zero="clamp")
    for content in (data, gzip.compress(data)):
        cut, cut_counts = bring(folder, name, content, block_bytes, zero="clamp")
        assert cut.timestamp_ms.tolist() == whole.timestamp_ms.tolist()
        assert cut.input_length.tolist() == whole.input_length.tolist()
        assert cut.hash_ids == whole.hash_ids
        assert cut_counts == counts


CHATS: list[Any] = [
    {"id": "a", "conversations": [{"from": "human", "value": "one two"},
                                  {"from": "gpt", "value": "three é ] } \" four"},
                                  {"from": "human", "value": "five"}]},
    {"id": "b", "conversations": [{"from": "system", "value": "be kind"},
                                  {"from": "user", "value": "hello"},
                                  {"from": "assistant", "value": "x"}]},
    {"id": "c", "conversations": [{"from": "gpt", "value": "no question"}]},
    {"id": "d", "conversations": [{"from": "human", "value": "no answer"}]},
    {"id": "e", "conversations": []},
]  # fmt: skip


@pytest.mark.parametrize("form", ["list", "indented list", "lines"])
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_sharegpt(tmp_path: Path, form: str, block_bytes: int) -> None:
    """The first question and its answer, counted; conversations without an answer are zero rows.

    The token that a tokenizer puts before a prompt is counted there, and not in the answer.
    """
    data = {
        "list": orjson.dumps(CHATS),
        "indented list": orjson.dumps(CHATS, option=orjson.OPT_INDENT_2),
        "lines": lines(*CHATS),
    }[form]
    trace, counts = bring(tmp_path, "sharegpt", data, block_bytes, counted=True)
    assert trace.input_length.tolist() == [3, 2]
    assert trace.output_length.tolist() == [6, 1]
    assert trace.timestamp_ms.tolist() == [0.0, 0.0]
    assert trace.payload is None
    assert (counts.read, counts.zero_dropped) == (5, 3)


def test_sharegpt_needs_a_tokenizer(tmp_path: Path) -> None:
    """It holds text, not lengths."""
    assert "--tokenizer" in refused(tmp_path, "sharegpt", orjson.dumps(CHATS))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (orjson.dumps(CHATS)[:-1], "ends within its list after conversation 5"),
        (orjson.dumps(CHATS)[:120], "conversation 1: not JSON"),
        (b"[{]", "conversation 1: not JSON"),
        (b'[{"id":"a"}]', "conversation 1: an object with `conversations`"),
        (b"[3]", "conversation 1: an object"),
        (b'[{"conversations":[{"from":"human"}]}]', "`from` and a `value`"),
        (b'[{"conversations":[{"from":"human","value":"\xff"}]}]', "not UTF-8"),
        (b"", "no row is left"),
    ],
)
def test_a_broken_sharegpt(tmp_path: Path, data: bytes, said: str) -> None:
    """A torn or foreign file is told with the number of the conversation."""
    assert said in refused(tmp_path, "sharegpt", data, counted=True)


def test_sharegpt_is_read_piece_by_piece(tmp_path: Path) -> None:
    """A long list on one line is never held as a whole: rows come before its end is read."""
    path = tmp_path / "chats.json"
    chat = {
        "conversations": [{"from": "human", "value": "a " * 500}, {"from": "gpt", "value": "b"}]
    }
    path.write_bytes(b"[" + b",".join([orjson.dumps(chat)] * 3000) + b",oops")
    parts = read_sharegpt(path, words, BrokenRows("f", are_dropped=False), 1 << 14)
    assert len(next(parts)) == 1024


def test_parquet(tmp_path: Path) -> None:
    """Columns by name, block ids, and rows without a number told by theirs."""
    path = tmp_path / "file"
    table = pa.table(
        {
            "when": pa.array([2.5, 0.5, None]),
            "in": pa.array([7, 8, 9], pa.int32()),
            "out": pa.array([1, 2, 3]),
            "hash_ids": pa.array([[5], None, [6]]),
        }
    )
    pq.write_table(table, path)
    options = {"time_column": "when", "input_column": "in", "output_column": "out"}
    config = ImportConfig.model_validate({**options, "time_unit": "s", "broken": "drop"})
    trace, counts = import_trace(Source("parquet", path, config))
    assert trace.timestamp_ms.tolist() == [0.0, 2000.0]
    assert trace.input_length.tolist() == [8, 7]
    assert trace.hash_ids is not None
    assert trace.hash_ids[1] == (5,)
    assert counts.broken_dropped == 1
    with pytest.raises(LoadgenError, match="row 3"):
        import_trace(Source("parquet", path, ImportConfig.model_validate(options)))
    with pytest.raises(LoadgenError, match="--time-column"):
        import_trace(Source("parquet", path, ImportConfig()))
    path.write_bytes(b"PAR1 no")
    with pytest.raises(LoadgenError, match="not a Parquet file"):
        import_trace(Source("parquet", path, ImportConfig()))


def test_parquet_with_stamps(tmp_path: Path) -> None:
    """Times may be Arrow's own, in any resolution."""
    path = tmp_path / "file"
    stamps = pa.array([1_700_000_000_500, 1_700_000_000_000], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"timestamp_ms": stamps, "input_tokens": [1, 2],
                             "output_tokens": [3, 4]}), path)  # fmt: skip
    config = ImportConfig.model_validate({"time_unit": "iso"})
    trace, _ = import_trace(Source("parquet", path, config))
    assert trace.timestamp_ms.tolist() == [0.0, 500.0]


ids = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=6)


@given(rows=ids, data=st.data())
def test_block_ids_are_lists(rows: list[list[int]], data: st.DataObject) -> None:
    """Flat columns behave as the rows they were made of, in any order."""
    made = BlockIds.of(rows)
    assert list(made) == [tuple(row) for row in rows]
    assert made[1:] == [tuple(row) for row in rows[1:]]
    order = data.draw(st.permutations(range(len(rows))))
    taken = made.take(np.array(order, dtype=np.int64))
    assert taken == [rows[place] for place in order]
    assert BlockIds.joined([made, taken]) == [*rows, *taken]
    assert made.are_shared == (len(set(sum(rows, []))) < len(sum(rows, [])))  # noqa: RUF017


@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=70), min_size=2, max_size=5))
def test_regrouped_blocks_share_what_small_ones_share(rows: list[list[int]]) -> None:
    """Blocks of 512 are equal exactly where their runs of 16-token blocks are."""
    regroup = Regrouping(16)
    made = [regroup(row) for row in rows]
    for small, big in zip(rows, made, strict=True):
        assert len(big) == -(-len(small) // 32)
        for other, other_big in zip(rows, made, strict=True):
            for at, one in enumerate(big):
                for to, two in enumerate(other_big):
                    same = small[32 * at : 32 * at + 32] == other[32 * to : 32 * to + 32]
                    assert (one == two) == same


def test_fresh_ids_at_the_end_of_numbers() -> None:
    """Where there is no number after the greatest id, free ones are found below."""
    taken = np.array([0, 2, 2**63 - 1])
    assert fresh_ids(taken, 3).tolist() == [1, 3, 4]
    assert fresh_ids(np.array([4]), 2).tolist() == [5, 6]
