"""Bare clients of other libraries under the same load, for ratios: one closed loop of streams.

`python -m bench.bare httpx2 --url URL --streams 64 --requests 256` prints one JSON line with the
processor time it took. Each does what a user would write: read lines, parse each event's JSON, keep
the time of each chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

TOKENS: Final = 64
BODY: Final = {
    "model": "truth",
    "prompt": "one two three",
    "max_tokens": TOKENS,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}

Send = Callable[[list[float]], Awaitable[None]]


def take(line: str, times_s: list[float]) -> None:
    """What every such client does with a line."""
    if line.startswith("data: ") and line != "data: [DONE]":
        chunk = json.loads(line[6:])
        if chunk["choices"] and chunk["choices"][0]["text"]:
            times_s.append(time.monotonic())


async def with_httpx(library: Any, url: str, streams: int, requests: int) -> int:
    """httpx or httpx2: `aiter_lines`."""
    limits = library.Limits(max_connections=None, max_keepalive_connections=None)
    async with library.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def send(times_s: list[float]) -> None:
            async with client.stream("POST", f"{url}/v1/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    take(line, times_s)

        return await closed_loop(send, streams, requests)


async def with_aiohttp(library: Any, url: str, streams: int, requests: int) -> int:
    """aiohttp: iterate the body by lines."""
    connector = library.TCPConnector(limit=0)
    timeout = library.ClientTimeout(total=None)
    async with library.ClientSession(connector=connector, timeout=timeout) as session:

        async def send(times_s: list[float]) -> None:
            async with session.post(f"{url}/v1/completions", json=BODY) as response:
                async for line in response.content:
                    take(line.decode().rstrip("\n"), times_s)

        return await closed_loop(send, streams, requests)


async def closed_loop(send: Send, streams: int, requests: int) -> int:
    """`requests` in all, `streams` at once; returns the number of chunks."""
    left = iter(range(requests))
    chunks = 0

    async def one_after_another() -> None:
        nonlocal chunks
        for _ in left:
            times_s: list[float] = []
            await send(times_s)
            chunks += len(times_s)

    await asyncio.gather(*(one_after_another() for _ in range(streams)))
    return chunks


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bare")
    parser.add_argument("library", choices=["httpx", "httpx2", "aiohttp"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    given = parser.parse_args()
    library = __import__(given.library)
    client = with_aiohttp if given.library == "aiohttp" else with_httpx
    started_s, cpu_s = time.monotonic(), time.process_time()
    chunks = asyncio.run(client(library, given.url, given.streams, given.requests))
    cpu_s = time.process_time() - cpu_s
    wall_s = time.monotonic() - started_s
    print(json.dumps({"chunks": chunks, "cpu_s": cpu_s, "wall_s": wall_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
