"""What the files of a folder say of its runs: states, rows, filters, pruning; live files."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from loadgen.errors import ConfigError
from loadgen.live import LATENCY_BOUNDS_S, LiveHistogram
from loadgen.machine import is_running, process_of, this_process
from loadgen.service.app import create_app
from loadgen.service.events import course_of
from loadgen.service.metrics import ServiceMetrics, join
from loadgen.service.runs import Folder, Row, State, matching, read_row, to_prune
from loadgen.service.settings import ServeConfig, settings_of
from loadgen.status import _percentile_ms

JOB = {"id": "r", "kind": "run", "created_at": "2026-01-01T00:00:00+00:00", "config": {}}
HEADER = {"kind": "run", "started_at": "2026-01-01T00:00:01+00:00", "targets": [{"name": "a"}]}


def run_of(folder: Path, **files: dict[str, Any]) -> Path:
    path = folder / "r"
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def state_of(path: Path) -> State:
    row = read_row(path)
    assert row is not None
    return row.state


def test_a_queued_run_is_a_job_alone(tmp_path: Path) -> None:
    """Nothing but what was asked for: it waits."""
    assert state_of(run_of(tmp_path, job=JOB)) is State.QUEUED


def test_a_held_lock_is_a_run_that_goes_on(tmp_path: Path) -> None:
    """Whatever its other files say, as long as it has not said that it ended."""
    path = run_of(tmp_path, job=JOB, header=HEADER, live={"state": "running"})
    with (path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state_of(path) is State.RUNNING
    assert state_of(path) is State.INTERRUPTED


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "finished"), (4, "finished"), (130, "stopped"), (2, "failed"), (1, "failed")],
)
def test_a_runs_own_word_on_its_end(tmp_path: Path, code: int, state: str) -> None:
    """Its exit code says how it ended; an INVALID run has finished."""
    live = {"state": "ended", "exit_code": code}
    assert state_of(run_of(tmp_path, job=JOB, live=live)) == state


@pytest.mark.parametrize("files", [("process",), ("live",), ("header",)], ids=str)
def test_a_run_that_was_started_and_is_gone(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Any trace of a start without a process is an interruption, and never a second start."""
    path = run_of(tmp_path, job=JOB, **{name: {"pid": 1, **HEADER} for name in files})
    assert state_of(path) is State.INTERRUPTED


def test_what_the_service_saw_holds(tmp_path: Path) -> None:
    """A run that could not say how it ended is what the service saw."""
    path = run_of(tmp_path, job=JOB, process={}, over={"state": "failed", "error": "no memory"})
    row = read_row(path)
    assert row is not None
    assert (row.state, row.error) == (State.FAILED, "no memory")


@pytest.mark.parametrize(("unit", "shown"), [("seconds", 5.0), ("iterations", None)])
def test_iterations_are_no_rates(tmp_path: Path, unit: str, shown: float | None) -> None:
    """A list tells neither tokens/s nor ms of a simulation that counts iterations."""
    figures = {"output_tokens_per_s": 5.0, "ttft_s": {"p50": 26.0}}
    summary = {"verdict": "VALID", "time_unit": unit, "targets": {"a": figures}}
    header = {**HEADER, "targets": [{"name": "a"}]}
    row = read_row(run_of(tmp_path, header=header, summary=summary))
    assert row is not None
    assert row.output_tokens_per_s == {"a": shown}
    assert row.ttft_p50_ms == {"a": None if shown is None else 26_000.0}


def test_torn_files_are_no_error(tmp_path: Path) -> None:
    """A file that is half written, or no JSON, is read as one that is not there."""
    path = run_of(tmp_path, job=JOB)
    for name in ("header.json", "summary.json", "live.json", "over.json"):
        (path / name).write_text('{"a": ')
    assert state_of(path) is State.QUEUED


def test_a_process_is_known_by_more_than_its_number() -> None:
    """Another start time, another boot or a number that is free is another process."""
    here = this_process()
    assert here is not None
    assert is_running(here)
    assert not is_running(here | {"ticks": 1})
    assert not is_running(here | {"boot": "x"})
    for nothing in (None, {}, {"pid": "1"}, {"pid": -1}, {"pid": 2**22 + 1}):
        assert not is_running(nothing)


def test_a_process_that_ended_and_was_not_reaped() -> None:
    """A zombie does not run."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_of(child.pid) is None
    child.wait()


def test_rows_are_read_again_when_a_run_changes(tmp_path: Path) -> None:
    """What was kept of a run that has ended goes when its directory changes."""
    live = {"state": "ended", "exit_code": 0}
    path = run_of(tmp_path, job=JOB, header=HEADER | {"label": "old"}, live=live)
    folder = Folder(tmp_path)
    assert folder.rows()[0].label == "old"
    (path / "new.json").write_text(json.dumps(HEADER | {"label": "new"}))
    (path / "new.json").replace(path / "header.json")
    assert folder.rows()[0].label == "new"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", ".traces", "a\x00", "-a", "a\n"])
def test_a_runs_name_is_one_step(tmp_path: Path, name: str) -> None:
    """Nothing that leads elsewhere is a run's name."""
    assert Folder(tmp_path).directory(name) is None


def test_a_link_is_no_run(tmp_path: Path) -> None:
    """A directory elsewhere is not served by a link to it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = run_of(elsewhere, job=JOB)
    inside = tmp_path / "runs"
    inside.mkdir()
    (inside / "r").symlink_to(path)
    assert Folder(inside).directory("r") is None
    assert Folder(inside).rows() == []


def row(**values: Any) -> Row:
    made = Row(
        id="a",
        kind="run",
        state=State.FINISHED,
        label=None,
        created_at="2026",
        started_at=None,
        targets=("t",),
        requests=1,
        trace_sha256=None,
        verdict="VALID",
        output_tokens_per_s={},
        ttft_p50_ms={},
        exit_code=0,
        error=None,
        answer=None,
        keep=False,
        repeat=False,
        is_ours=True,
        bytes=100,
    )
    return replace(made, **values)


def test_pruning_takes_the_oldest_that_may_go() -> None:
    """By number and by size; kept, foreign, waiting and running ones stay."""
    rows = [row(id=str(n), created_at=str(n)) for n in range(5)]
    assert [gone.id for gone in to_prune(rows, 3, 1e9)] == ["0", "1"]
    assert [gone.id for gone in to_prune(rows, 9, 250)] == ["0", "1", "2"]
    fixed = [
        row(id="k", created_at="/", keep=True),
        row(id="f", created_at="/", is_ours=False),
        row(id="q", created_at="/", state=State.QUEUED),
        row(id="r", created_at="/", state=State.RUNNING),
    ]
    assert [gone.id for gone in to_prune(fixed + rows, 1, 0)] == ["0", "1", "2", "3", "4"]


def test_filters() -> None:
    """Each asks for something of its own; None asks for nothing."""
    rows = [row(id="1", label="Nightly run"), row(id="2", state=State.FAILED, verdict=None)]
    assert [r.id for r in matching(rows, {})] == ["1", "2"]
    assert [r.id for r in matching(rows, {"label": "nightly", "target": "T"})] == ["1"]
    assert [r.id for r in matching(rows, {"state": "failed", "verdict": None})] == ["2"]


def test_metrics_of_several_runs_are_one_text(tmp_path: Path) -> None:
    """Each family stands once, with the samples of all runs."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.prom").write_text(
            f'# HELP m Help.\n# TYPE m gauge\nm{{run="{name}"}} 1.0\n'
            f'# HELP n Help.\n# TYPE n gauge\nn{{run="{name}"}} 2.0\n'
        )
    text = join(tmp_path, [row(id="a"), row(id="b"), row(id="gone")]).decode()
    assert text.splitlines() == [
        *("# HELP m Help.", "# TYPE m gauge", 'm{run="a"} 1.0', 'm{run="b"} 1.0'),
        *("# HELP n Help.", "# TYPE n gauge", 'n{run="a"} 2.0', 'n{run="b"} 2.0'),
    ]


def test_the_course_is_bounded(tmp_path: Path) -> None:
    """Of many points some hundred are told, the first one too; a torn line is left out."""
    lines = "".join(f'{{"t":{n}}}\n' for n in range(5000))
    (tmp_path / "live.jsonl").write_text(lines + '{"t":')
    points = course_of(tmp_path)
    assert 300 < len(points) <= 600
    assert points[0] == {"t": 0}


def test_recent_percentiles_lie_where_the_values_do() -> None:
    """Within the width of a bucket of the true one; of nothing there is none."""
    values = np.random.default_rng(1).lognormal(-2, 0.5, 5000)
    histogram = LiveHistogram(LATENCY_BOUNDS_S)
    histogram.pending.extend(values.tolist())
    histogram.flush()
    for share in (0.5, 0.9, 0.99):
        told = _percentile_ms(histogram.counts, share)
        assert told == pytest.approx(np.quantile(values, share) * 1000, rel=0.15)
    assert _percentile_ms(np.zeros_like(histogram.counts), 0.5) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Lab.Example, b:8765", {"lab.example", "b"}),
        ("[fd00::1],fd00::2", {"fd00::1", "fd00::2"}),
        ("https://x", None),
        ("a b", None),
    ],
)
def test_names_of_the_service_are_those_of_hosts(text: str, expected: set[str] | None) -> None:
    """As a URL has them, whose port does not matter; what no Host header can say is refused."""
    if expected is None:
        with pytest.raises(ValueError, match="a name or an address"):
            ServeConfig(allowed_host=text)  # type: ignore[arg-type]
        return
    hosts = settings_of(ServeConfig(allowed_host=text), {}).hosts  # type: ignore[arg-type]
    assert hosts == {"localhost", "127.0.0.1", "::1", *expected}


@pytest.mark.parametrize("url", ["http://[", "ftp://x", "http://"])
def test_an_odd_url_of_grafana_is_told(url: str) -> None:
    """In one line, before the service starts."""
    with pytest.raises(ConfigError, match="LOADGEN_GRAFANA_URL"):
        settings_of(ServeConfig(), {"LOADGEN_GRAFANA_URL": url})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    """Only those on the machine reach it."""
    assert settings_of(ServeConfig(host=host), {}).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "name", "0"])
def test_any_other_address_needs_one(host: str) -> None:
    """It refuses, and says by which variable."""
    with pytest.raises(ConfigError, match="LOADGEN_API_TOKEN"):
        settings_of(ServeConfig(host=host), {})
    settings_of(ServeConfig(host=host), {"LOADGEN_API_TOKEN": "x" * 16})


def test_an_open_address_adds_no_name() -> None:
    """Behind 0.0.0.0 the names of the service are those that were given."""
    token = {"LOADGEN_API_TOKEN": "x" * 16}
    settings = settings_of(ServeConfig(host="0.0.0.0", allowed_host=("Lab.Example",)), token)
    assert settings.hosts == {"localhost", "127.0.0.1", "::1", "lab.example"}


def test_the_services_metrics_are_documented() -> None:
    """docs/service.md has a row for each, and for no other."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
    text = ServiceMetrics().text([], 0).decode()
    told = {name for name in re.findall(r"^# TYPE (\w+) ", text, re.M) if "_created" not in name}
    assert set(re.findall(r"^\| `(loadgen_service_\w+)` \|", page, re.M)) == told


def test_every_route_is_documented() -> None:
    """docs/service.md speaks of each route of the OpenAPI document."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
    app = create_app(settings_of(ServeConfig(result_dir=Path("nowhere")), {}), {})
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            told = path.replace("{run_id}", "{id}")
            assert f"{method.upper()} {told}" in page, (method, path)


def test_a_bug_is_answered_behind_the_guard(tmp_path: Path) -> None:
    """What escapes the application has the headers of every answer, and is counted; a client that
    hung up is no bug."""
    app = create_app(settings_of(ServeConfig(result_dir=tmp_path), {}))

    @app.get("/api/bug")
    async def bug() -> None:
        raise RuntimeError("oops")

    @app.get("/api/gone")
    async def gone() -> None:
        raise ClientDisconnect

    async def ask(*paths: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with pytest.raises(AssertionError):  # nobody is answered
                await client.get("/api/gone")
            return [await client.get(path) for path in paths]

    answer, metrics = asyncio.run(ask("/api/bug", "/metrics"))
    assert answer.status_code == 500
    assert "a bug of the service" in answer.json()["error"]["message"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert 'loadgen_service_answers_total{status="5xx"} 1.0' in metrics.text
