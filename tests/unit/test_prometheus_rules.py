"""Prometheus' configuration, rules and queries, run by promtool; and what they must agree with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from metric_names import PROMETHEUS, known, of_rules, of_vllm, rules, used

from dashboards import build, promql, style
from dashboards.queries import DEFAULTS, other_queries, panel_queries, replaced
from loadgen.verdict import LAG_FLOOR_S, THRESHOLDS

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
CASES = {
    path.stem: yaml.safe_load(path.read_text())["tests"]
    for path in sorted((PROMETHEUS / "tests").glob("*.yml"))
}

Promtool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def promtool() -> Promtool:
    """Prometheus' own checker. It is no Python package: Debian has it in `prometheus`."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
        )

    return run


def threshold(alert: str, **labels: str) -> float:
    """The number that an alert's expression ends in."""
    (rule,) = (
        rule
        for rule in rules("alerts")
        if rule["alert"] == alert and labels.items() <= rule["labels"].items()
    )
    return float(rule["expr"].rpartition("> ")[2])


def test_promtool_accepts_the_configuration(promtool: Promtool) -> None:
    """`promtool check config` finds nothing wrong with prometheus.yml and its rules."""
    done = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_promtool_accepts_the_rules(promtool: Promtool, name: str) -> None:
    """`promtool check rules` finds nothing wrong, duplicates included."""
    done = promtool("check", "rules", "--lint-fatal", PROMETHEUS / "rules" / f"{name}.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules(name))} rules found" in done.stdout


@pytest.mark.parametrize("name", CASES)
def test_rules_do_what_their_cases_say(promtool: Promtool, name: str) -> None:
    """`promtool test rules` passes."""
    done = promtool("test", "rules", PROMETHEUS / "tests" / f"{name}.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("alerts", "> 0.8", "> 0.9"),
        ("alerts", "> 0.05", "> 0.2"),
        ("alerts", "> 0.95", "> 0.9"),
        ("alerts", "> 0.1", "> 0.7"),
        ("alerts", "for: 90s", "for: 10s"),
        ("alerts", "and max_over_time(up[1h]) > 0", ""),
        ("alerts", "and on (instance, run) topk", "or on (instance, run) topk"),
        ("alerts", "increase(engine:preemptions_total:sum[1m]) > 0", "vector(1) > 0"),
        ("recording", "sum by (job, instance) (vllm:num_requests_running)", "vector(1)"),
        ("recording", "or max by (job, instance) (vllm:gpu_cache_usage_perc)", ""),
        ("recording", "{engine: static}", "{engine: vllm}"),
        ("recording", "rate(static_wasted_row_steps_total[1m])", "static_wasted_row_steps_total"),
    ],
)
def test_the_cases_notice_a_wrong_rule(
    promtool: Promtool, tmp_path: Path, file: str, right: str, wrong: str
) -> None:
    """A rule that is changed fails its cases: they do test it."""
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    path = tmp_path / "prometheus" / "rules" / f"{file}.yml"
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    assert promtool("check", "rules", path).returncode == 0
    done = promtool("test", "rules", tmp_path / "prometheus" / "tests" / f"{file}.yml")
    assert done.returncode != 0


def test_every_alert_has_both_cases() -> None:
    """Each alert, by each of its causes, is seen to fire and seen to be silent."""
    seen = [case for test in CASES["alerts"] for case in test.get("alert_rule_test", [])]
    for rule in rules("alerts"):
        own = [case for case in seen if case["alertname"] == rule["alert"]]
        assert any(not case["exp_alerts"] for case in own), rule["alert"]
        fired = [alert["exp_labels"] for case in own for alert in case["exp_alerts"]]
        assert any(rule["labels"].items() <= labels.items() for labels in fired), rule


def test_every_recording_rule_has_a_case() -> None:
    """Each record of each engine is expected somewhere, and each metric that it reads is fed."""
    expected = {
        sample["labels"]
        for test in CASES["recording"]
        for case in test["promql_expr_test"]
        for sample in case.get("exp_samples") or []
    }
    fed = {
        series["series"].partition("{")[0]
        for test in CASES["recording"]
        for series in test["input_series"]
    }
    for rule in rules("recording"):
        engine = rule.get("labels", {}).get("engine")
        marks = [f"{rule['record']}{{", f'engine="{engine}"' if engine else ""]
        assert any(all(mark in labels for mark in marks) for labels in expected), rule
        assert used(rule["expr"]) <= fed, rule


def test_rules_read_only_what_exists() -> None:
    """Every metric in a rule is exported by somebody, or recorded by another rule."""
    for name in ("recording", "alerts"):
        for rule in rules(name):
            assert used(rule["expr"]), rule
            assert used(rule["expr"]) <= known(), rule


def test_both_engines_have_one_vocabulary() -> None:
    """What one server has under a common name the other has too, but for what only vLLM knows."""
    by_engine: dict[str, set[str]] = {"static": set(), "vllm": set()}
    for rule in rules("recording"):
        if rule["record"].startswith("engine:"):
            by_engine[rule["labels"]["engine"]].add(rule["record"])
    only_vllm = {"engine:preemptions_total:sum", "engine:kv_cache_usage:max"}
    assert by_engine["vllm"] - by_engine["static"] == only_vllm
    assert by_engine["static"] <= by_engine["vllm"]


def test_alerts_say_what_to_do() -> None:
    """Each has a severity, a line of summary, and a description of at least two sentences."""
    for rule in rules("alerts"):
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "\n" not in rule["annotations"]["summary"]
        assert len(re.findall(r"[a-z)]\.(?: |$)", rule["annotations"]["description"])) >= 2


def test_alerts_agree_with_the_verdict_and_the_panels() -> None:
    """The client's limits are the verdict's, and the panels draw the lines where alerts fire."""
    assert threshold("ClientSaturated", cause="cpu") == THRESHOLDS["worker_cpu"].suspect
    assert (THRESHOLDS["worker_cpu"].suspect, THRESHOLDS["worker_cpu"].invalid) == style.WORKER_CPU
    assert threshold("ClientSaturated", cause="event_loop") == style.LOOP_LAG_S > LAG_FLOOR_S
    assert threshold("KVCacheFull") == style.KV_CACHE


def test_thresholds_stand_once() -> None:
    """No number of an alert's expression is repeated in its words."""
    for rule in rules("alerts"):
        said = " ".join(rule["annotations"].values())
        assert not re.search(r"\d", said.replace("docs/verdict.md", "")), rule["alert"]


def test_the_targets_are_those_of_the_stack() -> None:
    """loadgen and both servers by their names, and GPUs only where their exporter is."""
    jobs = {job["job_name"]: job for job in CONFIG["scrape_configs"]}
    fixed = {
        name: job["static_configs"][0]["targets"]
        for name, job in jobs.items()
        if "static_configs" in job
    }
    assert fixed == {
        "loadgen": ["loadgen:9464"],
        "static": ["static:8001"],
        "vllm": ["vllm:8002"],
    }
    (names,) = jobs["dcgm"]["dns_sd_configs"]
    assert (names["names"], names["type"], names["port"]) == (["dcgm-exporter"], "A", 9400)
    for job in jobs.values():
        assert {"sample_limit", "label_limit", "body_size_limit"} <= job.keys()


def test_vllms_names_get_their_colon_back() -> None:
    """Names that vLLM's exporter has escaped are put right, whole ones and other names stay."""
    (job,) = (job for job in CONFIG["scrape_configs"] if job["job_name"] == "vllm")
    (rule,) = job["metric_relabel_configs"]
    assert rule["source_labels"] == [rule["target_label"]] == ["__name__"]

    def relabelled(name: str) -> str:
        found = re.fullmatch(rule["regex"], name)
        return found.expand(rule["replacement"].replace("$", "\\")) if found else name

    for name in of_vllm() | {"python_info", "http_requests_total"}:
        assert relabelled(name) == relabelled(name.replace(":", "_")) == name


def test_the_scrape_interval_is_one() -> None:
    """Prometheus, the data source's rate interval and the sums over turns go by the same 2 s."""
    path = ROOT / "dashboards" / "grafana" / "provisioning" / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert CONFIG["global"]["scrape_interval"] == f"{promql.SCRAPE_S}s"
    assert CONFIG["global"]["evaluation_interval"] == f"{promql.SCRAPE_S}s"
    assert source["jsonData"]["timeInterval"] == f"{promql.SCRAPE_S}s"


def test_yamllint_is_silent() -> None:
    """The YAML of Prometheus and of Grafana's provisioning has no lint."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "yamllint"), "--strict", "dashboards"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_promtool_accepts_every_query(promtool: Promtool, tmp_path: Path) -> None:
    """Each query of each dashboard, its variables replaced, is PromQL."""
    found = []
    for path in sorted(build.FOLDER.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        found += panel_queries(dashboard) + other_queries(dashboard)
    assert len(found) > 100
    made = [{"record": f"query:{at}", "expr": expr} for at, (_, expr) in enumerate(found)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def evaluated(
    promtool: Promtool,
    folder: Path,
    series: dict[str, str],
    expr: str,
    expected: dict[str, float],
    *,
    at: str = "900s",
    every: str = "2s",
) -> str:
    """What promtool says when an expression is expected to have these values; empty if it has."""
    test = {
        "interval": every,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": replaced(expr, DEFAULTS),
                "eval_time": at,
                "exp_samples": [
                    {"labels": labels, "value": value} for labels, value in expected.items()
                ],
            }
        ],
    }
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "2s", "tests": [test]}))
    done = promtool("test", "rules", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def turns(every_s: int = 2) -> dict[str, str]:
    """Two targets that take turns of 100 s each: static gives 40 tokens a second, vllm 120.

    The first is scraped at 0 before its turn, the second comes into being only when its turn does.
    """
    n = 100 // every_s
    tokens = "loadgen_output_tokens_total"
    slow, fast = 40 * every_s, 120 * every_s
    return {
        f'{tokens}{{run="r",target="static"}}': f"0x{n} {slow}+{slow}x{n - 1} 4000x{7 * n}",
        f'{tokens}{{run="r",target="vllm"}}': f"_x{3 * n + 1} {fast}+{fast}x{n - 1} 12000x{5 * n}",
        'loadgen_turn_active{run="r",target="static"}': f"0x{n} 1x{n - 1} 0x{7 * n}",
        'loadgen_turn_active{run="r",target="vllm"}': f"0x{3 * n} 1x{n - 1} 0x{5 * n}",
    }


@pytest.mark.parametrize("every_s", [1, 2, 5], ids="scraped each {} s".format)
@pytest.mark.parametrize("at", ["420s", "900s"])
def test_tokens_per_second_count_a_targets_own_turn(
    promtool: Promtool, tmp_path: Path, every_s: int, at: str
) -> None:
    """Whatever else the range holds, the figure is that of the target's own turn."""
    expr = promql.per_turn_second("loadgen_output_tokens_total", "target")
    expected = {'{target="static"}': 40.0, '{target="vllm"}': 120.0}
    series = turns(every_s)
    assert evaluated(promtool, tmp_path, series, expr, expected, at=at, every=f"{every_s}s") == ""


def test_a_range_that_begins_within_a_turn(promtool: Promtool, tmp_path: Path) -> None:
    """What was before the range counts neither as tokens nor as time."""
    series = {
        'loadgen_output_tokens_total{run="r",target="static"}': "0+80x600",
        'loadgen_turn_active{run="r",target="static"}': "1x600",
    }
    expr = promql.in_range(promql.client("loadgen_output_tokens_total"))
    expected = {'{run="r",target="static"}': 900 * 40.0}
    assert evaluated(promtool, tmp_path, series, expr, expected, at="1100s") == ""


def test_a_run_that_is_gone_still_counts(promtool: Promtool, tmp_path: Path) -> None:
    """A counter whose process has ended within the range keeps what it had."""
    series = {'loadgen_output_tokens_total{run="r",target="static"}': "0+80x50 stale"}
    expr = promql.in_range(promql.client("loadgen_output_tokens_total"))
    expected = {'{run="r",target="static"}': 4000.0}
    assert evaluated(promtool, tmp_path, series, expr, expected, at="800s") == ""


def test_a_fresh_stack_shows_zero(promtool: Promtool, tmp_path: Path) -> None:
    """Before the first run, a count has one series, named idle, of value 0; after it, none such."""
    expr = promql.idle(promql.per_turn_second("loadgen_output_tokens_total", "target"))
    other = {"up": "1x500"}
    assert evaluated(promtool, tmp_path, other, expr, {'{target="idle"}': 0.0}) == ""
    expected = {'{target="static"}': 40.0, '{target="vllm"}': 120.0}
    assert evaluated(promtool, tmp_path, turns(), expr, expected) == ""


def test_quantiles_of_nothing_are_no_series(promtool: Promtool, tmp_path: Path) -> None:
    """A histogram that does not move has no quantile, and one that moves has it by target."""
    name = "loadgen_time_to_first_token_seconds_bucket"
    still = {
        f'{name}{{run="r",target="static",le="{le}"}}': "5x500" for le in ("1.0", "2.0", "+Inf")
    }
    expr = promql.quantile(0.5, promql.client(name), "target")
    assert evaluated(promtool, tmp_path, still, expr, {}) == ""
    moving = dict(zip(still, ("0x500", "0+4x500", "0+4x500"), strict=True))
    assert evaluated(promtool, tmp_path, moving, expr, {'{target="static"}': 1.5}) == ""


@pytest.mark.parametrize(
    ("grade", "number"), [(None, 0), ("VALID", 1), ("SUSPECT", 2), ("INVALID", 3)]
)
def test_the_verdict_is_the_latest_runs(
    promtool: Promtool, tmp_path: Path, grade: str | None, number: int
) -> None:
    """An older run's grade does not count, and a run that goes on has none yet."""
    series = {
        'loadgen_run_start_time_seconds{run="old"}': "1000x400",
        'loadgen_run_start_time_seconds{run="new"}': "2000x400",
    }
    for name in ("VALID", "SUSPECT", "INVALID"):
        series[f'loadgen_run_verdict{{run="old",grade="{name}"}}'] = (
            "1x400" if name == "INVALID" else "0x400"
        )
        series[f'loadgen_run_verdict{{run="new",grade="{name}"}}'] = (
            "1x400" if name == grade else "0x400"
        )
    expr = promql.verdict()
    assert evaluated(promtool, tmp_path, series, expr, {'{run="new"}': number}) == ""


def test_recorded_names_say_what_they_are() -> None:
    """A record's name is level:metric:operation, as Prometheus asks for."""
    for name in of_rules():
        assert re.fullmatch(r"(engine|static):[a-z0-9_]+:(sum|max|ratio|ratio_rate1m)", name), name
