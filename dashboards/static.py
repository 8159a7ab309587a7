"""*Static-batch server*: its queue, its batches, and the work that goes into rows which had ended.

All from the server's own metrics (servers/static/metrics.py), under their own names.
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import style
from dashboards.frame import dashboard
from dashboards.panels import Look, Panel, Query, graph, number, quantiles, words
from dashboards.promql import mean, quantile, rate, ratio, total

UID = "loadgen-static"

NO_SERVER = "the static server has not been scraped yet"
NO_REQUESTS = "no requests yet"
NO_BATCHES = "no batches yet"

INTRODUCTION = (
    "This server collects requests into a batch, runs the batch until its longest answer has "
    "ended, and only then begins the next. A row that has ended still holds its slot and is still "
    "computed: that is the waste shown here. Requests that come meanwhile wait: that is the "
    "queue time."
)

OWN = quantiles("static")
REASONS = Look(colours=tuple(style.named_colours(style.REASONS)), stacked=True)
KINDS = Look(
    colours=tuple(
        style.named_colours(
            {"generated|useful|ok": style.ORANGE, "prompt": style.BLUE, "padding": style.PURPLE}
            | {"wasted|failed": style.VERMILLION}
        )
    )
)
STACKED_KINDS = Look(colours=KINDS.colours, stacked=True)
STATUSES = Look(colours=tuple(style.numbered_colours("HTTP")), stacked=True)


def three(histogram: str) -> tuple[Query, ...]:
    """p50, p90 and p99 of a histogram."""
    return tuple(
        Query(quantile(q, f"{histogram}_bucket"), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)
    )


def build() -> Dashboard:
    return dashboard(
        UID,
        "Static-batch server",
        "Queue, batches and waste of the server that batches statically.",
        [
            ("", [words(INTRODUCTION), *_now()]),
            ("Queue and batches", _batches()),
            ("What the work goes into", _work()),
            ("Latency, as the server sees it", _latency()),
            ("Requests", _requests()),
        ],
        choose=False,
    )


def _now() -> list[Panel]:
    wasted, steps = (
        f"sum(increase(static_{name}_total[$__range]))"
        for name in ("wasted_row_steps", "row_steps")
    )
    return [
        number(
            "Model",
            "Whether the model can run a batch. From static_model_ready.",
            style.COUNT,
            Query("min(static_model_ready)", "model"),
            span=4,
            empty=NO_SERVER,
            words={0.0: ("not ready", style.BAD), 1.0: ("ready", style.GOOD)},
        ),
        number(
            "Running",
            "Requests in the running batch that have not ended. From static_num_requests_running.",
            style.COUNT,
            Query("sum(static_num_requests_running)", "running"),
            span=4,
            empty=NO_SERVER,
        ),
        number(
            "Waiting",
            "Requests that wait for a batch; near zero is good. From static_num_requests_waiting.",
            style.COUNT,
            Query("sum(static_num_requests_waiting)", "waiting"),
            span=4,
            empty=NO_SERVER,
        ),
        number(
            "Batch size",
            "Rows of a full batch (--batch-size). From static_batch_slots.",
            style.COUNT,
            Query("sum(static_batch_slots)", "rows"),
            span=4,
            empty=NO_SERVER,
        ),
        number(
            "Useful share of row-steps",
            "Of the rows that were computed within the range, those whose answer had not ended. "
            "What is missing to 100 % is what static batching wastes. From "
            "static_wasted_row_steps_total over static_row_steps_total.",
            style.SHARE,
            Query(f"1 - {ratio(wasted, steps)}", "useful"),
            span=4,
            empty=NO_BATCHES,
            decimals=1,
        ),
        number(
            "Model restarts",
            "Times the model's process had to be started again; none is good. From "
            "static_model_restarts_total.",
            style.COUNT,
            Query("sum(static_model_restarts_total)", "restarts"),
            span=4,
            empty=NO_SERVER,
            limits=((1, style.BAD),),
        ),
    ]


def _batches() -> list[Panel]:
    return [
        graph(
            "Running and waiting",
            "Requests in the running batch (solid) and in the queue (dashed). A queue that grows "
            "means more load than the server can take. From static_num_requests_running and "
            "_waiting.",
            style.REQUESTS,
            Query("sum(static_num_requests_running)", "running"),
            Query("sum(static_num_requests_waiting)", "waiting"),
            span=8,
            empty=NO_SERVER,
            look=OWN,
        ),
        graph(
            "Batch fill",
            "Rows that the running batch holds, ended ones included, of those it could; full is "
            "good. From static_batch_slots_held over static_batch_slots.",
            style.SHARE,
            Query(
                ratio(total("static_batch_slots_held"), total("static_batch_slots")), "batch fill"
            ),
            span=8,
            empty=NO_SERVER,
            look=OWN,
            top=1,
        ),
        graph(
            "Requests in a batch when it starts",
            "Mean over the batches of the last seconds; near the batch size is good. Small batches "
            "under load mean that --max-wait is too short. From static_batch_rows.",
            style.REQUESTS,
            Query(mean("static_batch_rows"), "mean rows"),
            span=8,
            empty=NO_BATCHES,
            look=Look(colours=(), other=style.TARGETS["static"]),
        ),
        graph(
            "Time to form a batch",
            "How long an idle model waited for a batch to fill once a request was there; it is "
            "added to the first token's time. From static_batch_form_wait_seconds.",
            style.SECONDS,
            *three("static_batch_form_wait_seconds"),
            span=8,
            empty=NO_BATCHES,
            look=OWN,
        ),
        graph(
            "Batch duration",
            "From a batch's start to its last token: a request that comes just too late waits that "
            "long. From static_batch_duration_seconds.",
            style.SECONDS,
            *three("static_batch_duration_seconds"),
            span=8,
            empty=NO_BATCHES,
            look=OWN,
        ),
        graph(
            "Batches by result",
            "Batches that ended, a second; none may fail. From static_batches_total.",
            style.BATCHES_PER_S,
            Query(rate("static_batches_total", "result"), "{{result}}"),
            span=8,
            empty=NO_SERVER,
            least_top=1,
            look=STACKED_KINDS,
        ),
    ]


def _work() -> list[Panel]:
    useful = f"{rate('static_row_steps_total')} - {rate('static_wasted_row_steps_total')}"
    return [
        graph(
            "Token throughput",
            "Tokens generated for requests that had not ended, and prompt tokens that entered a "
            "batch; more is better. From static_generation_tokens_total and "
            "static_prompt_tokens_total.",
            style.TOKENS_PER_S,
            Query(rate("static_generation_tokens_total"), "generated"),
            Query(rate("static_prompt_tokens_total"), "prompt"),
            span=6,
            empty=NO_SERVER,
            look=KINDS,
        ),
        graph(
            "Row-steps",
            "Rows computed a second, by whether their answer had ended already; little waste is "
            "good. From static_row_steps_total and static_wasted_row_steps_total.",
            style.STEPS_PER_S,
            Query(useful, "useful"),
            Query(rate("static_wasted_row_steps_total"), "wasted"),
            span=6,
            empty=NO_SERVER,
            look=STACKED_KINDS,
        ),
        graph(
            "Wasted share of row-steps",
            "Share of the last minute's rows that were computed after their answer had ended; "
            "low is good, and mixed answer lengths drive it up. From "
            "static_wasted_row_steps_total.",
            style.SHARE,
            Query("avg(static:wasted_row_steps:ratio_rate1m)", "wasted"),
            span=6,
            empty=NO_BATCHES,
            look=KINDS,
            top=1,
        ),
        graph(
            "Padding share of prompts",
            "Share of the last minute's prompt positions that are padding, put before shorter "
            "prompts; low is good. From static_padding_tokens_total and "
            "static_prompt_tokens_total.",
            style.SHARE,
            Query("avg(static:padding_tokens:ratio_rate1m)", "padding"),
            span=6,
            empty=NO_BATCHES,
            look=KINDS,
            top=1,
        ),
    ]


def _latency() -> list[Panel]:
    def latency(title: str, about: str, name: str) -> Panel:
        metric = f"static_{name}_seconds"
        return graph(
            title,
            f"{about} From {metric}.",
            style.SECONDS,
            *three(metric),
            span=6,
            empty=NO_REQUESTS,
            look=OWN,
        )

    return [
        latency(
            "Time to first token",
            "From a request's arrival to its first token, the wait for its batch included; low "
            "is good.",
            "time_to_first_token",
        ),
        latency(
            "Inter-token latency",
            "Between tokens of a request: one decoding step of the whole batch; low is good.",
            "inter_token_latency",
        ),
        latency(
            "End-to-end latency",
            "From a request's arrival to its last token; low is good.",
            "e2e_request_latency",
        ),
        latency(
            "Queue time",
            "From a request's arrival to the start of its batch: the price of static batching; "
            "low is good.",
            "request_queue_time",
        ),
    ]


def _requests() -> list[Panel]:
    return [
        graph(
            "Finish reason",
            "Requests that ended, a second, by reason; stop and length are good. From "
            "static_request_finished_total.",
            style.REQUESTS_PER_S,
            Query(rate("static_request_finished_total", "finished_reason"), "{{finished_reason}}"),
            span=6,
            empty=NO_SERVER,
            look=REASONS,
        ),
        graph(
            "Refused requests",
            "Requests that were not accepted, a second, by HTTP status; 429 is a full queue. From "
            "static_request_refused_total.",
            style.REQUESTS_PER_S,
            Query(rate("static_request_refused_total", "status"), "HTTP {{status}}"),
            span=6,
            empty=NO_SERVER,
            least_top=1,
            look=STATUSES,
        ),
        graph(
            "Request prompt length",
            "Tokens of the prompts that ended in the last seconds. From "
            "static_request_prompt_tokens.",
            style.TOKENS,
            *three("static_request_prompt_tokens"),
            span=6,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Request generation length",
            "Tokens of the answers that ended in the last seconds. The longest of a batch is "
            "what all the others wait for. From static_request_generation_tokens.",
            style.TOKENS,
            *three("static_request_generation_tokens"),
            span=6,
            empty=NO_REQUESTS,
            look=OWN,
        ),
    ]
