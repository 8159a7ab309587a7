"""Processes of the service: a run as a process tree of its own, and short commands beside it.

A run holds the lock in its directory for as long as it lives, by a descriptor that it inherits: so
whether it lives is known without its number, and its number is trusted only with its start time. It
has a session of its own, gets its configuration in memory and its key through its environment, and
outlives the service. It knows no queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

import loadgen
from loadgen.archive import read_object
from loadgen.client.allowed import VARIABLE
from loadgen.errors import LoadgenError
from loadgen.journal import write_whole
from loadgen.locks import hold
from loadgen.machine import is_running, process_of
from loadgen.service.runs import LOCK, LOG, PROCESS, RESULT
from loadgen.service.settings import KEY_PREFIX, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from loadgen.service.spec import DEFAULT_KEY
from loadgen.status import LIVE

_PACKAGES: Final = str(Path(loadgen.__file__).resolve().parent.parent)
_NICE: Final = 10
"""Of commands beside a run, which must not take the processor from it."""


class CommandError(LoadgenError):
    """A command beside a run that failed; the text is its last line."""


def command(*words: str) -> list[str]:
    """A `loadgen` command of this same installation, whatever the working directory holds."""
    return [sys.executable, "-P", "-m", "loadgen", *words]


def environment_of_child(
    environment: Mapping[str, str], allowed: str, api_key: str | None = None
) -> dict[str, str]:
    """The service's environment without its secrets, and with what holds a run to its targets."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, DEFAULT_KEY)
        and not name.startswith(KEY_PREFIX)
    }
    kept |= {"PYTHONPATH": _PACKAGES, VARIABLE: allowed, "LOADGEN_LOCAL_TOKENIZERS": "0"}
    return kept if api_key is None else {**kept, DEFAULT_KEY: api_key}


@dataclass(slots=True)
class Child:
    """A run that this service started. It holds the run's lock as well, until it is released: so a
    run that has just died is not taken for one that nobody saw die."""

    process: subprocess.Popen[bytes]
    lock: int

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def release(self) -> None:
        os.close(self.lock)


def start(path: Path, words: Sequence[str], config: bytes, environment: Mapping[str, str]) -> Child:
    """Start the run whose directory is `path`; raises OSError."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        hold(lock)
        with (
            (path / RESULT).open("wb") as result,
            (path / LOG).open("ab") as log,
            _in_memory(config) as given,
        ):
            process = subprocess.Popen(
                command(*words, "--config", "-", "--run-dir", str(path.resolve()), "--quiet"),
                stdin=given,
                stdout=result,
                stderr=log,
                cwd=path,
                env=dict(environment),
                pass_fds=[lock],
                start_new_session=True,
            )
    except BaseException:
        os.close(lock)
        raise
    child = Child(process, lock)
    try:
        write_whole(path / PROCESS, orjson.dumps(process_of(process.pid)))
    except OSError:  # a run that nobody could stop must not go on
        process.kill()
        process.wait()
        child.release()
        raise
    return child


def _in_memory(content: bytes) -> BinaryIO:
    """A file that no path leads to. A pipe would make whoever starts a run wait until it reads."""
    file = os.fdopen(os.memfd_create("config"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def process_in(path: Path) -> dict[str, Any] | None:
    """The process that does the run in `path`; None where it has ended.

    Its own word does where the service was killed before it could write down whom it had started.
    """
    for process in (read_object(path / PROCESS), read_object(path / LIVE).get("process")):
        if is_running(process):
            assert isinstance(process, dict)
            return process
    return None


def interrupt(path: Path) -> None:
    """As Ctrl-C does: once drains, twice cuts off."""
    _signal(path, signal.SIGINT, whole_group=False)


def kill(path: Path) -> None:
    """End the whole tree now; what had finished is on disk."""
    _signal(path, signal.SIGKILL, whole_group=True)


def _signal(path: Path, number: signal.Signals, *, whole_group: bool) -> None:
    process = process_in(path)
    if process is None:
        return
    with suppress(ProcessLookupError):
        if whole_group:
            os.killpg(process["pid"], number)
        else:
            os.kill(process["pid"], number)


@dataclass(frozen=True, slots=True)
class Done:
    """A short command that ended well."""

    stdout: bytes


async def call(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: bytes = b"",
    limit_s: float = 300.0,
) -> Done:
    """Run a short `loadgen` command (or, with a path first, a program) beside the service.

    It has its own memory and its own crash. Raises CommandError with its last line.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(stdin), limit_s)
    except TimeoutError:
        raise CommandError(f"took over {limit_s:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode not in (0, 4):  # 4: the run is INVALID, which its report says
        lines = stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"ended with code {process.returncode}"
        raise CommandError(last.removeprefix("loadgen: "))
    return Done(stdout)
