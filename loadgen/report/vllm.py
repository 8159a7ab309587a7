"""A run's records under the names, and by the formulas, of `vllm bench serve`.

vLLM's definitions differ from ours, so they stand here and under these names alone: a latency ends
with the last chunk and not with the stream; only requests that succeeded count anywhere; `itls` are
the gaps between chunks. Keys and their meaning: vLLM's documentation of `vllm bench serve`. It
reads records and the header, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from loadgen.columns import Columns
from loadgen.record import RequestRecord, RunHeader
from loadgen.slo import Slo

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")


def as_vllm_result(
    header: RunHeader, records: Iterable[RequestRecord], target: str, percentiles: Sequence[float]
) -> dict[str, Any]:
    """The content of the file that `vllm bench serve --save-detailed` would write.

    `records` are the measured ones of `target`; `percentiles` in (0, 100). Times are in seconds,
    those of keys that end in `_ms` in milliseconds.
    """
    rows = sorted(records, key=lambda record: record.seq)
    good = [record for record in rows if record.is_ok]
    info = next(own for own in header.targets if own.name == target)
    columns = Columns.of(rows)
    duration_s = sum(columns.span_s(turn) for turn in columns.turns())
    inputs = sum(_prompt_tokens(record) for record in good)
    outputs = sum(_output_tokens(record) for record in good)
    drawn = header.config.get("generate", {}) if header.config.get("trace") is None else {}
    goodput = header.config.get("output", {}).get("goodput") or {}
    slo = Slo.of(goodput)
    result: dict[str, Any] = {
        "date": datetime.fromisoformat(header.started_at).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if info.endpoint.endswith("chat/completions") else "openai",
        "backend": "openai-chat" if info.endpoint.endswith("chat/completions") else "openai",
        "label": header.label,
        "model_id": info.model,
        "tokenizer_id": header.config.get("request", {}).get("tokenizer"),
        "num_prompts": len(rows),
        "request_rate": drawn.get("request_rate", _rate_of(rows)),
        "burstiness": drawn.get("burstiness"),
        "max_concurrency": header.config.get("load", {}).get("max_concurrency"),
        "duration": duration_s,
        "completed": len(good),
        "failed": len(rows) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _per_s(len(good), duration_s),
        "request_goodput": _per_s(sum(map(slo.is_met_by, rows)), duration_s) if goodput else None,
        "output_throughput": _per_s(outputs, duration_s),
        "total_token_throughput": _per_s(inputs + outputs, duration_s),
        "max_output_tokens_per_s": _most_tokens_in_a_second(good),
        "max_concurrent_requests": _most_at_once(good),
    }
    for name, values_s in zip(LATENCIES, _latencies_s(good), strict=True):
        result |= _statistics(name, values_s, percentiles)
    return result | {
        "input_lens": [_prompt_tokens(record) for record in rows],
        "output_lens": [_output_tokens(record) if record.is_ok else 0 for record in rows],
        "ttfts": [record.ttft_s or 0.0 for record in rows],
        "itls": [record.icl_s() for record in rows],
        "latencies": [_latency_s(record) for record in rows],
        "start_times": [record.start_s for record in rows],
        "generated_texts": [record.text or "" for record in rows],
        "errors": [record.error or "" for record in rows],
    }


def _latencies_s(good: Sequence[RequestRecord]) -> tuple[list[float], ...]:
    """(ttft, tpot, itl, e2el) of the successes, by vLLM's formulas."""
    ttfts = [record.ttft_s for record in good if record.ttft_s is not None]
    tpots = [
        (_latency_s(record) - record.ttft_s) / (_output_tokens(record) - 1)
        for record in good
        if record.ttft_s is not None and _output_tokens(record) > 1
    ]
    itls = [gap for record in good for gap in record.icl_s()]
    return ttfts, tpots, itls, [_latency_s(record) for record in good]


def _statistics(
    name: str, values_s: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    values_ms = np.array(values_s or [0.0]) * 1000.0
    found = {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
    }
    for percentile in sorted({99.0, *percentiles}):
        found[f"p{percentile:g}_{name}_ms"] = float(np.percentile(values_ms, percentile))
    return found


def _latency_s(record: RequestRecord) -> float:
    """Last chunk - start; of an answer that did not stream, its end."""
    if record.last_token_s is None:
        return record.e2e_s if record.is_ok else 0.0
    return record.last_token_s - record.start_s


def _prompt_tokens(record: RequestRecord) -> int:
    served = record.prompt_tokens_served
    return record.prompt_tokens_asked if served is None else served


def _output_tokens(record: RequestRecord) -> int:
    return record.output_tokens_served or 0


def _rate_of(rows: Sequence[RequestRecord]) -> float | str:
    span_s = rows[-1].due_s - rows[0].due_s if len(rows) > 1 else 0.0
    return (len(rows) - 1) / span_s if span_s > 0 else "inf"


def _per_s(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _most_tokens_in_a_second(good: Sequence[RequestRecord]) -> float:
    """The fullest of the seconds from the first start on; a chunk counts as one, as in vLLM."""
    if not good:
        return 0.0
    began_s = min(record.start_s for record in good)
    chunks = np.array([at for record in good for at in record.chunk_s])
    return float(np.bincount((chunks - began_s).astype(np.int64)).max()) if len(chunks) else 0.0


def _most_at_once(good: Sequence[RequestRecord]) -> int:
    """The most requests that any one second from the first start on touches, as in vLLM."""
    if not good:
        return 0
    began_s = min(record.start_s for record in good)
    touched: dict[int, int] = {}
    for record in good:
        last = math.floor(record.start_s + _latency_s(record) - began_s)
        for second in range(math.floor(record.start_s - began_s), last + 1):
            touched[second] = touched.get(second, 0) + 1
    return max(touched.values())
