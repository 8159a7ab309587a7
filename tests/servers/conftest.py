"""Fixtures of the servers' tests: a random small model, the embedded one, and real running servers.

A server takes seconds to start, so those whose options many tests share live for the whole session.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running import MODEL_NAME, Start, Static

from servers.local import start_static
from servers.models import cache_dir, prepare
from servers.random_model import random_model


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a random small model in float32."""
    return random_model(tmp_path_factory.mktemp("small-model"))


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The directory of the embedded model."""
    return prepare(cache_dir())


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers' logs go."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def start(small_model: Path, log_dir: Path) -> Iterator[Start]:
    """Starts static servers on the small model, which stop after the module."""
    running: list[Static] = []

    def run(
        *arguments: str, batch_size: int = 4, model: Path = small_model, wait: bool = True
    ) -> Static:
        process = start_static(
            model,
            log_dir / f"static-{time.monotonic_ns()}.log",
            served_model_name=MODEL_NAME,
            batch_size=batch_size,
            arguments=["--threads", "1", *arguments],
        )
        client = httpx.Client(base_url=process.base_url, timeout=60)
        running.append(Static(process, client))
        if wait:
            process.wait_ready(120)
        return running[-1]

    yield run
    for static in running:
        static.client.close()
        static.process.stop()


@pytest.fixture(scope="session")
def static(small_model: Path, log_dir: Path) -> Iterator[Static]:
    """A static server with batches of 4 and a generous wait, shared by all tests."""
    arguments = ["--threads", "1", "--max-wait", "300"]
    with (
        start_static(
            small_model,
            log_dir / "static.log",
            served_model_name=MODEL_NAME,
            batch_size=4,
            arguments=arguments,
        ) as process,
        httpx.Client(base_url=process.base_url, timeout=60) as client,
    ):
        process.wait_ready(120)
        yield Static(process, client)
