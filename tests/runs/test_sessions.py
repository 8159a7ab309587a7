"""Whole runs of traces with sessions, and with sampling of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.runs.conftest import call, command, events_of, lines_of, recorder, records_of, truth

pytestmark = pytest.mark.slow

MEASURED = (0, 4)


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def conversations(count: int, turns: int, *, every_ms: float = 20.0, delay: float = 30.0) -> Any:
    """Rows of `count` sessions whose turns lie between each other."""
    return [
        {
            "timestamp": every_ms * n + 1000.0 * turn,
            "input_length": 40 + 50 * turn,
            "output_length": 4,
            "session_id": f"s{n}",
            "delay": delay * turn,
        }
        for turn in range(turns)
        for n in range(count)
    ]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_turns_follow_each_other(tmp_path: Path, endpoint: str) -> None:
    """A turn is due at its parent's end and its think time, a session is with one worker, and
    prompts have their whole length, history and template counted in."""
    rows = conversations(9, 3)
    overheads = ("--template-tokens", "7", "--message-tokens", "5", "--special-tokens", "2")
    with truth("--ttft-ms", "10", "--itl-ms", "5", *overheads) as url:
        done = call(
            *("run", "--base-url", url, str(write(tmp_path, rows)), "--json", "--quiet"),
            *("--workers", "2", "--endpoint", endpoint, "--result-dir", str(tmp_path / "runs")),
        )
    assert done.code in MEASURED, done.stderr
    records = {r["seq"]: r for r in records_of(done.path)}
    (turn,) = [event for event in events_of(done.path) if event["event"] == "turn"]
    assert len(records) == 27
    for seq, record in records.items():
        number, session = divmod(seq, 9)
        assert record["outcome"] == "ok"
        assert record["session"] == f"s{session}"
        assert record["prompt_tokens_served"] == record["prompt_tokens_asked"] == 40 + 50 * number
        if number == 0:
            assert record.get("parent") is None
            due_s = turn["origin_s"] + 0.02 * session
        else:
            parent = records[seq - 9]
            assert record["parent"] == parent["seq"]
            assert record["worker"] == parent["worker"]
            due_s = parent["end_s"] + 0.03 * number
        assert record["due_s"] == pytest.approx(due_s, abs=3e-6)
    assert {r["worker"] for r in records.values()} == {0, 1}


def test_every_target_and_every_run_gets_the_same_history(tmp_path: Path) -> None:
    """What turns send does not depend on what a server answers."""
    file = write(tmp_path, conversations(4, 3, every_ms=1.0, delay=1.0))
    with recorder() as (first, first_bodies), recorder() as (second, second_bodies):
        for _ in range(2):
            done = call(
                *("compare", "--target", f"a={first}", "--target", f"b={second}", "--model", "m"),
                *(str(file), "--endpoint", "chat", "--json", "--quiet"),
                *("--result-dir", str(tmp_path / "runs"), "--num-warmups", "0"),
            )
            assert done.code in MEASURED, done.stderr
    ours, theirs = sorted(first_bodies()), sorted(second_bodies())
    assert ours == theirs
    roles = [len(json.loads(body)["messages"]) for body in ours]
    assert [roles.count(n) for n in (3, 5)] == [8, 8]


def test_turns_go_on_after_a_failure(tmp_path: Path) -> None:
    """A turn whose parent failed is sent all the same, a think time after the failure."""
    fault = ("--fault", '{"kind":"status","status":503}', "--fault-from", "9")
    with truth("--ttft-ms", "5", "--itl-ms", "1", *fault) as url:
        done = call(
            *("run", "--base-url", url, str(write(tmp_path, conversations(6, 3)))),
            *("--json", "--quiet", "--result-dir", str(tmp_path / "runs")),
        )
    records = {r["seq"]: r for r in records_of(done.path)}
    assert len(records) == 18
    after = [r for r in records.values() if r.get("parent") is not None]
    failed = [r for r in after if records[r["parent"]]["outcome"] == "http_5xx"]
    assert len(failed) > 3
    for record in after:
        parent = records[record["parent"]]
        think_s = 0.03 * (record["seq"] // 6)
        assert record["due_s"] == pytest.approx(parent["end_s"] + think_s, abs=3e-6)


def test_a_session_is_in_one_block(tmp_path: Path) -> None:
    """With --blocks a session is in the block of its first turn, whole; the union is the trace."""
    file = write(tmp_path, conversations(5, 3, delay=1.0))
    with truth("--ttft-ms", "5", "--itl-ms", "1") as url:
        done = call(
            *("compare", "--target", f"a={url}", "--target", f"b={url}", str(file)),
            *("--blocks", "2", "--json", "--quiet", "--result-dir", str(tmp_path / "runs")),
        )
        assert done.code in MEASURED, done.stderr
        records = [r for r in records_of(done.path) if r["target"] == "b"]
        assert sorted(r["seq"] for r in records) == list(range(15))
        for record in records:
            assert record["block"] == (0 if record["seq"] % 5 < 2 else 1)
        done = call(
            *("compare", "--target", f"a={url}", "--target", f"b={url}", str(file)),
            *("--blocks", "6", "--result-dir", str(tmp_path / "more")),
        )
    assert done.code == 2
    assert "6 stretches of 5 sessions" in done.stderr
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("words", "flag"),
    [(("--closed-loop", "--max-concurrency", "2"), "--closed-loop"), (("--gang", "2"), "--gang")],
    ids=["closed", "gang"],
)
def test_paces_that_sessions_do_not_have(
    quick: str, tmp_path: Path, words: tuple[str, ...], flag: str
) -> None:
    """Closed loops and gangs leave think times out: one line, and nothing is sent."""
    file = write(tmp_path, conversations(2, 2))
    done = call(
        *("run", "--base-url", quick, str(file), *words),
        *("--result-dir", str(tmp_path / "runs")),
    )
    assert done.code == 2
    assert done.stderr.startswith(f"loadgen: {flag}: t.jsonl has sessions")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_cap_holds_later_turns_back(tmp_path: Path) -> None:
    """--max-concurrency counts later turns too; the wait is lag, and all are sent."""
    file = write(tmp_path, conversations(8, 2, every_ms=0.0, delay=0.0))
    with truth("--ttft-ms", "30", "--itl-ms", "1") as url:
        done = call(
            *("run", "--base-url", url, str(file), "--max-concurrency", "2"),
            *("--json", "--quiet", "--result-dir", str(tmp_path / "runs")),
        )
    records = records_of(done.path)
    assert len(records) == 16
    assert {r["outcome"] for r in records} == {"ok"}
    moments = sorted([(r["start_s"], 1) for r in records] + [(r["end_s"], -1) for r in records])
    now = most = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    assert most == 2


def test_ctrl_c_sends_no_more_turns(tmp_path: Path) -> None:
    """Once drained, later turns are not sent; what was recorded is whole, and there is a report."""
    file = write(tmp_path, conversations(40, 50, every_ms=1.0, delay=0.5))
    with truth("--ttft-ms", "20", "--itl-ms", "10") as url:
        process = subprocess.Popen(
            command(
                *("run", "--base-url", url, str(file), "--json"),
                *("--result-dir", str(tmp_path / "runs")),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        runs = tmp_path / "runs"
        while not any(lines_of(path) > 50 for path in (runs.iterdir() if runs.exists() else ())):
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(2)
        stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    summary = json.loads(stdout)
    target = summary["targets"]["target"]
    assert 50 < target["requests"] < 2000
    assert set(target["outcomes"]) <= {"ok", "dropped"}


def test_sampling_of_a_row_is_in_its_body(tmp_path: Path) -> None:
    """A row's temperature, top_p and seed replace the run's; other rows have the run's."""
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 11}
    rows = [
        {"timestamp": n, "input_length": 5, "output_length": 2} | more
        for n, more in enumerate(({"sampling": sampling}, {}, {"sampling": {"seed": 12}}))
    ]
    with recorder() as (url, bodies):
        done = call(
            *("run", "--base-url", url, str(write(tmp_path, rows)), "--model", "m"),
            *("--json", "--quiet", "--result-dir", str(tmp_path / "runs"), "--num-warmups", "0"),
        )
        assert done.code in MEASURED, done.stderr
        sent = [json.loads(body) for body in bodies()[-3:]]
    found = {body.get("seed"): (body["temperature"], body.get("top_p")) for body in sent}
    assert found == {11: (0.5, 0.9), None: (0.0, None), 12: (0.0, None)}


def test_sampling_that_a_target_refuses(tmp_path: Path) -> None:
    """Where a target does not take a field that rows bring, the run does not start."""
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 2, "sampling": {"seed": 1}}]
    with truth("--reject", "seed") as url:
        done = call(
            *("run", "--base-url", url, str(write(tmp_path, rows))),
            *("--result-dir", str(tmp_path / "runs")),
        )
    assert done.code == 2
    assert "refuses the trace's sampling (seed)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
