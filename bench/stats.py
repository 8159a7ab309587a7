"""How far a comparison can be trusted, where the difference is known: `make bench-stats`.

Everything goes the whole way: a truth server as a process of its own, the trace, workers, records,
`compare_paired`. Ends with one JSON line:

- `a_vs_a_no_difference`: of 100 comparisons of a target with itself, the share in which no
  difference is shown; `a_vs_a_nothing_shown`: in no metric at all;
- `slowdown10_found`: of 20 targets that are 10 % slower, the share that is found;
- `capacity_error`: |found / true - 1| of `loadgen capacity` on a server of known capacity;
- `gain_split_error`: the larger relative error of a planted engine's and a planted policy's gain.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.capacity import capacity_error
from loadgen.config import CompareConfig, LoadConfig, OutputConfig, RunConfig, TargetConfig
from loadgen.paired import Comparison
from loadgen.progress import Progress
from loadgen.report import rebuild
from loadgen.run import run
from loadgen.schedule import padded
from loadgen.selfcheck import truth_process
from loadgen.sim.config import ArrivalConfig, PolicyConfig, PolicyName, SimulateConfig
from loadgen.sim.cost import ITERATIONS
from loadgen.sim.simulate import load_work, play, work_done
from loadgen.trace import trace_bytes
from loadgen.trace.config import GeneratorConfig
from loadgen.trace.generate import generate
from servers.local import start_toy

TTFT_MS: Final = 20.0
ITL_MS: Final = 2.0
TOKENS: Final = 24
WIDTH: Final = 16
BLOCKS: Final = 8
SPLIT_REQUESTS: Final = 96
SPLIT_BATCH: Final = 8
ENGINE: Final = 2.0
STEP_MS: Final = 8.0
SELF_REQUESTS: Final = 160
SLOW_REQUESTS: Final = 1600


def compared(urls: tuple[str, str], requests: int, seed: int, folder: Path) -> Comparison:
    """The second target against the first, in a closed loop and in blocks."""
    config = RunConfig(
        generate=GeneratorConfig(
            num_prompts=requests, input_len=8, output_len=TOKENS, request_rate=1000.0, seed=seed
        ),
        targets=tuple(
            TargetConfig(name=name, base_url=url) for name, url in zip("ab", urls, strict=True)
        ),
        load=LoadConfig(closed_loop=True, max_concurrency=WIDTH),
        compare=CompareConfig(blocks=BLOCKS),
        output=OutputConfig(result_dir=folder),
    )
    finished = uvloop.run(run(config, ["bench-stats"], Progress(quiet=True)))
    return rebuild(finished.path).paired["b"]


def repeats(count: int, requests: int, slower: float, folder: Path) -> list[Comparison]:
    """`count` comparisons, each on servers of its own seed; 1.0: a target with itself."""
    found = []
    for seed in range(count):
        with truth_process(*_flags(1.0, 2 * seed)) as first:
            if slower == 1.0:
                found.append(compared((first, first), requests, seed, folder))
            else:
                with truth_process(*_flags(slower, 2 * seed + 1)) as second:
                    found.append(compared((first, second), requests, seed, folder))
        _say(f"{slower:.2f}x, {seed + 1} of {count}: {_in_words(found[-1])}")
    return found


def gain_split_error(folder: Path) -> float:
    """The larger |found / planted - 1| of the two factors of a gain, between two toys.

    All iterations of a toy take the same time here, and the first one's take ENGINE times those of
    the second: that is the engine's gain. The scheduling's is the ratio of iterations, counted in
    virtual time: padded gangs take as many as their longest members have tokens.
    """
    trace = folder / "split.jsonl"
    drawn = GeneratorConfig(preset="lesson1", num_prompts=SPLIT_REQUESTS, request_rate="inf")
    trace.write_bytes(trace_bytes(generate(drawn)))
    policies = PolicyConfig(batch_size=SPLIT_BATCH)
    simulated = SimulateConfig(trace=trace, policies=policies, load=ArrivalConfig(at_once=True))
    work = load_work(simulated)
    padded_iterations = int(padded(work.trace.output_length, SPLIT_BATCH)[::SPLIT_BATCH].sum())
    name = PolicyName.CONTINUOUS
    own_iterations = work_done(play(simulated, work, name, ITERATIONS, lambda _: None))["end_s"]
    with ExitStack() as stack:
        urls = []
        for policy, step_ms in (("static", ENGINE * STEP_MS), ("continuous", STEP_MS)):
            flags = ("--policy", policy, "--batch-size", str(SPLIT_BATCH))
            costs = ("--fixed-us", str(1000 * step_ms), "--prefill-token-us", "0")
            toy = start_toy(folder / f"{policy}.log", (*flags, *costs, "--decode-row-us", "0"))
            urls.append(stack.enter_context(toy).wait_ready(60.0).base_url)
        targets = zip(("static", "continuous"), urls, strict=True)
        config = RunConfig(
            trace=trace,
            targets=tuple(TargetConfig(name=name, base_url=url) for name, url in targets),
            compare=CompareConfig(split_gain=SPLIT_BATCH),
            output=OutputConfig(result_dir=folder),
        )
        found = rebuild(uvloop.run(run(config, ["bench-stats"], Progress(quiet=True))).path).gain
    if found is None:
        raise SystemExit("no gain was found to split")
    planted = float(padded_iterations / own_iterations)
    _say(f"engine: planted {ENGINE:.3f}, found {found.engine.ratio:.3f}")
    _say(f"scheduling: planted {planted:.3f}, found {found.policy.ratio:.3f}")
    return max(abs(found.engine.ratio / ENGINE - 1), abs(found.policy.ratio / planted - 1))


def _flags(slower: float, seed: int) -> tuple[str, ...]:
    """A server whose answers vary from request to request and from token to token."""
    return (
        *("--ttft-ms", str(TTFT_MS * slower), "--ttft-dist", "lognormal"),
        *("--itl-ms", str(ITL_MS * slower), "--itl-dist", "lognormal"),
        *("--seed", str(seed)),
    )


def _in_words(found: Comparison) -> str:
    primary = found.primary
    if primary is None:
        return "nothing to compare"
    return f"{primary.ratio:.3f}, p = {primary.p}, {'shown' if primary.is_shown else 'not shown'}"


def _is_shown(found: Comparison) -> bool:
    return found.primary is not None and found.primary.is_shown


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stats", description=__doc__)
    parser.add_argument("--self-repeats", type=int, default=100, help="(default: 100)")
    parser.add_argument("--slow-repeats", type=int, default=20, help="(default: 20)")
    given = parser.parse_args()
    result: dict[str, Any] = {"requests": [SELF_REQUESTS, SLOW_REQUESTS], "blocks": BLOCKS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        same = repeats(given.self_repeats, SELF_REQUESTS, 1.0, folder)
        slow = repeats(given.slow_repeats, SLOW_REQUESTS, 1.1, folder)
        result["gain_split_error"] = gain_split_error(folder)
    result["a_vs_a_no_difference"] = sum(not _is_shown(one) for one in same) / len(same)
    result["a_vs_a_nothing_shown"] = sum(
        not (_is_shown(one) or any(effect.is_shown for effect in one.others)) for one in same
    ) / len(same)
    result["slowdown10_found"] = sum(
        _is_shown(one) and one.primary is not None and one.primary.ratio < 1 for one in slow
    ) / len(slow)
    result["capacity_error"] = capacity_error()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
