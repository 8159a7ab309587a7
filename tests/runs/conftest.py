"""Whole runs of the installed command against truth servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.selfcheck import truth_process

truth = truth_process

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}


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


class _Bodies(asyncio.Protocol):
    """Keeps each request's body and answers it with three tokens."""

    def __init__(self, kept: list[bytes]) -> None:
        self.kept = kept
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            self.answer(body)

    def answer(self, body: bytes) -> None:
        tokens = 1
        if body:
            self.kept.append(body)
            tokens = json.loads(body)["max_tokens"]
        usage: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": tokens}
        text = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage}
        stream = b"data: " + json.dumps(text).encode() + b"\n\ndata: [DONE]\n\n"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(stream), stream)
        )


@contextmanager
def recorder() -> Iterator[tuple[str, Any]]:
    """A server in a thread of its own that keeps the bodies; (URL, what it has kept)."""
    loop = asyncio.new_event_loop()
    kept: list[bytes] = []
    server = loop.run_until_complete(loop.create_server(lambda: _Bodies(kept), "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", lambda: list(kept)
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
