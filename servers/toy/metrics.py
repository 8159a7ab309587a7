"""The toy's Prometheus metrics: what its policy computes, and how well it keeps its time.

Names differ from the static server's and vLLM's by their prefix where the quantity is the same, so
that no dashboard takes a toy for a server.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)

from loadgen.sim.policy import Step

LABEL = "toy: a simulation in real time, not a model"
_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_LATE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
_REASONS = ("length", "abort")
_STATUSES = (400, 404, 405, 413, 429)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, facts: dict[str, str]) -> None:
        self.registry = registry = CollectorRegistry()
        Info("toy_server", "What is served, and that it is a toy.", registry=registry).info(
            {"label": LABEL, **facts}
        )

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"toy_{name}", text, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"toy_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"toy_{name}", text, registry=registry, buckets=buckets)

        self.running = gauge("num_requests_running", "Requests that have begun and not ended.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that began.")
        self.generation_tokens = counter("generation_tokens", "Tokens made.")
        self.iterations = counter("iterations", "Iterations of the policy.")
        self.prefill_tokens = counter("prefill_tokens", "Prompt tokens computed, with padding.")
        self.row_steps = counter("row_steps", "Rows decoded, summed over iterations.")
        self.wasted_row_steps = counter("wasted_row_steps", "Of row_steps, those for nobody.")
        self.preemptions = counter("preemptions", "Sequences that lost their KV blocks.")
        self.ttft_s = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _LATENCY_S
        )
        self.e2e_s = histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", _LATENCY_S
        )
        self.late_s = histogram(
            "late_seconds", "How late the end of an iteration was handed out.", _LATE_S
        )
        finished = Counter(
            "toy_request_finished", "Requests that ended.", ["finished_reason"], registry=registry
        )
        refused = Counter(
            "toy_request_refused", "Requests not accepted.", ["status"], registry=registry
        )
        self.by_reason = {reason: finished.labels(reason) for reason in _REASONS}
        self.by_status = {status: refused.labels(str(status)) for status in _STATUSES}

    def count(self, step: Step, late_s: float) -> None:
        """Add an iteration that has been handed out, so late."""
        self.iterations.inc()
        self.generation_tokens.inc(len(step.emitting))
        self.prefill_tokens.inc(step.prefill_tokens)
        self.row_steps.inc(step.decode_rows)
        self.wasted_row_steps.inc(step.wasted_rows)
        self.preemptions.inc(len(step.preempted))
        self.late_s.observe(max(0.0, late_s))

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
