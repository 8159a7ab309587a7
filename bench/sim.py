"""How fast the simulator is: `make bench-sim`. No server is needed.

A million requests of lesson 1's lengths, all waiting from the start, under continuous batching with
16 slots and an affine cost, on one core. Every token's time is derived too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from array import array

import numpy as np

from loadgen.schedule import closed_loop
from loadgen.sim.arrivals import OpenLoop
from loadgen.sim.continuous import ContinuousBatching, ContinuousOptions
from loadgen.sim.cost import StepCost
from loadgen.sim.engine import Replica, Served, drive
from loadgen.sim.timeline import Timeline, numbers_in
from loadgen.trace.config import GeneratorConfig
from loadgen.trace.generate import generate

COST = StepCost(fixed_s=6e-3, prefill_token_s=4e-5, decode_row_s=1.2e-4, kv_token_s=5e-8)
"""Made up, of the size of a small model on a large GPU."""
AT_ONCE = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    requests: int = parser.parse_args().requests
    config = GeneratorConfig(preset="lesson1", num_prompts=requests, request_rate=float("inf"))
    trace = generate(config)
    timeline = Timeline()
    first, count = array("q"), array("q")

    def keep(served: Served) -> None:
        for begin, tokens in served.spans:
            first.append(begin)
            count.append(tokens)

    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    replica = Replica(ContinuousBatching(ContinuousOptions()), COST, timeline=timeline)
    drive(OpenLoop(closed_loop(trace)), [replica], keep)
    simulated_s = time.perf_counter() - began_s
    spans = np.column_stack((np.frombuffer(first, np.int64), np.frombuffer(count, np.int64)))
    tokens, last_s = 0, 0.0
    for start in range(0, len(spans), AT_ONCE):
        ends_s = timeline.ends_s(numbers_in(spans[start : start + AT_ONCE]))
        tokens += len(ends_s)
        last_s = max(last_s, float(ends_s.max()))
    all_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    totals = replica.totals
    assert tokens == totals.output_tokens == int(trace.output_length.sum())
    assert abs(last_s - totals.end_s) < 1e-6 * totals.end_s
    print(
        f"{requests:,} requests, {tokens:,} tokens, {totals.iterations:,} iterations: simulated "
        f"in {simulated_s:.1f} s, all tokens' times derived in {all_s - simulated_s:.1f} s more; "
        f"{cpu_s:.1f} s of one core"
    )
    result = {
        "sim_requests_per_s": round(requests / all_s),
        "requests": requests,
        "seconds": round(all_s, 2),
        "cpu_s": round(cpu_s, 2),
        "output_tokens": tokens,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
