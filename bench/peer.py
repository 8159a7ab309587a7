"""One server and one trace, measured by loadgen and by `vllm bench serve`: `make bench-peer`.

vLLM on this machine's CPU is given the same lengths at the same times by either client in turn, and
which goes first alternates. loadgen's figures are those of `report --export vllm`, so that both
follow the same formulas. Ends with one JSON line: of each figure the two medians and their ratio,
and `spread`, the largest over smallest value that vLLM's own client saw in its repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from loadgen.cli import main as loadgen
from servers.local import servers_python, start_vllm
from servers.models import cache_dir, prepare

ROOT: Final = Path(__file__).resolve().parent.parent
MODEL: Final = "smollm2-135m"
FIGURES: Final = (
    *("completed", "total_input_tokens", "total_output_tokens", "duration"),
    *("request_throughput", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms"),
    *("mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms"),
    *("p99_itl_ms", "mean_e2el_ms", "median_e2el_ms", "p99_e2el_ms"),
)
Figures = dict[str, Any]


def with_loadgen(url: str, trace: Path, model: Path, folder: Path) -> Figures:
    """What `loadgen report --export vllm` says of a run of the trace."""
    runs = folder / "runs"
    before = set(runs.glob("*"))
    _call(
        *("run", str(trace), "--base-url", url, "--model", MODEL, "--tokenizer", str(model)),
        *("--result-dir", str(runs), "--quiet"),
    )
    (path,) = set(runs.glob("*")) - before
    exported = folder / "loadgen.json"
    _call("report", str(path), "--export", "vllm", "-o", str(exported))
    figures: Figures = json.loads(exported.read_text())
    return figures


def with_vllm(url: str, trace: Path, model: Path, folder: Path) -> Figures:
    """What `vllm bench serve` says of the same lengths at the same times."""
    command = [
        *(servers_python(), "-m", "servers.vllm.serve", "bench", "serve"),
        *("--base-url", url, "--tokenizer", str(model), "--model", MODEL, "--disable-tqdm"),
        *("--dataset-name", "timed_trace", "--dataset-path", str(trace)),
        *("--timed-trace-chunk-hash-size", "512", "--timed-trace-sec-multiplier", "0.001"),
        *("--num-prompts", str(len(trace.read_text().splitlines()))),
        *("--temperature", "0", "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--num-warmups", "1"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"),
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True, timeout=900
    )
    if done.returncode != 0:
        raise SystemExit(f"vllm bench serve: {(done.stdout + done.stderr)[-2000:]}")
    figures: Figures = json.loads((folder / "vllm.json").read_text())
    return figures


def _call(*words: str) -> None:
    if loadgen(words) != 0:
        raise SystemExit(f"loadgen {' '.join(words)} failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peer", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="(default: 3)")
    parser.add_argument("--num-prompts", default="64", help="(default: 64)")
    parser.add_argument("--request-rate", default="2", help="a second (default: 2)")
    given = parser.parse_args()
    model = prepare(cache_dir())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        trace, foreign = folder / "trace.jsonl", folder / "mooncake.jsonl"
        _call(
            *("trace", "generate", "--preset", "lesson1", "-o", str(trace)),
            *("--num-prompts", given.num_prompts, "--request-rate", given.request_rate),
        )
        _call("trace", "export", str(trace), "--format", "mooncake", "-o", str(foreign))
        sides = {"loadgen": (with_loadgen, trace), "vllm": (with_vllm, foreign)}
        seen: dict[str, list[Figures]] = {name: [] for name in sides}
        with start_vllm(model, folder / "vllm.log", served_model_name=MODEL, batch_size=16) as vllm:
            vllm.wait_ready(300.0)
            with_loadgen(vllm.base_url, trace, model, folder)  # the first pass meets a cold server
            for pair in range(given.pairs):
                for name in list(sides)[:: 1 if pair % 2 == 0 else -1]:
                    measure, own = sides[name]
                    seen[name].append(measure(vllm.base_url, own, model, folder))
                    print(f"pair {pair + 1}: {name}: {_shown(seen[name][-1])}", file=sys.stderr)
    print(json.dumps({name: _both(name, seen) for name in FIGURES}))
    return 0


def _both(figure: str, seen: dict[str, list[Figures]]) -> dict[str, float | None]:
    ours, theirs = ([one[figure] for one in seen[side]] for side in ("loadgen", "vllm"))
    a, b = statistics.median(ours), statistics.median(theirs)
    least = min(theirs)
    return {
        "loadgen": a,
        "vllm": b,
        "ratio": a / b if b else None,
        "spread": max(theirs) / least if least else None,
    }


def _shown(figures: Figures) -> str:
    return ", ".join(f"{name} {figures[name]:.4g}" for name in FIGURES[3:8])


if __name__ == "__main__":
    sys.exit(main())
