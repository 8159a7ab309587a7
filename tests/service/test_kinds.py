"""Sweeps, searches for a capacity and simulations through the API, beside runs and comparisons."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loadgen.service.spec import KINDS
from tests.runs.conftest import call
from tests.service.conftest import Serving, service, wait_until

pytestmark = pytest.mark.slow

SHORT = {"input_len": 5, "output_len": 4}


def sweep(target: str, *rates: float, requests: int = 16, **more: Any) -> dict[str, Any]:
    options = {"rates": rates, "num_prompts": requests, "seconds_per_point": 0}
    return {
        "kind": "sweep",
        "targets": [{"base_url": target}],
        "generate": SHORT,
        "sweep": options,
        **more,
    }


def started(serving: Serving, body: dict[str, Any]) -> str:
    answer = serving.post(**body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def row_of(serving: Serving, run_id: str, **query: Any) -> dict[str, Any]:
    rows = serving.client.get("/api/runs", params=query).json()["runs"]
    found: dict[str, Any] = next(row for row in rows if row["id"] == run_id)
    return found


def test_a_sweep_from_start_to_end(serving: Serving, quick: str) -> None:
    """It is one row of its kind; its result is the curve, and its report links to its points'."""
    run_id = started(serving, sweep(quick, 40, 20, output={"label": "how it bends"}))
    found = serving.wait(run_id)
    assert found["state"] == "finished", found["log"]
    assert found["exit_code"] in (0, 4)
    assert (found["kind"], found["label"], found["targets"]) == (
        "sweep",
        "how it bends",
        ["target"],
    )
    assert [point["load"] for point in found["curve"]["points"]] == [20, 40]
    assert found["points"]["done"] == found["points"]["of"] == 2
    assert found["answer"] == found["curve"]["answer"] != ""
    assert row_of(serving, run_id, kind="sweep")["answer"] == found["answer"]
    listed = serving.client.get("/api/runs").json()["runs"]
    points = {point["run"] for point in found["curve"]["points"]}
    assert not points & {row["id"] for row in listed}
    assert found["bytes"] > sum(
        file.stat().st_size for file in (serving.runs / run_id).rglob("records-*.jsonl")
    )
    report = serving.client.get(f"/api/runs/{run_id}/report")
    assert "sandbox" in report.headers["content-security-policy"]
    for point in points:
        assert f'href="{point}/report.html"' in report.text
        answer = serving.client.get(f"/api/runs/{run_id}/{point}/report.html")
        assert answer.status_code == 200
        assert "sandbox" in answer.headers["content-security-policy"]
    text = serving.client.get(f"/api/runs/{run_id}/report", params={"format": "text"}).text
    assert found["answer"][:20] in text.replace("\n", " ")
    assert "report:" not in text


def test_what_a_sweep_has_not(serving: Serving, quick: str) -> None:
    """It has no records of its own, is compared with nothing, and tells no other folder's page."""
    run_id = started(serving, sweep(quick, 40))
    serving.wait(run_id)
    url = f"/api/runs/{run_id}"
    assert serving.client.get(f"{url}/records").status_code == 409
    assert serving.client.get(f"{url}/records", params={"format": "csv"}).status_code == 409
    assert serving.client.get(f"{url}/export/vllm").status_code == 409
    other = serving.client.get("/api/runs/compare", params={"a": run_id, "b": run_id})
    assert other.status_code == 409
    for point in ("..", ".", "none", "%2e%2e", "..%2f" + run_id):
        assert serving.client.get(f"{url}/{point}/report.html").status_code == 404, point


def test_a_sweep_is_watched(serving: Serving, quick: str) -> None:
    """Its events say which point of how many is under way, and time goes on from point to point."""
    run_id = started(serving, sweep(quick, 20, 40, 60, requests=40))
    with serving.client.stream("GET", f"/api/runs/{run_id}/events") as response:
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    seen = [json.loads(line) for line in data]
    assert seen[-1]["state"] == "finished"
    points = [one["points"] for one in seen if one.get("points") and "of" in one["points"]]
    assert {point["of"] for point in points} == {3}
    loads = [point["load"] for point in points if point["load"] is not None]
    assert list(dict.fromkeys(loads)) == [20, 40, 60]
    done = [point["done"] for point in points]
    assert done == sorted(done)
    assert done[-1] == 3
    lines = (serving.runs / run_id / "live.jsonl").read_text().splitlines()
    course = [json.loads(line) for line in lines]
    times = [line["t"] for line in course]
    assert times == sorted(times)
    assert times[-1] > 4  # 40 requests at 20, 40 and 60 a second take 3.7 s


def test_a_capacity_from_start_to_end(serving: Serving, quick: str) -> None:
    """It is found, or an INVALID probe says why not; the answer is a sentence about its limits."""
    run_id = started(
        serving,
        {
            "kind": "capacity",
            "targets": [{"base_url": quick}],
            "generate": SHORT,
            "capacity": {
                "start_rate": 20, "max_rate": 40, "num_prompts": 40, "seconds_per_point": 0,
                "max_looks": 1,
            },
            "output": {"goodput": {"ttft": 2000}},
        },
    )  # fmt: skip
    found = serving.wait(run_id, limit_s=120)
    assert found["state"] == "finished", found["log"]
    assert found["curve"]["found"] == (found["exit_code"] == 0)
    if found["curve"]["found"]:
        assert found["curve"]["rate"] == 40
        assert "Under ttft <= 2000 ms, the target serves at least 40 requests/s" in found["answer"]
    else:
        assert "No capacity was found" in found["answer"]
    assert row_of(serving, run_id)["kind"] == "capacity"


def test_a_simulation_from_start_to_end(serving: Serving) -> None:
    """It needs no target, and ends in seconds with a run's results, a target for each policy."""
    run_id = started(
        serving,
        {
            "kind": "simulate",
            "generate": {"num_prompts": 64, "request_rate": 1.0, "seed": 3},
            "policies": {"batch_size": 8},
            "output": {"label": "no target"},
        },
    )
    found = serving.wait(run_id)
    assert found["state"] == "finished", found["log"]
    assert found["targets"] == ["static", "continuous"]
    assert found["summary"]["targets"]["continuous"]["completed"] == 64
    assert found["comparison"]["ratio"]
    assert serving.client.get(f"/api/runs/{run_id}/report").status_code == 200
    assert (
        "What was computed"
        in serving.client.get(f"/api/runs/{run_id}/report", params={"format": "text"}).text
    )
    assert serving.client.get(f"/api/runs/{run_id}/records").status_code == 200


def test_a_simulation_that_cannot_be(serving: Serving) -> None:
    """A request that no policy could ever serve: failed, in one line, and no half results."""
    run_id = started(
        serving,
        {
            "kind": "simulate",
            "generate": {"num_prompts": 4, "input_len": 900, "output_len": 4},
            "policies": {"kv_blocks": 8},
        },
    )
    found = serving.wait(run_id)
    assert (found["state"], found["exit_code"]) == ("failed", 2)
    assert found["error"].count("\n") == 0 != len(found["error"])
    assert not (serving.runs / run_id / "header.json").exists()


def test_a_simulation_is_stopped(serving: Serving) -> None:
    """DELETE ends it; half a simulation is no result, and is not kept."""
    body = {"kind": "simulate", "generate": {"num_prompts": 300_000, "request_rate": 100.0}}
    run_id = started(serving, body)
    wait_until(lambda: (serving.runs / run_id / "header.json").exists(), "it has begun", 60)
    assert serving.client.delete(f"/api/runs/{run_id}").status_code == 202
    found = serving.wait(run_id)
    assert found["state"] == "stopped"
    assert not list((serving.runs / run_id).glob("records-*"))
    assert serving.client.get(f"/api/runs/{run_id}/report").status_code == 409


def test_a_stopped_sweep_goes_on_by_the_command_line(serving: Serving, quick: str) -> None:
    """DELETE stops it with what is done; `--resume` does the others, and the list says so."""
    run_id = started(serving, sweep(quick, 20, 21, 22, requests=40))
    wait_until(
        lambda: ((serving.get(run_id)["points"] or {}).get("done") or 0) >= 1, "a point is done", 60
    )
    assert serving.client.delete(f"/api/runs/{run_id}").status_code == 202
    found = serving.wait(run_id)
    assert (found["state"], found["exit_code"]) == ("stopped", 130)
    assert 1 <= found["points"]["done"] < 3
    assert "points are not done" in found["answer"]
    done = call("sweep", "--resume", str(serving.runs / run_id), "--quiet", "--json")
    assert done.code in (0, 4), done.stderr
    assert serving.get(run_id)["state"] == "finished"
    assert serving.get(run_id)["points"]["done"] == 3


def test_a_sweep_that_was_killed(serving: Serving, quick: str) -> None:
    """It is interrupted and keeps its points; it has no report, and no answer is a 5xx."""
    run_id = started(serving, sweep(quick, 20, 21, 22, requests=40))
    wait_until(
        lambda: ((serving.get(run_id)["points"] or {}).get("done") or 0) >= 1, "a point is done", 60
    )
    os.killpg(serving.pid_of(run_id), signal.SIGKILL)
    found = serving.wait(run_id)
    assert found["state"] == "interrupted"
    assert found["points"]["done"] >= 1
    assert serving.client.get(f"/api/runs/{run_id}/report").status_code == 409
    text = serving.client.get(f"/api/runs/{run_id}/report", params={"format": "text"})
    assert text.status_code < 500


def test_a_sweep_whose_target_is_away(serving: Serving) -> None:
    """It has failed, says why, and leaves no state to go on with."""
    run_id = started(serving, sweep("http://127.0.0.1:9", 5, load={"ready_timeout": 0}))
    found = serving.wait(run_id)
    assert (found["state"], found["exit_code"]) == ("failed", 2)
    assert "does not answer" in found["error"]
    assert not (serving.runs / run_id / "search.json").exists()
    assert serving.client.get(f"/api/runs/{run_id}/report").status_code == 409


def test_a_restart_finds_a_sweep_as_it_is(tmp_path: Path, quick: str) -> None:
    """A service that was killed finds its sweep going on, and adopts it."""
    with service(tmp_path / "runs") as first:
        run_id = started(first, sweep(quick, 10, 11, requests=40))
        first.wait(run_id, "running")
        first.end(signal.SIGKILL)
    with service(tmp_path / "runs") as again:
        assert again.get(run_id)["state"] == "running"
        found = again.wait(run_id)
        assert found["state"] == "finished"
        assert len(found["curve"]["points"]) == 2


def test_sweeps_of_the_command_line_are_listed(serving: Serving, quick: str) -> None:
    """A sweep that `loadgen sweep` made in the folder is a row; `loadgen runs list` has it too."""
    done = call(
        *("sweep", "--base-url", quick, "--rates", "40", "--num-prompts", "16"),
        *("--seconds-per-point", "0", "--output-len", "3", "--quiet", "--json"),
        *("--label", "by hand", "--result-dir", str(serving.runs)),
    )
    path = Path(json.loads(done.stdout)["directory"])
    found = serving.get(path.name)
    assert (found["kind"], found["state"], found["label"]) == ("sweep", "finished", "by hand")
    assert found["is_ours"] is False
    assert serving.client.delete(f"/api/runs/{path.name}").status_code == 409
    listed = json.loads(call("runs", "list", str(serving.runs), "--json").stdout)["runs"]
    (row,) = [row for row in listed if row["path"].endswith(path.name)]
    assert row["kind"] == "sweep"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "sweep"}, "targets"),
        ({"kind": "sweep", "sweep": {}}, "rates: no points"),
        ({"kind": "sweep", "sweep": {"rates": [1], "run": {}}}, "run: no such key"),
        ({"kind": "sweep", "sweep": {"rates": [1, 0]}}, "rates"),
        ({"kind": "sweep", "sweep": {"rates": [10_000_000]}}, "at most"),
        ({"kind": "sweep", "sweep": {"rates": [1]}, "compare": {}}, "compare: no such key"),
        ({"kind": "sweep", "sweep": {"rates": [1]}, "output": {"run_dir": "/x"}}, "output.run_dir"),
        ({"kind": "sweep", "sweep": {"rates": [1]}, "request": {"tokenizer": "/x"}}, "tokenizer"),
        ({"kind": "capacity"}, "goodput: a capacity is under limits"),
        ({"kind": "capacity", "sweep": {"rates": [1]}}, "sweep: no such key"),
        ({"kind": "capacity", "output": {"metrics_port": 9}}, "output.metrics_port"),
        ({"kind": "simulate", "policies": {"cost": "/etc/passwd"}}, "policies.cost"),
        ({"kind": "simulate", "fleet": {"find_replicas": True}}, "fleet.find_replicas"),
        ({"kind": "simulate", "fleet": {"replicas": 65}}, "fleet.replicas: at most 64"),
        ({"kind": "simulate", "output": {"records": False}}, "output.records"),
        ({"kind": "simulate", "output": {"result_dir": "/x"}}, "output.result_dir"),
        ({"kind": "simulate", "generate": {"lengths_from": "/x"}}, "generate.lengths_from"),
        ({"kind": "simulate", "policies": {"policy": ["odd"]}}, "policy"),
        ({"kind": "simulate", "targets": []}, "targets: no such key"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_a_client_may_not_say(serving: Serving, body: dict[str, Any], words: str) -> None:
    """Refused in one line that names the field: paths, ports, folders, and what makes no sense."""
    if body["kind"] != "simulate" and words != "targets":
        body = {"targets": [{"base_url": "http://127.0.0.1:9"}], **body}
    answer = serving.post(**body)
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["error"]["message"]


def test_every_kind_says_what_it_would_do(serving: Serving) -> None:
    """The document's example of each kind passes as a dry run, which tells requests and tokens."""
    document = serving.client.get("/openapi.json").json()
    content = document["paths"]["/api/runs"]["post"]["requestBody"]["content"]["application/json"]
    assert content["examples"].keys() == KINDS.keys()
    for kind, example in content["examples"].items():
        answer = serving.client.post("/api/runs?dry_run=true", json=example["value"])
        assert answer.status_code == 200, (kind, answer.text)
        told = answer.json()
        assert told["requests"] > 0 < told["output_tokens"], kind
        assert told["targets"], kind
