"""Calibration and prediction, held against simulated runs whose costs are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from made_records import made_header
from scipy.optimize import nnls as scipy_nnls

from loadgen.archive import Run, read_run
from loadgen.cli import main
from loadgen.config import LoadConfig
from loadgen.errors import ConfigError
from loadgen.journal import Journal, begin_run
from loadgen.record import RequestRecord
from loadgen.sim.calibrate import PARAMETERS, calibrate, write_model
from loadgen.sim.config import PolicyConfig
from loadgen.sim.cost import CostFile, read_cost
from loadgen.sim.nnls import nnls, robust_nnls
from loadgen.sim.observe import observe
from loadgen.sim.predict import Asked, predict, simulate_asked
from loadgen.trace import Trace, trace_bytes
from loadgen.trace.lengths import draw_lesson1_tokens

COSTS = {
    "fixed_us": 5000.0,
    "prefill_token_us": 40.0,
    "decode_row_us": 300.0,
    "kv_token_us": 0.5,
}
OPEN = LoadConfig()
SERVERS: dict[str, dict[str, Any]] = {
    "continuous": {"policy": "continuous", "batch_size": 8},
    "prefill-first": {"policy": "continuous", "batch_size": 8, "schedule": "prefill-first"},
    "static": {"policy": "static", "batch_size": 8},
    "static, all at a batch's end": {"policy": "static", "batch_size": 8, "release": "batch"},
}


def model(server: dict[str, Any], **more: Any) -> CostFile:
    return CostFile.model_validate({"name": "m", "origin": "o", **COSTS, "server": server, **more})


def lesson_trace(seed: int = 1, requests: int = 120, rate: float = 10.0) -> Trace:
    prompts, outputs = draw_lesson1_tokens(requests, seed)
    gaps_s = np.random.default_rng(seed).exponential(1 / rate, requests)
    gaps_s[0] = 0
    return Trace(1000 * np.cumsum(gaps_s), prompts.astype(np.int64), outputs.astype(np.int64))


def simulated_run(
    path: Path, told: CostFile, load: LoadConfig = OPEN, trace: Trace | None = None
) -> Run:
    """A run directory whose records a simulated server gave."""
    trace = lesson_trace() if trace is None else trace
    config = {
        "load": load.model_dump(mode="json"),
        "compare": {"blocks": 1},
        "output": {"metric_percentiles": [50.0, 90.0, 99.0]},
    }
    path.mkdir()
    begin_run(path, made_header("a", requests=len(trace), config=config), trace_bytes(trace))
    journal = Journal(path)
    for record in simulate_asked(Asked(load, 1, trace, None), told, "a"):
        journal.append(record)
    journal.close()
    return read_run(path)


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_known_costs_are_found(server: dict[str, Any], tmp_path: Path) -> None:
    """Costs and overhead of a simulated server come out of its records as they went in."""
    told = model(server, overhead_ms=7.0)
    run = simulated_run(tmp_path / "run", told)
    found = calibrate([(run, "a")], PolicyConfig.model_validate(server), name="m", origin="o")
    for name in PARAMETERS:
        assert getattr(found.model, name) == pytest.approx(COSTS[name], rel=0.02), name
    assert found.model.overhead_ms == pytest.approx(7.0, abs=0.2)
    assert abs(found.stall_share) < 1e-3
    assert sum(residual.iterations for residual in found.residuals) > 300


def test_costs_are_found_under_noise(tmp_path: Path) -> None:
    """Jitter of 1 ms on every chunk moves the predicted rate by less than 2 %."""
    told = model(SERVERS["continuous"])
    run = simulated_run(tmp_path / "run", told)
    rng = np.random.default_rng(0)
    noisy = [_shaken(record, rng) for record in run.of_target("a")]
    observed = observe(noisy, PolicyConfig.model_validate(SERVERS["continuous"]))
    work = np.array([one.work for one in observed], dtype=np.float64)
    seconds = np.array([one.seconds for one in observed])
    predicted_s = float((work @ robust_nnls(work, seconds)).sum())
    exact_s = float((work[:, :4] @ np.array([COSTS[name] / 1e6 for name in PARAMETERS])).sum())
    assert predicted_s == pytest.approx(exact_s, rel=0.02)


def _shaken(record: RequestRecord, rng: np.random.Generator) -> RequestRecord:
    late_s = np.sort(np.array(record.chunk_s) + rng.exponential(0.0005, len(record.chunk_s)))
    return replace(record, chunk_s=tuple(late_s.tolist()), first_token_s=float(late_s[0]))


@pytest.mark.parametrize(
    "load",
    [
        OPEN,
        LoadConfig(closed_loop=True, max_concurrency=12),
        LoadConfig(gang=8, gang_pad=True),
    ],
    ids=["open", "closed", "gang"],
)
@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_a_simulated_run_is_predicted_exactly(
    server: dict[str, Any], load: LoadConfig, tmp_path: Path
) -> None:
    """What a simulated server did is what is predicted of it, in every pace."""
    told = model(server, overhead_ms=3.0)
    run = simulated_run(tmp_path / "run", told, load)
    found = predict(run, {"a": told})["a"]
    assert len(found.errors()) == 7
    for name, error in found.errors().items():
        if error is None:  # all tokens come at once: there is no time between them
            assert found.figures()[name] == (0, 0)
        else:
            assert abs(error) < 1e-4, name


def test_gangs_that_split_a_gain_are_predicted_as_such(tmp_path: Path) -> None:
    """Of `compare --split-gain`, the target in gangs has its own load, and the others the run's."""
    whole = LoadConfig(closed_loop=True, max_concurrency=8)
    config = {
        "load": whole.model_dump(mode="json"),
        "compare": {"blocks": 1, "split_gain": 4},
        "output": {"metric_percentiles": [50.0]},
    }
    path, trace = tmp_path / "run", lesson_trace()
    names = ("static", "vllm", "vllm.gangs")
    path.mkdir()
    begin_run(path, made_header(*names, requests=120, config=config), trace_bytes(trace))
    journal, told = Journal(path), model(SERVERS["continuous"])
    for name in names:
        load = LoadConfig(gang=4, gang_pad=True) if name == "vllm.gangs" else whole
        for record in simulate_asked(Asked(load, 1, trace, None), told, name):
            journal.append(record)
    journal.close()
    for name, found in predict(read_run(path), dict.fromkeys(names, told)).items():
        errors = [error for error in found.errors().values() if error is not None]
        assert max(map(abs, errors)) < 1e-4, name


def test_an_error_is_the_prediction_s(tmp_path: Path) -> None:
    """A model of half the speed predicts twice the time between tokens: its error is +100 %."""
    server = {"policy": "continuous", "batch_size": 1}
    run = simulated_run(tmp_path / "run", model(server), LoadConfig(gang=1))
    slow = CostFile.model_validate(
        {"name": "s", "origin": "o", "server": server}
        | {name: 2 * value for name, value in COSTS.items()}
    )
    errors = predict(run, {"a": slow})["a"].errors()
    assert errors["tpot_p50_s"] == pytest.approx(1.0)
    assert errors["output_tokens_per_s"] == pytest.approx(-0.5)


def test_nnls_is_scipy_s() -> None:
    """Trying all sets of coefficients finds what SciPy's non-negative least squares finds."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        features, target = rng.normal(size=(30, 4)), rng.normal(size=30)
        expected, _ = scipy_nnls(features, target)
        assert nnls(features, target) == pytest.approx(expected, abs=1e-9)


def test_outliers_do_not_bend_the_robust_fit() -> None:
    """One value in twenty, a hundred times too large, moves coefficients by less than 2 %."""
    rng = np.random.default_rng(6)
    features = np.column_stack([np.ones(400), rng.uniform(0, 50, 400)])
    target = features @ [5.0, 0.3] + rng.normal(0, 0.1, 400)
    target[::20] *= 100
    assert robust_nnls(features, target) == pytest.approx([5.0, 0.3], rel=0.02)


def test_the_commands_write_what_they_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`calibrate` writes a file that `predict` reads, and both tell the same by --json."""
    told = model(SERVERS["static"])
    run = simulated_run(tmp_path / "run", told)
    file = tmp_path / "cost.yaml"
    words = ["--policy", "static", "--batch-size", "8", "-o", str(file), "--json"]
    assert main(["calibrate", str(run.path), *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (
        read_cost(file)[1].fixed_us == shown["model"]["fixed_us"] == pytest.approx(5000, rel=0.02)
    )
    origin = yaml.safe_load(file.read_text())["origin"]
    assert run.header.run_id in origin
    assert run.header.trace_sha256[:16] in origin
    assert main(["predict", str(run.path), "--cost", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert abs(shown["targets"]["a"]["figures"]["output_tokens_per_s"]["error"]) < 0.01
    assert json.loads((run.path / "prediction.json").read_text()) == shown
    for command in (["calibrate", str(run.path), *words[:-1]], ["predict", str(run.path)]):
        more = ["--cost", f"a={file}"] if command[0] == "predict" else []
        assert main([*command, *more]) == 0
    table = capsys.readouterr().out
    assert "TTFT measured - simulated" in table.replace("\n", " ")
    assert "TPOT p99, ms" in table


def test_a_server_that_is_never_busy_is_not_calibrated(tmp_path: Path) -> None:
    """Iterations that all begin on an idle server tell no costs: that is said."""
    times_ms = 10_000.0 * np.arange(20)
    trace = Trace(times_ms, np.arange(20) + 10, np.ones(20, dtype=np.int64))
    run = simulated_run(tmp_path / "run", model(SERVERS["continuous"]), trace=trace)
    config = PolicyConfig.model_validate(SERVERS["continuous"])
    with pytest.raises(ConfigError, match="kept the server busy"):
        calibrate([(run, "a")], config, name="m", origin="o")


def test_many_runs_are_named_in_part(tmp_path: Path) -> None:
    """The origin of a file fits into it, however many runs it is fitted to."""
    trace = lesson_trace(requests=4)
    run = simulated_run(tmp_path / "run", model(SERVERS["continuous"]), trace=trace)
    file = tmp_path / "cost.yaml"
    words = ["--policy", "continuous", "--batch-size", "8", "-o", str(file), "--json"]
    assert main(["calibrate", *[str(run.path)] * 70, *words]) == 0
    assert f"{run.header.run_id} and 54 more; trace" in read_cost(file)[1].origin


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be calibrated or predicted is one line that says what would do."""
    told = model(SERVERS["continuous"])
    run = simulated_run(tmp_path / "run", told)
    file = tmp_path / "cost.yaml"
    write_model(file, told.model_copy(update={"server": None}))
    out = ["--policy", "static", "-o", str(tmp_path / "x.yaml")]
    for words, said in (
        (["calibrate", *out], "give run directories, or --base-url"),
        (["calibrate", str(run.path), "--target", "b", *out], "--target"),
        (["predict", str(run.path), "--cost", str(file)], "says no policy"),
        (["predict", str(run.path), "--cost", f"b={file}"], "no target b"),
        (["predict", str(tmp_path), "--cost", str(file)], "not a run directory"),
        (["calibrate", "--base-url", "http://h", "--name", "n" * 201, *out], "--name: at most 200"),
        (["predict", str(run.path), "--cost", f"a={file}", "--cost", f"a={file}"], "given twice"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    few = simulated_run(tmp_path / "few", told, trace=lesson_trace(requests=1))
    short = replace(next(few.of_target("a")), chunk_s=(1.0,), chunk_tokens=None)
    journal = tmp_path / "few" / "records-0.jsonl"
    journal.unlink()
    again = Journal(tmp_path / "few")
    again.append(short)
    again.close()
    with pytest.raises(ConfigError, match="too few"):
        calibrate([(read_run(few.path), "a")], PolicyConfig(policy="static"), name="m", origin="o")
    with pytest.raises(ConfigError, match="--max-concurrency"):
        Asked.of(simulated_run(tmp_path / "cap", told, LoadConfig(max_concurrency=3)), "a")
