"""A running static server as the tests see it: requests, metrics, and waiting."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from servers.local import ServerProcess
from servers.static.wire import EngineConfig

MODEL_NAME = "small"


def engine_config(model: Path, dtype: str = "auto") -> EngineConfig:
    """A model in batches of 2 on one thread of the CPU."""
    return EngineConfig(
        model=str(model),
        dtype=dtype,
        device="cpu",
        attention="sdpa",
        cache="dynamic",
        compile=False,
        threads=1,
        batch_size=2,
        max_model_len=2048,
        eos_ids=(2,),
        pad_id=2,
    )


@dataclass(frozen=True, slots=True)
class Static:
    """A running static server and a client for it."""

    process: ServerProcess
    client: httpx.Client

    def completion(self, **fields: Any) -> httpx.Response:
        """POST to `/v1/completions`; greedy unless told otherwise."""
        return self.client.post("/v1/completions", json={"temperature": 0, **fields})

    def chat(self, **fields: Any) -> httpx.Response:
        """POST to `/v1/chat/completions`; greedy unless told otherwise."""
        return self.client.post("/v1/chat/completions", json={"temperature": 0, **fields})

    def together(self, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
        """Send completions at once, in this order, and return the answers."""

        async def send() -> list[dict[str, Any]]:
            async with httpx.AsyncClient(base_url=self.process.base_url, timeout=60) as client:
                path = "/v1/completions"
                calls = [client.post(path, json={"temperature": 0, **body}) for body in bodies]
                return [answer.json() for answer in await asyncio.gather(*calls)]

        return asyncio.run(send())

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of `/metrics`."""
        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no sample {name} {labels}")


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    """Ask until it holds; fails with `what` after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {limit_s:.0f} s: {what}"
        time.sleep(0.02)


def model_pid(static: Static) -> int:
    """The process id of the model's process, the server's only child."""
    children = Path(f"/proc/{static.process.pid}/task/{static.process.pid}/children").read_text()
    (pid,) = (int(word) for word in children.split())
    return pid


Start = Callable[..., Static]
