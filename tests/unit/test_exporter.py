"""The exporter's text: names, labels, values, and a bounded number of series."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from made_records import made_record
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import ConfigError
from loadgen.exporter import FACTS, NAMES, RUNS_KEPT, Exporter, LiveRun
from loadgen.live import LATENCY_BOUNDS_S, LiveCounters, Vitals
from loadgen.record import Outcome
from loadgen.verdict import Grade

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@contextmanager
def served(exporter: Exporter, host: str = "127.0.0.1") -> Iterator[str]:
    url = exporter.serve(host, 0)
    try:
        yield url
    finally:
        exporter.close()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def samples(exporter: Exporter) -> Samples:
    """What a scrape over HTTP gives, by name and labels."""
    with served(exporter) as url:
        text = scrape(url)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def counted() -> LiveCounters:
    """A turn of two requests, one of which failed."""
    live = LiveCounters()
    for outcome in (Outcome.OK, Outcome.HTTP_5XX):
        live.count_due()
        live.started(0.002)
        live.ended(made_record(start=0.0, chunks=(0.5, 1.0), outcome=outcome))
    live.ttft_s.observe(0.5)
    live.chunk(1, None)
    live.chunk(1, 0.5)
    live.flush()
    return live


def begun(exporter: Exporter, run_id: str = "r1", *targets: str) -> LiveRun:
    return exporter.begin(run_id, dict.fromkeys(FACTS, "x"), targets or ("a",), 1000.0)


def test_a_turn_is_told_while_it_goes_on() -> None:
    """Counters, histograms and gauges of the turn that goes on, by run and target."""
    exporter = Exporter()
    run = begun(exporter)
    run.turn_began("a", 1001.0, counted, lambda: [Vitals(0, 3, 0.01, 0.4), Vitals(1, 2, 0.02, 0.6)])
    found = samples(exporter)
    of_target = {"run": "r1", "target": "a"}
    assert value(found, "loadgen_requests_due_total", **of_target) == 2
    assert value(found, "loadgen_output_tokens_total", **of_target) == 2
    assert value(found, "loadgen_requests_total", **of_target, outcome="http_5xx") == 1
    assert value(found, "loadgen_good_requests_total", **of_target) == 1
    assert value(found, "loadgen_open_connections", **of_target) == 5
    assert value(found, "loadgen_turn_active", **of_target) == 1
    assert value(found, "loadgen_turn_start_time_seconds", **of_target) == 1001
    assert value(found, "loadgen_worker_cpu_ratio", run="r1", worker="1") == 0.6
    assert value(found, "loadgen_event_loop_lag_seconds", run="r1", worker="0") == 0.01
    ttft = "loadgen_time_to_first_token_seconds"
    assert value(found, f"{ttft}_count", **of_target) == 1
    assert value(found, f"{ttft}_sum", **of_target) == 0.5
    assert value(found, f"{ttft}_bucket", **of_target, le="0.4") == 0
    assert value(found, f"{ttft}_bucket", **of_target, le="0.5") == 1
    assert value(found, f"{ttft}_bucket", **of_target, le="+Inf") == 1
    e2e = "loadgen_e2e_request_latency_seconds_count"
    assert value(found, e2e, **of_target, outcome="ok") == 1
    assert value(found, e2e, **of_target, outcome="http_5xx") == 1


def test_every_name_is_told_and_no_other() -> None:
    """NAMES is what the documentation is compared with."""
    exporter = Exporter()
    run = begun(exporter)
    run.turn_began("a", 1001.0, counted, lambda: [Vitals(0)])
    with served(exporter) as url:
        families = list(text_string_to_metric_families(scrape(url)))
    told = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert told == set(NAMES)
    assert all(family.documentation for family in families)


def test_series_are_there_before_anything_happened() -> None:
    """From 0 on, so that a rate misses nothing and no panel is empty: each outcome and bucket."""
    exporter = Exporter()
    begun(exporter, "r1", "a", "b")
    found = samples(exporter)
    for target in ("a", "b"):
        labels = {"run": "r1", "target": target}
        for outcome in Outcome:
            assert value(found, "loadgen_requests_total", **labels, outcome=outcome) == 0
        name = "loadgen_e2e_request_latency_seconds_bucket"
        assert value(found, name, **labels, outcome="ok", le="+Inf") == 0
        assert value(found, "loadgen_turn_active", **labels) == 0


def test_turns_of_one_target_add_up() -> None:
    """A target that has several turns keeps what the earlier ones counted."""
    exporter = Exporter()
    run = begun(exporter)
    for _ in range(2):
        run.turn_began("a", 1001.0, counted, lambda: [Vitals(0)])
        run.turn_ended("a")
    found = samples(exporter)
    assert value(found, "loadgen_requests_sent_total", run="r1", target="a") == 4
    assert value(found, "loadgen_turn_active", run="r1", target="a") == 0


def test_what_an_ended_run_tells() -> None:
    """Its counts stay; it is not active; workers are at rest; the verdict is one of three."""
    exporter = Exporter()
    run = begun(exporter)
    run.turn_began("a", 1001.0, counted, lambda: [Vitals(0, 3, 0.5, 0.9)])
    run.ended()
    before = samples(exporter)
    assert {value(before, "loadgen_run_verdict", run="r1", grade=g) for g in Grade} == {0}
    run.judged(Grade.SUSPECT)
    found = samples(exporter)
    assert value(found, "loadgen_requests_sent_total", run="r1", target="a") == 2
    assert value(found, "loadgen_run_active", run="r1") == 0
    assert value(found, "loadgen_worker_cpu_ratio", run="r1", worker="0") == 0
    assert value(found, "loadgen_open_connections", run="r1", target="a") == 0
    assert [value(found, "loadgen_run_verdict", run="r1", grade=g) for g in Grade] == [
        float(grade is Grade.SUSPECT) for grade in Grade
    ]


def test_old_runs_are_forgotten() -> None:
    """However many there were, only the newest few are told, and each series once."""
    exporter = Exporter()
    sizes = []
    for number in range(RUNS_KEPT + 3):
        run = begun(exporter, f"r{number}", "a", "b")
        run.turn_began("a", 1001.0, counted, lambda: [Vitals(0)])
        run.ended()
        sizes.append(len(samples(exporter)))
    assert sizes[RUNS_KEPT - 1 :] == [sizes[-1]] * (len(sizes) - RUNS_KEPT + 1)
    runs = {dict(labels).get("run") for _, labels in samples(exporter)}
    assert runs == {f"r{number}" for number in range(3, RUNS_KEPT + 3)}


def test_the_number_of_series_is_bounded() -> None:
    """A run in which everything has gone wrong once has some thousands of series, no more."""
    live = LiveCounters()
    for outcome in Outcome:
        live.ended(made_record(start=0.0, chunks=(0.5, 1.0), outcome=outcome))
    live.flush()
    exporter = Exporter()
    begun(exporter).turn_began("a", 1001.0, lambda: live, lambda: [Vitals(0)])
    histograms = 4 + 3 * len(Outcome)
    assert len(samples(exporter)) < histograms * (len(LATENCY_BOUNDS_S) + 3) + 100


def test_no_label_is_as_long_as_a_user_likes() -> None:
    """A model's name comes from outside, and is cut."""
    exporter = Exporter()
    exporter.begin("r1", {"model": "m" * 5000}, ("a",), 1000.0)
    with served(exporter) as url:
        assert max(map(len, scrape(url).splitlines())) < 500


def test_labels_are_escaped() -> None:
    """A model whose name holds quotes and line breaks does not break the text."""
    exporter = Exporter()
    exporter.begin("r1", {"model": 'a"b\\c\nd'}, ("a",), 1000.0)
    found = samples(exporter)
    (labels,) = [dict(labels) for name, labels in found if name == "loadgen_run_info"]
    assert labels["model"] == 'a"b\\c\nd'


def test_a_port_that_is_taken_is_one_line() -> None:
    """ConfigError with the flag, and not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--metrics-port {port}: cannot serve"):
            Exporter().serve("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_one_line() -> None:
    """The same for a name that cannot be looked up."""
    with pytest.raises(ConfigError, match=r"cannot serve on no-such-host\.invalid"):
        Exporter().serve("no-such-host.invalid", 0)


def test_ipv6() -> None:
    """The loopback of IPv6 serves as well, and its URL has brackets."""
    exporter = Exporter()
    begun(exporter)
    with served(exporter, "::1") as url:
        assert url.startswith("http://[::1]:")
        assert "loadgen_run_info" in scrape(url)


def test_lingering_ends_with_a_scrape() -> None:
    """It waits for a scrape that began after the end, and not for one before."""
    exporter = Exporter()
    run = begun(exporter)
    with served(exporter) as url:
        scrape(url)
        run.ended()
        assert not exporter.linger(limit_s=0.05)
        scraper = threading.Timer(0.1, scrape, [url])
        scraper.start()
        assert exporter.linger(limit_s=10.0)
        scraper.join()


def test_clients_that_say_nothing_do_not_keep_others_out() -> None:
    """Connections that stay silent are bounded, and a scrape comes through once they are gone."""
    exporter = Exporter()
    begun(exporter)
    with served(exporter) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(15)]
        assert "loadgen_run_info" in scrape(url)
        for connection in silent:
            connection.close()
