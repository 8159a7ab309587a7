"""The run directory: what was written is read back, and a kill costs nothing that had ended."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_header, made_record, made_run

from loadgen.archive import read_run
from loadgen.errors import RunDirectoryError
from loadgen.journal import EventLog, Journal, begin_run, new_run_path, whole_file, write_whole
from loadgen.record import (
    SCHEMA_VERSION,
    Outcome,
    Phase,
    RequestRecord,
    RunHeader,
    TargetInfo,
    TokenSource,
    WorkerHealth,
)
from loadgen.report import rebuild
from loadgen.report.table import write_parquet

FULL = RequestRecord(
    seq=7, target="vllm", phase=Phase.WARMUP, session="s", parent=6, gang=3, block=1, repeat=2,
    worker=4, due_s=1.0, start_s=1.25, connected_s=1.3, sent_s=1.4, first_byte_s=1.5,
    first_token_s=1.6, chunk_s=(1.6, 1.7), chunk_tokens=(2, 3), last_token_s=1.7, end_s=1.8,
    prompt_tokens_asked=5, prompt_tokens_served=6, output_tokens_asked=7, output_tokens_wanted=6,
    output_tokens_served=5, token_source=TokenSource.CONTINUOUS_USAGE, outcome=Outcome.SHORT,
    http_status=200, finish_reason="length", error="5 of 7 tokens", text="é\u2028📙",
)  # fmt: skip
LEAST = RequestRecord(
    seq=0, target="a", due_s=0.0, start_s=0.0, end_s=0.0, prompt_tokens_asked=1,
    output_tokens_asked=1, outcome=Outcome.DROPPED,
)  # fmt: skip


def test_the_full_record_sets_every_field() -> None:
    """The test below means every field: none of FULL's is at its default."""
    for field in dataclasses.fields(RequestRecord):
        assert getattr(FULL, field.name) != field.default, field.name


@pytest.mark.parametrize("record", [FULL, LEAST], ids=["every field", "defaults"])
def test_a_record_is_read_as_it_was_written(record: RequestRecord, tmp_path: Path) -> None:
    """Values and types of every field survive the file."""
    path = made_run(tmp_path / "run", made_header("a"), [record])
    (read,) = tuple(read_run(path).records())
    assert read == record
    for field in dataclasses.fields(RequestRecord):
        assert type(getattr(read, field.name)) is type(getattr(record, field.name)), field.name


moments = st.none() | st.floats(-1, 1e6, allow_nan=False)
texts = st.none() | st.text(st.characters(exclude_categories=("Cs",)))
counts = st.none() | st.integers(0, 2**53)
records = st.builds(
    RequestRecord,
    seq=st.integers(0, 2**40), target=st.text("ab", min_size=1), phase=st.sampled_from(Phase),
    session=texts, parent=counts, gang=counts, block=st.integers(0, 9), repeat=st.integers(0, 9),
    worker=st.integers(0, 9), due_s=st.floats(0, 1e6), start_s=st.floats(0, 1e6),
    connected_s=moments, sent_s=moments, first_byte_s=moments, first_token_s=moments,
    chunk_s=st.lists(st.floats(0, 1e6), max_size=5).map(tuple),
    chunk_tokens=st.none() | st.lists(st.integers(0, 99), max_size=5).map(tuple),
    last_token_s=moments, end_s=st.floats(0, 1e6), prompt_tokens_asked=st.integers(1, 9),
    prompt_tokens_served=counts, output_tokens_asked=st.integers(1, 9),
    output_tokens_wanted=counts, output_tokens_served=counts,
    token_source=st.none() | st.sampled_from(TokenSource), outcome=st.sampled_from(Outcome),
    http_status=st.none() | st.integers(100, 599),
    finish_reason=texts, error=texts, text=texts,
)  # fmt: skip


@given(made=st.lists(records, max_size=5))
def test_any_records_are_read_as_they_were_written(
    made: list[RequestRecord], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Floats are exact and texts are whole, whatever characters are in them."""
    path = made_run(tmp_path_factory.mktemp("runs") / "run", made_header("a"), made)
    run = read_run(path)
    assert list(run.records()) == made
    assert run.torn_lines == 0


def test_records_of_all_workers_are_read(tmp_path: Path) -> None:
    """Each worker has a file of its own; a run has the records of all."""
    path = made_run(tmp_path / "run", made_header("a"), [made_record(0)])
    for worker in (1, 10):
        journal = Journal(path, worker)
        journal.append(made_record(worker, worker=worker))
        journal.close()
    assert {record.seq for record in tuple(read_run(path).records())} == {0, 1, 10}


def test_an_append_is_on_disk_at_once(tmp_path: Path) -> None:
    """Nothing waits in a buffer: a kill after the append loses nothing."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    journal = Journal(path)
    for n in range(3):
        journal.append(made_record(n))
        assert len(tuple(read_run(path).records())) == n + 1
    journal.close()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A record that cannot be written is an error of the run directory's, not a lost record."""
    (tmp_path / "records-0.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path)
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        journal.append(LEAST)
    journal.close()


FILLS_THE_DISK = """
import dataclasses, os, pathlib, resource, sys
from loadgen.archive import read_run
from loadgen.errors import RunDirectoryError
from loadgen.journal import Journal

path = pathlib.Path(sys.argv[1])
(record,) = read_run(path).records()
file, (_, hard) = path / "records-0.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
whole = file.stat().st_size
journal = Journal(path)
for seq, room in enumerate((0, 1, 60, whole - 2, whole - 1)):
    before = file.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
    for _ in range(2):
        try:
            journal.append(record)
        except RunDirectoryError as error:
            assert "cannot be written" in str(error), error
        else:
            raise SystemExit("it fits")
        assert file.read_bytes() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    journal.append(dataclasses.replace(record, seq=seq))
"""


def test_a_disk_that_is_full_for_a_moment_costs_one_record(tmp_path: Path) -> None:
    """Wherever in its line a write fails, whole lines stay, and those that follow are read."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL])
    code = [sys.executable, "-c", FILLS_THE_DISK, str(path)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    run = read_run(path)
    assert [record.seq for record in run.records()] == [FULL.seq, 0, 1, 2, 3, 4]
    assert run.torn_lines == 0


FILLS_THE_DISK_OF_EVENTS = """
import pathlib, resource, sys
from loadgen.errors import RunDirectoryError
from loadgen.journal import EventLog

path = pathlib.Path(sys.argv[1])
log = EventLog(path)
log.run_began(1.0)
before = (path / "events.jsonl").read_bytes()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, hard))
try:
    log.stopped("lost")
except RunDirectoryError:
    pass
else:
    raise SystemExit("it fits")
assert (path / "events.jsonl").read_bytes() == before
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.stopped("interrupted")
"""


def test_a_disk_that_is_full_for_a_moment_tears_no_event(tmp_path: Path) -> None:
    """As of records: the event is an error, and those after it are read."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL])
    code = [sys.executable, "-c", FILLS_THE_DISK_OF_EVENTS, str(path)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_run(path).stopped == "interrupted"


def test_all_reasons_of_a_stop_are_told(tmp_path: Path) -> None:
    """Each once, the first one first: a worker that is lost after Ctrl-C is lost all the same."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL])
    log = EventLog(path)
    for reason in ("interrupted", "worker 1 ended unexpectedly", "interrupted"):
        log.stopped(reason)
    log.close()
    assert read_run(path).stopped == "interrupted; worker 1 ended unexpectedly"


def test_nothing_follows_a_torn_line_that_cannot_be_cut_off(tmp_path: Path) -> None:
    """Where half a line cannot be taken back, as from a pipe, no other is written after it."""
    os.mkfifo(tmp_path / "records-0.jsonl")
    flags = os.O_RDONLY | os.O_NONBLOCK
    reader = os.open(tmp_path / "records-0.jsonl", flags)
    journal = Journal(tmp_path)

    def leave_in_the_middle() -> None:
        select.select([reader], [], [])
        os.close(reader)

    leaving = threading.Thread(target=leave_in_the_middle)
    leaving.start()
    with pytest.raises(RunDirectoryError, match="Broken pipe"):
        journal.append(dataclasses.replace(FULL, text="x" * 1_000_000))
    leaving.join()
    reader = os.open(tmp_path / "records-0.jsonl", flags)
    torn = os.read(reader, 1_000_000)
    assert torn.startswith(b'{"seq":7')
    assert torn.endswith(b"x")
    with pytest.raises(RunDirectoryError, match="its last line is torn"):
        journal.append(LEAST)
    assert select.select([reader], [], [], 0) == ([], [], [])
    journal.close()
    os.close(reader)


@pytest.mark.parametrize("kept", range(1, 200, 13))
def test_a_torn_last_line_is_left_out(kept: int, tmp_path: Path) -> None:
    """Wherever a kill cut the last line, the records before it are read and it is counted."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL, LEAST])
    with (path / "records-0.jsonl").open("ab") as file:
        file.write(orjson.dumps(FULL)[:kept])
    run = read_run(path)
    assert tuple(run.records()) == (FULL, LEAST)
    assert run.torn_lines == 1


def test_a_whole_last_line_without_its_newline_is_a_record(tmp_path: Path) -> None:
    """A line that lacks its newline alone had ended."""
    path = made_run(tmp_path / "run", made_header("a"), [LEAST])
    file = path / "records-0.jsonl"
    file.write_bytes(file.read_bytes() + orjson.dumps(FULL))
    assert tuple(read_run(path).records()) == (LEAST, FULL)


def test_torn_lines_of_several_workers_are_counted(tmp_path: Path) -> None:
    """Each worker may have been cut in its last line."""
    path = made_run(tmp_path / "run", made_header("a"), [LEAST])
    for worker in range(3):
        with (path / f"records-{worker}.jsonl").open("ab") as file:
            file.write(b'{"seq":')
    assert read_run(path).torn_lines == 3


PLAIN: dict[str, Any] = orjson.loads(orjson.dumps(FULL))


def damaged(**fields: Any) -> bytes:
    return orjson.dumps(PLAIN | fields)


def without(key: str) -> bytes:
    return orjson.dumps({name: value for name, value in PLAIN.items() if name != key})


BROKEN = {
    "half a line": b'{"seq":1,"tar',
    "no JSON": b"hello",
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "no outcome": without("outcome"),
    "no phase": without("phase"),
    "no times": without("end_s"),
    "an unknown outcome": damaged(outcome="lost"),
    "an unknown source": damaged(token_source="x"),
    "chunks that are none": damaged(chunk_s=None),
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_in_the_middle_is_named(line: bytes, tmp_path: Path) -> None:
    """A whole line that is no record is damage, not a kill: the error gives file and line."""
    path = made_run(tmp_path / "run", made_header("a"), [LEAST])
    file = path / "records-0.jsonl"
    file.write_bytes(file.read_bytes() + line + b"\n" + orjson.dumps(LEAST) + b"\n")
    with pytest.raises(RunDirectoryError, match=r"records-0\.jsonl:2: "):
        tuple(read_run(path).records())


def test_the_line_number_counts_blank_lines(tmp_path: Path) -> None:
    """Lines are counted as an editor counts them."""
    path = made_run(tmp_path / "run", made_header("a"), [LEAST])
    file = path / "records-0.jsonl"
    file.write_bytes(file.read_bytes() + b"\n\n{}\n")
    with pytest.raises(RunDirectoryError, match=r"records-0\.jsonl:4: "):
        tuple(read_run(path).records())


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    """A file of a version that adds keys stays readable: record, header and target alike."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL])
    for name in ("records-0.jsonl", "header.json"):
        content = orjson.loads((path / name).read_bytes()) | {"added_later": {"x": 1}}
        (path / name).write_bytes(orjson.dumps(content) + b"\n")
    assert tuple(read_run(path).records()) == (FULL,)
    content = orjson.loads((path / "header.json").read_bytes())
    content["targets"][0]["added_later"] = 1
    (path / "header.json").write_bytes(orjson.dumps(content))
    assert read_run(path).header == made_header("a")


def test_missing_optional_keys_have_their_defaults(tmp_path: Path) -> None:
    """A file of a version that lacked a key stays readable."""
    path = made_run(tmp_path / "run", made_header("a"), [FULL])
    content = orjson.loads((path / "records-0.jsonl").read_bytes())
    for key in ("gang", "chunk_tokens", "text", "token_source", "session", "output_tokens_wanted"):
        del content[key]
    (path / "records-0.jsonl").write_bytes(orjson.dumps(content) + b"\n")
    (read,) = tuple(read_run(path).records())
    assert read == dataclasses.replace(
        FULL,
        gang=None,
        chunk_tokens=None,
        text=None,
        token_source=None,
        session=None,
        output_tokens_wanted=None,
    )


def header_with(**fields: Any) -> RunHeader:
    target = TargetInfo(
        name="a", base_url="http://h", endpoint="/v1/completions", model="m",
        features=("ignore_eos", "min_tokens"), server="uvicorn", max_model_len=2048,
    )  # fmt: skip
    return made_header(
        "a", targets=(target,), label="é", metadata={"k": "v"}, command=("loadgen", "a b"),
        self_check={"events_per_s": 1.5}, **fields,
    )  # fmt: skip


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every field of the header survives, tuples as tuples."""
    header = header_with()
    read = read_run(made_run(tmp_path / "run", header, [])).header
    assert read == header
    assert isinstance(read.command, tuple)
    assert isinstance(read.targets[0].features, tuple)


def test_begin_keeps_the_trace_byte_for_byte(tmp_path: Path) -> None:
    """The trace in the run directory is the file that was given."""
    begin_run(tmp_path, made_header("a"), b"\xef\xbb\xbfany bytes\r\n")
    assert (tmp_path / "trace.jsonl").read_bytes() == b"\xef\xbb\xbfany bytes\r\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["header.json", "trace.jsonl"]


@pytest.mark.parametrize(
    "fields",
    [{"metadata": {"n": 2**64}}, {"seed": -(2**63) - 1}, {"label": "\udcff"}],
    ids=["beyond 64 bits", "below 64 bits", "not UTF-8"],
)
def test_a_header_that_cannot_be_written_leaves_nothing(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    """What no JSON can hold is known before the trace is written."""
    with pytest.raises(TypeError):
        begin_run(tmp_path, made_header("a", **fields), b"{}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "not a run directory"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "schema version"),
        (b"5", "schema version"),
        (b"{}", "schema version"),
        (b'{"schema_version":"1"}', "schema version"),
        (b'{"schema_version":1}', "not a run header"),
        (orjson.dumps({"schema_version": SCHEMA_VERSION + 1}), "schema version 2"),
    ],
    ids=["missing", "empty", "torn", "a list", "a number", "no version", "text", "empty", "newer"],
)
def test_a_header_that_cannot_be_used(content: bytes | None, words: str, tmp_path: Path) -> None:
    """A missing, broken or newer header is told in one line that names the path."""
    if content is not None:
        (tmp_path / "header.json").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=words) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("targets", [None, 5, [5], ["a"], [{}], [{"name": "a"}]], ids=repr)
def test_a_header_with_broken_targets(targets: Any, tmp_path: Path) -> None:
    """Damage inside the header is told in one line as well."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    content = orjson.loads((path / "header.json").read_bytes()) | {"targets": targets}
    (path / "header.json").write_bytes(orjson.dumps(content))
    with pytest.raises(RunDirectoryError, match="not a run header"):
        read_run(path)


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    """A file where a run directory was meant is told as such."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        read_run(tmp_path / "file")


def test_records_of_a_target_are_the_measured_ones(tmp_path: Path) -> None:
    """Warm-up and other targets are left out; order is that in which they ended."""
    made = [
        made_record(2, target="a"),
        made_record(0, target="a", phase=Phase.WARMUP),
        made_record(1, target="b"),
        made_record(1, target="a", block=1),
        made_record(0, target="a"),
    ]
    run = read_run(made_run(tmp_path / "run", made_header("a", "b"), made))
    assert [(record.block, record.seq) for record in run.of_target("a")] == [(0, 2), (1, 1), (0, 0)]
    assert [record.seq for record in run.of_target("b")] == [1]


HEALTH = WorkerHealth(
    worker=1, target="a", block=2, repeat=3, cpu_s=1.5, wall_s=2.5, loop_lag_p99_s=0.001,
    loop_lag_max_s=0.002, chunks=99,
)  # fmt: skip


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    """How the workers fared and why the run was stopped come back."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    assert read_run(path).health == ()
    assert read_run(path).stopped is None
    log = EventLog(path)
    log.turn_began("a", 0, 0, 0.1)
    log.worker_done(HEALTH)
    log.stopped("the time is up")
    log.stopped("interrupted")
    run = read_run(path)
    assert run.health == (HEALTH,)
    assert run.stopped == "the time is up; interrupted"
    log.close()


def test_a_run_that_goes_on_is_known(tmp_path: Path) -> None:
    """As long as its events are held open, and no longer, and also after a kill."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    assert not read_run(path).is_running
    code = (
        "import sys, pathlib; from loadgen.journal import EventLog;"
        f"log = EventLog(pathlib.Path({str(path)!r})); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert read_run(path).is_running
        assert "still going on" in " ".join(r.text for r in rebuild(path).verdict.reasons)
        other.kill()
    assert not read_run(path).is_running


def test_a_torn_last_event_is_left_out(tmp_path: Path) -> None:
    """A kill in the middle of an event costs that event alone."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    log = EventLog(path)
    log.worker_done(HEALTH)
    log.close()
    with (path / "events.jsonl").open("ab") as file:
        file.write(b'{"event":"stop')
    assert read_run(path).health == (HEALTH,)


@pytest.mark.parametrize(
    "line",
    [b"5", b"[]", b'{"event":"worker"}', b'{"event":"stopped"}', b"{oops"],
    ids=repr,
)
def test_a_broken_event_is_named(line: bytes, tmp_path: Path) -> None:
    """Damage in the events is told in one line, not by a traceback."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    (path / "events.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RunDirectoryError, match=r"events\.jsonl:1: "):
        read_run(path)


def test_an_event_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    """An event that this version does not know is none of its business."""
    path = made_run(tmp_path / "run", made_header("a"), [])
    (path / "events.jsonl").write_bytes(b'{"event":"moon","phase":3}\n')
    assert read_run(path).health == ()


def test_new_run_paths_are_new(tmp_path: Path) -> None:
    """Two runs of one second have a directory each, named by time and kind."""
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    paths = {new_run_path(tmp_path / "deep" / "runs", "run", started) for _ in range(20)}
    assert len(paths) == 20
    assert all(path.is_dir() for path in paths)
    assert all(path.name.startswith("20260102T030405Z-run-") for path in paths)


def test_a_folder_that_cannot_hold_runs(tmp_path: Path) -> None:
    """A file where the result folder should be is told before anything is sent."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot hold results"):
        new_run_path(tmp_path / "runs", "run", datetime.now(UTC))


def test_write_whole_replaces(tmp_path: Path) -> None:
    """A file is there whole, and no piece of it is left beside."""
    write_whole(tmp_path / "f", b"old")
    write_whole(tmp_path / "f", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """Nothing half-written, and no partial file; two processes write to two partial files."""
    file = tmp_path / "a.json"
    write_whole(file, b"old")

    def fail() -> None:
        with whole_file(file) as partial:
            partial.write_bytes(b"ne")
            assert str(os.getpid()) in partial.name
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert file.read_bytes() == b"old"


def test_parquet_holds_every_field(tmp_path: Path) -> None:
    """The Parquet file has a column a field and a row a record, warm-up included."""
    write_parquet(tmp_path / "records.parquet", [FULL, LEAST])
    rows = pq.read_table(tmp_path / "records.parquet").to_pylist()
    for row, record in zip(rows, (FULL, LEAST), strict=True):
        expected = orjson.loads(orjson.dumps(record))
        assert row == expected


def test_parquet_of_no_records(tmp_path: Path) -> None:
    """A run without records has a Parquet file of the same columns."""
    write_parquet(tmp_path / "records.parquet", [])
    table = pq.read_table(tmp_path / "records.parquet")
    assert table.num_rows == 0
    assert table.column_names == [field.name for field in dataclasses.fields(RequestRecord)]
