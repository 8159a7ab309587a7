"""The service's queue and folder on odd files, failures, full limits and restarts; no HTTP."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.locks import hold
from loadgen.service import process
from loadgen.service import queue as queue_module
from loadgen.service.metrics import ServiceMetrics, join
from loadgen.service.process import start
from loadgen.service.queue import Queue
from loadgen.service.refusal import Refusal
from loadgen.service.runs import Folder, Row, State, detail, read_row, to_prune
from loadgen.service.settings import ServeConfig, Settings, settings_of
from loadgen.service.spec import Spec, read_spec
from tests.unit.test_service_files import row

SWEEP = {"rates": [1], "num_prompts": 50, "seconds_per_point": 1}
NOWHERE: dict[str, Any] = {"targets": [{"base_url": "http://127.0.0.1:9"}]}


def settings(folder: Path, **flags: Any) -> Settings:
    return settings_of(ServeConfig(result_dir=folder, rest=0, **flags), {})


def spec(folder: Path, **more: Any) -> Spec:
    return read_spec({**NOWHERE, **more}, settings(folder), {})


def job(**more: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(NOWHERE))
    return {"kind": "run", "config": config, "has_secrets": False, "created_at": "2026"} | more


def put(folder: Path, name: str, **files: Any) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    for file, content in files.items():
        (path / f"{file}.json").write_text(json.dumps(content))
    return path


ENDED = {"state": "ended", "exit_code": 0}
ODD: list[dict[str, Any]] = [
    {"header": {"targets": ["x"]}},
    {"header": {"targets": 5}},
    {"job": {"config": []}},
    {"job": {"config": {"output": "x"}}},
    {"job": {"config": {"targets": {"a": 1}}}},
    {"header": {"targets": [{"name": "a"}]}, "summary": {"targets": {"a": []}}},
    {"header": {"targets": [{"name": "a"}]}, "summary": {"targets": [1]}},
    {"header": {"label": {"a": 1}, "requests": [[[]]], "started_at": 5}},
    {"job": job(), "over": {"state": "no such state"}},
    {"job": job(), "over": {"state": ["failed"]}},
    {"job": job(), "live": {"state": "ended", "exit_code": "x", "error": {}}},
]


@pytest.mark.parametrize("files", ODD, ids=lambda files: json.dumps(files)[:60])
def test_an_odd_directory_hides_no_other(tmp_path: Path, files: dict[str, Any]) -> None:
    """It is listed as what it is; lists, filters, metrics, restarts and new runs go on."""
    put(tmp_path, "x", **files)
    put(tmp_path, "good", job=job(), live=ENDED)
    queue = Queue(settings(tmp_path), {})
    queue.recover()
    queue.add(spec(tmp_path))
    rows = queue.folder.rows()
    assert "good" in [found.id for found in rows]
    json.dumps([found.as_json() for found in rows])
    for found in rows:
        assert (found.label or "").lower() is not None
        detail(tmp_path / found.id, found)
    ServiceMetrics().text(rows, 0)
    join(tmp_path, rows)
    queue.prune()


def test_odd_metrics_hide_no_others(tmp_path: Path) -> None:
    """A file of metrics that ends in the middle of a family is left out from there."""
    for name, text in (("a", "# HELP m "), ("b", "# HELP m Help.\n# TYPE m gauge\nm 1.0\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.prom").write_text(text)
    assert b"m 1.0" in join(tmp_path, [row(id="a"), row(id="b")])


def ticked(queue: Queue, run_id: str, limit_s: float = 20.0) -> Row:
    """Tick until the run has ended; what it is then."""
    deadline_s = time.monotonic() + limit_s
    while True:
        queue.tick()
        found = queue.folder.row(run_id)
        assert found is not None
        if found.state.has_ended:
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)


def test_a_run_that_cannot_be_started_fails_alone(tmp_path: Path) -> None:
    """Whatever is wrong with its files, it has failed, and the next has its turn."""
    put(tmp_path, "odd", job=job(kind="odd"))
    put(tmp_path, "odder", job={"kind": "run", "config": {}, "created_at": "2026"})
    queue = Queue(settings(tmp_path), {})
    queue.recover()
    assert set(queue.waiting) == {"odd", "odder"}
    queue.tick()
    queue.tick()
    for name in ("odd", "odder"):
        found = queue.folder.row(name)
        assert found is not None
        assert found.state is State.FAILED
        assert "KeyError" in (found.error or "")
    assert queue.waiting == []


def test_a_disk_that_takes_nothing_stops_no_line(tmp_path: Path) -> None:
    """What cannot be written of a run's end is in the log, and the next run's turn comes."""
    path = put(tmp_path, "first", job=job(kind="odd"))
    (path / ".over.json.part").mkdir()  # so that over.json cannot be written
    second = put(tmp_path, "second", job=job(kind="odd", created_at="2027"))
    queue = Queue(settings(tmp_path), {})
    queue.recover()
    queue.tick()
    queue.tick()
    assert queue.waiting == []
    assert (second / "over.json").exists()


def test_a_limit_that_is_reached_is_left_again(tmp_path: Path) -> None:
    """Pruning comes before a refusal, and at a start; what others or a `keep` hold stays."""
    for number in range(4):
        path = put(tmp_path, f"r{number}", job=job(created_at=str(number)), live=ENDED)
        (path / "records").write_bytes(b"x" * 100_000)
    queue = Queue(settings(tmp_path, max_disk_gib=0.00025), {})  # 268 kB
    queue.add(spec(tmp_path))
    assert [found.id for found in queue.folder.rows() if found.state.has_ended] == ["r3", "r2"]
    for number in (2, 3):
        (tmp_path / f"r{number}" / "records").write_bytes(b"x" * 200_000)
        (tmp_path / f"r{number}" / "touched").touch()
    again = Queue(settings(tmp_path, max_disk_gib=0.00025), {})
    again.recover()
    assert [found.id for found in again.folder.rows() if found.state.has_ended] == ["r3"]
    kept = put(tmp_path, "kept", job=job(keep=True), live=ENDED)
    (kept / "records").write_bytes(b"x" * 400_000)
    with pytest.raises(Refusal, match="max_disk_gib"):
        again.add(spec(tmp_path))


def test_others_runs_cost_the_service_none_of_its_own() -> None:
    """Only what the service started counts, and what has just ended stays."""
    rows = [row(id="f", bytes=10**9, is_ours=False), row(id="1", created_at="1"), row(id="2")]
    assert to_prune(rows, 10, 500) == []
    assert [gone.id for gone in to_prune(rows, 10, 0, spared="2")] == ["1"]
    assert [gone.id for gone in to_prune(rows, 1, 1e9, spared="1")] == ["2"]


def test_what_repeats_and_fails_pushes_out_no_result() -> None:
    """Failed repeats go before anything else, however new they are."""
    failed = [
        row(id=f"f{n}", created_at=f"9{n}", repeat=True, state=State.FAILED) for n in range(3)
    ]
    results = [row(id=f"r{n}", created_at=f"1{n}") for n in range(3)]
    alone = row(id="alone", created_at="0", state=State.FAILED)
    gone = to_prune([*failed, *results, alone], 2, 1e9)
    assert [one.id for one in gone] == ["f0", "f1", "f2", "alone", "r0"]


def test_what_repeats_and_fails_waits_longer_each_time(tmp_path: Path) -> None:
    """It is in line again, and its turn does not come at once; others' turns do."""
    queue = Queue(settings(tmp_path), {})
    put(tmp_path, "first", job=job(kind="odd", repeat=True))
    queue.recover()
    waits_s = []
    for _ in range(3):
        queue.tick()
        (entry,) = queue._line
        waits_s.append(entry.not_before_s - queue_module.monotonic())
        queue.tick()
        assert queue.waiting == [entry.id]
        entry.not_before_s = 0.0
    assert waits_s == pytest.approx([10, 20, 40], abs=1)


@pytest.mark.parametrize(
    ("ended", "more", "expected"),
    [
        ({"live": ENDED}, {}, 1),
        ({"process": {"pid": 1}}, {}, 1),
        ({"live": {"state": "ended", "exit_code": 130}}, {}, 0),
        ({"over": {"state": "stopped"}}, {}, 0),
        ({"live": ENDED}, {"is_over": True}, 0),
        ({"live": ENDED}, {"has_secrets": True}, 0),
        ({"live": ENDED}, {"repeat": False}, 0),
    ],
    ids=["finished", "killed", "stopped", "stopped before", "was asked to stop", "secret", "once"],
)
def test_what_repeats_goes_on_after_a_restart(
    tmp_path: Path, ended: dict[str, Any], more: dict[str, Any], expected: int
) -> None:
    """The newest of its like that ended while no service ran is in line again, and once."""
    put(tmp_path, "old", job=job(repeat=True), live=ENDED)
    put(tmp_path, "new", job={**job(repeat=True, created_at="2027"), **more}, **ended)
    if not more.get("repeat", True):
        (tmp_path / "old" / "job.json").unlink()
    for _ in range(2):
        queue = Queue(settings(tmp_path), {})
        queue.recover()
        assert len(queue.waiting) == expected
    assert queue.traces_in_use() == set()


def test_a_run_that_the_service_watches_goes_on_until_it_says_how_it_ended(tmp_path: Path) -> None:
    """Between its last moment and the service's word it is not `interrupted`."""
    put(tmp_path, "r", job=job(), process={"pid": 1}, header={"targets": []})
    folder = Folder(tmp_path)
    folder.running.add("r")
    assert [found.state for found in folder.rows()] == [State.RUNNING]
    folder.running.discard("r")
    assert [found.state for found in folder.rows()] == [State.INTERRUPTED]


def test_a_killed_run_does_not_run_on(tmp_path: Path) -> None:
    """Its progress does not say `running` for ever."""
    path = put(tmp_path, "r", job=job(), live={"state": "running", "elapsed_s": 3})
    found = read_row(path)
    assert found is not None
    assert detail(path, found)["progress"] == {"state": "ended", "elapsed_s": 3}
    going = replace(found, state=State.RUNNING)
    assert detail(path, going)["progress"]["state"] == "running"


def test_traces_of_what_waits_or_runs_are_in_use(tmp_path: Path) -> None:
    """Both are named, and those of runs that have ended are not."""
    for name, more in (("a", {}), ("b", {"process": {"pid": 1}}), ("c", {"live": ENDED})):
        config = {**NOWHERE, "trace": name * 64}
        put(tmp_path, name, job=job(config=config), **more)
    queue = Queue(settings(tmp_path), {})
    lock = os.open(tmp_path / "b" / "lock", os.O_RDWR | os.O_CREAT)
    try:
        hold(lock)
        queue.recover()
    finally:
        os.close(lock)
    assert queue.traces_in_use() == {"a" * 64, "b" * 64}


@pytest.mark.parametrize("kind", [{}, {"kind": "sweep", "sweep": SWEEP}], ids=["run", "sweep"])
def test_a_trace_has_no_more_requests_than_a_run_may(tmp_path: Path, kind: dict[str, Any]) -> None:
    """`--max-requests` bounds the trace that is given, and not what would be drawn without one."""
    flags = settings(tmp_path, max_requests=90)
    queue = Queue(flags, {})
    (tmp_path / ".traces").mkdir()
    for trace, requests in (("a" * 64, 90), ("b" * 64, 91)):
        (tmp_path / ".traces" / f"{trace}.jsonl").touch()
        meta = tmp_path / ".traces" / f"{trace}.meta.json"
        meta.write_text(json.dumps({"requests": requests}))
    queue.add(read_spec({**NOWHERE, **kind, "trace": "a" * 64}, flags, {}))
    with pytest.raises(Refusal, match="has 91 requests; at most 90 here"):
        queue.add(read_spec({**NOWHERE, **kind, "trace": "b" * 64}, flags, {}))


def test_what_a_killed_upload_left_is_removed(tmp_path: Path) -> None:
    """At the next start; whole traces stay."""
    traces = tmp_path / ".traces"
    traces.mkdir()
    for name in (".0123.part", ".x.meta.json.part", "a.jsonl"):
        (traces / name).touch()
    Queue(settings(tmp_path), {}).recover()
    assert [path.name for path in traces.iterdir()] == ["a.jsonl"]


def test_a_start_waits_for_no_child(tmp_path: Path) -> None:
    """A configuration of any size is handed over at once, though nobody reads it."""
    path = tmp_path / "r"
    path.mkdir()
    environment = process.environment_of_child(dict(os.environ), "any")
    began_s = time.monotonic()
    child = start(path, ("run",), b" " * (1 << 20), environment)
    took_s = time.monotonic() - began_s
    code = child.process.wait(30)
    child.release()
    assert took_s < 0.3, took_s  # the child alone takes longer to come to read
    assert code == 2
    assert "must hold keys" in (path / "log.txt").read_text()


def refused(folder: Path, **more: Any) -> str:
    with pytest.raises(Refusal) as error:
        spec(folder, **more)
    assert error.value.status == 422
    return str(error.value)


@pytest.mark.parametrize("depth", [65, 300, 1000, 100_000])
@pytest.mark.parametrize("wrap", [lambda part: [part], lambda part: {"a": part}], ids=["[]", "{}"])
def test_deep_bodies_are_refused(tmp_path: Path, depth: int, wrap: Any) -> None:
    """However deep: no step walks into it."""
    part: Any = 1
    for _ in range(depth):
        part = wrap(part)
    assert "deep" in refused(tmp_path, request={"extra_body": {"a": part}})


@pytest.mark.parametrize(
    "value", [{1: 2}, {1, 2}, 2**70, object()], ids=["keys", "set", "large", "object"]
)
def test_what_is_no_json_is_refused(tmp_path: Path, value: Any) -> None:
    """YAML can say what cannot be written down."""
    assert "not JSON" in refused(tmp_path, request={"extra_body": {"a": value}})


@pytest.mark.parametrize(
    "more",
    [
        {"api_key": "targets"},
        {"api_key": "base_url"},
        {"api_key": "http", "request": {"header": {"X-A": "127.0.0.1"}}},
        {"request": {"header": {"X-A": "base_url"}}},
        {"request": {"header": {"X-A": "request"}, "extra_body": {"token": "header"}}},
    ],
    ids=json.dumps,
)
def test_a_secret_may_be_any_word(tmp_path: Path, more: dict[str, Any]) -> None:
    """Also a key of the configuration: only values are struck, and the run is put in line."""
    queue = Queue(settings(tmp_path), {})
    run_id = queue.add(spec(tmp_path, **more))
    shown = json.loads((tmp_path / run_id / "job.json").read_text())["config"]
    assert set(shown["targets"][0]) == {"base_url"}
    assert set(shown) == {"targets"} | ({"request"} & set(more))


def test_secrets_in_keys_that_a_client_chooses_are_struck(tmp_path: Path) -> None:
    """Names in metadata, headers and extra_body are free text."""
    key = "sk-canary-1234"
    shown = spec(
        tmp_path, api_key=key, output={"metadata": {key: "1"}}, request={"header": {key: "x"}}
    ).shown
    assert key not in json.dumps(shown)


def test_a_key_that_could_not_be_struck_is_refused(tmp_path: Path) -> None:
    """One of three characters would stand in texts."""
    assert "4 characters" in refused(tmp_path, api_key="abc")


SECRET: dict[str, Any] = {"request": {"extra_body": {"chat_template_kwargs": {"thinking": False}}}}


@pytest.mark.parametrize("is_running", [False, True], ids=["in line", "running"])
def test_what_repeats_is_given_its_secrets_again(tmp_path: Path, is_running: bool) -> None:
    """A start file that names what waits or runs from before brings what is not on disk."""
    asked = spec(tmp_path, repeat=True, **SECRET)
    Queue(settings(tmp_path), {}).add(asked)
    (run_id,) = [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name[0] != "."]
    queue = Queue(settings(tmp_path), {})
    lock = os.open(tmp_path / run_id / "lock", os.O_RDWR | os.O_CREAT)
    try:
        if is_running:
            hold(lock)
        queue.recover()
    finally:
        os.close(lock)
    queue.ensure(asked)
    entries = [*queue._line, *queue._running.values()]
    assert [(entry.id, entry.spec) for entry in entries] == [(run_id, asked)]


def test_what_repeats_is_kept_once(tmp_path: Path) -> None:
    """Keep holds the run that it was said of, and none of those that come after it."""
    put(tmp_path, "first", job=job(kind="odd", repeat=True, keep=True))
    queue = Queue(settings(tmp_path), {})
    queue.recover()
    queue.tick()
    (again,) = queue.waiting
    assert [queue._job(name)["keep"] for name in ("first", again)] == [True, False]


def test_a_full_disk_fails_a_run_at_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when it is asked for: what repeats asks nobody."""
    queue = Queue(settings(tmp_path), {})
    run_id = queue.add(spec(tmp_path))
    monkeypatch.setattr(queue_module, "_LEAST_FREE_BYTES", 2**62)
    found = ticked(queue, run_id)
    assert found.state is State.FAILED
    assert "disk is nearly full" in (found.error or "")


def test_a_search_that_the_command_line_goes_on_with_is_running(tmp_path: Path) -> None:
    """Not interrupted, and never pruned; and the service does not take it for one of its own."""
    search = {"kind": "sweep", "config": {"run": {"targets": [{"name": "a"}]}}, "points": []}
    path = put(tmp_path, "s", job=job(kind="sweep"), search=search, over={"state": "interrupted"})
    trace = os.open(path / "trace.jsonl", os.O_RDWR | os.O_CREAT)
    queue = Queue(settings(tmp_path, keep_runs=1), {})
    try:
        hold(trace)
        queue.recover()
        queue.tick()
        assert [found.state for found in queue.folder.rows()] == [State.RUNNING]
        assert to_prune(queue.folder.rows(), 0, 0) == []
    finally:
        os.close(trace)
    assert [found.state for found in queue.folder.rows()] == [State.INTERRUPTED]


@pytest.mark.parametrize("url", ["HTTP://127.0.0.1:9", "http://127.0.0.1:9/?a=b%20c"])
def test_a_url_without_secrets_is_kept_as_it_is(tmp_path: Path, url: str) -> None:
    """So that its run needs nothing that a restart would lose."""
    queue = Queue(settings(tmp_path), {})
    run_id = queue.add(spec(tmp_path, targets=[{"base_url": url}]))
    assert queue._job(run_id)["has_secrets"] is False
