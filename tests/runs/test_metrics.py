"""What a real Prometheus scrapes from a run, against the records of that run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.archive import read_run
from loadgen.live import LAG_BOUNDS_S, LATENCY_BOUNDS_S
from loadgen.record import Outcome, RequestRecord
from tests.prometheus import ALL_TIME, Prometheus, free_port, prometheus
from tests.runs.conftest import call, truth

pytestmark = pytest.mark.slow

REQUESTS = 240


@dataclass(frozen=True)
class Scraped:
    """A run that has ended, and the Prometheus that watched it."""

    prometheus: Prometheus
    path: Path
    records: list[RequestRecord]
    summary: dict[str, Any]

    @property
    def run(self) -> str:
        return self.path.name

    def summary_of(self, key: str) -> Any:
        return self.summary["targets"]["target"][key]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Two workers, the last quarter of whose answers is cut off, watched from beginning to end."""
    scratch = tmp_path_factory.mktemp("scraped")
    trace = scratch / "trace.jsonl"
    rows = [
        {"timestamp": 12.0 * n, "input_length": 20 + n % 7, "output_length": 4 + n % 9}
        for n in range(REQUESTS)
    ]
    trace.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    fault = ("--fault", '{"kind": "truncate", "after_tokens": 3}', "--fault-from", "180")
    port = free_port()
    with (
        truth("--ttft-ms", "30", "--itl-ms", "7", "--itl-dist", "lognormal", *fault) as url,
        prometheus(scratch / "prometheus", {"loadgen": f"127.0.0.1:{port}"}) as watching,
    ):
        done = call(
            *("run", str(trace), "--base-url", url, "--workers", "2", "--num-warmups", "3"),
            *("--metrics-port", str(port), "--linger", "--goodput", "ttft:40", "e2el:100"),
            *("--result-dir", str(scratch), "--json", "--quiet"),
        )
        assert done.code in (0, 4), done.stderr
        records = list(read_run(done.path).of_target("target"))
        assert len(records) == REQUESTS
        yield Scraped(watching, done.path, records, done.summary)


def values_of(name: str, records: list[RequestRecord]) -> list[float]:
    """What a histogram without an outcome has observed, from the records."""
    match name:
        case "loadgen_schedule_lag_seconds":
            return [r.schedule_lag_s for r in records]
        case "loadgen_time_to_first_token_seconds":
            return [r.ttft_s for r in records if r.ttft_s is not None]
        case "loadgen_time_to_first_token_from_due_seconds":
            return [r.ttft_from_due_s for r in records if r.ttft_from_due_s is not None]
        case "loadgen_inter_token_latency_seconds":
            return [gap for r in records for gap in r.itl_s()]
        case "loadgen_time_per_output_token_seconds":
            return [r.tpot_s for r in records if r.tpot_s is not None]
        case "loadgen_e2e_request_latency_seconds":
            return [r.e2e_s for r in records]
    assert name == "loadgen_e2e_request_latency_from_due_seconds"
    return [r.e2e_from_due_s for r in records]


ALONE = (
    "loadgen_schedule_lag_seconds",
    "loadgen_time_to_first_token_seconds",
    "loadgen_time_to_first_token_from_due_seconds",
    "loadgen_inter_token_latency_seconds",
)
BY_OUTCOME = (
    "loadgen_time_per_output_token_seconds",
    "loadgen_e2e_request_latency_seconds",
    "loadgen_e2e_request_latency_from_due_seconds",
)


def agree(scraped: Scraped, name: str, values: list[float], labels: dict[str, str]) -> None:
    """Count exactly, sum but for rounding, quantiles within the bucket of the true value."""
    assert scraped.prometheus.last(f"{name}_count", **labels) == len(values)
    total = scraped.prometheus.last(f"{name}_sum", **labels)
    assert total == pytest.approx(sum(values), abs=2e-6 * len(values))
    bounds = LAG_BOUNDS_S if name == "loadgen_schedule_lag_seconds" else LATENCY_BOUNDS_S
    matchers = ",".join(f'{key}="{text}"' for key, text in labels.items())
    buckets = f"last_over_time({name}_bucket{{{matchers}}}[{ALL_TIME}])"
    for share in (0.5, 0.9, 0.99):
        quantile_s = scraped.prometheus.value(f"histogram_quantile({share}, {buckets})")
        true_s = sorted(values)[math.ceil(share * len(values)) - 1]
        low_s, high_s = next(
            (low, high) for low, high in pairwise((0.0, *bounds)) if true_s <= high + 1e-6
        )
        assert low_s - 2e-6 <= quantile_s <= high_s + 2e-6, (name, share, true_s)


@pytest.mark.parametrize("name", ALONE)
def test_histograms_agree_with_the_records(scraped: Scraped, name: str) -> None:
    """Of all requests, those that failed included: it is told before anybody knows."""
    labels = {"run": scraped.run, "target": "target"}
    agree(scraped, name, values_of(name, scraped.records), labels)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.TRUNCATED])
@pytest.mark.parametrize("name", BY_OUTCOME)
def test_histograms_by_outcome_agree_with_the_records(
    scraped: Scraped, name: str, outcome: Outcome
) -> None:
    """Successes and failures apart."""
    of_it = [record for record in scraped.records if record.outcome is outcome]
    assert len(of_it) > 40
    labels = {"run": scraped.run, "target": "target", "outcome": str(outcome)}
    agree(scraped, name, values_of(name, of_it), labels)


def test_counters_agree_with_the_records(scraped: Scraped) -> None:
    """Requests due, sent, ended, good; tokens of both kinds; chunks."""
    last, records = scraped.prometheus.last, scraped.records
    assert last("loadgen_requests_due_total") == REQUESTS
    assert last("loadgen_requests_sent_total") == REQUESTS
    for outcome in Outcome:
        count = sum(record.outcome is outcome for record in records)
        assert last("loadgen_requests_total", outcome=outcome) == count
    prompt = sum(record.prompt_tokens_served or 0 for record in records)
    assert last("loadgen_prompt_tokens_total") == prompt
    output = sum(record.output_tokens_served or 0 for record in records)
    assert last("loadgen_output_tokens_total") == output == scraped.summary_of("output_tokens")
    assert last("loadgen_chunks_total") == sum(len(record.chunk_s) for record in records)
    assert last("loadgen_good_requests_total") == scraped.summary_of("goodput")["good"]
    assert 0 < scraped.summary_of("goodput")["good"] < scraped.summary_of("completed")


def test_tokens_move_before_answers_end(scraped: Scraped) -> None:
    """At several scrapes tokens had come, and requests were still in flight."""
    both = "loadgen_output_tokens_total > 0 and on (run, target) loadgen_requests_in_flight > 0"
    assert scraped.prometheus.value(f"count_over_time(({both})[{ALL_TIME}:250ms])") >= 3


def test_gauges_are_of_the_run_and_come_to_rest(scraped: Scraped) -> None:
    """Seen at work while it ran; at the end nothing is in flight, and the verdict stands."""
    watching = scraped.prometheus
    for metric in ("loadgen_worker_cpu_ratio", "loadgen_event_loop_lag_seconds"):
        seen = watching.query(f"max_over_time({metric}[{ALL_TIME}])")
        assert sorted(series["metric"]["worker"] for series in seen) == ["0", "1"]
        assert all(float(series["value"][1]) > 0 for series in seen), metric
    assert watching.value(f"max(max_over_time(loadgen_open_connections[{ALL_TIME}]))") > 0
    for metric in (
        *("loadgen_requests_in_flight", "loadgen_open_connections", "loadgen_run_active"),
        *("loadgen_turn_active", "loadgen_worker_cpu_ratio"),
    ):
        assert watching.last(metric) == 0, metric
    grade = scraped.summary["verdict"]
    assert watching.last("loadgen_run_verdict", grade=grade) == 1
    assert watching.last("loadgen_run_verdict") == 1


def test_the_run_says_what_it_is(scraped: Scraped) -> None:
    """`loadgen_run_info` names the run and the trace, and nothing secret."""
    (info,) = scraped.prometheus.query(f"last_over_time(loadgen_run_info[{ALL_TIME}])")
    header = orjson.loads((scraped.path / "header.json").read_bytes())
    assert info["metric"]["run"] == scraped.run
    assert info["metric"]["trace_sha256"] == header["trace_sha256"]
    assert info["metric"]["workers"] == "2"


def test_lingering_needs_metrics(tmp_path: Path) -> None:
    """`--linger` without a port is a mistake, and says which flag is missing."""
    done = call(
        "run", "--base-url", "http://127.0.0.1:9", "--linger", "--result-dir", str(tmp_path)
    )
    assert done.code == 2
    assert "--linger" in done.stderr
    assert "--metrics-port" in done.stderr


def test_the_metrics_hold_no_key(quick: str, tmp_path: Path) -> None:
    """A key in the environment, a header and the URL's query is in nothing that was scraped."""
    port = free_port()
    canary = "sk-canary-5c1d9e"
    with prometheus(tmp_path / "prometheus", {"loadgen": f"127.0.0.1:{port}"}) as watching:
        done = call(
            *("run", "--base-url", f"{quick}?key={canary}", "--num-prompts", "20"),
            *("--request-rate", "50", "--output-len", "4", "--header", f"x-key={canary}"),
            *("--metrics-port", str(port), "--linger", "--result-dir", str(tmp_path), "--json"),
            OPENAI_API_KEY=canary,
        )
        assert done.code in (0, 4), done.stderr
        series = watching.query(f'last_over_time({{__name__=~".+"}}[{ALL_TIME}])')
    assert len(series) > 500
    assert canary not in str(series)
