"""The demo: two real servers on this machine, one trace, one comparison.

It starts the static-batch server and vLLM on free loopback ports, draws a trace, and then calls the
same commands that a user would type. Both servers are stopped however it ends. No figure is
computed here.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from loadgen.cli import main as loadgen
from servers.local import ServerError, ServerProcess, sigterm_unwinds, start_static, start_vllm

MODEL_NAME: Final = "smollm2-135m"
MAX_MODEL_LEN: Final = 2048
READY_TIMEOUT_S: Final = 300.0
FAILED: Final = 1
INTERRUPTED: Final = 130


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
    scratch: Path = arguments.result_dir / ".demo"
    trace = scratch / "trace.jsonl"
    code = _loadgen(
        *("trace", "generate", "--preset", "lesson1", "-o", str(trace)),
        *("--num-prompts", arguments.num_prompts, "--request-rate", arguments.request_rate),
        *("--arrival-cv", arguments.arrival_cv, "--seed", arguments.seed),
    )
    if code != 0:
        return code
    before = set(arguments.result_dir.glob("*-compare-*"))
    with sigterm_unwinds(), ExitStack() as stack:
        try:
            static, vllm = _start_servers(arguments, scratch, stack)
            code = _loadgen(
                *("compare", str(trace), "--label", "static batching vs continuous batching"),
                *("--target", f"static={static.base_url}", "--target", f"vllm={vllm.base_url}"),
                *("--model", MODEL_NAME, "--tokenizer", str(arguments.model)),
                *("--result-dir", str(arguments.result_dir)),
            )
        except ServerError as error:
            print(f"demo: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            print("demo: interrupted", file=sys.stderr)
            return INTERRUPTED
        finally:
            _say("stopping both servers")
    for path in sorted(set(arguments.result_dir.glob("*-compare-*")) - before):
        print(path)
    return code


def _start_servers(
    arguments: argparse.Namespace, scratch: Path, stack: ExitStack
) -> list[ServerProcess]:
    """Both servers, ready; `stack` stops them. They load side by side."""
    started = {}
    for name, start in (("static", start_static), ("vllm", start_vllm)):
        log = scratch / f"{name}.log"
        log.unlink(missing_ok=True)
        _say(f"starting the {name} server; its log is {log}")
        server = start(
            arguments.model,
            log,
            served_model_name=MODEL_NAME,
            batch_size=arguments.batch_size,
            arguments=("--max-model-len", str(MAX_MODEL_LEN)),
        )
        started[name] = stack.enter_context(server)
    for name, server in started.items():
        server.wait_ready(READY_TIMEOUT_S, _waiting(name))
        _say(f"{name} is ready on {server.base_url}")
    return list(started.values())


def _waiting(name: str) -> Callable[[float, str], None]:
    def on_wait(elapsed_s: float, state: str) -> None:
        if int(elapsed_s) % 5 == 0:
            _say(f"waiting for {name}, {elapsed_s:.0f} s: {state}")

    return on_wait


def _loadgen(*words: str) -> int:
    _say(f"loadgen {shlex.join(words)}")
    return loadgen(words)


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
