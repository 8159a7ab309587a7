"""The client's cost and exactness: `make bench-client`. A table, then one JSON line.

Every row is the median of several runs against the truth server on this machine. Rows that compare
run both sides in turn, within the same minutes. Errors are absolute, against the truth's stamps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from loadgen.client.answer import Answer
from loadgen.live import LiveCounters
from loadgen.selfcheck import Load, measure, truth_server

ROOT: Final = Path(__file__).resolve().parent.parent
CHUNK_S: Final = 0.02
TOKENS: Final = 64
STREAM_S: Final = 0.1 + CHUNK_S * (TOKENS - 1)
BARS: Final = {
    "cpu_us_per_event": "<= 13",
    "cpu_ratio_vs_httpx": ">= 6",
    "parse_us_per_event": "<= 1.5",
    "cpu_us_per_request": "<= 250",
    "ttft_err64_p50_ms": "<= 0.3",
    "ttft_err64_p99_ms": "<= 2",
    "ttft_err500_p50_ms": "<= 0.5",
    "ttft_err500_p99_ms": "<= 3",
    "lag1000_p99_ms": "<= 1",
    "rate1000_achieved": "0.998 to 1.002",
    "ttft_err50k_p99_ms": "<= 5",
    "rss_ratio_200k": "<= 1.3",
    "streams2000_failures": "0",
}

Row = dict[str, float]


def requests_for(streams: int, seconds: float) -> int:
    """How many requests keep so many streams busy for about so long."""
    return max(2, round(seconds / STREAM_S)) * streams


def cost_at_500(seconds: float) -> Row:
    """CPU an event at 500 streams, a chunk each 20 ms."""
    done = measure(Load(requests=requests_for(500, seconds), rate=None, streams=500))
    return {"cpu_us_per_event": done.cpu_us_per_event, "events_per_s_at_500": done.events_per_s}


def cost_beside_others(seconds: float) -> Row:
    """CPU an event at 64 streams, and other libraries' over it, in one go."""
    requests = requests_for(64, seconds)
    ours = measure(Load(requests=requests, rate=None, streams=64)).cpu_us_per_event
    row = {"cpu_us_per_event_at_64": ours}
    for library in ("httpx2", "httpx", "aiohttp"):
        cost = _bare(library, requests)
        if cost is not None:
            row[f"cpu_us_per_event_{library}"] = cost
            row[f"cpu_ratio_vs_{library}"] = cost / ours
    row["cpu_ratio_vs_httpx"] = row.pop("cpu_ratio_vs_httpx2")
    return row


def parse_cost(seconds: float) -> Row:
    """Parsing alone, in memory: a vLLM stream with continuous usage, one event a read."""
    head = b'data: {"id":"cmpl-986722c9596f6410","object":"text_completion","created":1795960050,'
    head += b'"model":"smollm2-135m","choices":[{"index":0,"text":" tok%d","logprobs":null,'
    head += b'"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],'
    head += b'"usage":{"prompt_tokens":4,"total_tokens":%d,"completion_tokens":%d}}\n\n'
    events = [head % (n, n + 5, n + 1) for n in range(TOKENS)]
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    streams, started_s, live = 0, time.process_time(), LiveCounters()
    while time.process_time() - started_s < min(seconds, 2.0):
        for _ in range(100):
            answer = Answer(live)
            answer.response(200, headers, 0.0)
            for event in events:
                answer.body(event, 1.0)
        streams += 100
    return {"parse_us_per_event": 1e6 * (time.process_time() - started_s) / (streams * TOKENS)}


def cost_of_requests(seconds: float) -> Row:
    """CPU a request of 4 tokens, all told: 800 a second in an open loop."""
    short = Load(requests=round(800 * seconds), rate=800.0, tokens=4, ttft_ms=20.0, itl_ms=5.0)
    return {"cpu_us_per_request": measure(short).cpu_us_per_request}


def error_at_64(seconds: float) -> Row:
    """TTFT error, closed loop of 64 streams."""
    load = Load(requests=requests_for(64, seconds), rate=None, streams=64, stamps=True)
    done = measure(load)
    return _errors("ttft_err64", done.ttft_err_p50_ms, done.ttft_err_p99_ms)


def error_at_500(seconds: float) -> Row:
    """TTFT error, open loop of 300 requests/s of 64 tokens: about 430 streams."""
    done = measure(Load(requests=round(300 * seconds), rate=300.0, stamps=True))
    return _errors("ttft_err500", done.ttft_err_p50_ms, done.ttft_err_p99_ms)


def error_at_50k(seconds: float) -> Row:
    """TTFT error of one worker at 50,000 events/s."""
    rate = 50_000 / TOKENS
    done = measure(Load(requests=round(rate * seconds), rate=rate, stamps=True))
    return {
        **_errors("ttft_err50k", done.ttft_err_p50_ms, done.ttft_err_p99_ms),
        "events_per_s_at_50k": done.events_per_s,
    }


def lag_at_1000(seconds: float) -> Row:
    """Schedule lag at 1,000 short requests a second, for at least 20 s."""
    short = Load(
        requests=round(1000 * max(seconds, 20.0 if seconds >= 15 else seconds)),
        rate=1000.0,
        tokens=4,
        ttft_ms=20.0,
        itl_ms=5.0,
    )
    done = measure(short)
    return {"lag1000_p99_ms": done.lag_p99_ms, "rate1000_achieved": done.rate_achieved or 0.0}


def many_streams(seconds: float) -> Row:
    """2,000 streams at once, a chunk each 100 ms: failures."""
    load = Load(requests=4000, rate=None, streams=2000, itl_ms=100.0, tokens=32)
    return {"streams2000_failures": measure(load).failures}


def memory(seconds: float) -> Row:
    """Peak memory of all processes at 200,000 requests over that at 20,000."""
    scale = 1 if seconds >= 15 else 10
    small, large = (_peak_rss_bytes(n // scale) for n in (20_000, 200_000))
    return {
        "rss_ratio_200k": large / small,
        "rss_20k_mib": small / 2**20,
        "rss_200k_mib": large / 2**20,
    }


def noise(seconds: float) -> Row:
    """The machine itself: how long a loop that mostly sleeps is kept waiting, and Python's speed.

    A virtual machine's neighbours show here before they show in a kernel's own counters.
    """
    waits_s = []
    started_s = time.monotonic()
    while time.monotonic() < started_s + 5.0:
        began_s = time.monotonic()
        time.sleep(0.0002)
        sum(range(2000))
        waits_s.append(time.monotonic() - began_s)
    loops_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        sum(number * number for number in range(100_000))
        loops_s.append(time.perf_counter() - began_s)
    stalls_s = [wait_s for wait_s in waits_s if wait_s > 0.005]
    return {
        "machine_stalls_per_s": len(stalls_s) / 5.0,
        "machine_stall_max_ms": 1e3 * max(waits_s),
        "machine_100k_loops_ms": 1e3 * min(loops_s),
    }


MEASUREMENTS: Final[dict[str, Callable[[float], Row]]] = {
    "noise": noise,
    "cost500": cost_at_500,
    "others": cost_beside_others,
    "parse": parse_cost,
    "requests": cost_of_requests,
    "error64": error_at_64,
    "error500": error_at_500,
    "error50k": error_at_50k,
    "lag1000": lag_at_1000,
    "streams2000": many_streams,
    "memory": memory,
}
ONCE: Final = ("memory",)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    given = parser.parse_args(words)
    runs: dict[str, list[float]] = {}
    for repeat in range(given.repeats):
        for name in given.only:
            if repeat and name in ONCE:
                continue
            for key, value in MEASUREMENTS[name](given.seconds).items():
                runs.setdefault(key, []).append(value)
            print(f"{repeat + 1}/{given.repeats} {name}", file=sys.stderr, flush=True)
    result = {key: round(statistics.median(values), 4) for key, values in runs.items()}
    print(f"{'key':32} {'median':>10} {'lowest':>10} {'highest':>10}  bar")
    for key, values in runs.items():
        low, high = min(values), max(values)
        print(f"{key:32} {result[key]:10.3f} {low:10.3f} {high:10.3f}  {BARS.get(key, '')}")
    print(json.dumps(result))
    return 0


def _errors(name: str, p50_ms: float | None, p99_ms: float | None) -> Row:
    assert p50_ms is not None
    assert p99_ms is not None
    return {f"{name}_p50_ms": p50_ms, f"{name}_p99_ms": p99_ms}


def _bare(library: str, requests: int) -> float | None:
    """CPU an event of a bare client, in us; None where the library is not installed."""
    with truth_server(Load(requests=requests, rate=None)) as url:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bench.bare", library, "--url", url),
                *("--streams", "64", "--requests", str(requests)),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout)
    return 1e6 * float(result["cpu_s"]) / int(result["chunks"])


def _peak_rss_bytes(requests: int) -> int:
    """Of one `loadgen run` with its workers, reports included: the highest sum that was seen."""
    load = Load(requests=requests, rate=None, ttft_ms=1.0, itl_ms=0.5)
    with truth_server(load) as url, tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "loadgen", "run", "--base-url", url, "--quiet"),
                *("--num-prompts", str(requests), "--request-rate", "inf", "--closed-loop"),
                *("--max-concurrency", "100", "--input-len", "10", "--output-len", "4"),
                *("--result-dir", scratch, "--json"),
            ],
            stdout=subprocess.DEVNULL,
        )
        peak_bytes = 0
        while process.poll() is None:
            peak_bytes = max(peak_bytes, sum(map(_rss_bytes, _tree(process.pid))))
            time.sleep(0.05)
    if process.returncode not in (0, 4):  # a saturated client is INVALID, and no less in memory
        raise SystemExit(f"the run of {requests} requests ended with {process.returncode}")
    return peak_bytes


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in _tree(int(child)))]


def _rss_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * 4096


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
