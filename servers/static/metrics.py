"""The static server's Prometheus metrics: the names, and what each event adds to them.

Times are seconds, counts end in `_total`, and only closed sets are labels. Where vLLM has the same
quantity the name differs by its prefix alone. `static_row_steps_total` counts one for each row in
each decoding step, and `static_wasted_row_steps_total` those of rows that had ended already or
whose client had left: their ratio is what static batching wastes.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

FINISHED_REASONS = ("stop", "length", "abort", "error")
REFUSED_STATUSES = (400, 401, 404, 405, 413, 429, 503)

_LATENCY_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    320.0,
    640.0,
)
_TOKEN_GAP_S = (
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.0,
    5.0,
    10.0,
)
_FORM_WAIT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, batch_size: int, max_queue: int) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.info = Info("static_server", "What is served, and how.", registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"static_{name}", text, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"static_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"static_{name}", text, registry=registry, buckets=buckets)

        self.running = gauge(
            "num_requests_running", "Requests in the running batch that have not ended."
        )
        self.waiting = gauge("num_requests_waiting", "Requests that wait for a batch.")
        self.held = gauge("batch_slots_held", "Rows of the running batch, ended ones included.")
        gauge("batch_slots", "Rows of a full batch (--batch-size).").set(batch_size)
        gauge("queue_limit", "Requests that may wait (--max-queue).").set(max_queue)
        self.ready = gauge("model_ready", "1 while the model can run a batch.")
        self.restarts = counter("model_restarts", "Times the model's process was started again.")

        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens of requests that entered a batch."
        )
        self.padding_tokens = counter(
            "padding_tokens", "Padding tokens put before shorter prompts of a batch."
        )
        self.generation_tokens = counter(
            "generation_tokens", "Tokens generated for requests that had not ended."
        )
        self.steps = counter("decode_steps", "Decoding steps of all batches.")
        self.row_steps = counter("row_steps", "Rows computed, summed over decoding steps.")
        self.wasted_row_steps = counter(
            "wasted_row_steps",
            "Rows computed after they had ended or their client had left, summed over steps.",
        )
        self.batches = Counter(
            "static_batches", "Batches by how they ended.", ["result"], registry=registry
        )
        self.finished = Counter(
            "static_request_finished",
            "Requests that ended, by reason.",
            ["finished_reason"],
            registry=registry,
        )
        self.refused = Counter(
            "static_request_refused",
            "Requests that were not accepted, by HTTP status.",
            ["status"],
            registry=registry,
        )

        self.ttft_s = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            _LATENCY_S,
        )
        self.itl_s = histogram(
            "inter_token_latency_seconds", "Between tokens of a request.", _TOKEN_GAP_S
        )
        self.e2e_s = histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", _LATENCY_S
        )
        self.queue_s = histogram(
            "request_queue_time_seconds", "From arrival to the start of the batch.", _LATENCY_S
        )
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens made for a request.", _TOKENS
        )
        self.batch_rows = histogram("batch_rows", "Requests in a batch when it starts.", _ROWS)
        self.form_wait_s = histogram(
            "batch_form_wait_seconds",
            "Time an idle model waited for a batch to fill, once a request was there.",
            _FORM_WAIT_S,
        )
        self.batch_s = histogram(
            "batch_duration_seconds", "From a batch's start to its last token.", _LATENCY_S
        )
        # Children of labelled metrics are made now: each series exists from the first scrape, and
        # `.inc()` is cheap.
        self.by_reason = {reason: self.finished.labels(reason) for reason in FINISHED_REASONS}
        self.by_status = {status: self.refused.labels(str(status)) for status in REFUSED_STATUSES}
        self.batches_ok, self.batches_failed = (
            self.batches.labels("ok"),
            self.batches.labels("failed"),
        )

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
