"""*vLLM server*: the panels of vLLM's own dashboard under vLLM's titles, and a few more.

Where vLLM has renamed a metric, `or` takes the old name if the new one is not there.
https://docs.vllm.ai/en/latest/design/metrics.html
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import style
from dashboards.frame import dashboard
from dashboards.panels import Look, Panel, Query, graph, number, quantiles, words
from dashboards.promql import mean, quantile, quantile_of, rate, ratio

UID = "loadgen-vllm"

NO_SERVER = "vLLM has not been scraped yet"
NO_REQUESTS = "no requests yet"

INTRODUCTION = (
    "vLLM batches continuously: at every step, requests that have ended leave the batch and "
    "waiting ones join it, as long as there are slots (--max-num-seqs) and blocks of the KV "
    "cache. The panels below carry the titles of vLLM's own dashboard."
)

OWN = quantiles("vllm")
REASONS = Look(colours=tuple(style.named_colours(style.REASONS)), stacked=True)
KINDS = Look(
    colours=tuple(
        style.named_colours(
            {"generation|decode.*": style.SKY, "prompt|prefill.*": style.BLUE}
            | {"waiting": style.PURPLE}
        )
    ),
    other=style.SKY,
    dashed="/p99|waiting/",
)
KV_CACHE = "max(vllm:kv_cache_usage_perc) or max(vllm:gpu_cache_usage_perc)"


def four(histogram: str, old: str = "") -> tuple[Query, ...]:
    """p50, p90, p99 and mean of a histogram, or of the one that it is called in older versions."""
    names = [histogram, old] if old else [histogram]

    def either(part: str, *by: str) -> str:
        return " or ".join(rate(f"{name}{part}", *by) for name in names)

    buckets = either("_bucket", "le")
    mean_value = ratio(f"({either('_sum')})", f"({either('_count')})")
    return (
        *(Query(quantile_of(q, buckets), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
        Query(mean_value, "mean"),
    )


def build() -> Dashboard:
    return dashboard(
        UID,
        "vLLM server",
        "Scheduler, KV cache and latencies of vLLM, under the titles of its own dashboard.",
        [
            ("", [words(INTRODUCTION), *_now()]),
            ("Latency and throughput", _latency()),
            ("Scheduler and cache", _scheduler()),
            ("Requests", _requests()),
        ],
        choose=False,
    )


def _now() -> list[Panel]:
    return [
        number(
            "Running",
            "Requests in the running batch. From vllm:num_requests_running.",
            style.COUNT,
            Query("sum(vllm:num_requests_running)", "running"),
            span=6,
            empty=NO_SERVER,
        ),
        number(
            "Waiting",
            "Requests that wait to be scheduled; near zero is good. From "
            "vllm:num_requests_waiting.",
            style.COUNT,
            Query("sum(vllm:num_requests_waiting)", "waiting"),
            span=6,
            empty=NO_SERVER,
        ),
        number(
            "KV cache",
            "Share of the blocks in use; near 100 % requests wait or are preempted. From "
            "vllm:kv_cache_usage_perc.",
            style.SHARE,
            Query(KV_CACHE, "in use"),
            span=6,
            empty=NO_SERVER,
            limits=((style.KV_CACHE, style.BAD),),
            decimals=1,
        ),
        number(
            "Preempted",
            "Requests that lost their blocks within the range and were computed again; none is "
            "good. From vllm:num_preemptions_total.",
            style.COUNT,
            Query("sum(increase(vllm:num_preemptions_total[$__range]))", "preemptions"),
            span=6,
            empty=NO_SERVER,
            limits=((1, style.BAD),),
            decimals=0,
        ),
    ]


def _latency() -> list[Panel]:
    return [
        graph(
            "E2E Request Latency",
            "From a request's arrival to its end; low is good. From "
            "vllm:e2e_request_latency_seconds.",
            style.SECONDS,
            *four("vllm:e2e_request_latency_seconds"),
            span=12,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Token Throughput",
            "Prompt tokens that were prefilled and tokens that were generated; more is better. "
            "From vllm:prompt_tokens_total and vllm:generation_tokens_total.",
            style.TOKENS_PER_S,
            Query(rate("vllm:generation_tokens_total"), "generation"),
            Query(rate("vllm:prompt_tokens_total"), "prompt"),
            span=12,
            empty=NO_SERVER,
            look=KINDS,
        ),
        graph(
            "Inter Token Latency",
            "Gaps between tokens; low and even is good. From vllm:inter_token_latency_seconds, "
            "formerly vllm:time_per_output_token_seconds.",
            style.SECONDS,
            *four("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            span=12,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Time To First Token Latency",
            "From a request's arrival to its first token; low is good. From "
            "vllm:time_to_first_token_seconds.",
            style.SECONDS,
            *four("vllm:time_to_first_token_seconds"),
            span=12,
            empty=NO_REQUESTS,
            look=OWN,
        ),
    ]


def _scheduler() -> list[Panel]:
    return [
        graph(
            "Scheduler State",
            "Requests in the running batch (solid) and waiting for it (dashed). A queue that "
            "grows means more load than the server can take. From vllm:num_requests_running and "
            "_waiting.",
            style.REQUESTS,
            Query("sum(vllm:num_requests_running)", "running"),
            Query("sum(vllm:num_requests_waiting)", "waiting"),
            span=8,
            empty=NO_SERVER,
            look=OWN,
        ),
        graph(
            "Cache Utilization",
            "Share of the KV cache's blocks in use; above the line requests wait or are "
            "preempted. From vllm:kv_cache_usage_perc, formerly vllm:gpu_cache_usage_perc.",
            style.SHARE,
            Query(KV_CACHE, "KV cache"),
            span=8,
            empty=NO_SERVER,
            look=OWN,
            limits=((style.KV_CACHE, style.BAD),),
            top=1,
        ),
        graph(
            "Queue Time",
            "From a request's arrival to its place in the batch; near zero is good. From "
            "vllm:request_queue_time_seconds.",
            style.SECONDS,
            *four("vllm:request_queue_time_seconds"),
            span=8,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Preemptions",
            "Requests that lost their blocks to others and are computed again, a second; none is "
            "good. From vllm:num_preemptions_total.",
            style.REQUESTS_PER_S,
            Query(rate("vllm:num_preemptions_total"), "preemptions"),
            span=8,
            empty=NO_SERVER,
            least_top=1,
            look=OWN,
        ),
        graph(
            "Prefix cache",
            "Prompt tokens that were looked up (solid), and those whose keys and values were there "
            "already (dashed). Both are zero where it is off, as in a comparison with static "
            "batching, in which the scheduling shall differ and not the cache. From "
            "vllm:prefix_cache_queries_total and vllm:prefix_cache_hits_total.",
            style.TOKENS_PER_S,
            Query(rate("vllm:prefix_cache_queries_total"), "looked up"),
            Query(rate("vllm:prefix_cache_hits_total"), "hits"),
            span=8,
            empty=NO_SERVER,
            least_top=1,
            look=Look(colours=(), other=style.SKY, dashed="/hits/"),
        ),
        graph(
            "Tokens per engine step",
            "Mean number of tokens that a step computes, those of prompts included; more is "
            "better use of the processor. From vllm:iteration_tokens_total.",
            style.TOKENS,
            Query(mean("vllm:iteration_tokens_total"), "tokens a step"),
            span=8,
            empty=NO_REQUESTS,
            look=OWN,
        ),
    ]


def _requests() -> list[Panel]:
    return [
        graph(
            "Request Prompt Length",
            "Tokens of the prompts that ended in the last seconds. From "
            "vllm:request_prompt_tokens.",
            style.TOKENS,
            *four("vllm:request_prompt_tokens"),
            span=6,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Request Generation Length",
            "Tokens of the answers that ended in the last seconds. From "
            "vllm:request_generation_tokens.",
            style.TOKENS,
            *four("vllm:request_generation_tokens"),
            span=6,
            empty=NO_REQUESTS,
            look=OWN,
        ),
        graph(
            "Finish Reason",
            "Requests that ended, a second, by reason; stop and length are good. From "
            "vllm:request_success_total.",
            style.REQUESTS_PER_S,
            Query(rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),
            span=6,
            empty=NO_SERVER,
            look=REASONS,
        ),
        graph(
            "Requests Prefill and Decode Time",
            "Time that requests spent on their prompt and on their tokens: medians solid, p99 "
            "dashed. From vllm:request_prefill_time_seconds and "
            "vllm:request_decode_time_seconds.",
            style.SECONDS,
            *(
                Query(
                    quantile(q, f"vllm:request_{part}_time_seconds_bucket"),
                    f"{part} p{q * 100:g}",
                )
                for part in ("prefill", "decode")
                for q in (0.5, 0.99)
            ),
            span=6,
            empty=NO_REQUESTS,
            look=KINDS,
        ),
    ]
