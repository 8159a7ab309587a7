"""The second batching lesson, measured: transformers in static batches against vLLM.

It writes the lesson's trace, has it compared, and prints the lesson's metric: requests/s of each
and the improvement in per cent, with what the engine and what the scheduling has of it. Figures are
read from `comparison.json`; the improvement alone is computed here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from scripts.both_servers import BothServers, call_loadgen


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/lesson2",
        description="Measure the second batching lesson on this machine's CPU: 160 requests, all "
        "waiting, on the static-batch server (answers released with their batch) and on vLLM.",
        epilog="example: scripts/lesson2 --scale 0.2 --repeats 1",
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--scale", default="0.1", help="of the output limits (default: 0.1)")
    parser.add_argument(
        "--repeats", default="4", help="of the lesson; intervals need four (default: 4)"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="of both servers (default: 16)")
    parser.add_argument("--result-dir", type=Path, default=Path("runs"), help="(default: runs)")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run the lesson; returns loadgen's exit code. Its last line is the run directory."""
    arguments = parse(words)
    servers = BothServers(
        name="lesson2",
        model=arguments.model,
        batch_size=arguments.batch_size,
        result_dir=arguments.result_dir,
        static_flags=("--release", "batch"),
    )
    trace = servers.scratch / "trace.jsonl"
    code = call_loadgen(
        *("trace", "lesson2", "-o", str(trace), "--tokenizer", str(arguments.model)),
        *("--scale", arguments.scale, "--repeats", arguments.repeats),
    )
    if code != 0:
        return code
    code, run = servers.compare(
        *(str(trace), "--label", "lesson 2: static batching vs continuous batching"),
        # A batch is released at its end: its chunks would come at once, and mean nothing.
        *("--no-stream", "--ignore-eos", "--blocks", arguments.repeats),
        *("--split-gain", str(arguments.batch_size)),
    )
    if run is not None:
        comparison = run / "comparison.json"
        if comparison.exists():
            print("\n".join(lines_of(orjson.loads(comparison.read_bytes()))))
        print(run)
    return code


def lines_of(comparison: Mapping[str, Any]) -> list[str]:
    """What the lesson prints, of the content of `comparison.json`."""
    rates = {name: comparison["targets"][name]["requests_per_s"] for name in ("static", "vllm")}
    lines = [
        f"{name}: {'-' if rate is None else f'{rate:.3f}'} requests/s"
        for name, rate in rates.items()
    ]
    ratio = comparison["ratio"]["requests_per_s"]
    if ratio is not None:
        lines.append(f"improvement: {100 * (ratio - 1):.0f} %")
    if (split := comparison["split"]) is not None:
        factors = [
            f"{word} {_factor(split[key], split['intervals'][key])}"
            for word, key in (("engine", "engine"), ("scheduling", "policy"), ("total", "total"))
        ]
        lines.append(f"useful tokens/s: {', '.join(factors)}")
    return [*lines, f"verdict: {comparison['verdict']}"]


def _factor(ratio: float, interval: Sequence[float] | None) -> str:
    if interval is None:
        return f"{ratio:.2f}x"
    return f"{ratio:.2f}x ({interval[0]:.2f}x to {interval[1]:.2f}x)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
