"""Sweeps and searches without their runs: what may be said, what is kept, what is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from made_records import made_header, made_record

from loadgen.capacity import look_at
from loadgen.cli import build_parser, main
from loadgen.columns import Columns
from loadgen.errors import ConfigError, RunDirectoryError
from loadgen.exploration import Exploration, read_config
from loadgen.explore_config import CapacityConfig, PointsConfig, SweepConfig, requests_for
from loadgen.flags import validate
from loadgen.knee import Knee
from loadgen.points import Axis, Point, point_of
from loadgen.progress import Progress
from loadgen.report.curve_plots import draw_curves
from loadgen.report.curves import Curve, rows_of, write_curve
from loadgen.search_files import goes_on
from loadgen.slo import Slo
from loadgen.stats import summarise
from loadgen.verdict import Grade, judge

URL = "http://127.0.0.1:1"
RUN: dict[str, Any] = {"targets": [{"base_url": URL}]}
SWEEP: dict[str, Any] = {"run": RUN, "rates": "1,2,4"}
CAPACITY: dict[str, Any] = {"run": RUN | {"output": {"goodput": {"ttft": 500}}}}
SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize(
    ("said", "loads"),
    [
        ({"rates": "4, 1,2 ,2"}, [1, 2, 4]),
        ({"rates": "1:8:4"}, [1, 2, 4, 8]),
        ({"rates": "0.5:2:3"}, [0.5, 1, 2]),
        ({"concurrencies": "1:10:4"}, [1, 2, 5, 10]),
        ({"batch_sizes": [8, 2]}, [2, 8]),
    ],
)
def test_points_ascend_and_may_be_geometric(said: dict[str, Any], loads: list[float]) -> None:
    """Lists with commas, FROM:TO:HOW_MANY, or lists as YAML has them."""
    assert validate(SweepConfig, {"run": RUN} | said).loads == loads


@pytest.mark.parametrize(
    ("model", "said", "error"),
    [
        (SweepConfig, {"rates": None}, "--rates: no points: give this"),
        (SweepConfig, {"concurrencies": "2"}, "--rates: gives the points; leave out --conc"),
        (SweepConfig, {"rates": "1:0:3"}, "--rates: needs 0 < FROM < TO"),
        (SweepConfig, {"rates": "1:2"}, "--rates: must be numbers with commas"),
        (SweepConfig, {"rates": "0"}, "--rates"),
        (SweepConfig, {"rates": ""}, "--rates"),
        (SweepConfig, {"gang_pad": True}, "--gang-pad: pads gangs: give --batch-sizes"),
        (SweepConfig, {"num_prompts": 1}, "--num-prompts"),
        (SweepConfig, {"run": RUN | {"load": {"gang": 2}}}, "--gang: is what the points differ in"),
        (SweepConfig, {"run": RUN | {"load": {"max_concurrency": 2}}}, "--max-concurrency"),
        (SweepConfig, {"run": RUN | {"load": {"ramp_up": 2}}}, "--ramp-up"),
        (SweepConfig, {"run": RUN | {"generate": {"request_rate": 2}}}, "--request-rate"),
        (SweepConfig, {"run": {"targets": [{"name": n, "base_url": URL} for n in "ab"]}}, "target"),
        (SweepConfig, {"rounds": 2}, "rounds: no such key"),
        (CapacityConfig, {"run": RUN}, "--goodput: a capacity is under limits"),
        (CapacityConfig, {"start_rate": 2000}, "--start-rate: must lie between"),
        (CapacityConfig, {"share": 1.0}, "--share"),
        (CapacityConfig, {"tolerance": 0.0}, "--tolerance"),
    ],
)
def test_contradictions_are_named(
    model: type[PointsConfig], said: dict[str, Any], error: str
) -> None:
    """One line that names the flag."""
    base = SWEEP if model is SweepConfig else CAPACITY
    with pytest.raises(ConfigError, match=error):
        validate(model, base | said)


def test_how_many_requests_a_point_has() -> None:
    """As many as were asked for; a rate as many as its seconds need; four for each place else."""
    config = validate(SweepConfig, SWEEP | {"num_prompts": 50, "seconds_per_point": 20})
    assert requests_for(config, Axis.RATE, 1.0) == 50
    assert requests_for(config, Axis.RATE, 4.01) == 81
    assert requests_for(config, Axis.CONCURRENCY, 8) == 50
    assert requests_for(config, Axis.BATCH_SIZE, 64) == 256


def begun(folder: Path, **more: Any) -> tuple[Exploration[SweepConfig], SweepConfig]:
    run = RUN | {
        "targets": [{"name": "mine", "base_url": f"http://user:{SECRET}@127.0.0.1:1"}],
        "request": {
            "header": {"X-Key": SECRET},
            "extra_body": {"token": SECRET},
            "model": "m",
        },
        "output": {
            "result_dir": folder,
            "label": f"with {SECRET}",
            "metadata": {"key": SECRET},
        },
    }
    config = validate(SweepConfig, SWEEP | {"run": run} | more)
    command = ["loadgen", "sweep", "--header", f"X-Key={SECRET}"]
    return Exploration.begin("sweep", config, command, Axis.RATE, 30), config


def made_point(load: float = 2.0, run: str = "a-run", **more: Any) -> Point:
    values: dict[str, Any] = {
        "look": 0,
        "verdict": Grade.VALID,
        "reasons": (),
        "refused": None,
        "requests": 100,
        "completed": 99,
        "duration_s": 10.0,
        "requests_per_s": load,
        "output_tokens_per_s": 10 * load,
        "ttft_p50_s": 0.1,
        "ttft_p99_s": 0.2,
        "tpot_p50_s": 0.01,
        "tpot_p99_s": 0.02,
        "e2e_mean_s": 1.0,
        "e2e_p50_s": 1.0,
        "e2e_p99_s": 2.0,
        "good": 95,
    }
    return Point(load=load, run=run, **values | more)


def test_no_secret_is_kept(tmp_path: Path) -> None:
    """Neither headers nor body fields nor a URL's password stand in any file."""
    exploration, _ = begun(tmp_path)
    exploration.keep(made_point())
    for file in exploration.path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file


def test_one_process_goes_on_with_it(tmp_path: Path) -> None:
    """While one measures, another is told so, and leaves everything where it is."""
    exploration, config = begun(tmp_path)
    quiet = Progress(quiet=True)
    assert not goes_on(exploration.path)
    with exploration.going_on(quiet):
        assert goes_on(exploration.path)
        other = replace(exploration, config=config)
        with (
            pytest.raises(RunDirectoryError, match="another process goes on with it"),
            other.going_on(quiet),
        ):
            raise AssertionError
        assert (exploration.path / "search.json").exists()
    assert not goes_on(exploration.path)
    with pytest.raises(ConfigError), exploration.going_on(quiet):
        raise ConfigError("no run could begin")
    assert not exploration.path.exists()


def test_what_is_kept_is_gone_on_with(tmp_path: Path) -> None:
    """The same trace and points; a point whose run directory has no summary is done again."""
    exploration, config = begun(tmp_path)
    for load in (1.0, 2.0):
        exploration.keep(made_point(load, f"run-{load:g}"))
    (exploration.path / "run-1").mkdir()
    (exploration.path / "run-1" / "summary.json").write_text("{}")
    again = Exploration.go_on("sweep", config, exploration.path)
    assert [point.load for point in again.points] == [1.0]
    assert again.points[0] == made_point(1.0, "run-1")
    assert again.trace_sha256 == exploration.trace_sha256
    assert again.trace.timestamp_ms.tolist() == exploration.trace.timestamp_ms.tolist()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"rates": "1,2"}, "--rates: this was begun with 1,2,4, and not with 1,2"),
        ({"num_prompts": 99}, "--num-prompts: this was begun with 100, and not with 99"),
        ({"run": {"load": {"workers": 2}}}, "--workers: this was begun with none, and not with 2"),
        ({"run": {"request": {"model": "n"}}}, "--model: this was begun with m, and not with n"),
        ({"run": {"generate": {"seed": 1}}}, "--seed: this was begun with 42, and not with 1"),
        ({"run": {"output": {"goodput": {"ttft": 5.0}}}}, "--goodput: this was begun with none"),
        ({"run": {"trace": "x.jsonl"}}, "--trace: this was begun with none, and not with x.jsonl"),
        ({"run": {"request": {"header": {"Y": "1"}}}}, "--header: it is not what this was begun"),
        ({}, "--header: secrets are not kept; give it again"),
    ],
)
def test_a_changed_flag_is_an_error_that_names_it(
    tmp_path: Path, given: dict[str, Any], error: str
) -> None:
    """Nothing is changed in silence, and what could not be kept is asked for."""
    exploration, _ = begun(tmp_path)
    config = read_config("sweep", SweepConfig, exploration.path, given)
    with pytest.raises(ConfigError, match=error):
        Exploration.go_on("sweep", config, exploration.path)


def test_secrets_that_are_given_again_are_used(tmp_path: Path) -> None:
    """With header, body and URL given again it goes on, and sends them."""
    exploration, config = begun(tmp_path)
    again = {"request": {"header": ["X-Key=other"], "extra_body": {"token": SECRET}}}
    (target,) = config.run.targets
    assert target.name == "mine"
    found = read_config("sweep", SweepConfig, exploration.path, {"run": again}, target.base_url)
    went_on = Exploration.go_on("sweep", found, exploration.path)
    assert went_on.config.run.request.header == {"X-Key": "other"}


@pytest.mark.parametrize("damage", ["trace", "state", "config", "kind", "version", "gone"])
def test_a_damaged_directory_is_told(tmp_path: Path, damage: str) -> None:
    """A trace, a state or a version that is not what it was begun with is an error, not a guess."""
    exploration, config = begun(tmp_path)
    state = exploration.path / "search.json"
    content = orjson.loads(state.read_bytes())
    if damage == "trace":
        (exploration.path / "trace.jsonl").write_bytes(b"{}")
    elif damage == "gone":
        state.unlink()
    elif damage == "state":
        state.write_bytes(b'{"kind": ')
    else:
        key = {"kind": "kind", "version": "loadgen", "config": "config"}[damage]
        state.write_bytes(orjson.dumps(content | {key: "other"}))
    with pytest.raises(RunDirectoryError):
        Exploration.go_on("sweep", config, exploration.path)


def test_a_sweep_begins_with_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --base-url and --resume there is nothing to ask: one line, exit code 2."""
    assert main(["sweep", "--rates", "1"]) == 2
    assert "--base-url" in capsys.readouterr().err


def test_what_cannot_begin_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a target that is down nor a trace without gaps leaves a directory behind."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n' * 3)
    words = ["--base-url", URL, "--rates", "1", "--ready-timeout", "0", "--quiet"]
    runs = ["--result-dir", str(tmp_path / "runs")]
    assert main(["sweep", str(trace), *words, *runs]) == 2
    assert "all 3 requests come at one time" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["sweep", *words, *runs]) == 2
    assert "--resume" not in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []


def test_flags_that_the_points_say_are_no_flags() -> None:
    """Neither command takes the rate, the pace or the rounds of a run."""
    for command in ("sweep", "capacity"):
        for flag in ("--request-rate", "--closed-loop", "--max-concurrency", "--rounds"):
            with pytest.raises(ConfigError, match="no such flag"):
                build_parser().parse_args([command, "--base-url", URL, flag, "1"])


def curve(*points: Point, **more: Any) -> Curve:
    values: dict[str, Any] = {
        "kind": "sweep",
        "axis": Axis.RATE,
        "points": points,
        "goodput_ms": {"ttft": 500.0},
        "command": ("loadgen", "sweep", "<script>"),
        "trace": ("<b>trace</b>", "0" * 64),
    }
    return Curve.of(**values | more)


def test_the_page_shows_every_point_and_escapes_text(tmp_path: Path) -> None:
    """Each load and its figures, a table behind each plot, no foreign text as HTML, no network."""
    found = curve(
        made_point(1.0),
        made_point(2.0),
        made_point(4.0, e2e_mean_s=9.0, reasons=("SUSPECT: <img src=x>",)),
    )
    write_curve(tmp_path, found)
    page = (tmp_path / "report.html").read_text()
    assert "2 (knee)" in page
    assert page.count("<svg") == 2 * page.count("<summary>Values") == 8
    assert "<b>trace" not in page
    assert "<script" not in page
    assert "<img" not in page
    assert "https://" not in page.replace("http://www.w3.org", "")


def test_the_knee_is_marked_where_it_lies() -> None:
    """By a line at its load, or at its throughput; a capacity's share by a line across."""
    points = made_point(1.0), made_point(2.0), made_point(4.0, e2e_mean_s=9.0)
    plots = draw_curves(Axis.RATE, points, Knee(1, is_inside=True), 0.95)
    marked = [
        [
            layer["data"]["values"][0]["at"]
            for layer in plot.spec["layer"]
            if layer["name"] == "rule"
        ]
        for plot in plots
    ]
    assert marked == [[20], [2], [2], [0.95]]
    assert [row["target"] for row in plots[0].spec["data"]["values"]][::3] == [
        *("TTFT p50", "TTFT p99", "E2E p50", "E2E p99")
    ]


def test_the_json_holds_points_and_knee(tmp_path: Path) -> None:
    """sweep.json has a schema version, each point's figures, and where the knee is."""
    found = curve(made_point(1.0), made_point(2.0), made_point(4.0, e2e_mean_s=9.0), missing=1)
    write_curve(tmp_path, found)
    content = orjson.loads((tmp_path / "sweep.json").read_bytes())
    assert content["schema_version"] == 1
    assert content["knee"] == {"load": 2.0, "run": "a-run", "is_inside": True}
    assert [point["output_tokens_per_s"] for point in content["points"]] == [10, 20, 40]
    assert content["points"][0]["good_share"] == 0.95
    assert content["answer"].endswith("1 of 4 points are not done.")


def test_a_point_that_says_nothing_is_no_knee() -> None:
    """An INVALID client's point is shown, and is neither knee nor drawn."""
    points = made_point(1.0), made_point(2.0, refused="the client: late"), made_point(4.0)
    found = curve(*points)
    assert found.knee is not None
    assert found.points[found.knee.index].load == 4.0
    assert found.has_refused


@pytest.mark.parametrize("flag", ["--max-duration", "--max-output-tokens-total"])
def test_a_point_that_a_limit_of_the_load_cut_says_nothing(flag: str) -> None:
    """What a hard stop left unsent is not held against the target: the point is refused, with the
    flag and what to do, and has neither good share nor evidence."""
    stopped = f"{flag} 60: it is reached"
    cut = point_that_was(stopped, answered=60)
    assert cut.refused is not None
    assert cut.refused.startswith(f"{stopped} before all requests had ended: raise it, or send")
    assert "--num-prompts" in cut.refused
    assert cut.good_share is None
    assert cut.evidence is None
    assert rows_of(curve(cut))[0][-2:] == (
        "-",
        f"{cut.verdict}, not counted",
    )
    whole = point_that_was(stopped, answered=100)
    assert (whole.refused, whole.good_share) == (None, 1.0)


def test_a_point_that_its_errors_stopped_is_evidence() -> None:
    """A target that broke --max-error-share did not serve what was left."""
    point = point_that_was("--max-error-share 0.1: 30 of 90 failed", answered=60)
    assert (point.refused, point.good_share) == (None, 0.6)
    assert point.evidence is not None


def point_that_was(stopped: str, answered: int) -> Point:
    """Of 100 requests at 1 a second, of which so many were answered, each of them well."""
    slo = Slo(ttft_s=0.5)
    records = [
        made_record(n, due=float(n), chunks=tuple(n + 0.05 * (k + 1) for k in range(4)))
        for n in range(answered)
    ]
    summary = summarise(records, slo=slo)
    verdict = judge(made_header(requests=100), {"a": summary}, (50.0,), stopped=stopped)
    evidence = look_at(Columns.of(records), slo, 100)
    return point_of(1.0, 0, "a-run", 100, summary, verdict, stopped, evidence)


def test_nothing_done_is_no_page(tmp_path: Path) -> None:
    """Without a point there is JSON alone, which says so."""
    write_curve(tmp_path, curve(missing=3))
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_a_point_survives_its_json() -> None:
    """What is written to search.json is read back as it was."""
    point = made_point()
    assert Point.of_json(orjson.loads(orjson.dumps(point.as_json()))) == point


def test_flags_win_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` gives the run and the points; a flag takes the place of one key of it."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"targets: [{{base_url: '{URL}'}}]\n"
        "generate: {input_len: 7, output_len: 3}\n"
        "sweep: {rates: [1, 2], num_prompts: 50, seconds_per_point: 0}\n"
    )
    assert main(["sweep", "--config", str(file), "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["points"] == [{"load": 1, "requests": 50}, {"load": 2, "requests": 50}]
    assert (told["prompt_tokens"], told["duration_s"]) == (700, 75)
    assert main(["sweep", "--config", str(file), "--rates", "4", "--dry-run"]) == 0
    assert [one["load"] for one in json.loads(capsys.readouterr().out)["points"]] == [4]
    assert main(["capacity", "--config", str(file), "--dry-run"]) == 2
    assert "sweep: no such key" in capsys.readouterr().err
    for wrong, said in (("run: {}", "run: no such key"), ("rates: [0]", "rates")):
        file.write_text(f"targets: [{{base_url: '{URL}'}}]\nsweep: {{{wrong}}}\n")
        assert main(["sweep", "--config", str(file), "--dry-run"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
