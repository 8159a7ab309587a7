"""Live counters as Prometheus metrics: what `--metrics-port` serves.

It is read when it is scraped, on a thread of its own in the parent's process: the workers that
measure never see it. Names and help texts are the tables below, which `docs/metrics.md` repeats.
Labels are closed or come from the configuration, and only the newest runs are told, so a process
that lives for weeks keeps a bounded number of series. It computes nothing that is kept.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import numpy as np
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from loadgen.errors import ConfigError
from loadgen.live import ByOutcome, LiveCounters, LiveHistogram, Vitals
from loadgen.record import Outcome
from loadgen.verdict import Grade

HISTOGRAMS: Final = (
    ("loadgen_schedule_lag_seconds", "lag_s", "Start minus due time of each request sent."),
    ("loadgen_time_to_first_token_seconds", "ttft_s", "From a request's start to its first token."),
    (
        "loadgen_time_to_first_token_from_due_seconds",
        "ttft_from_due_s",
        "From a request's due time to its first token.",
    ),
    ("loadgen_inter_token_latency_seconds", "itl_s", "Between the tokens of an answer."),
)
"""(name, attribute of LiveCounters, help); labels run and target."""

HISTOGRAMS_BY_OUTCOME: Final = (
    (
        "loadgen_time_per_output_token_seconds",
        "tpot_s",
        "Time after the first token over the other tokens, one value a request.",
    ),
    ("loadgen_e2e_request_latency_seconds", "e2e_s", "From a request's start to its end."),
    (
        "loadgen_e2e_request_latency_from_due_seconds",
        "e2e_from_due_s",
        "From a request's due time to its end.",
    ),
)
"""As HISTOGRAMS, with the label outcome."""

COUNTERS: Final = (
    ("loadgen_requests_due_total", "due", "Requests whose due time has come."),
    ("loadgen_requests_sent_total", "sent", "Requests that were taken up."),
    (
        "loadgen_good_requests_total",
        "good",
        "Requests that ended ok within every objective of --goodput.",
    ),
    ("loadgen_prompt_tokens_total", "prompt_tokens", "Prompt tokens of requests that ended."),
    ("loadgen_output_tokens_total", "tokens", "Output tokens, as they come."),
    ("loadgen_chunks_total", "chunks", "Events of streams that carried content."),
)
"""As HISTOGRAMS."""

REQUESTS: Final = ("loadgen_requests_total", "Requests that ended, by outcome.")
IN_FLIGHT: Final = ("loadgen_requests_in_flight", "Requests taken up that have not ended.")
CONNECTIONS: Final = ("loadgen_open_connections", "Connections that stand, in use or idle.")
TURN_ACTIVE: Final = ("loadgen_turn_active", "1 while the target has its turn.")
TURN_START: Final = (
    "loadgen_turn_start_time_seconds",
    "When the target's latest turn began, in Unix time.",
)
LOOP_LAG: Final = (
    "loadgen_event_loop_lag_seconds",
    "Worst lateness of a worker's event loop in the last 5 s.",
)
WORKER_CPU: Final = ("loadgen_worker_cpu_ratio", "Share of one core that a worker takes.")
RUN_INFO: Final = ("loadgen_run_info", "What is run.")
RUN_ACTIVE: Final = ("loadgen_run_active", "1 while the run goes on.")
RUN_START: Final = ("loadgen_run_start_time_seconds", "When the run began, in Unix time.")
VERDICT: Final = (
    "loadgen_run_verdict",
    "1 for the grade that the verdict has; 0 for all while the run goes on.",
)

NAMES: Final = tuple(
    name
    for name, *_ in (
        *(*HISTOGRAMS, *HISTOGRAMS_BY_OUTCOME, *COUNTERS),
        *(REQUESTS, IN_FLIGHT, CONNECTIONS, TURN_ACTIVE, TURN_START, LOOP_LAG, WORKER_CPU),
        *(RUN_INFO, RUN_ACTIVE, RUN_START, VERDICT),
    )
)
"""Every metric there is."""

FACTS: Final = ("kind", "pace", "transport", "workers", "model", "trace_sha256", "version")
"""Labels of `loadgen_run_info`, beside the run."""
RUNS_KEPT: Final = 3
LINGER_S: Final = 300.0
_MAX_CLIENTS: Final = 16
_CLIENT_TIMEOUT_S: Final = 10.0
_MODEL_CHARS: Final = 100


@dataclass(slots=True)
class _Target:
    """What one target's turns came to so far; `live` and `vitals` give the turn that goes on."""

    done: LiveCounters = field(default_factory=LiveCounters)
    live: Callable[[], LiveCounters] | None = None
    vitals: Callable[[], Sequence[Vitals]] = tuple
    turn_began: float | None = None

    def now(self) -> LiveCounters:
        running = () if self.live is None else (self.live(),)
        return LiveCounters.sum_of((self.done, *running))

    def end_turn(self) -> None:
        self.done, self.live, self.vitals = self.now(), None, tuple


class LiveRun:
    """One run, as the exporter shows it; the conductor tells it of turns."""

    def __init__(
        self,
        run_id: str,
        facts: dict[str, str],
        targets: Iterable[str],
        began: float,
        requests: int = 0,
    ) -> None:
        self.run_id = run_id
        self.requests = requests
        """How many there are to send, all targets together."""
        self.facts = facts
        self.began = began
        self.is_active = True
        self.grade: Grade | None = None
        self.targets = {name: _Target() for name in targets}
        self._workers: set[int] = set()  # all that were seen: one at rest is told too
        self._lock = threading.Lock()

    def turn_began(
        self,
        target: str,
        began: float,
        live: Callable[[], LiveCounters],
        vitals: Callable[[], Sequence[Vitals]],
    ) -> None:
        """`live` and `vitals` are called from another thread, whenever a scrape comes."""
        with self._lock:
            turn = self.targets[target]
            turn.live, turn.vitals, turn.turn_began = live, vitals, began
            self._workers |= {state.worker for state in vitals()}

    def turn_ended(self, target: str) -> None:
        with self._lock:
            self.targets[target].end_turn()

    def ended(self) -> None:
        """Nothing more is sent; what was counted stays."""
        with self._lock:
            for target in self.targets.values():
                target.end_turn()
            self.is_active = False

    def judged(self, grade: Grade) -> None:
        self.grade = grade

    def counters(self) -> dict[str, tuple[LiveCounters, bool]]:
        """Of each target, what was counted so far, and whether it has its turn."""
        with self._lock:
            return {n: (t.now(), t.live is not None) for n, t in self.targets.items()}

    def families(self) -> Iterator[Metric]:
        """Everything that is to be told of this run."""
        run = self.run_id
        with self._lock:
            yield from self._of_run()
            states = {worker: Vitals(worker) for worker in self._workers}
            for name, target in self.targets.items():
                labels = {"run": run, "target": name}
                vitals = list(target.vitals())
                states |= {state.worker: state for state in vitals}
                connections = sum(state.open_connections for state in vitals)
                yield _gauge(TURN_ACTIVE, target.live is not None, **labels)
                yield _gauge(CONNECTIONS, connections, **labels)
                if target.turn_began is not None:
                    yield _gauge(TURN_START, target.turn_began, **labels)
                yield from _of_target(target.now(), labels)
        for worker, state in sorted(states.items()):
            yield _gauge(LOOP_LAG, state.loop_lag_s, run=run, worker=str(worker))
            yield _gauge(WORKER_CPU, state.cpu_ratio, run=run, worker=str(worker))

    def _of_run(self) -> Iterator[Metric]:
        run = self.run_id
        facts = {key: self.facts.get(key, "")[:_MODEL_CHARS] for key in FACTS}
        yield _gauge(RUN_INFO, 1, run=run, **facts)
        yield _gauge(RUN_ACTIVE, self.is_active, run=run)
        yield _gauge(RUN_START, self.began, run=run)
        for grade in Grade:
            yield _gauge(VERDICT, grade is self.grade, run=run, grade=str(grade))


class Exporter(Collector):
    """Holds the newest runs, and serves them where it was told to."""

    def __init__(self) -> None:
        self._runs: list[LiveRun] = []
        self._server: _Server | None = None
        self._is_over = False
        self._end_was_told = False
        self._end_was_taken = threading.Event()

    def serve(self, host: str, port: int) -> str:
        """Serve on a thread; the URL. Raises ConfigError where the address cannot be had."""
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = _Server(host, port, on_answered=self._on_answered)
        except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"--metrics-port {port}: cannot serve on {host}: {reason}") from None
        self._server.set_app(make_wsgi_app(registry))
        threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics").start()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._server.server_address[1]}/metrics"

    def begin(
        self,
        run_id: str,
        facts: dict[str, str],
        targets: Iterable[str],
        began: float,
        requests: int = 0,
    ) -> LiveRun:
        """Show a new run; the oldest is forgotten where there are too many."""
        run = LiveRun(run_id, facts, targets, began, requests)
        self._runs = [*self._runs[-(RUNS_KEPT - 1) :], run]
        return run

    @property
    def newest(self) -> LiveRun | None:
        return self._runs[-1] if self._runs else None

    def linger(self, limit_s: float = LINGER_S) -> bool:
        """Wait until what stands now was scraped; whether it was, within the limit."""
        self._is_over = True
        return self._end_was_taken.wait(limit_s)

    def _on_answered(self) -> None:
        if self._end_was_told:
            self._end_was_taken.set()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def describe(self) -> Iterable[Metric]:
        return []  # what there is to tell changes with the runs

    def collect(self) -> Iterator[Metric]:
        """One family a name, whatever the number of runs."""
        is_over = self._is_over
        families: dict[str, Metric] = {}
        for run in self._runs:
            for part in run.families():
                whole = families.setdefault(part.name, part)
                if whole is not part:
                    whole.samples += part.samples
        yield from families.values()
        self._end_was_told = is_over


def _of_target(live: LiveCounters, labels: dict[str, str]) -> Iterator[Metric]:
    yield _gauge(IN_FLIGHT, live.in_flight, **labels)
    for name, attribute, text in COUNTERS:
        counter = CounterMetricFamily(name, text, labels=list(labels))
        counter.add_metric(list(labels.values()), getattr(live, attribute))
        yield counter
    requests = CounterMetricFamily(*REQUESTS, labels=[*labels, "outcome"])
    for outcome in Outcome:
        requests.add_metric([*labels.values(), str(outcome)], live.outcomes[outcome])
    yield requests
    for name, attribute, text in HISTOGRAMS:
        yield _histogram(name, text, getattr(live, attribute), labels)
    for name, attribute, text in HISTOGRAMS_BY_OUTCOME:
        by_outcome: ByOutcome = getattr(live, attribute)
        for outcome, histogram in by_outcome.items():
            yield _histogram(name, text, histogram, {**labels, "outcome": str(outcome)})


def _gauge(named: tuple[str, str], value: float, **labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(*named, labels=list(labels))
    family.add_metric(list(labels.values()), float(value))
    return family


def _histogram(
    name: str, text: str, histogram: LiveHistogram, labels: dict[str, str]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=list(labels))
    bounds = [*map(str, histogram.bounds), "+Inf"]
    up_to = np.cumsum(histogram.counts).tolist()
    family.add_metric(
        list(labels.values()), list(zip(bounds, up_to, strict=True)), sum_value=histogram.sum
    )
    return family


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S  # of a client that connects and says nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not news."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a scrape, a few at most."""

    daemon_threads = True

    def __init__(self, host: str, port: int, on_answered: Callable[[], None]) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._on_answered = on_answered
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As WSGIServer's, without the look-up of this machine's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
            self._on_answered()
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not our error."""
