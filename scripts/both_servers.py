"""Both real servers of this repository, on this machine, compared: what demo and lessons share.

It starts the static-batch server and vLLM on free loopback ports, calls the command that a user
would type, and stops both however that ends. It knows neither traces nor figures.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.cli import main as loadgen
from servers.local import ServerError, ServerProcess, sigterm_unwinds, start_static, start_vllm

MODEL_NAME: Final = "smollm2-135m"
MAX_MODEL_LEN: Final = ("--max-model-len", "2048")
READY_TIMEOUT_S: Final = 300.0
FAILED: Final = 1
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class BothServers:
    """What is served, and where results and logs go."""

    name: str
    """Of the script, in its messages."""
    model: Path
    batch_size: int
    result_dir: Path
    static_flags: tuple[str, ...] = ()

    @property
    def scratch(self) -> Path:
        """A folder for the trace and the servers' logs."""
        return self.result_dir / f".{self.name}"

    def compare(self, *words: str) -> tuple[int, Path | None]:
        """`loadgen compare` with `words` on both; its exit code, and its run directory if any."""
        before = set(self.result_dir.glob("*-compare-*"))
        code = self._compare(words)
        runs = sorted(set(self.result_dir.glob("*-compare-*")) - before)
        return code, runs[-1] if runs else None

    def _compare(self, words: Sequence[str]) -> int:
        with sigterm_unwinds(), ExitStack() as stack:
            try:
                static, vllm = self._start(stack)
                return call_loadgen(
                    *("compare", *words),
                    *("--target", f"static={static.base_url}", "--target", f"vllm={vllm.base_url}"),
                    *("--model", MODEL_NAME, "--tokenizer", str(self.model)),
                    *("--result-dir", str(self.result_dir)),
                )
            except ServerError as error:
                print(f"{self.name}: {error}", file=sys.stderr)
                return FAILED
            except KeyboardInterrupt:
                print(f"{self.name}: interrupted", file=sys.stderr)
                return INTERRUPTED
            finally:
                say("stopping both servers")

    def _start(self, stack: ExitStack) -> list[ServerProcess]:
        """Both servers, ready; `stack` stops them. They load side by side."""
        started = {}
        for name, start, flags in (
            ("static", start_static, self.static_flags),
            ("vllm", start_vllm, ()),
        ):
            log = self.scratch / f"{name}.log"
            log.unlink(missing_ok=True)
            say(f"starting the {name} server; its log is {log}")
            server = start(
                self.model,
                log,
                served_model_name=MODEL_NAME,
                batch_size=self.batch_size,
                arguments=(*MAX_MODEL_LEN, *flags),
            )
            started[name] = stack.enter_context(server)
        for name, server in started.items():
            server.wait_ready(READY_TIMEOUT_S, _waiting(name))
            say(f"{name} is ready on {server.base_url}")
        return list(started.values())


def call_loadgen(*words: str) -> int:
    """The command as a user would type it, which is shown; its exit code."""
    say(f"loadgen {shlex.join(words)}")
    return loadgen(words)


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def _waiting(name: str) -> Callable[[float, str], None]:
    def on_wait(elapsed_s: float, state: str) -> None:
        if int(elapsed_s) % 5 == 0:
            say(f"waiting for {name}, {elapsed_s:.0f} s: {state}")

    return on_wait
