"""Runs through the API: started, watched, listed, stopped, compared; their results and traces."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.runs.conftest import call, records_of
from tests.service.conftest import Serving, service, wait_until

pytestmark = pytest.mark.slow

ROWS = b"".join(
    b'{"timestamp":%d,"input_length":5,"output_length":4}\n' % (100 * row) for row in range(10)
)


@pytest.fixture(scope="module")
def finished(serving: Serving, quick: str) -> dict[str, Any]:
    """A run that has finished."""
    run_id = serving.start(quick, requests=120, rate=100, output={"label": "first of all"})
    return serving.wait(run_id)


def events_of(serving: Serving, run_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with serving.client.stream("GET", f"/api/runs/{run_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])


def test_a_run_from_start_to_end(serving: Serving, finished: dict[str, Any]) -> None:
    """It ends with a verdict, a summary and every record on disk."""
    assert finished["state"] == "finished"
    assert finished["exit_code"] == (4 if finished["verdict"] == "INVALID" else 0)
    assert finished["summary"]["targets"]["target"]["completed"] == 120
    assert finished["requests"] == 120
    assert finished["label"] == "first of all"
    assert len(records_of(serving.runs / finished["id"])) == 120
    assert finished["progress"]["targets"]["target"]["done"] == 120


def test_events_tell_how_far_it_is(serving: Serving, quick: str) -> None:
    """Counters come several times a second and only grow; the last event says how it ended."""
    run_id = serving.start(quick, requests=150, rate=50)
    seen = list(events_of(serving, run_id))
    assert seen[0][0] == "course"
    assert seen[-1] == (
        "end",
        {"state": "finished", "verdict": seen[-1][1]["verdict"], "error": None},
    )
    live = [content for name, content in seen if name == "live" and content.get("targets")]
    done = [content["targets"]["target"]["done"] for content in live]
    assert len(live) >= 8
    assert done == sorted(done)
    assert done[-1] == 150
    assert max(len(json.dumps(content)) for _, content in seen) < 4000
    again = list(events_of(serving, run_id))
    assert len(again[0][1]["points"]) >= 2
    assert again[-1][0] == "end"


def test_one_at_a_time(serving: Serving, quick: str) -> None:
    """A second run waits until the first has ended, and the list says which waits."""
    first = serving.start(quick, requests=60, rate=30)
    second = serving.start(quick, requests=5)
    serving.wait(first, "running")
    listed = serving.client.get("/api/runs").json()
    assert listed["waiting"] == [second]
    assert listed["running"] == [first]
    begun, ended = serving.wait(second), serving.get(first)
    assert ended["state"] == begun["state"] == "finished"
    first_end = ended["progress"]["at"]
    header = json.loads((serving.runs / second / "header.json").read_text())
    assert datetime.fromisoformat(header["started_at"]).timestamp() >= first_end


def test_stopping_drains_and_then_cuts(serving: Serving, slow: str) -> None:
    """One DELETE sends nothing more and waits for the answers; another cuts them off."""
    drained = serving.start(slow, requests=500, rate=20)
    serving.wait_for_records(drained, 5)
    assert serving.client.delete(f"/api/runs/{drained}").status_code == 202
    found = serving.wait(drained)
    assert found["state"] == "stopped"
    assert found["exit_code"] == 130
    outcomes = found["summary"]["targets"]["target"]["outcomes"]
    assert set(outcomes) <= {"ok", "dropped"}
    assert 0 < outcomes["ok"] < 500

    cut = serving.start(slow, requests=500, rate=20, tokens=20)
    serving.wait_for_records(cut, 1)
    wait_until(lambda: serving.in_flight(cut) > 0, "some are in flight", 30)
    serving.client.delete(f"/api/runs/{cut}")
    serving.client.delete(f"/api/runs/{cut}")
    outcomes = serving.wait(cut)["summary"]["targets"]["target"]["outcomes"]
    assert outcomes["cancelled"] > 0
    assert serving.client.delete(f"/api/runs/{cut}").status_code == 409


def test_a_queued_run_is_stopped_before_it_sends(serving: Serving, quick: str, slow: str) -> None:
    """It leaves the line and never has a record."""
    first = serving.start(slow, requests=20, rate=20)
    second = serving.start(quick)
    assert serving.client.delete(f"/api/runs/{second}").json()["state"] == "stopped"
    assert serving.get(second)["state"] == "stopped"
    serving.wait(first)
    time.sleep(0.5)
    assert not (serving.runs / second / "header.json").exists()


def test_a_target_that_is_away(serving: Serving) -> None:
    """The run has failed, and says why in one line."""
    run_id = serving.start("http://127.0.0.1:9", load={"ready_timeout": 0})
    found = serving.wait(run_id)
    assert found["state"] == "failed"
    assert found["exit_code"] == 2
    assert "does not answer" in found["error"]
    answer = serving.client.get(f"/api/runs/{run_id}/report")
    assert answer.status_code == 409


def test_the_list_is_filtered_and_paged(serving: Serving, finished: dict[str, Any]) -> None:
    """By state, kind, label, target and verdict, the newest first, page by page."""

    def ids(**query: Any) -> list[str]:
        answer = serving.client.get("/api/runs", params=query)
        assert answer.status_code == 200
        return [row["id"] for row in answer.json()["runs"]]

    everything = ids()
    assert finished["id"] in ids(state="finished", kind="run", label="OF ALL", target="targ")
    assert ids(label="of all", verdict=finished["verdict"]) == [finished["id"]]
    assert ids(kind="compare", label="of all") == []
    assert ids(limit=1, offset=1) == everything[1:2]
    assert serving.client.get("/api/runs", params={"limit": 0}).status_code == 422
    assert serving.client.get("/api/runs", params={"state": "odd"}).status_code == 422


def test_runs_of_the_command_line_are_listed(serving: Serving, quick: str) -> None:
    """A run that `loadgen run` made in the same folder is a run like another."""
    done = call(
        *("run", "--base-url", quick, "--num-prompts", "5", "--request-rate", "inf"),
        *("--output-len", "3", "--quiet", "--json", "--result-dir", str(serving.runs)),
    )
    found = serving.get(done.path.name)
    assert found["state"] == "finished"
    assert found["is_ours"] is False
    assert serving.client.get(f"/api/runs/{found['id']}/report").status_code == 200
    assert serving.client.delete(f"/api/runs/{found['id']}").status_code == 409


def test_results_in_every_form(serving: Serving, finished: dict[str, Any]) -> None:
    """HTML, text, Parquet, CSV and vLLM's form hold the same records."""
    url = f"/api/runs/{finished['id']}"
    report = serving.client.get(f"{url}/report")
    assert "sandbox" in report.headers["content-security-policy"]
    assert "first of all" in report.text
    assert "Verdict" in serving.client.get(f"{url}/report", params={"format": "text"}).text
    table = pq.read_table(io.BytesIO(serving.client.get(f"{url}/records").content))
    rows = list(
        csv.DictReader(
            io.StringIO(serving.client.get(f"{url}/records", params={"format": "csv"}).text)
        )
    )
    assert len(rows) == table.num_rows == 121  # with one of warm-up
    assert [float(row["end_s"]) for row in rows] == table["end_s"].to_pylist()
    assert json.loads(rows[5]["chunk_s"]) == table["chunk_s"].to_pylist()[5]
    exported = serving.client.get(f"{url}/export/vllm").json()
    assert exported["completed"] == 120
    odd = serving.client.get(f"{url}/export/vllm", params={"target": "other"})
    assert odd.status_code == 422


def test_two_runs_are_compared(serving: Serving, quick: str, finished: dict[str, Any]) -> None:
    """Of the same trace, requests are paired; ratios are b / a."""
    other = serving.wait(serving.start(quick, requests=120, rate=100))
    answer = serving.client.get(
        "/api/runs/compare", params={"a": finished["id"], "b": other["id"]}
    ).json()
    (pair,) = answer["pairs"]
    assert answer["same_trace"] is True
    assert pair["ratio"]["output_tokens"] == 1
    assert 0.5 < pair["ratio"]["ttft_s"]["p50"] < 2
    assert pair["paired"]["metrics"] if "metrics" in pair["paired"] else pair["paired"]
    missing = serving.client.get("/api/runs/compare", params={"a": finished["id"], "b": "none"})
    assert missing.status_code == 404


def test_a_comparison_of_two_targets(serving: Serving, quick: str, slow: str) -> None:
    """Kind `compare` replays one trace on both, and tells the ratios."""
    answer = serving.post(
        kind="compare",
        targets=[{"name": "a", "base_url": quick}, {"name": "b", "base_url": slow}],
        generate={"num_prompts": 8, "request_rate": 20, "output_len": 4, "input_len": 4},
        compare={"blocks": 2},
    )
    found = serving.wait(answer.json()["id"])
    assert found["state"] == "finished", found["error"]
    assert found["comparison"]["ratio"]["ttft_s"]["p50"] > 1.5
    assert found["targets"] == ["a", "b"]


def test_a_dry_run_sends_nothing(serving: Serving, quick: str) -> None:
    """It says what would be sent, as `--dry-run` does, and leaves no run behind."""
    before = serving.client.get("/api/runs").json()["total"]
    answer = serving.client.post(
        "/api/runs",
        params={"dry_run": "true"},
        json={"targets": [{"base_url": quick}], "generate": {"num_prompts": 7, "output_len": 3}},
    )
    assert answer.status_code == 200
    assert answer.json()["output_tokens"] == 21
    assert serving.client.get("/api/runs").json()["total"] == before


def test_an_uploaded_trace_is_replayed(serving: Serving, quick: str) -> None:
    """Its id is its SHA-256; a run of it sends its requests."""
    kind = {"content-type": "application/jsonl"}
    answer = serving.client.post("/api/traces", content=ROWS, headers=kind)
    assert answer.status_code == 201, answer.text
    trace = answer.json()
    assert trace["requests"] == 10
    assert trace["output_tokens"] == 40
    listed = serving.client.get("/api/traces").json()["traces"]
    assert trace["id"] in [one["id"] for one in listed]
    started = serving.post(targets=[{"base_url": quick}], trace=trace["id"])
    found = serving.wait(started.json()["id"])
    assert found["trace_sha256"] == trace["id"]
    assert found["summary"]["targets"]["target"]["output_tokens"] == 40


def test_a_broken_trace_is_refused(serving: Serving, tmp_path: Path) -> None:
    """The answer names the line, and no path of the service."""
    kind = {"content-type": "application/jsonl"}
    answer = serving.client.post("/api/traces", content=ROWS + b"{}\n", headers=kind)
    assert answer.status_code == 422
    assert "trace:11" in answer.json()["error"]["message"]
    assert "/" not in answer.json()["error"]["message"].replace("and/or", "")
    assert not list((serving.runs / ".traces").glob("*.part"))


def test_a_kept_run_says_so(serving: Serving, finished: dict[str, Any]) -> None:
    """`keep` is set and released by PATCH."""
    for keep in (True, False):
        answer = serving.client.patch(f"/api/runs/{finished['id']}", json={"keep": keep})
        assert answer.json()["keep"] is keep
    assert serving.client.patch(f"/api/runs/{finished['id']}", json={"keep": 1}).status_code == 422


def test_the_metrics_are_those_of_the_newest_runs(serving: Serving, quick: str) -> None:
    """However many runs there were, three are told, each family once."""
    for _ in range(2):
        serving.wait(serving.start(quick, requests=5))
    text = serving.client.get("/metrics").text
    active = [line for line in text.splitlines() if line.startswith("loadgen_run_active{")]
    assert len(active) == 3
    assert text.count("# TYPE loadgen_run_active ") == 1
    assert 'loadgen_service_runs{state="running"} 0.0' in text
    assert len(text) < 500_000


@pytest.mark.parametrize("json_flag", [(), ("--json",)], ids=["text", "json"])
def test_the_command_line_drives_it(
    serving: Serving, quick: str, json_flag: tuple[str, ...]
) -> None:
    """`loadgen run --service` prints what a run here prints, with the same exit code."""
    done = call(
        *("run", "--service", serving.url, "--base-url", quick, "--num-prompts", "20"),
        *("--request-rate", "40", "--output-len", "4", *json_flag),
    )
    assert done.code == (4 if "INVALID" in done.stdout else 0), done.stderr
    if json_flag:
        assert done.summary["targets"]["target"]["completed"] == 20
    else:
        assert "requests ok" in done.stdout
        assert f"report: {serving.url}/api/runs/" in done.stdout


def test_the_command_line_sends_its_trace(serving: Serving, quick: str, tmp_path: Path) -> None:
    """A trace file is uploaded, and the run is one of that trace."""
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(ROWS.replace(b"100", b"110"))
    done = call("run", str(trace), "--service", serving.url, "--base-url", quick, "--json")
    assert done.code in (0, 4), done.stderr
    assert done.summary["targets"]["target"]["requests"] == 10


def test_the_command_line_tells_a_refusal(serving: Serving, quick: str) -> None:
    """What the service refuses is one line, and exit code 2."""
    done = call("run", "--service", serving.url, "--base-url", quick, "--tokenizer", "t.json")
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "tokenizer" in done.stderr


@pytest.mark.alone
def test_the_figures_are_those_of_the_command_line(
    serving: Serving, quick: str, tmp_path: Path
) -> None:
    """The same work by both, watched four times over: the same counts, and medians within 1 ms."""
    words = ("--num-prompts", "300", "--request-rate", "60", "--input-len", "5")
    words += ("--output-len", "20", "--base-url", quick, "--json", "--quiet")
    here = call("run", *words, "--result-dir", str(tmp_path))
    with ThreadPoolExecutor(4) as watchers:
        run_id = serving.start(quick, requests=300, rate=60, tokens=20)
        seen = [watchers.submit(lambda: list(events_of(serving, run_id))) for _ in range(4)]
        assert all(watcher.result()[-1][0] == "end" for watcher in seen)
    ours = here.summary["targets"]["target"]
    theirs = serving.get(run_id)["summary"]["targets"]["target"]
    print({key: (ours[key]["p50"], theirs[key]["p50"]) for key in ("ttft_s", "tpot_s", "e2e_s")})
    for key in ("completed", "output_tokens", "prompt_tokens", "request_rate_asked"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-3), key
    for key in ("ttft_s", "tpot_s"):
        assert ours[key]["p50"] == pytest.approx(theirs[key]["p50"], abs=0.001), key


def test_runs_start_by_themselves_and_repeat(tmp_path: Path, quick: str) -> None:
    """Over and over, with others' turns between; not twice after a restart; until it is stopped."""
    first = [
        {
            "targets": [{"base_url": quick}],
            "generate": {"num_prompts": 10, "request_rate": 20, "output_len": 3},
            "output": {"label": "again and again"},
            "repeat": True,
        }
    ]
    file = tmp_path / "start.yaml"
    file.write_text(json.dumps(first))

    def again(found: Serving) -> list[dict[str, Any]]:
        rows = found.client.get("/api/runs", params={"label": "again"}).json()["runs"]
        return list(reversed(rows))

    with service(tmp_path / "runs", "--start", str(file)) as found:
        wait_until(lambda: len(again(found)) >= 2, "it runs again", 60)
        other = found.wait(found.start(quick, requests=5))
        assert other["state"] == "finished"
        wait_until(lambda: again(found)[-1]["created_at"] > other["created_at"], "again", 60)
        assert len([row for row in again(found) if row["state"] in ("queued", "running")]) <= 1
    with service(tmp_path / "runs", "--start", str(file)) as found:
        assert len([row for row in again(found) if row["state"] in ("queued", "running")]) <= 1
        wait_until(lambda: again(found)[-1]["state"] == "running", "it runs", 60)
        last = again(found)[-1]["id"]
        found.client.delete(f"/api/runs/{last}")
        assert found.wait(last)["state"] in ("stopped", "finished")
        if found.get(last)["state"] == "stopped":
            time.sleep(1.0)
            assert again(found)[-1]["id"] == last


def test_what_cannot_start_by_itself(tmp_path: Path) -> None:
    """A list with a mistake in it: the service does not start, and says which run it is."""
    file = tmp_path / "start.yaml"
    file.write_text("- targets: [{base_url: 'http://127.0.0.1:9'}]\n- kind: odd\n")
    done = call("serve", "--start", str(file), "--port", "0", "--result-dir", str(tmp_path))
    assert done.code == 2
    assert "run 1: kind" in done.stderr
    for text in ("- when: 2026-02-30", "[" * 3000):
        file.write_text(text)
        done = call("serve", "--start", str(file), "--port", "0", "--result-dir", str(tmp_path))
        assert done.code == 2
        assert done.stderr.startswith(f"loadgen: --start: {file}: neither YAML nor JSON")


def test_a_folder_that_cannot_hold_runs(tmp_path: Path) -> None:
    """The service does not start where its folder is a file, and says so in one line."""
    file = tmp_path / "file"
    file.touch()
    done = call("serve", "--port", "0", "--result-dir", str(file))
    assert done.code == 2
    assert done.stderr == f"loadgen: --result-dir {file}: cannot hold runs: File exists\n"
