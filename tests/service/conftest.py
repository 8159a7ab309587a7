"""A real service as a process of its own, and truth servers as its targets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runs.conftest import truth

ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key != "OPENAI_API_KEY" and not key.startswith("LOADGEN_")
}
TOKEN = "a-token-of-some-length"
ENDED = ("finished", "failed", "stopped", "interrupted")


@dataclass
class Serving:
    """A service that runs, and a client of it."""

    process: subprocess.Popen[str]
    url: str
    runs: Path
    log: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, **body: Any) -> httpx.Response:
        return self.client.post("/api/runs", json=body)

    def start(
        self, target: str, requests: int = 20, rate: float = 40, tokens: int = 5, **more: Any
    ) -> str:
        """Put a small run in line; its id."""
        generate = {"num_prompts": requests, "request_rate": rate, "input_len": 5}
        generate["output_len"] = tokens
        answer = self.post(targets=[{"base_url": target}], generate=generate, **more)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def get(self, run_id: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def wait(self, run_id: str, *states: str, limit_s: float = 60) -> dict[str, Any]:
        """Until the run is in one of these states, or has ended; what it is then."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            nonlocal found
            found = self.get(run_id)
            return found["state"] in (states or ENDED)

        wait_until(is_there, f"{run_id} is {states or ENDED}", limit_s)
        return found

    def wait_for_records(self, run_id: str, count: int) -> None:
        """Until so many requests have ended, warm-up included."""
        path = self.runs / run_id / "records-0.jsonl"
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, "records", 60)

    def in_flight(self, run_id: str) -> int:
        targets = (self.get(run_id)["progress"] or {}).get("targets", {})
        return sum(target["in_flight"] for target in targets.values())

    def pid_of(self, run_id: str) -> int:
        process = self.get_file(run_id, "process.json")
        return int(process["pid"])

    def get_file(self, run_id: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs / run_id / name).read_bytes())
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.client.close()
        self.process.send_signal(number)
        self.process.communicate(timeout=30)


def wait_until(holds: Callable[[], bool], what: str, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {limit_s} s: {what}"
        time.sleep(0.05)


def start_service(folder: Path, *flags: str, **environment: str) -> Serving:
    """Start one whose runs stand in `folder`; it answers when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "loadgen", "serve", "--port", "0"),
                *("--result-dir", str(folder), "--rest", "0", *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=ENVIRONMENT | environment,
        )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, log.read_text()
    host, port = url.removeprefix("http://").rsplit(":", 1)
    socket.create_connection((host.strip("[]"), int(port))).close()  # the address is served at once
    serving = Serving(process, url, folder, log)
    wait_until(lambda: _answers(serving), "the service answers", 30)
    return serving


def _answers(serving: Serving) -> bool:
    try:
        return serving.client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def service(folder: Path, *flags: str, **environment: str) -> Iterator[Serving]:
    serving = start_service(folder, *flags, **environment)
    try:
        yield serving
    finally:
        if serving.process.poll() is None:
            serving.end()


@contextmanager
def web_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server that answers as `handler` does."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def quick() -> Iterator[str]:
    """A truth server of 20 ms and 5 ms a token."""
    with truth("--ttft-ms", "20", "--itl-ms", "5") as url:
        yield url


@pytest.fixture(scope="session")
def slow() -> Iterator[str]:
    """A truth server of 50 ms and 200 ms a token."""
    with truth("--ttft-ms", "50", "--itl-ms", "200") as url:
        yield url


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One service for a module's tests."""
    with service(tmp_path_factory.mktemp("service") / "runs") as found:
        yield found
