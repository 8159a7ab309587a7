"""Traces: drawn the same every time, written and read exactly, and refused with a line number."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.config import ArrivalLaw, GeneratorConfig
from loadgen.errors import TraceError
from loadgen.trace import Trace, read_trace, trace_bytes, write_trace
from loadgen.trace.arrivals import Arrivals, gap_law
from loadgen.trace.figures import describe
from loadgen.trace.generate import generate
from loadgen.trace.laws import LogNormal
from loadgen.trace.lengths import TokenLaw
from loadgen.trace.trace import meta_path, parse_trace

GOOD = b'{"timestamp":0,"input_length":3,"output_length":4}'


def lesson1(n: int) -> Trace:
    return generate(GeneratorConfig(preset="lesson1", num_prompts=n, seed=42))


def same(a: Trace, b: Trace) -> bool:
    return (
        np.array_equal(a.timestamp_ms, b.timestamp_ms)
        and np.array_equal(a.input_length, b.input_length)
        and np.array_equal(a.output_length, b.output_length)
    )


def test_lesson1_of_100_requests() -> None:
    """The lesson's workload: 3,748 output tokens, mean prompt 53.27, mean output 37.48."""
    trace = lesson1(100)
    assert int(trace.output_length.sum()) == 3748
    assert round(float(trace.input_length.mean()), 2) == 53.27
    assert round(float(trace.output_length.mean()), 2) == 37.48


def test_lesson1_of_64_requests() -> None:
    """The same generator with n = 64 draws 2,435 output tokens."""
    assert int(lesson1(64).output_length.sum()) == 2435


def test_lesson1_is_the_lessons_own_code() -> None:
    """Lengths are those of the global legacy generator, seeded and drawn in the lesson's order."""
    for seed, n in ((42, 100), (7, 33)):
        state = np.random.RandomState(seed)
        inputs = np.clip(state.lognormal(3.5, 1.0, n).astype(int) + 10, 10, 1024)
        outputs = np.clip(state.lognormal(3.0, 0.8, n).astype(int) + 10, 10, 1024)
        trace = generate(GeneratorConfig(preset="lesson1", num_prompts=n, seed=seed))
        assert trace.input_length.tolist() == inputs.tolist()
        assert trace.output_length.tolist() == outputs.tolist()


@pytest.mark.parametrize("preset", [None, "lesson1"])
def test_the_same_seed_gives_the_same_bytes(preset: Any) -> None:
    """A trace is a function of its configuration; another seed gives another trace."""
    config = GeneratorConfig(preset=preset, num_prompts=50, request_rate=8, seed=1)
    first = trace_bytes(generate(config))
    assert trace_bytes(generate(config)) == first
    assert trace_bytes(generate(config.model_copy(update={"seed": 2}))) != first


def test_a_change_of_one_law_leaves_the_others() -> None:
    """Arrivals, prompts and outputs have random streams of their own."""
    base = generate(GeneratorConfig(num_prompts=50))
    slower = generate(GeneratorConfig(num_prompts=50, request_rate=0.1, arrival=ArrivalLaw.GAMMA))
    longer = generate(GeneratorConfig(num_prompts=50, input_mu=5.0))
    assert slower.input_length.tolist() == base.input_length.tolist()
    assert slower.output_length.tolist() == base.output_length.tolist()
    assert longer.output_length.tolist() == base.output_length.tolist()
    assert longer.timestamp_ms.tolist() == base.timestamp_ms.tolist()
    assert longer.input_length.tolist() != base.input_length.tolist()


def test_fixed_lengths() -> None:
    """A fixed length holds for every row."""
    trace = generate(GeneratorConfig(num_prompts=9, input_len=512, output_len=3))
    assert set(trace.input_length.tolist()) == {512}
    assert set(trace.output_length.tolist()) == {3}


def test_lengths_are_clamped() -> None:
    """No length lies outside its range, however wide the law."""
    drawn = TokenLaw(LogNormal(3.0, 3.0), 7, 99).draw(10_000, np.random.default_rng(0))
    assert (drawn.min(), drawn.max()) == (7, 99)
    assert drawn.dtype == np.int64


def test_lengths_follow_the_law() -> None:
    """Inside the clamps, ln(length) has the asked mean and deviation."""
    drawn = TokenLaw(LogNormal(6.0, 0.5), 1, 10**6).draw(100_000, np.random.default_rng(0))
    logs = np.log(drawn)
    assert logs.mean() == pytest.approx(6.0, abs=0.01)
    assert logs.std() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("rate", [0.5, 8.0, 1000.0])
@pytest.mark.parametrize(
    ("law", "cv", "expected_cv"),
    [
        (ArrivalLaw.LOGNORMAL, 0.5, 0.5),
        (ArrivalLaw.LOGNORMAL, 1.5, 1.5),
        (ArrivalLaw.EXPONENTIAL, 1.5, 1.0),
        (ArrivalLaw.GAMMA, 0.5, 0.5),
        (ArrivalLaw.GAMMA, 2.0, 2.0),
        (ArrivalLaw.WEIBULL, 0.5, 0.5),
        (ArrivalLaw.WEIBULL, 2.0, 2.0),
        (ArrivalLaw.CONSTANT, 1.5, 0.0),
    ],
)
def test_gaps_have_the_asked_mean_and_cv(
    law: ArrivalLaw, cv: float, expected_cv: float, rate: float
) -> None:
    """Over many gaps the mean is 1 / rate and the CV the asked one, for every law."""
    gaps = gap_law(1 / rate, law, cv).draw(400_000, np.random.default_rng(7))
    assert gaps.min() >= 0
    assert gaps.mean() * rate == pytest.approx(1.0, rel=0.02)
    assert gaps.std() * rate == pytest.approx(expected_cv, rel=0.05, abs=1e-9)


def test_burstiness_is_vllms() -> None:
    """Burstiness b means gamma gaps of shape b: CV = 1 / sqrt(b)."""
    trace = generate(
        GeneratorConfig(num_prompts=200_000, burstiness=4.0, input_len=1, output_len=1)
    )
    assert describe(trace)["arrival_cv"] == pytest.approx(0.5, rel=0.02)
    assert describe(trace)["request_rate"] == pytest.approx(1.0, rel=0.02)


def test_constant_arrivals() -> None:
    """A constant law at 4 a second is due each 250 ms, from 0."""
    arrivals = Arrivals(4.0, ArrivalLaw.CONSTANT, 1.0).draw_ms(4, np.random.default_rng(0))
    assert arrivals.tolist() == [0.0, 250.0, 500.0, 750.0]


def test_an_infinite_rate() -> None:
    """All requests of an infinite rate are due at the start."""
    trace = generate(GeneratorConfig(num_prompts=20, request_rate=math.inf))
    assert set(trace.timestamp_ms.tolist()) == {0.0}
    assert trace.duration_s == 0.0
    assert describe(trace)["request_rate"] == math.inf


@pytest.mark.parametrize("n", [1, 2])
def test_small_traces(n: int) -> None:
    """A trace of one or two requests can be drawn, described and read back."""
    trace = generate(GeneratorConfig(num_prompts=n))
    assert describe(trace)["requests"] == n
    assert same(parse_trace(trace_bytes(trace), "t"), trace)


def test_describe_by_hand() -> None:
    """Gaps of 1 s and 3 s: rate 0.5, CV 0.5; lengths as they are."""
    trace = Trace(np.array([0.0, 1000.0, 4000.0]), np.array([1, 2, 3]), np.array([10, 10, 40]))
    found = describe(trace)
    assert found["duration_s"] == 4.0
    assert found["request_rate"] == 0.5
    assert found["arrival_cv"] == 0.5
    assert found["output_tokens"]["total"] == 60
    assert found["output_tokens"]["mean"] == 20.0
    assert (found["input_tokens"]["min"], found["input_tokens"]["max"]) == (1, 3)


gaps_ms = st.floats(0, 1e12, allow_nan=False)
lengths = st.integers(1, 10_000_000)
ids = st.lists(st.integers(0, 2**62), max_size=4).map(tuple)
texts = st.text(st.characters(exclude_categories=("Cs",)))
payloads = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"prompt": texts}),
    st.fixed_dictionaries(
        {"messages": st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=2)}
    ),
)


@given(rows=st.lists(st.tuples(gaps_ms, lengths, lengths, ids, payloads), min_size=1, max_size=8))
def test_the_round_trip_is_exact(rows: list[tuple[float, int, int, Any, Any]]) -> None:
    """Floats, lengths, block ids, prompts and messages are read as they were written."""
    times = sorted(row[0] for row in rows)
    trace = Trace(
        np.array([time - times[0] for time in times]),
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows]),
        tuple(row[3] for row in rows),
        tuple(row[4] for row in rows),
    )
    again = parse_trace(trace_bytes(trace), "t")
    assert same(again, trace)
    assert again.hash_ids == trace.hash_ids
    assert (again.payload or ({},) * len(rows)) == trace.payload
    assert trace_bytes(again) == trace_bytes(trace)


def test_every_prompt_has_blocks_of_its_own() -> None:
    """Without block ids, fresh ones are written: ceil(tokens / 512) a prompt, none twice."""
    trace = Trace(np.zeros(3), np.array([1, 512, 513]), np.array([1, 1, 1]))
    rows = [orjson.loads(line) for line in trace_bytes(trace).splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0], [1], [2, 3]]


def test_rows_have_mooncakes_keys() -> None:
    """Other tools replay the file: a float of milliseconds, two lengths, block ids."""
    row = orjson.loads(trace_bytes(lesson1(1)))
    assert row.keys() == {"timestamp", "input_length", "output_length", "hash_ids"}
    assert isinstance(row["timestamp"], float)


def parse(*lines: bytes) -> Trace:
    return parse_trace(b"\n".join(lines), "t.jsonl")


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + GOOD + b"\n",
        b"\n\n" + GOOD + b"\n\n  \n",
        GOOD + b"\r\n",
        GOOD,
        b"  " + GOOD + b"\t\n",
    ],
    ids=["BOM", "blank lines", "CRLF", "no final newline", "spaces"],
)
def test_forms_of_a_good_file(data: bytes) -> None:
    """A BOM, blank lines, CRLF and a missing final newline are no errors."""
    trace = parse_trace(data, "t")
    assert (trace.input_length.tolist(), trace.output_length.tolist()) == ([3], [4])


def test_rows_are_sorted_stably_and_start_at_0() -> None:
    """Rows are ordered by time, those of one moment as they stood; the first is due at 0."""
    trace = parse(
        b'{"timestamp":30,"input_length":1,"output_length":1}',
        b'{"timestamp":10,"input_length":2,"output_length":1}',
        b'{"timestamp":30,"input_length":3,"output_length":1}',
        b'{"timestamp":-10.5,"input_length":4,"output_length":1}',
    )
    assert trace.timestamp_ms.tolist() == [0.0, 20.5, 40.5, 40.5]
    assert trace.input_length.tolist() == [4, 2, 1, 3]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON"),
        (b"timestamp,input_length", "not JSON"),
        (b'{"timestamp":NaN,"input_length":1,"output_length":1}', "not JSON"),
        (b"[1,2,3]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b'{"input_length":1,"output_length":1}', "timestamp"),
        (b'{"timestamp":"1","input_length":1,"output_length":1}', "timestamp"),
        (b'{"timestamp":null,"input_length":1,"output_length":1}', "timestamp"),
        (b'{"timestamp":true,"input_length":1,"output_length":1}', "timestamp"),
        (b'{"timestamp":0,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":0,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":-1,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":1.5,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":true,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":18446744073709551615,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"input_length":1}', "output_length"),
        (b'{"timestamp":0,"input_length":1,"output_length":0}', "output_length"),
        (b'{"timestamp":0,"input_length":1,"output_length":"1"}', "output_length"),
        (b'{"timestamp":0,"input_length":1,"output_length":9223372036854775808}', "output_length"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":3}', "hash_ids"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":null}', "hash_ids"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["a",{}]}', "hash_ids"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"prompt":5}', "prompt"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"messages":"hi"}', "messages"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"colour":1}', "colour"),
        (b'{"timestamp":0,"input_length":1,"output_length":1,"a\\nb":1}', "b"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[1:70],
)  # fmt: skip
def test_a_bad_line_is_named(line: bytes, words: str) -> None:
    """Each kind of bad line gives one line that names the file, the line and what was wrong."""
    with pytest.raises(TraceError) as caught:
        parse(GOOD, b"", line, GOOD)
    message = str(caught.value)
    assert message.startswith("t.jsonl:3: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ('"session_id":""', "session_id"),
        ('"session_id":null', "session_id"),
        ('"session_id":[1]', "session_id"),
        ('"session_id":true', "session_id"),
        ('"session_id":"s","delay":-1', "delay"),
        ('"session_id":"s","delay":"1"', "delay"),
        ('"session_id":"s","delay":true', "delay"),
        ('"sampling":[]', "sampling"),
        ('"sampling":{"top_k":1}', "top_k"),
        ('"sampling":{"temperature":3}', "temperature"),
        ('"sampling":{"top_p":0}', "top_p"),
        ('"sampling":{"seed":1.5}', "seed"),
        ('"sampling":{"seed":true}', "seed"),
        ('"delay":3', "delay"),
    ],
)
def test_a_bad_session_or_sampling_is_named(extra: str, words: str) -> None:
    """What a row says of its session and sampling is checked, and the line is named."""
    line = f'{{"timestamp":0,"input_length":1,"output_length":1,{extra}}}'
    with pytest.raises(TraceError, match=words) as caught:
        parse(GOOD, line.encode())
    assert str(caught.value).startswith("t.jsonl:2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no request"),
        (b"\n \n", "holds no request"),
        (b"\xef\xbb\xbf", "holds no request"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "git lfs pull",
        ),
    ],
    ids=["empty", "blank", "BOM alone", "git-lfs pointer"],
)
def test_a_file_that_is_no_trace(data: bytes, words: str) -> None:
    """A file without data says so, and what would do."""
    with pytest.raises(TraceError, match=words):
        parse_trace(data, "t.jsonl")


def test_the_line_number_is_the_files_own_with_crlf_and_blank_lines() -> None:
    """Lines are counted as an editor counts them."""
    with pytest.raises(TraceError, match=r"^t:4: "):
        parse_trace(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n" + GOOD + b"\r\n{\r\n", "t")


@pytest.mark.parametrize("name", ["missing.jsonl", "."], ids=["no file", "a folder"])
def test_an_unreadable_file(name: str, tmp_path: Path) -> None:
    """A file that cannot be read is named, with the reason."""
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / name)


def test_some_rows_with_block_ids_and_some_without() -> None:
    """Block ids on a part of the rows are not dropped in silence: refused, or kept."""
    with_ids = b'{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[77]}'
    try:
        kept = trace_bytes(parse(GOOD, with_ids))
    except TraceError as error:
        kept = str(error).encode()
    assert b"77" in kept or b"hash_ids: " in kept


def test_write_gives_the_digest_of_the_file(tmp_path: Path) -> None:
    """The SHA-256 that is printed is that of the file, and stands in the sidecar."""
    path = tmp_path / "deep" / "t.jsonl"
    digest = write_trace(path, lesson1(3), {"asked": {"seed": 42}})
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    side = orjson.loads((tmp_path / "deep" / "t.meta.json").read_bytes())
    assert side == {"asked": {"seed": 42}, "sha256": digest}
    trace, data = read_trace(path)
    assert same(trace, lesson1(3))
    assert data == path.read_bytes()


def test_write_leaves_nothing_beside(tmp_path: Path) -> None:
    """Two files appear, by renaming, and a trace that was there is replaced whole."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"old")
    write_trace(path, lesson1(3), {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.jsonl", "t.meta.json"]
    assert path.read_bytes() == trace_bytes(lesson1(3))


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Where the sidecar cannot be written the trace is not there either, nor a piece of one."""
    (tmp_path / "t.meta.json").mkdir()
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "t.jsonl", lesson1(3), {})
    assert [file.name for file in tmp_path.iterdir()] == ["t.meta.json"]


@pytest.mark.parametrize("name", ["", "/"], ids=["empty", "root"])
def test_a_path_that_is_no_file_name(name: str) -> None:
    """A path without a file name is a mistake of the user's, not ours."""
    with pytest.raises(TraceError):
        write_trace(Path(name), lesson1(1), {})


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    """A path through a file cannot be written, and says so."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "file" / "t.jsonl", lesson1(1), {})


@pytest.mark.parametrize(
    ("name", "side"),
    [("t.jsonl", "t.meta.json"), ("a.b.jsonl", "a.b.meta.json"), ("t", "t.meta.json")],
)
def test_the_sidecars_name(name: str, side: str) -> None:
    """The sidecar of NAME.jsonl is NAME.meta.json."""
    assert meta_path(Path("x") / name) == Path("x") / side


def test_lengths_survive_numpy_types() -> None:
    """A trace of other integer types writes the same bytes."""
    trace = lesson1(5)
    small = replace(trace, input_length=trace.input_length.astype(np.int32))
    assert trace_bytes(small) == trace_bytes(trace)
