"""The command `simulate`, its run directory and its statistics."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.archive import read_run
from loadgen.cli import main
from loadgen.columns import Columns
from loadgen.errors import ConfigError
from loadgen.report import rebuild
from loadgen.report.plots import draw_run
from loadgen.sim.config import PolicyName, SimulateConfig
from loadgen.sim.cost import read_cost
from loadgen.sim.plots import write_plots
from loadgen.sim.simulate import (
    SHOWN,
    Tried,
    find_replicas,
    load_work,
    play_for_statistics,
    read_costs,
    simulate,
)
from loadgen.sim.slots import Use
from loadgen.stats import summarise

COST = """
name: a card
origin: "made up for a test"
fixed_us: 6000
prefill_token_us: 40
decode_row_us: 120
kv_token_us: 0.05
"""


FIND = ["--find-replicas", "--goodput", "ttft:9"]


@pytest.fixture
def cost(tmp_path: Path) -> Path:
    path = tmp_path / "cost.yaml"
    path.write_text(COST)
    return path


def config_of(tmp_path: Path, **parts: Any) -> SimulateConfig:
    output = {"result_dir": tmp_path / "runs"} | parts.pop("output", {})
    return SimulateConfig.model_validate({"output": output, **parts})


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_the_presets_names_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """The lesson's JSON has the names that others rely on, and the lesson's figures."""
    found = printed(capsys, "simulate", "--preset", "lesson1", "--json")
    names = {"iterations", "output_tokens", "tokens_per_iteration", "requests_per_iteration"}
    assert set(found) == {"static_lesson", "static_fair", "continuous", "gain_lesson", "gain_fair"}
    assert all(set(found[key]) == names for key in ("static_lesson", "static_fair", "continuous"))
    assert found["static_lesson"]["iterations"] == 1699
    assert found["gain_lesson"] == pytest.approx(4.81, abs=0.005)


def test_the_preset_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows each figure of the lesson and why the two gains differ."""
    assert main(["simulate", "--preset", "lesson1"]) == 0
    shown = capsys.readouterr().out
    for figure in ("1,699", "731", "353", "3,748", "2.2060", "5.1272", "10.6176", "4.81x", "2.07x"):
        assert figure in shown
    assert "differ" in shown


def test_the_orders_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """`lesson1-policies` tells TTFT and latency by order; the oracle's mean latency is least."""
    found = printed(capsys, "simulate", "--preset", "lesson1-policies", "--json")
    assert set(found) == {"fcfs", "spf", "sof"}
    assert found["fcfs"]["iterations"] == 353
    assert min(found, key=lambda order: found[order]["latency_mean"]) == "sof"


def test_a_simulation_is_a_run_directory(
    tmp_path: Path, cost: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`report` and `check` read it, each policy a target, with a record of every request."""
    words = ["--num-prompts", "120", "--request-rate", "20", "--cost", str(cost), "--json"]
    found = printed(capsys, "simulate", *words, "--result-dir", str(tmp_path))
    path = Path(found["run_directory"])
    assert printed(capsys, "report", str(path), "--json")["targets"] == found["targets"]
    assert main(["check", str(path), "e2e_p99<9999s", "--target", "static"]) == 0
    run = read_run(path)
    assert run.header.kind == "simulate"
    assert [target.name for target in run.header.targets] == ["static", "continuous"]
    for name in ("static", "continuous"):
        records = list(run.of_target(name))
        assert sorted(record.seq for record in records) == list(range(120))
        assert all(len(record.chunk_s) == record.output_tokens_asked for record in records)
    assert found["simulation"]["static"]["wasted_row_share"] > 0
    assert orjson.loads((path / "simulation.json").read_bytes())["policies"] == found["simulation"]


def test_statistics_agree_with_records(tmp_path: Path, cost: Path) -> None:
    """Without records, counts are the same and percentiles within a bucket's width."""
    parts: dict[str, Any] = {
        "generate": {"num_prompts": 800, "request_rate": 55},
        "policies": {"policy": "continuous", "cost": str(cost)},
    }
    goodput = {"ttft": 100.0}
    kept = simulate(config_of(tmp_path, **parts, output={"goodput": goodput}))
    assert kept.path is not None
    summary = summarise(Columns.of(read_run(kept.path).of_target("continuous")))
    config = config_of(tmp_path, **parts, output={"goodput": goodput, "records": False})
    told = simulate(config).figures["continuous"]
    assert told["output_tokens"] == summary.output_tokens
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        distribution = getattr(summary, name)
        assert told[name]["mean"] == pytest.approx(distribution.mean)
        assert told[name]["p50"] == pytest.approx(distribution.at(50.0), rel=0.03)
    assert 0 < told["good_share"] < 1


def test_the_fewest_replicas_are_found(tmp_path: Path, cost: Path) -> None:
    """The number found is enough, and one fewer is not."""
    config = config_of(
        tmp_path,
        generate={"num_prompts": 1500, "request_rate": 150},
        policies={"cost": str(cost)},
        fleet={"router": "least_loaded", "find_replicas": True},
        output={"goodput": {"ttft": 500.0}, "records": False},
    )
    told: list[Tried] = []
    found, tried = find_replicas(config, PolicyName.CONTINUOUS, told.append)
    assert told == tried
    assert found is not None
    assert found > 1
    shares = {one.replicas: one.good_share for one in tried}
    assert shares[found] >= 0.99 > shares[found - 1]
    tally, _ = play_for_statistics(
        config, load_work(config), PolicyName.CONTINUOUS, read_costs(config), found
    )
    assert tally.good_share == shares[found]


def test_no_number_of_replicas_helps_where_one_alone_is_too_slow(
    tmp_path: Path, cost: Path
) -> None:
    """A limit below a lone request's own time is answered at once, and nothing is tried."""
    config = config_of(
        tmp_path,
        generate={"num_prompts": 40},
        policies={"cost": str(cost)},
        fleet={"find_replicas": True},
        output={"goodput": {"ttft": 0.001}, "records": False},
    )
    told: list[Tried] = []
    assert find_replicas(config, PolicyName.CONTINUOUS, told.append) == (None, [])
    assert told == []


def test_a_full_static_batch_may_be_quicker_than_a_wait_alone(tmp_path: Path, cost: Path) -> None:
    """A limit below --max-wait is met by one replica whose batches fill at once."""
    config = config_of(
        tmp_path,
        generate={"num_prompts": 16, "request_rate": "inf"},
        policies={"cost": str(cost), "policy": "static", "max_wait": 60_000.0},
        fleet={"find_replicas": True},
        output={"goodput": {"e2el": 59_000.0}, "records": False},
    )
    assert find_replicas(config, PolicyName.STATIC, [].append)[0] == 1


def test_every_plot_is_drawn(tmp_path: Path) -> None:
    """Slots of both policies, throughput and waste by batch size and by output lengths: each in a
    file of its own, and on the page twice (for a desk, for a phone) with its table."""
    config = config_of(tmp_path, generate={"num_prompts": 40, "request_rate": "inf"})
    write_plots(config, tmp_path / "plots")
    files = {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    page = files.pop("index.html")
    plots = {name.removesuffix(".svg"): svg for name, svg in files.items()}
    assert set(plots) == {
        "slots-static",
        "slots-continuous",
        "throughput-by-batch-size",
        "waste-by-batch-size",
        "throughput-by-output-cv",
        "waste-by-output-cv",
    }
    for svg in plots.values():
        title = ET.fromstring(svg).findtext("{*}title")
        assert page.count(f'aria-label="{title}"') == 2
        assert page.count(f"<caption>{title}: some of the values") == 1
        assert "currentColor" not in svg
    assert page.count("<svg") == 2 * len(plots)


def test_plots_ask_for_no_more_than_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs that are drawn anew fit a server on which the trace just fits."""
    trace = tmp_path / "trace.jsonl"
    row = '{"timestamp": 0, "input_length": 90, "output_length": 10}\n'
    trace.write_text(row * 40)
    flags = ["--max-model-len", "100", "--result-dir", str(tmp_path / "runs")]
    assert main(["simulate", str(trace), *flags, "--plots", str(tmp_path / "plots")]) == 0
    assert capsys.readouterr().out.endswith(f"plots: {tmp_path / 'plots' / 'index.html'}\n")


def test_a_folder_for_plots_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told before anything is simulated."""
    (tmp_path / "file").touch()
    words = ["simulate", "--result-dir", str(tmp_path / "runs"), "--plots", str(tmp_path / "file")]
    assert main(words) == 2
    assert capsys.readouterr().err == f"loadgen: --plots: {tmp_path / 'file'}: File exists\n"
    assert not (tmp_path / "runs").exists()


def test_what_is_left_out_of_a_cost_file_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the keys that differ from what is simulated, and none those that do not; a
    file's name says nothing of iterations."""
    cost = tmp_path / "iterations-card.yaml"
    cost.write_text(COST + "overhead_ms: 5\nserver: {policy: continuous, batch_size: 8}\n")
    words = ["simulate", "--no-records", "--policy", "continuous", "--cost", str(cost)]
    assert main([*words, "--batch-size", "4"]) == 0
    shown = capsys.readouterr().out
    assert "continuous: left out of --cost: server.batch_size, overhead_ms." in shown
    assert "counts as a second" not in shown
    cost.write_text(COST + "server: {policy: continuous, batch_size: 8}\n")
    assert main([*words, "--batch-size", "8"]) == 0
    assert "left out" not in capsys.readouterr().out


def test_the_report_shows_the_slots(tmp_path: Path, cost: Path) -> None:
    """A simulation's report draws who held which slot, the first 64 requests; made anew from the
    run directory alone it is the same."""
    config = config_of(tmp_path, generate={"num_prompts": 100, "request_rate": "inf"})
    path = simulate(config).path
    assert path is not None
    result = rebuild(path)
    page = (path / "report.html").read_text()
    static, continuous = draw_run(result)[:2]
    assert static.title == "Slots over time: static"
    for plot in (static, continuous):
        assert plot.svg in page
        assert len({row["row"] for row in plot.spec["data"]["values"]}) == SHOWN == 64
    assert {row["target"] for row in static.spec["data"]["values"]} == set(Use)
    assert "continuous: 0% of the time that slots were held was for nobody" in continuous.caption
    rebuild(path)
    assert (path / "report.html").read_text() == page


def test_no_slot_has_two_requests(tmp_path: Path) -> None:
    """Bars of one slot follow each other, within an axis that all policies share."""
    config = config_of(tmp_path, generate={"num_prompts": 80, "request_rate": "inf"})
    path = simulate(config).path
    assert path is not None
    static, continuous = draw_run(rebuild(path))[:2]
    for plot in (static, continuous):
        rows = sorted(plot.spec["data"]["values"], key=lambda row: (row["y"], row["t"]))
        for before, after in itertools.pairwise(rows):
            assert before["y"] != after["y"] or before["end"] <= after["t"]
        assert plot.spec["encoding"]["x"]["scale"] == static.spec["encoding"]["x"]["scale"]
        assert max(row["end"] for row in rows) <= plot.spec["encoding"]["x"]["scale"]["domain"][1]


def test_a_simulation_is_told_from_a_measurement(
    tmp_path: Path, cost: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, page and Markdown say that it is simulated; of one that counts iterations, so do the
    figures' names; nobody is told to repeat it in blocks."""
    for words in ([], ["--cost", str(cost)]):
        folder = tmp_path / str(len(words))
        assert main(["simulate", "--num-prompts", "40", *words, "--result-dir", str(folder)]) == 0
        table = capsys.readouterr().out
        (path,) = folder.iterdir()
        markdown = tmp_path / "shown.md"
        words_of_export = ["--export", "markdown", "-o", str(markdown)]
        assert main(["report", str(path), *words_of_export]) == 0
        page = (path / "report.html").read_text()
        for shown in (table, page, markdown.read_text()):
            assert "simulated, not measured" in shown.lower()
            assert "--blocks" not in shown
            assert ("TTFT p50, ms" in shown) == bool(words)
            assert ("TTFT p50, iterations" in shown) != bool(words)
        assert "does not tell the tokens" not in table


def test_a_broken_simulation_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that no simulation wrote is named; a run without one has no slots to draw."""
    path = simulate(config_of(tmp_path, generate={"num_prompts": 20})).path
    assert path is not None
    for content in ("{", "[]", '{"slots": {"static": [{"slot": 1}]}}'):
        (path / "simulation.json").write_text(content)
        assert main(["report", str(path)]) == 2
        assert f"{path / 'simulation.json'}: " in capsys.readouterr().err
    (path / "simulation.json").unlink()
    assert rebuild(path).held == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--token-budget", "4"], "--token-budget: must give each slot a token"),
        (["--policy", "dynamic"], "--policy: "),
        (["--policy", "static,static"], "--policy: names one twice"),
        (["--closed-loop"], "--closed-loop: goes together with --max-concurrency"),
        (["--find-replicas"], "--find-replicas: needs limits to meet: give --goodput"),
        ([*FIND, "--label", "x"], "--label, --result-dir: --find-replicas finds a number"),
        ([*FIND, "--plots", "x", "--replicas", "2"], "--plots, --replicas, --result-dir: "),
        (["--kv-blocks", "2", "--request-rate", "inf"], "row 0: "),
        (["--cost", "none.yaml"], "--cost: none.yaml: No such file"),
        (["--cost", "static=none.yaml"], "--cost: give one file to each of static, continuous"),
        (["--dry-run", "--cost", "none.yaml"], "--cost: none.yaml: No such file"),
        (["--policy", "static", "--cost", "static=a,static=b"], "--cost: give one file to each"),
        (["--preset", "lesson1", "--order", "spf"], "--preset: leave out --order"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake ends with exit code 2 and one line that names it, and leaves nothing behind."""
    if "--preset" not in words:
        words = [*words, "--result-dir", str(tmp_path)]
    assert main(["simulate", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert not list(tmp_path.iterdir())
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fixed_us: [", "neither YAML nor JSON"),
        ("[" * 3000, "neither YAML nor JSON"),
        (COST.replace("a card", "2026-02-30"), "neither YAML nor JSON"),
        (COST + "fixed_us: 1", "the key fixed_us stands twice"),
        ("- 1", "the file"),
        (COST + "more: 1", "more: extra inputs are not permitted"),
        (COST.replace("6000", "-1"), "fixed_us: "),
        (COST.replace("6000", "0").replace("40", "0").replace("120", "0"), "are all 0"),
    ],
    ids=["yaml", "deep", "date", "twice", "list", "unknown", "negative", "nothing"],
)
def test_a_cost_file_is_read_strictly(text: str, said: str, tmp_path: Path) -> None:
    """What is wrong with a cost file is named."""
    path = tmp_path / "cost.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_cost(path)


def test_a_directory_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` and `--run-dir`: results and live.json stand in it, and it holds one run only."""
    file, path = tmp_path / "sim.json", tmp_path / "mine"
    file.write_text('{"generate": {"num_prompts": 20}, "policies": {"policy": ["static"]}}')
    words = ["simulate", "--config", str(file), "--run-dir", str(path), "--json"]
    assert main([*words, "--batch-size", "4"]) == 0
    header = json.loads((path / "header.json").read_bytes())
    assert header["config"]["policies"]["policy"] == ["static"]
    assert header["config"]["policies"]["batch_size"] == 4
    live = json.loads((path / "live.json").read_bytes())
    assert (live["state"], live["exit_code"]) == ("ended", 0)
    capsys.readouterr()
    assert main(words) == 2
    assert "holds a run" in capsys.readouterr().err
    assert main([*words, "--find-replicas", "--goodput", "ttft:9"]) == 2
    assert "--run-dir" in capsys.readouterr().err
