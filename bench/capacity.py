"""How far `loadgen capacity` is off on a server whose capacity is known: `capacity_error()`.

A truth server with slots answers each request in a constant time, first come, first served, so what
the search should find follows from the arrivals alone, by a recursion (`true_rate`). Run by hand,
`python -m bench.capacity` tells as well what a number of requests a probe is worth (`spread`).
"""

from __future__ import annotations

import asyncio
import heapq
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.capacity import Ask, Found, Look, look_at, search
from loadgen.columns import Columns
from loadgen.explore_config import CapacityConfig
from loadgen.probing import Searched, capacity, goal_of
from loadgen.progress import Progress
from loadgen.record import Outcome, RequestRecord
from loadgen.selfcheck import truth_process
from loadgen.slo import Slo
from loadgen.trace import Trace
from loadgen.trace.config import GeneratorConfig
from loadgen.trace.generate import generate
from loadgen.trace.scaling import at_rate, part_of

TTFT_MS: Final = 400.0
ITL_MS: Final = 25.0
TOKENS: Final = 5
SERVICE_S: Final = (TTFT_MS + (TOKENS - 1) * ITL_MS) / 1000
SLOTS: Final = 20
MOST: Final = SLOTS / SERVICE_S
"""Answers a second that the slots allow."""
SLACK_MS: Final = 100.0
"""What the SLO leaves to waiting: well over what a busy machine is late by."""
REQUESTS: Final = 200
_DRAWN: Final = 20_000


def capacity_error(repeats: int = 2) -> float:
    """|found / true - 1|, the median of so many searches, each a minute on a quiet machine.

    Gaps are constant, so the true capacity is MOST requests/s: below it no request waits, and above
    it the queue grows without bound.
    """
    errors = []
    for seed in range(repeats):
        found = search_truth("constant", seed, tolerance=0.03, max_looks=2).found
        rate = None if found is None else found.rate
        errors.append(1.0 if rate is None else abs(rate / MOST - 1))
    return statistics.median(errors)


def search_truth(arrival: str, seed: int = 0, **more: Any) -> Searched:
    """One search, through the real client, on a truth server of its own."""
    server = ("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--slots", str(SLOTS))
    with (
        truth_process(*server) as url,
        tempfile.TemporaryDirectory(prefix="loadgen-capacity-") as scratch,
    ):
        config = config_for(arrival, seed, url, Path(scratch), **more)
        return asyncio.run(capacity(config, [], Progress(quiet=True)))


def config_for(
    arrival: str,
    seed: int = 0,
    url: str = "http://127.0.0.1:1",
    folder: Path = Path("runs"),
    **more: Any,
) -> CapacityConfig:
    """A search that begins at three quarters of what the slots allow."""
    values = {
        "run": {
            "targets": [{"name": "truth", "base_url": url}],
            "generate": {
                "arrival": arrival,
                "seed": seed,
                "input_len": 20,
                "output_len": TOKENS,
            },
            "output": {"result_dir": folder, "goodput": {"ttft": TTFT_MS + SLACK_MS}},
        },
        "num_prompts": REQUESTS,
        "seconds_per_point": 0,
        "start_rate": 0.75 * MOST,
    }
    return CapacityConfig.model_validate(values | more)


def trace_of(config: CapacityConfig) -> Trace:
    """A long trace of the configuration's laws."""
    said = config.run.generate.model_dump(exclude_unset=True) | {"num_prompts": _DRAWN}
    return generate(GeneratorConfig.model_validate(said))


def true_rate(trace: Trace, share: float = 0.95) -> float:
    """The highest rate at which `share` of the trace's requests wait at most SLACK_MS, by bisection
    to 0.1 %: all gaps are scaled alike, so that share falls as the rate grows."""
    low, high = 0.1 * MOST, 10.0 * MOST
    while high > 1.001 * low:
        rate = (low * high) ** 0.5
        waits_s = waits_of(at_rate(trace, rate).timestamp_ms / 1000)
        if (waits_s <= SLACK_MS / 1000).mean() >= share:
            low = rate
        else:
            high = rate
    return float((low * high) ** 0.5)


def simulated(config: CapacityConfig, trace: Trace) -> tuple[Found, int]:
    """What the search finds where each probe is answered by the recursion and by no server, and in
    how many probes."""
    looks: dict[float, list[Look]] = {}
    slo = Slo.of(config.run.output.goodput)
    while isinstance(step := search(looks, goal_of(config)), Ask):
        part = at_rate(part_of(trace, step.look, config.num_prompts), step.rate)
        due_s = part.timestamp_ms / 1000
        records = [
            _record(seq, due, wait)
            for seq, (due, wait) in enumerate(
                zip(due_s.tolist(), waits_of(due_s).tolist(), strict=True)
            )
        ]
        looks.setdefault(step.rate, []).append(look_at(Columns.of(records), slo, len(records)))
    return step, sum(map(len, looks.values()))


def waits_of(arrivals_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds that each request waits for a slot: first come, first served, SERVICE_S each."""
    free_s = [0.0] * SLOTS
    found = []
    for arrived_s in arrivals_s.tolist():
        begins_s = max(arrived_s, free_s[0])
        heapq.heapreplace(free_s, begins_s + SERVICE_S)
        found.append(begins_s - arrived_s)
    return np.array(found)


def _record(seq: int, due_s: float, wait_s: float) -> RequestRecord:
    first_s = due_s + wait_s + TTFT_MS / 1000
    return RequestRecord(
        seq=seq,
        target="truth",
        due_s=due_s,
        start_s=due_s,
        first_token_s=first_s,
        last_token_s=due_s + wait_s + SERVICE_S,
        end_s=due_s + wait_s + SERVICE_S,
        prompt_tokens_asked=20,
        output_tokens_asked=TOKENS,
        output_tokens_served=TOKENS,
        outcome=Outcome.OK,
    )


def spread(requests: int, searches: int = 24) -> dict[str, float]:
    """How far simulated searches with exponential gaps stray from the capacity of a long trace, and
    how many runs they take: what a number of requests a probe is worth."""
    errors, runs = [], []
    for seed in range(searches):
        config = config_for("exponential", seed, num_prompts=requests)
        trace = trace_of(config)
        found, probes = simulated(config, trace)
        errors.append(abs((found.rate or 0.0) / true_rate(trace) - 1))
        runs.append(probes)
    return {
        "requests": requests,
        "error_median": round(statistics.median(errors), 3),
        "error_p90": round(float(np.quantile(errors, 0.9)), 3),
        "runs_mean": round(statistics.fmean(runs), 1),
    }


if __name__ == "__main__":
    for count in (100, 200, 500, 1000):
        print(json.dumps(spread(count)))
    print(json.dumps({"capacity_error": capacity_error()}))
