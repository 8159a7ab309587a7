"""The demo: two real servers on this machine, one trace, one comparison.

It draws a trace, and calls the same commands that a user would type. No figure is computed here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.both_servers import BothServers, call_loadgen


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Compare the static-batch server and vLLM on this machine's CPU.",
        epilog="example: scripts/demo --num-prompts 200 --request-rate inf",
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--num-prompts", default="64", help="requests (default: 64)")
    parser.add_argument("--request-rate", default="8", help="a second, or inf (default: 8)")
    parser.add_argument("--arrival-cv", default="1.5", help="CV of the gaps (default: 1.5)")
    parser.add_argument("--seed", default="42", help="seed of the trace (default: 42)")
    parser.add_argument("--batch-size", type=int, default=16, help="of both servers (default: 16)")
    parser.add_argument("--result-dir", type=Path, default=Path("runs"), help="(default: runs)")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run the demo; returns loadgen's exit code. Its last line is the run directory."""
    arguments = parse(words)
    servers = BothServers(
        name="demo",
        model=arguments.model,
        batch_size=arguments.batch_size,
        result_dir=arguments.result_dir,
    )
    trace = servers.scratch / "trace.jsonl"
    code = call_loadgen(
        *("trace", "generate", "--preset", "lesson1", "-o", str(trace)),
        *("--num-prompts", arguments.num_prompts, "--request-rate", arguments.request_rate),
        *("--arrival-cv", arguments.arrival_cv, "--seed", arguments.seed),
    )
    if code != 0:
        return code
    label = "static batching vs continuous batching"
    code, run = servers.compare(str(trace), "--label", label)
    if run is not None:
        print(run)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
