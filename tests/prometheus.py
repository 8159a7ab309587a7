"""A real Prometheus for tests, from the system's package; it scrapes loopback only."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.queries import instant_query

EVERY_S = 0.25
READY_S = 30.0
ALL_TIME = "15m"
"""Longer than any test: what has ended meanwhile is still found."""


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; a test without it is skipped, but never in CI."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is not installed (Debian's package prometheus)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass(frozen=True)
class Prometheus:
    """One that scrapes."""

    url: str

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The series of a query, now or at a Unix time: `{"metric": ..., "value": [t, text]}`."""
        try:
            return instant_query(self.url, expression, at)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None

    def value(self, expression: str) -> float:
        """Of an expression that has one series."""
        (series,) = self.query(expression)
        return float(series["value"][1])

    def last(self, metric: str, **labels: str) -> float:
        """The sum of a metric's series as they stood when they were last scraped."""
        matchers = ",".join(f'{key}="{text}"' for key, text in labels.items())
        return self.value(f"sum(last_over_time({metric}{{{matchers}}}[{ALL_TIME}]))")

    def wait_for(self, expression: str, seconds: float = READY_S) -> None:
        """Until an expression has a series."""
        deadline_s = time.monotonic() + seconds
        while not self.query(expression):
            assert time.monotonic() < deadline_s, f"no series of {expression}"
            time.sleep(EVERY_S)


@contextmanager
def prometheus(
    directory: Path, jobs: dict[str, str], rules: Path | None = None, every_s: float = EVERY_S
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `jobs` (name -> host:port), with the rules of a folder."""
    binary = program("prometheus")
    every = f"{round(1000 * every_s)}ms"
    config = {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "rule_files": [] if rules is None else [str(rules / "*.yml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in jobs.items()
        ],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        ours = Prometheus(f"http://127.0.0.1:{port}")
        _wait_ready(ours.url, process, directory / "prometheus.log")
        for job in jobs:  # it takes some seconds to begin, and what comes before is not seen
            ours.wait_for(f'up{{job="{job}"}}')
        yield ours
    finally:
        process.terminate()
        process.wait(READY_S)


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
