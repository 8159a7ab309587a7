"""Whole runs of the installed command against truth servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}


@contextmanager
def truth(*flags: str) -> Iterator[str]:
    """A truth server as a process of its own; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.truth", *flags], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="session")
def quick() -> Iterator[str]:
    """A truth server of 20 ms and 5 ms a token."""
    with truth("--ttft-ms", "20", "--itl-ms", "5") as url:
        yield url


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "loadgen", *words]


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """Of a `--json` run."""
        content: dict[str, Any] = json.loads(self.stdout)
        return content

    @property
    def path(self) -> Path:
        return Path(self.summary["run_directory"])


def call(*words: str, timeout_s: float = 60.0, **environment: str) -> Finished:
    """Run `loadgen` to its end."""
    done = subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=ENVIRONMENT | environment,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def records_of(run: Path) -> list[dict[str, Any]]:
    """Measured records, straight from the journal's lines; a torn last line is left out."""
    files = sorted(run.glob("records-*.jsonl"))
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [record for record in records if record["phase"] == "measured"]


def lines_of(run: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in run.glob("records-*.jsonl"))


def children_of(pid: int) -> list[int]:
    """The process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
