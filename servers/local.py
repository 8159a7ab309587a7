"""Run a server of this repository as a child process: start it, wait until it is ready, stop all of
it.

Standard library only, so that the demo (in the environment without torch) and the tests use the
same code. A server runs in a session of its own, logs to a file, and is stopped with its whole
process group, because vLLM works in several processes. It also ends when the process that started
it is killed (see `servers.lifetime`): start servers from a thread that lives as long as they do.
This module knows nothing of what is asked of a server but `/health`.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from servers.lifetime import PARENT_VARIABLE

REPOSITORY = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
_POLL_S = 0.1
_LOG_TAIL_LINES = 12

OnWait = Callable[[float, str], None]


class ServerError(Exception):
    """A server did not start, died before it was ready, or was not ready in time; the message holds
    its last lines.
    """


def servers_python() -> str:
    """The interpreter of the servers' environment: `LOADGEN_SERVERS_PYTHON`, `.venv-servers`, else
    this one.
    """
    if chosen := os.environ.get("LOADGEN_SERVERS_PYTHON"):
        return chosen
    own = REPOSITORY / ".venv-servers" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def free_port(host: str = HOST) -> int:
    """A port that was free a moment ago; the kernel does not hand it out again at once."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One running server: its process group, its log and its address. Use it as a context manager,
    or call `stop`.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        """Start `python -m module` with `--host` and `--port` added; `environment` is laid over
        this process's own. `python` is by default that of the servers' environment.
        """
        self.module = module
        self.port = port if port is not None else free_port()
        self.base_url = f"http://{HOST}:{self.port}"
        self.log_path = log_path
        command = [python or servers_python(), "-m", module, *_with_address(arguments, self.port)]
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env={
                        **os.environ,
                        "PYTHONUNBUFFERED": "1",
                        **(environment or {}),
                        PARENT_VARIABLE: f"{os.getpid()}",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"cannot start {module} with {command[0]}: {error}") from error

    @property
    def pid(self) -> int:
        """The process id of the server's first process, which is also its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The first process's exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The last lines of the log."""
        text = self.log_path.read_bytes()[-20_000:].decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def health(self) -> tuple[int, str]:
        """The status and body of `/health`; status 0 and a reason where nothing answers."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status, response.read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"not listening ({type(error).__name__})"
        finally:
            connection.close()

    def wait_ready(self, timeout_s: float = 180.0, on_wait: OnWait | None = None) -> Self:
        """Return once `/health` answers 200; `on_wait(elapsed_s, state)` is called about once a
        second meanwhile.

        Raises ServerError if the server ends first or `timeout_s` passes. The server is left to the
        caller to stop.
        """
        start_s = time.monotonic()
        told_s = -1.0
        while True:
            code = self.exit_code()
            if code is not None:
                raise ServerError(
                    f"{self.module} ended with exit code {code} before it was ready:\n"
                    f"{self.log_tail()}"
                )
            status, state = self.health()
            if status == 200:
                return self
            elapsed_s = time.monotonic() - start_s
            if elapsed_s > timeout_s:
                raise ServerError(
                    f"{self.module} was not ready after {timeout_s:.0f} s "
                    f"(health: {status} {state}); its log {self.log_path} ends:\n{self.log_tail()}"
                )
            if on_wait is not None and elapsed_s - told_s >= 1.0:
                told_s = elapsed_s
                on_wait(elapsed_s, state)
            time.sleep(_POLL_S)

    def stop(self, grace_s: float = 30.0) -> None:
        """End the whole process group: SIGTERM, up to `grace_s` seconds, SIGKILL. Returns when
        nothing of it runs.
        """
        try:
            self._signal_group(signal.SIGTERM)
            if not self._wait_gone(grace_s):
                self._signal_group(signal.SIGKILL)
                self._wait_gone(10.0)
        except BaseException:
            # Interrupted while waiting (a second Ctrl-C): nothing may be left behind.
            self._signal_group(signal.SIGKILL)
            raise

    def kill(self) -> None:
        """End the whole process group by SIGKILL and wait for it."""
        self._signal_group(signal.SIGKILL)
        self._wait_gone(10.0)

    def _signal_group(self, signum: signal.Signals) -> None:
        # The group outlives its first process, so it is asked for by number even after that one was
        # reaped. The number cannot have been reused while any member is alive; once none is,
        # nothing is signalled.
        if _running_members(self.pid):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signum)

    def _wait_gone(self, limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while True:
            self._process.poll()  # reaps the first process
            if not _running_members(self.pid):
                self._process.wait()  # it may have ended since it was polled
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _with_address(arguments: Sequence[str], port: int) -> list[str]:
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:cut], "--host", HOST, "--port", str(port), *arguments[cut:]]


def _running_members(group: int) -> list[int]:
    """The process ids in a process group, zombies left out: nothing can be waited for in those."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            # The command name in parentheses may hold spaces: fields are counted from behind it.
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, group_of_entry = fields[0], int(fields[2])
        if group_of_entry == group and state not in "ZX":
            members.append(int(entry))
    return members


def start(
    module: str,
    model: Path | str,
    log_path: Path,
    *,
    served_model_name: str | None = None,
    batch_size: int = 16,
    arguments: Sequence[str] = (),
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start a server module; it is not ready yet.

    `arguments` are further flags of the module, for vLLM its own ones after `--`.
    """
    flags = ["--model", str(model), "--batch-size", str(batch_size)]
    if served_model_name:
        flags += ["--served-model-name", served_model_name]
    return ServerProcess(module, [*flags, *arguments], log_path, port=port, environment=environment)


def start_toy(
    log_path: Path, arguments: Sequence[str] = (), *, port: int | None = None
) -> ServerProcess:
    """Start the toy server in this process's own environment; it is not ready yet."""
    return ServerProcess("servers.toy", arguments, log_path, port=port, python=sys.executable)


start_static = partial(start, "servers.static")
start_vllm = partial(start, "servers.vllm")


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Within this block SIGTERM raises SystemExit(143), so that `with` blocks around servers stop
    them in order.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        sys.exit(128 + signum)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
