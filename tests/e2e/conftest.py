"""Real servers for end-to-end tests: both on the embedded model, started once for all."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers.local import ServerProcess, servers_python, start_static, start_vllm

ROOT = Path(__file__).resolve().parents[2]
LOADGEN = ROOT / ".venv" / "bin" / "loadgen"
READY_TIMEOUT_S = 300.0
LOOPBACK_ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    def run_directory(self) -> Path:
        """Of a `--json` run."""
        return Path(json.loads(self.stdout)["run_directory"])


def call(*words: str, timeout_s: float = 300.0, **environment: str) -> Finished:
    """Run the installed `loadgen` command as a user would."""
    done = subprocess.run(
        [LOADGEN, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=LOOPBACK_ENVIRONMENT | environment,
        cwd=ROOT,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def records_of(run: Path, target: str) -> list[dict[str, Any]]:
    """Measured records of one target, straight from the journal's lines."""
    lines = b"".join(file.read_bytes() for file in sorted(run.glob("records-*.jsonl")))
    records = [json.loads(line) for line in lines.splitlines()]
    return [r for r in records if r["target"] == target and r["phase"] == "measured"]


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model's directory."""
    made = subprocess.run(
        [servers_python(), "-m", "servers.models"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return Path(made.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, for tests of plumbing."""
    directory = tmp_path_factory.mktemp("random-model")
    subprocess.run(
        [
            servers_python(),
            "-c",
            f"from servers.models import *; random_model(Path({str(directory)!r}))",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture(scope="session")
def both_servers(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """(static, vllm), ready."""
    logs = tmp_path_factory.mktemp("logs")
    flags = ("--max-model-len", "2048")
    with (
        start_static(model, logs / "static.log", served_model_name="m", arguments=flags) as static,
        start_vllm(model, logs / "vllm.log", served_model_name="m", arguments=flags) as vllm,
    ):
        static.wait_ready(READY_TIMEOUT_S)
        vllm.wait_ready(READY_TIMEOUT_S)
        yield static, vllm
