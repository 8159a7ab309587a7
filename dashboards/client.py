"""*Load generator*: whether the instrument can be trusted, and what came back.

Its rows follow the verdict's questions: was the load the one that was asked for, was the client
itself at its limit, how did the requests end. The limits are those of loadgen/verdict.py.
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import style
from dashboards.frame import dashboard
from dashboards.panels import Look, Panel, Query, graph, listing, number, words
from dashboards.promql import (
    client,
    idle,
    in_range,
    last_in_range,
    of_run,
    quantile,
    rate,
    total,
    verdict,
)
from loadgen.verdict import THRESHOLDS

UID = "loadgen-client"

NO_REQUESTS = "no requests yet"
NO_RUN = "no run yet"

INTRODUCTION = (
    "The load generator is an instrument, and this is its own health. Requests must go out when "
    "they are due (schedule lag near zero), and its workers must have breath left (event loop and "
    "processor below the dashed lines); else the latencies hold its own delays, and the verdict "
    "says so."
)

BY_OUTCOME = Look(colours=tuple(style.named_colours(style.OUTCOMES)), stacked=True)
BY_WORKER = Look(colours=tuple(style.numbered_colours("worker")))

CPU_LIMITS = ((style.WORKER_CPU[0], style.DOUBTFUL), (style.WORKER_CPU[1], style.BAD))
LAG_LIMITS = ((style.LOOP_LAG_S, style.BAD),)
ERRORS = THRESHOLDS["error_share"]
VERDICTS = {
    0.0: ("running", style.NEUTRAL),
    1.0: ("VALID", style.GOOD),
    2.0: ("SUSPECT", style.DOUBTFUL),
    3.0: ("INVALID", style.BAD),
}


def p50_and_p99(buckets: str) -> tuple[Query, Query]:
    """The two quantiles of a histogram of loadgen's, by target."""
    return (
        Query(quantile(0.5, buckets, "target"), "{{target}} p50"),
        Query(quantile(0.99, buckets, "target"), "{{target}} p99"),
    )


def verdict_panel(span: int) -> Panel:
    return number(
        "Verdict",
        "How far the latest of the chosen runs can be trusted: only VALID figures are worth "
        "comparing. The reasons stand in its report. From loadgen_run_verdict.",
        style.COUNT,
        Query(verdict(), "{{run}}"),
        span=span,
        empty=NO_RUN,
        words=VERDICTS,
    )


def alerts_panel(span: int) -> Panel:
    return number(
        "Alerts",
        "Alerts that are firing now; none is good. Prometheus shows them, and what to do, under "
        "/alerts. From ALERTS.",
        style.COUNT,
        Query('count(ALERTS{alertstate="firing"}) or on () vector(0)', "firing"),
        span=span,
        empty="Prometheus does not answer",
        limits=((1, style.BAD),),
    )


def build() -> Dashboard:
    return dashboard(
        UID,
        "Load generator",
        "The client's own health: was the load the one that was asked for, and what came back.",
        [
            ("", [words(INTRODUCTION), *_now()]),
            ("Is the load the one that was asked for?", _punctuality()),
            ("Is the client itself at its limit?", _effort()),
            ("What came back", _content()),
            ("Latency from the time a request was due", _from_due()),
            ("Runs", _runs()),
        ],
        choose=True,
    )


def _now() -> list[Panel]:
    ended = total(in_range(client("loadgen_requests_total")))
    failed = total(in_range(client("loadgen_requests_total", 'outcome!="ok"')))
    return [
        number(
            "Run",
            "Whether requests are being sent now. From loadgen_run_active.",
            style.COUNT,
            Query(f"max({of_run('loadgen_run_active')}) or on () vector(0)", "run"),
            span=3,
            empty=NO_RUN,
            words={0.0: ("idle", style.GREY), 1.0: ("running", style.NEUTRAL)},
        ),
        verdict_panel(3),
        alerts_panel(3),
        number(
            "Requests sent",
            "Within the range, by target. From loadgen_requests_sent_total.",
            style.COUNT,
            Query(idle(total(in_range(client("loadgen_requests_sent_total")), "target"))),
            span=6,
            empty=NO_REQUESTS,
            look=Look(),
        ),
        number(
            "Failed share",
            "Requests within the range that ended otherwise than ok, of all that ended; the "
            "verdict is SUSPECT above the first limit. From loadgen_requests_total.",
            style.SHARE,
            Query(f"({failed} or on () vector(0)) / ({ended} > 0)", "failed"),
            span=3,
            empty=NO_REQUESTS,
            limits=((ERRORS.suspect, style.DOUBTFUL), (ERRORS.invalid, style.BAD)),
            decimals=1,
        ),
        number(
            "Busiest worker",
            "The most of a core that a worker used within the range; below the first limit is "
            "good. From loadgen_worker_cpu_ratio.",
            style.SHARE,
            Query(_worst("loadgen_worker_cpu_ratio"), "cpu"),
            span=3,
            empty=NO_RUN,
            limits=CPU_LIMITS,
            decimals=0,
        ),
        number(
            "Worst loop lag",
            "The latest that a worker's event loop came to anything within the range; a few "
            "milliseconds are good. From loadgen_event_loop_lag_seconds.",
            style.SECONDS,
            Query(_worst("loadgen_event_loop_lag_seconds"), "lag"),
            span=3,
            empty=NO_RUN,
            limits=LAG_LIMITS,
        ),
    ]


def _worst(gauge: str) -> str:
    return f"max(max_over_time({of_run(gauge)}[$__range]))"


def _punctuality() -> list[Panel]:
    return [
        graph(
            "Requests due, sent and ended",
            "Due by the trace (dotted), sent (solid) and ended (dashed), a second. Sent must lie "
            "on due; ended lags behind where the server is the slower one. From "
            "loadgen_requests_due_total, _sent_total and loadgen_requests_total.",
            style.REQUESTS_PER_S,
            Query(idle(rate(client("loadgen_requests_sent_total"), "target")), "{{target}} sent"),
            Query(rate(client("loadgen_requests_due_total"), "target"), "{{target}} due"),
            Query(rate(client("loadgen_requests_total"), "target"), "{{target}} ended"),
            span=9,
            empty=NO_REQUESTS,
            look=Look(dashed="/ended/", dotted="/due/"),
        ),
        graph(
            "Schedule lag",
            "How late requests were sent, against when they were due: the client's own delay. "
            "Below 10 ms is good. From loadgen_schedule_lag_seconds.",
            style.SECONDS,
            *p50_and_p99(client("loadgen_schedule_lag_seconds_bucket")),
            span=9,
            empty=NO_REQUESTS,
            look=Look(dashed="/p99/"),
        ),
        graph(
            "Whose turn it is",
            "1 while a target has its turn. Targets of a comparison take turns, so that they do "
            "not share the machine. From loadgen_turn_active.",
            style.COUNT,
            Query(idle(f"max by (target) ({client('loadgen_turn_active')})"), "{{target}}"),
            span=6,
            empty=NO_REQUESTS,
            look=Look(stepped=True),
            top=1,
        ),
    ]


def _effort() -> list[Panel]:
    return [
        graph(
            "Event-loop lag by worker",
            "The latest that a worker's event loop came to anything in the last 5 s; tokens are "
            "stamped that late at worst. Below the line is good. From "
            "loadgen_event_loop_lag_seconds.",
            style.SECONDS,
            Query(
                f"max by (worker) ({of_run('loadgen_event_loop_lag_seconds')})",
                "worker {{worker}}",
            ),
            span=8,
            empty=NO_RUN,
            look=BY_WORKER,
            limits=LAG_LIMITS,
        ),
        graph(
            "Processor by worker",
            "Share of one core that each worker uses. Above the first line the verdict is "
            "SUSPECT, and more --workers help. From loadgen_worker_cpu_ratio.",
            style.SHARE,
            Query(f"max by (worker) ({of_run('loadgen_worker_cpu_ratio')})", "worker {{worker}}"),
            span=8,
            empty=NO_RUN,
            look=BY_WORKER,
            limits=CPU_LIMITS,
            top=1,
        ),
        graph(
            "Stream events/s",
            "Events with content that arrive from each target: what costs the client its time. "
            "loadgen selfcheck says how many a worker can take here. From loadgen_chunks_total.",
            style.EVENTS_PER_S,
            Query(idle(rate(client("loadgen_chunks_total"), "target"))),
            span=8,
            empty=NO_REQUESTS,
        ),
    ]


def _content() -> list[Panel]:
    by_outcome = rate(client("loadgen_requests_total"), "outcome")
    ok_alone = rate(client("loadgen_requests_total", 'outcome="ok"'), "outcome")
    return [
        graph(
            "Outcomes",
            "Requests that ended, by how, of what occurred; all ok is good. From "
            "loadgen_requests_total.",
            style.REQUESTS_PER_S,
            Query(f"{by_outcome} > 0 or {ok_alone}", "{{outcome}}"),
            span=8,
            empty=NO_REQUESTS,
            look=BY_OUTCOME,
        ),
        number(
            "Outcomes, as counts",
            "The same over the range. What each outcome means stands in docs/metrics.md. From "
            "loadgen_requests_total.",
            style.COUNT,
            Query(
                f"{total(in_range(client('loadgen_requests_total')), 'outcome')} > 0",
                "{{outcome}}",
            ),
            span=4,
            height=8,
            empty=NO_REQUESTS,
            look=BY_OUTCOME,
        ),
        graph(
            "Tokens/s",
            "Output tokens as they arrive (solid), and prompt tokens of requests that ended "
            "(dashed). From loadgen_output_tokens_total and loadgen_prompt_tokens_total.",
            style.TOKENS_PER_S,
            Query(idle(rate(client("loadgen_output_tokens_total"), "target")), "{{target}} output"),
            Query(rate(client("loadgen_prompt_tokens_total"), "target"), "{{target}} prompt"),
            span=6,
            empty=NO_REQUESTS,
            look=Look(dashed="/prompt/"),
        ),
        graph(
            "In flight, and open connections",
            "Requests that have not ended (solid) and connections that are open (dashed). More "
            "connections than requests are idle ones, kept for reuse. From "
            "loadgen_requests_in_flight and loadgen_open_connections.",
            style.COUNT,
            Query(
                idle(total(client("loadgen_requests_in_flight"), "target")), "{{target}} in flight"
            ),
            Query(total(client("loadgen_open_connections"), "target"), "{{target}} connections"),
            span=6,
            empty=NO_REQUESTS,
            look=Look(dashed="/connections/"),
        ),
    ]


def _from_due() -> list[Panel]:
    def both(name: str, *more: str) -> tuple[Query, Query]:
        start, due = (
            quantile(0.99, client(f"loadgen_{name}{kind}_seconds_bucket", *more), "target")
            for kind in ("", "_from_due")
        )
        return Query(start, "{{target}} from start"), Query(due, "{{target}} from due")

    why = "Where they part, requests waited in the client, and only the latter tells of it."
    return [
        graph(
            "Time to first token, p99",
            f"From when it was sent (solid) and from when it was due (dashed). {why} From "
            "loadgen_time_to_first_token_seconds and loadgen_time_to_first_token_from_due_seconds.",
            style.SECONDS,
            *both("time_to_first_token"),
            span=8,
            empty=NO_REQUESTS,
            look=Look(dashed="/from due/"),
        ),
        graph(
            "End-to-end latency, p99",
            f"From when it was sent (solid) and from when it was due (dashed), of what ended well. "
            f"{why} From loadgen_e2e_request_latency_seconds and "
            "loadgen_e2e_request_latency_from_due_seconds.",
            style.SECONDS,
            *both("e2e_request_latency", 'outcome="ok"'),
            span=8,
            empty=NO_REQUESTS,
            look=Look(dashed="/from due/"),
        ),
        graph(
            "Time per output token",
            "One value a request: the time after its first token, over the tokens after it; low is "
            "good. From loadgen_time_per_output_token_seconds.",
            style.SECONDS,
            *p50_and_p99(client("loadgen_time_per_output_token_seconds_bucket", 'outcome="ok"')),
            span=8,
            empty=NO_REQUESTS,
            look=Look(dashed="/p99/"),
        ),
    ]


def _runs() -> list[Panel]:
    return [
        listing(
            "Runs within the range",
            "What was run: runs with the same trace_sha256 sent the same requests. From "
            "loadgen_run_info.",
            Query(last_in_range(of_run("loadgen_run_info")), "{{run}}"),
            columns=(
                "run",
                "kind",
                "pace",
                "transport",
                "workers",
                "model",
                "version",
                "trace_sha256",
            ),
            span=24,
            empty=NO_RUN,
        ),
    ]
