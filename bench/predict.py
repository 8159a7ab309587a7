"""The simulator against what it models, a toy and two real servers: `make bench-predict`.

The toy runs the simulator's policies in real time, so that the same trace must give the same
figures: what is left is client, server and timers. vLLM and the static server, one at a time on
this machine's CPU, are calibrated on one trace, and another is predicted; repeats of it tell how
far the server itself varies. Run it on a quiet machine. Ends with one JSON line:
`toy_vs_sim` and `real_vs_predicted` (predicted / measured - 1 by metric, of real servers with the
median of the repeats) and `repeat_spread` (largest / smallest of the repeats - 1).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from loadgen.archive import read_run
from loadgen.cli import main as loadgen
from loadgen.sim.calibrate import calibrate, write_model
from loadgen.sim.config import PolicyConfig
from loadgen.sim.cost import CostFile, read_cost
from loadgen.sim.predict import Prediction, predict
from servers.local import ServerProcess, start_static, start_toy, start_vllm
from servers.models import cache_dir, prepare

MODEL: Final = "smollm2-135m"
BATCH: Final = 16
TOY_COSTS: Final = {
    "fixed_us": 15_000.0,
    "prefill_token_us": 40.0,
    "decode_row_us": 400.0,
    "kv_token_us": 1.0,
}
"""Iterations of 15 to 25 ms, with 16 rows: 700 tokens/s at most."""
TOY_RATES: Final = {"continuous": "14", "static": "7"}
"""Requests a second: near what each policy can take."""
Errors = dict[str, float | None]


@contextmanager
def _started(start: Callable[[Path], ServerProcess], folder: Path) -> Iterator[str]:
    """A server that is ready; its URL."""
    with start(folder / "server.log") as server:
        server.wait_ready(300)
        yield server.base_url


def measure(trace: Path, url: str, folder: Path, *flags: str) -> Path:
    """Replay a trace; the run's directory."""
    before = set(folder.glob("*-run-*"))
    code = loadgen(
        ["run", str(trace), "--base-url", url, "--result-dir", str(folder), "--quiet", *flags]
    )
    (path,) = set(folder.glob("*-run-*")) - before
    if code not in (0, 4):
        raise SystemExit(f"loadgen run {trace} failed")
    return path


def draw(folder: Path, name: str, requests: int, rate: str, seed: int) -> Path:
    """A trace of lesson 1's lengths at random times."""
    path = folder / f"{name}.jsonl"
    words = ["trace", "generate", "--preset", "lesson1", "--num-prompts", str(requests)]
    if loadgen([*words, "--request-rate", rate, "--seed", str(seed), "-o", str(path)]):
        raise SystemExit("trace generate failed")
    return path


def toy_vs_sim(folder: Path, requests: int) -> dict[str, Errors]:
    """Errors by policy."""
    found = {}
    for policy, rate in TOY_RATES.items():
        server = {"policy": policy, "batch_size": BATCH}
        told = CostFile.model_validate(
            {"name": "toy", "origin": "b", **TOY_COSTS, "server": server}
        )
        write_model(folder / "toy.yaml", told)
        trace = draw(folder, f"toy-{policy}", requests, rate, 7)
        start = partial(start_toy, arguments=("--cost", str(folder / "toy.yaml")))
        with _started(start, folder) as url:
            path = measure(trace, url, folder)
        found[policy] = _said(policy, predict(read_run(path), {"target": told})["target"])
    return found


def real_vs_predicted(
    name: str, folder: Path, requests: int, rate: str, repeats: int
) -> tuple[Errors, Errors]:
    """(errors, spread of the repeats) of one real server."""
    model = prepare(cache_dir())
    begin = {"vllm": start_vllm, "static": start_static}[name]
    start = partial(_begin, begin, model)
    policy = {"vllm": "continuous", "static": "static"}[name]
    known = draw(folder, f"{name}-known", requests, rate, 11)
    unknown = draw(folder, f"{name}-unknown", requests, rate, 12)
    flags = ("--tokenizer", str(model))
    with _started(start, folder) as url:
        measure(known, url, folder, *flags)  # the first pass meets a cold server
        calibrated = measure(known, url, folder, *flags)
        paths = [measure(unknown, url, folder, *flags) for _ in range(repeats)]
    config = PolicyConfig.model_validate({"policy": policy, "batch_size": BATCH})
    runs = [(read_run(calibrated), "target")]
    fitted = calibrate(runs, config, name=name, origin="bench.predict")
    write_model(folder / f"{name}.yaml", fitted.model)
    print(f"{name}: {(folder / f'{name}.yaml').read_text()}", file=sys.stderr)
    for residual in fitted.residuals:
        print(f"{name}: {residual}", file=sys.stderr)
    told = read_cost(folder / f"{name}.yaml")[1]
    seen = [predict(read_run(path), {"target": told})["target"] for path in paths]
    for prediction in seen:
        _said(name, prediction)
    return _summed_up(seen)


def _begin(begin: Callable[..., ServerProcess], model: Path, log: Path) -> ServerProcess:
    return begin(model, log, served_model_name=MODEL, batch_size=BATCH)


def _summed_up(seen: list[Prediction]) -> tuple[Errors, Errors]:
    errors: Errors = {}
    spread: Errors = {}
    for figure, (_, predicted) in seen[0].figures().items():
        measured = [one.figures()[figure][0] for one in seen]
        known = [value for value in measured if value]
        middle = statistics.median(known) if len(known) == len(measured) else None
        errors[figure] = None if middle is None or predicted is None else predicted / middle - 1
        spread[figure] = None if middle is None else max(known) / min(known) - 1
    return errors, spread


def _said(name: str, prediction: Prediction) -> Errors:
    errors = prediction.errors()
    shown = ", ".join(
        f"{figure} {0.0 if value is None else value:+.1%}" for figure, value in errors.items()
    )
    print(f"{name}: predicted against measured: {shown}", file=sys.stderr)
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__)
    parser.add_argument("--servers", default="vllm,static", help="real ones (default: vllm,static)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: 3)")
    parser.add_argument("--toy-requests", type=int, default=300, help="(default: 300)")
    parser.add_argument("--vllm-requests", type=int, default=128, help="(default: 128)")
    parser.add_argument("--vllm-rate", default="3", help="a second (default: 3)")
    parser.add_argument("--static-requests", type=int, default=64, help="(default: 64)")
    parser.add_argument("--static-rate", default="0.7", help="a second (default: 0.7)")
    given = parser.parse_args()
    result: dict[str, Any] = {"real_vs_predicted": {}, "repeat_spread": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result["toy_vs_sim"] = toy_vs_sim(folder, given.toy_requests)
        for name in filter(None, given.servers.split(",")):
            requests, rate = getattr(given, f"{name}_requests"), getattr(given, f"{name}_rate")
            errors, spread = real_vs_predicted(name, folder, requests, rate, given.repeats)
            result["real_vs_predicted"][name] = errors
            result["repeat_spread"][name] = spread
    print(json.dumps({key: _rounded(value) for key, value in result.items()}))
    return 0


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    sys.exit(main())
