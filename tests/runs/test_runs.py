"""What a whole run sends, keeps and says."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runs.conftest import call, events_of, records_of, truth

pytestmark = pytest.mark.slow

MEASURED = (0, 4)
"""The run was made; on a busy machine its verdict may well be INVALID."""
DRAW = ("--request-rate", "100", "--output-len", "6", "--json", "--quiet")


@pytest.mark.parametrize("workers", ["1", "2", "3"])
def test_the_union_of_what_workers_send_is_the_trace(
    quick: str, tmp_path: Path, workers: str
) -> None:
    """Each row is sent once, by one worker, at its own due time, whatever their number."""
    words = ("--num-prompts", "50", "--workers", workers, "--result-dir", str(tmp_path))
    done = call("run", "--base-url", quick, *DRAW, *words)
    assert done.code in MEASURED, done.stderr
    records = sorted(records_of(done.path), key=lambda record: record["seq"])
    trace = [json.loads(line) for line in (done.path / "trace.jsonl").read_bytes().splitlines()]
    assert [r["seq"] for r in records] == list(range(50))
    assert [r["prompt_tokens_asked"] for r in records] == [row["input_length"] for row in trace]
    assert {r["worker"] for r in records} == set(range(int(workers)))
    (turn,) = [event for event in events_of(done.path) if event["event"] == "turn"]
    for record, row in zip(records, trace, strict=True):
        due_s = record["due_s"] - turn["origin_s"]
        assert due_s == pytest.approx(row["timestamp"] / 1000, abs=2e-6)
    assert len([e for e in events_of(done.path) if e["event"] == "worker"]) == int(workers)


def test_both_targets_of_a_comparison_get_the_same_bytes(tmp_path: Path) -> None:
    """The same trace and seed give the same requests, to each target and in each run."""
    with _recorder() as (first, first_bodies), _recorder() as (second, second_bodies):
        for _ in range(2):
            done = call(
                *("compare", "--target", f"a={first}", "--target", f"b={second}"),
                *("--num-prompts", "12", "--model", "m", "--result-dir", str(tmp_path)),
                *("--request-rate", "inf", "--output-len", "4", "--json", "--quiet"),
            )
            assert done.code in MEASURED, done.stderr
    ours, theirs = sorted(first_bodies()), sorted(second_bodies())
    assert ours == theirs
    assert len(ours) >= 24


def test_a_closed_loop_keeps_its_width(quick: str, tmp_path: Path) -> None:
    """Never more than --max-concurrency in flight, and never fewer while shots are left."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "40", "--closed-loop", *DRAW),
        *("--max-concurrency", "5", "--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    moments = sorted([(r["start_s"], 1) for r in records] + [(r["end_s"], -1) for r in records])
    now, most = 0, 0
    for _, step in moments:
        now += step
        most = max(most, now)
    assert most == 5
    assert all(r["start_s"] - r["due_s"] < 0.5 for r in records)
    assert done.summary["targets"]["target"]["completed"] == 40


def test_a_gang_waits_for_its_longest_member(quick: str, tmp_path: Path) -> None:
    """Gangs are sent together, and the next not before the last of the one before has ended."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "12", "--gang", "4", "--gang-pad"),
        *("--output-min", "3", "--output-max", "30", "--json", "--quiet"),
        *("--result-dir", str(tmp_path)),
    )
    assert done.code in MEASURED, done.stderr
    records = records_of(done.path)
    gangs = [[r for r in records if r["gang"] == gang] for gang in range(3)]
    assert [len(gang) for gang in gangs] == [4, 4, 4]
    for before, after in itertools.pairwise(gangs):
        assert min(r["start_s"] for r in after) >= max(r["end_s"] for r in before)
    for gang in gangs:
        assert len({r["output_tokens_asked"] for r in gang}) == 1


@pytest.mark.parametrize(
    ("stop", "word"),
    [
        (("--max-duration", "0.5"), "--max-duration"),
        (("--max-output-tokens-total", "60"), "--max-output-tokens-total"),
    ],
    ids=["duration", "tokens"],
)
def test_a_hard_stop(quick: str, tmp_path: Path, stop: tuple[str, ...], word: str) -> None:
    """The run sends nothing more, waits for what is in flight, and says why it stopped."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "400", *DRAW, *stop),
        *("--result-dir", str(tmp_path)),
    )
    target = done.summary["targets"]["target"]
    assert 0 < target["requests"] < 400
    assert target["completed"] > 0
    assert set(target["outcomes"]) <= {"ok", "dropped"}
    assert word in done.summary["stopped"]
    assert any(word in reason["text"] for reason in done.summary["reasons"])


def test_a_storm_of_errors_stops_the_run(tmp_path: Path) -> None:
    """--max-error-share ends a run whose requests fail, and the exit code says so."""
    with truth("--fault", '{"kind":"status","status":503}', "--fault-from", "8") as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "400", *DRAW),
            *("--max-error-share", "0.2", "--result-dir", str(tmp_path)),
        )
    target = done.summary["targets"]["target"]
    assert done.code == 4
    assert target["requests"] < 400
    assert target["outcomes"]["http_5xx"] > 0
    assert "--max-error-share" in done.summary["stopped"]


def test_a_key_is_found_in_no_artefact(tmp_path: Path) -> None:
    """Keys in the environment, a header, a URL and a body field reach the server and no file."""
    keys = [f"canary-{n}-0123456789abcdef" for n in range(4)]
    with truth("--api-key", keys[0], "--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", f"{url}/v1?token={keys[1]}", "--num-prompts", "5", "--json"),
            *("--request-rate", "inf", "--output-len", "3", "--header", f"X-Secret={keys[2]}"),
            *("--extra-body", json.dumps({"api_key": keys[3]}), "--label", f"run {keys[0]}"),
            *("--result-dir", str(tmp_path)),
            OPENAI_API_KEY=keys[0],
        )
    assert done.code in MEASURED, done.stderr
    assert done.summary["targets"]["target"]["completed"] == 5
    artefacts = {file.name: file.read_bytes() for file in done.path.iterdir()}
    artefacts |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert {"header.json", "report.html", "records.parquet", "summary.json"} <= set(artefacts)
    found = [
        (name, key) for name, data in artefacts.items() for key in keys if key.encode() in data
    ]
    assert found == []


@pytest.mark.parametrize(("key", "completed"), [("sk-right\n", 3), ("sk-wrong", 0)])
def test_a_key_from_a_file(tmp_path: Path, key: str, completed: int) -> None:
    """--api-key-file gives the key that the file holds, without the line's end."""
    file = tmp_path / "key"
    file.write_text(key)
    with truth("--api-key", "sk-right", "--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", url, "--api-key-file", str(file), "--num-prompts", "3"),
            *(
                "--output-len",
                "3",
                "--request-rate",
                "inf",
                "--result-dir",
                str(tmp_path),
                "--json",
            ),
            *("--model", "m"),
        )
    if completed:
        assert done.summary["targets"]["target"]["completed"] == completed
    else:
        assert done.code == 2
        assert "401" in done.stderr


class _Bodies(asyncio.Protocol):
    """Keeps each request's body and answers it with three tokens."""

    def __init__(self, kept: list[bytes]) -> None:
        self.kept = kept
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            self.answer(body)

    def answer(self, body: bytes) -> None:
        tokens = 1
        if body:
            self.kept.append(body)
            tokens = json.loads(body)["max_tokens"]
        usage: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": tokens}
        text = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage}
        stream = b"data: " + json.dumps(text).encode() + b"\n\ndata: [DONE]\n\n"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(stream), stream)
        )


def _recorder() -> Any:
    """A server in a thread of its own that keeps the bodies; (URL, what it has kept)."""

    @contextmanager
    def serving() -> Iterator[tuple[str, Any]]:
        loop = asyncio.new_event_loop()
        kept: list[bytes] = []
        server = loop.run_until_complete(loop.create_server(lambda: _Bodies(kept), "127.0.0.1", 0))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}", lambda: list(kept)
        finally:
            loop.call_soon_threadsafe(server.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    return serving()


def test_what_was_due_and_never_sent_is_dropped(tmp_path: Path) -> None:
    """Under a cap, a hard stop leaves a record for each request that was due and still waited."""
    with truth("--ttft-ms", "400", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", url, "--num-prompts", "50", "--request-rate", "inf"),
            *("--max-concurrency", "2", "--max-duration", "0.5", "--output-len", "2"),
            *("--json", "--quiet", "--num-warmups", "0", "--result-dir", str(tmp_path)),
        )
    outcomes = done.summary["targets"]["target"]["outcomes"]
    assert outcomes["ok"] >= 2
    assert outcomes["dropped"] >= 40
    assert sum(outcomes.values()) == 50
    assert len(records_of(done.path)) == 50
