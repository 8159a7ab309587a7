"""A run of both real servers, watched by a real Prometheus: numbers, and every panel's query."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from dashboards.queries import panel_queries
from loadgen.live import LATENCY_BOUNDS_S
from servers.local import ServerProcess
from tests.e2e.conftest import ROOT, call, records_of
from tests.prometheus import ALL_TIME, Prometheus, free_port, prometheus

pytestmark = pytest.mark.slow

DASHBOARDS = ROOT / "dashboards" / "grafana" / "json"
QUIET_S = 4.0
"""After the first request's due time: it has ended, and the others are not due yet."""


@dataclass(frozen=True)
class Watched:
    """A comparison that has ended, and the Prometheus that scraped all of it."""

    prometheus: Prometheus
    run: Path
    ended: float
    """The last moment at which loadgen was scraped, in Unix time."""

    def turn_began(self, target: str) -> float:
        labels = {"target": target, "run": self.name}
        return self.prometheus.last("loadgen_turn_start_time_seconds", **labels)

    @property
    def name(self) -> str:
        return self.run.name


@pytest.fixture(scope="module")
def watched(
    both_servers: tuple[ServerProcess, ServerProcess],
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Watched]:
    """A comparison on two workers: one request at first, and the others after a pause.

    The pause parts what the comparison asks beforehand (warm-up, what servers take) from the rest.
    """
    static, vllm = both_servers
    scratch = tmp_path_factory.mktemp("watched")
    rows = [{"timestamp": 0.0, "input_length": 12, "output_length": 4}]
    rows += [
        {"timestamp": 5000.0 + 150 * n, "input_length": 10 + n, "output_length": 8 + 5 * (n % 4)}
        for n in range(23)
    ]
    trace = scratch / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    port = free_port()
    jobs = {
        "loadgen": f"127.0.0.1:{port}",
        "static": static.base_url.removeprefix("http://"),
        "vllm": vllm.base_url.removeprefix("http://"),
    }
    rules = ROOT / "dashboards" / "prometheus" / "rules"
    with prometheus(scratch / "prometheus", jobs, rules) as watching:
        done = call(
            *("compare", str(trace), "--target", f"static={static.base_url}"),
            *("--target", f"vllm={vllm.base_url}", "--tokenizer", str(model)),
            *("--workers", "2", "--goodput", "e2el:4000", "--result-dir", str(scratch)),
            *("--metrics-port", str(port), "--linger", "--json", "--quiet"),
        )
        assert done.code in (0, 4), done.stderr
        last = f"max(max_over_time(timestamp(loadgen_run_info)[{ALL_TIME}:250ms]))"
        yield Watched(watching, done.run_directory(), watching.value(last))


@pytest.mark.parametrize("target", ["static", "vllm"])
def test_the_server_counts_what_the_client_counts(watched: Watched, target: str) -> None:
    """Requests and tokens of both sides are the same; the server's TTFT is no longer than ours."""
    prefix = {"static": "static_", "vllm": "vllm:"}[target]
    records = [r for r in records_of(watched.run, target) if r["seq"] > 0]
    assert len(records) == 23
    began = watched.turn_began(target)
    watching = watched.prometheus

    def grown(metric: str) -> float:
        """What a server's counter has grown by, since the pause after the first request."""
        before = watching.value(f"sum({metric} @ {began + QUIET_S:.3f})")
        return watching.last(metric) - before

    assert grown(f"{prefix}time_to_first_token_seconds_count") == len(records)
    assert grown(f"{prefix}e2e_request_latency_seconds_count") == len(records)
    tokens = sum(r["output_tokens_served"] for r in records)
    assert grown(f"{prefix}generation_tokens_total") == tokens
    assert grown(f"{prefix}prompt_tokens_total") == sum(r["prompt_tokens_served"] for r in records)
    ours_s = sum(r["first_token_s"] - r["start_s"] for r in records)
    assert 0 < grown(f"{prefix}time_to_first_token_seconds_sum") < ours_s
    e2e_s = sum(r["end_s"] - r["start_s"] for r in records)
    assert 0.5 * e2e_s < grown(f"{prefix}e2e_request_latency_seconds_sum") < e2e_s


@pytest.mark.parametrize("target", ["static", "vllm"])
def test_the_client_tells_what_its_records_hold(watched: Watched, target: str) -> None:
    """Counts and token sums exactly, the median of TTFT within its bucket."""
    records = records_of(watched.run, target)
    labels = {"run": watched.name, "target": target}
    watching = watched.prometheus
    tokens = sum(r["output_tokens_served"] for r in records)
    assert watching.last("loadgen_output_tokens_total", **labels) == tokens
    assert watching.last("loadgen_requests_total", **labels, outcome="ok") == len(records)
    true_s = sorted(r["first_token_s"] - r["start_s"] for r in records)[
        math.ceil(0.5 * len(records)) - 1
    ]
    name = "loadgen_time_to_first_token_seconds_bucket"
    matchers = f'run="{watched.name}",target="{target}"'
    median_s = watching.value(
        f"histogram_quantile(0.5, last_over_time({name}{{{matchers}}}[{ALL_TIME}]))"
    )
    low_s, high_s = next(
        (low, high) for low, high in pairwise((0.0, *LATENCY_BOUNDS_S)) if true_s <= high
    )
    assert low_s - 1e-5 <= median_s <= high_s + 1e-5


def panels() -> list[tuple[str, str, str]]:
    """(dashboard, panel, query template) of all but the GPU's."""
    return [
        (path.stem, title, expression)
        for path in sorted(DASHBOARDS.glob("*.json"))
        if "gpu" not in path.stem
        for title, expression in panel_queries(json.loads(path.read_text()), {})
    ]


def test_there_are_panels() -> None:
    """So that the test below cannot be empty."""
    assert len({dashboard for dashboard, _, _ in panels()}) == 4
    assert len(panels()) > 60


def test_every_panel_has_series_after_a_run(watched: Watched) -> None:
    """No query of a panel or an annotation is empty, seen at the end of the run."""
    length_s = math.ceil(watched.ended - watched.turn_began("static")) + 5
    variables = {
        "run": watched.name,
        "target": "static|vllm",
        "__rate_interval": "30s",
        "__interval": "1s",
        "__range": f"{length_s}s",
        "__range_s": str(length_s),
    }
    empty = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        if "gpu" in path.stem:
            continue
        for title, expression in panel_queries(json.loads(path.read_text()), variables):
            if not watched.prometheus.query(expression, at=watched.ended):
                empty.append((path.stem, title, expression))
    assert not empty


def test_histograms_of_the_client_hold_every_bound_of_vllm(
    both_servers: tuple[ServerProcess, ServerProcess],
) -> None:
    """Read from the live server, so that a release with other bounds is noticed."""
    _, vllm = both_servers
    with urllib.request.urlopen(f"{vllm.base_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        lines = [li for li in text.splitlines() if li.startswith(f"vllm:{name}_seconds_bucket")]
        bounds = {li.partition('le="')[2].partition('"')[0] for li in lines} - {"+Inf"}
        assert len(bounds) > 10
        assert {float(bound) for bound in bounds} <= set(LATENCY_BOUNDS_S), name
