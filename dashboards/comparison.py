"""*Static vs continuous*: the dashboard that a newcomer opens.

From the answer (tokens a second, and their ratio) down to its reasons (queues, batches) and to the
check that client and server tell the same story. Client series come from loadgen, server series
from the recording rules, which give both servers one vocabulary.
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import style
from dashboards.client import NO_REQUESTS, alerts_panel, p50_and_p99, verdict_panel
from dashboards.frame import dashboard
from dashboards.panels import Look, Panel, Query, graph, number, words
from dashboards.promql import (
    client,
    idle,
    in_range,
    mean,
    per_turn_second,
    quantile,
    quantile_of,
    rate,
    ratio,
    total,
)

UID = "loadgen-comparison"

NO_SERVER = "no server has been scraped yet"

INTRODUCTION = (
    "The same requests, byte for byte, go to two servers of one model: static (orange) "
    "computes a batch until its longest answer ends and only then takes the next, vllm (blue) "
    "lets requests join and leave the running batch at every step. The targets take turns, so "
    "their curves stand one after the other; solid lines are medians, dashed ones the slowest "
    "1 %.\n"
    "The figures below are over the range chosen above, but over each target's own turns only: "
    "more tokens a second and less time are better. Believe them once the verdict is VALID."
)

TAIL = Look(dashed="/p99/")
CLIENT_AND_SERVER = Look(dashed="/server/", bold="/server/")


def build() -> Dashboard:
    return dashboard(
        UID,
        "Static vs continuous",
        "One trace of requests on a static-batch server and on vLLM: what each gives, and why.",
        [
            ("", [words(INTRODUCTION, height=4), *_answer()]),
            ("Throughput", _throughput()),
            ("Latency, as the client sees it", _latency()),
            ("Where requests are", _queues()),
            ("What the servers' capacity goes into", _batches()),
            ("Goodput", _goodput()),
            ("The client's view over the server's own", _both_views()),
        ],
        choose=True,
    )


def _answer() -> list[Panel]:
    tokens = "loadgen_output_tokens_total"
    of_vllm, of_static = (
        f"({per_turn_second(tokens, more=(matcher,))})"
        for matcher in ('target="vllm"', 'target="static"')
    )
    good, ended = (  # both move when a request ends, so the range cuts both alike
        total(in_range(client(f"loadgen_{name}_total")), "target")
        for name in ("good_requests", "requests")
    )
    ttft = total(in_range(client("loadgen_time_to_first_token_seconds_bucket")), "target", "le")
    return [
        number(
            "Output tokens/s, on average",
            "Tokens that each target gave within the range, per second of its own turns; more is "
            "better. From loadgen_output_tokens_total over loadgen_turn_active.",
            style.TOKENS_PER_S,
            Query(idle(per_turn_second(tokens, "target"))),
            span=6,
            empty=NO_REQUESTS,
            look=TAIL,
            decimals=1,
        ),
        number(
            "vllm / static",
            "How many times the tokens a second of static vllm gives. Above 1, continuous batching "
            "pays. From the figures on the left.",
            style.TIMES,
            Query(ratio(of_vllm, of_static), "gain"),
            span=4,
            empty="not both yet",
            decimals=2,
        ),
        number(
            "Median time to first token",
            "Half of the requests within the range had their first token sooner; less is better. "
            "From loadgen_time_to_first_token_seconds.",
            style.SECONDS,
            Query(quantile_of(0.5, ttft)),
            span=5,
            empty=NO_REQUESTS,
            look=TAIL,
        ),
        number(
            "Good share of requests",
            "Of the requests that ended within the range, or were given up, the share that ended "
            "well within every limit given with --goodput; near 100 % is good. From "
            "loadgen_good_requests_total over loadgen_requests_total.",
            style.SHARE,
            Query(ratio(good, ended)),
            span=4,
            empty=NO_REQUESTS,
            look=TAIL,
            decimals=1,
        ),
        verdict_panel(3),
        alerts_panel(2),
    ]


def _throughput() -> list[Panel]:
    return [
        graph(
            "Output tokens/s",
            "Tokens that arrive at the client; higher is better, and steady is better than bursts. "
            "From loadgen_output_tokens_total.",
            style.TOKENS_PER_S,
            Query(idle(rate(client("loadgen_output_tokens_total"), "target"))),
            span=12,
            empty=NO_REQUESTS,
        ),
        graph(
            "Requests that ended well",
            "Requests that ended with a whole answer, a second. Static batching ends them in "
            "bursts, since a batch ends together. From loadgen_requests_total.",
            style.REQUESTS_PER_S,
            Query(idle(rate(client("loadgen_requests_total", 'outcome="ok"'), "target"))),
            span=12,
            empty=NO_REQUESTS,
        ),
    ]


def _latency() -> list[Panel]:
    ended = "of requests that ended in the last seconds"
    return [
        graph(
            "Time to first token",
            "From sending a request to its first token; low is good. Under static batching it "
            "holds the wait for the batch before. From loadgen_time_to_first_token_seconds.",
            style.SECONDS,
            *p50_and_p99(client("loadgen_time_to_first_token_seconds_bucket")),
            span=8,
            empty=NO_REQUESTS,
            look=TAIL,
        ),
        graph(
            "Inter-token latency",
            "Gaps between the tokens of an answer; low and even is good. From "
            "loadgen_inter_token_latency_seconds.",
            style.SECONDS,
            *p50_and_p99(client("loadgen_inter_token_latency_seconds_bucket")),
            span=8,
            empty=NO_REQUESTS,
            look=TAIL,
        ),
        graph(
            "End-to-end latency",
            f"From sending a request to the end of its answer, {ended} and ended well; low is "
            "good. From loadgen_e2e_request_latency_seconds.",
            style.SECONDS,
            *p50_and_p99(client("loadgen_e2e_request_latency_seconds_bucket", 'outcome="ok"')),
            span=8,
            empty=NO_REQUESTS,
            look=TAIL,
        ),
    ]


def _queues() -> list[Panel]:
    return [
        graph(
            "In flight (client)",
            "Requests that were sent and have not ended. Flat means that the server keeps up "
            "with the load, and a slope that it does not. From loadgen_requests_in_flight.",
            style.REQUESTS,
            Query(idle(total(client("loadgen_requests_in_flight"), "target"))),
            span=8,
            empty=NO_REQUESTS,
        ),
        graph(
            "Running (servers)",
            "Requests in the running batch that have not ended; near the batch size is good use. "
            "From static_num_requests_running and vllm:num_requests_running.",
            style.REQUESTS,
            Query(total("engine:requests_running:sum", "engine"), "{{engine}} running"),
            span=8,
            empty=NO_SERVER,
        ),
        graph(
            "Waiting (servers)",
            "Requests that wait for a place in a batch; near zero is good. From "
            "static_num_requests_waiting and vllm:num_requests_waiting.",
            style.REQUESTS,
            Query(total("engine:requests_waiting:sum", "engine"), "{{engine}} waiting"),
            span=8,
            empty=NO_SERVER,
        ),
    ]


def _batches() -> list[Panel]:
    return [
        graph(
            "static: batch fill, and row-steps wasted",
            "Rows that the batch holds, of those it could (solid), and the share of its work in "
            "the last minute that went into rows which had ended already (dashed). Full and "
            "little waste is good. From static_batch_slots_held and "
            "static_wasted_row_steps_total.",
            style.SHARE,
            Query("avg(static:batch_fill:ratio)", "static batch fill"),
            Query("avg(static:wasted_row_steps:ratio_rate1m)", "static wasted share"),
            span=12,
            empty=NO_SERVER,
            look=Look(dashed="/wasted/"),
            top=1,
        ),
        graph(
            "vllm: KV cache in use",
            "Share of the blocks for keys and values that hold some: what bounds how many "
            "requests run at once. Near 100 % requests wait or are preempted. From "
            "vllm:kv_cache_usage_perc.",
            style.SHARE,
            Query("max(engine:kv_cache_usage:max)", "vllm KV cache"),
            span=12,
            empty="vLLM has not been scraped yet",
            limits=((style.KV_CACHE, style.BAD),),
            top=1,
        ),
    ]


def _goodput() -> list[Panel]:
    good, due = (
        total(client(f"loadgen_{name}_total"), "target")
        for name in ("good_requests", "requests_due")
    )
    return [
        graph(
            "Good requests/s",
            "Requests that ended well, within every limit given with --goodput; near the rate "
            "that was asked is good. From loadgen_good_requests_total.",
            style.REQUESTS_PER_S,
            Query(idle(rate(client("loadgen_good_requests_total"), "target"))),
            span=12,
            empty=NO_REQUESTS,
        ),
        graph(
            "Good share of what was due, so far",
            "Of all requests that were due since the run began; it rises to its final value as the "
            "last ones end. From loadgen_good_requests_total over loadgen_requests_due_total.",
            style.SHARE,
            Query(ratio(good, due)),
            span=12,
            empty=NO_REQUESTS,
            top=1,
        ),
    ]


def _both_views() -> list[Panel]:
    ttft = "time_to_first_token_seconds"
    server_mean = ratio(
        rate(f"engine:{ttft}_sum:sum", "engine"), rate(f"engine:{ttft}_count:sum", "engine")
    )
    return [
        graph(
            "Mean time to first token: client and server",
            "What the client measures (solid) over what the server itself says (dashed). Close "
            "together is good: the rest is the network, or a client that is out of breath. From "
            "loadgen_, static_ and vllm:time_to_first_token_seconds.",
            style.SECONDS,
            Query(mean(client(f"loadgen_{ttft}"), "target"), "{{target}} client"),
            Query(server_mean, "{{engine}} server"),
            span=8,
            empty=NO_REQUESTS,
            look=CLIENT_AND_SERVER,
        ),
        graph(
            "Median time to first token: client and server",
            "The same as a median. The servers' buckets are coarser than the client's, so a "
            "server's median is a guess within its bucket. From the same metrics.",
            style.SECONDS,
            Query(quantile(0.5, client(f"loadgen_{ttft}_bucket"), "target"), "{{target}} client"),
            Query(quantile(0.5, f"engine:{ttft}_bucket:sum", "engine"), "{{engine}} server"),
            span=8,
            empty=NO_REQUESTS,
            look=CLIENT_AND_SERVER,
        ),
        graph(
            "Output tokens/s: client and server",
            "Tokens that reach the client (solid) and that the server says it made (dashed). Close "
            "together is good; a server that holds tokens back shows as bursts in the client. From "
            "loadgen_output_tokens_total, static_ and vllm:generation_tokens_total.",
            style.TOKENS_PER_S,
            Query(rate(client("loadgen_output_tokens_total"), "target"), "{{target}} client"),
            Query(rate("engine:generation_tokens_total:sum", "engine"), "{{engine}} server"),
            span=8,
            empty=NO_REQUESTS,
            look=CLIENT_AND_SERVER,
        ),
    ]
