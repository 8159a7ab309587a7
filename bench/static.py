"""The static-batch server against a bare script on the same batches: `make bench-static`.

Pairs are interleaved, so that both sides meet the same noise, and which side goes first alternates.
The server is given all requests at once, so it forms the script's batches. Ends with one JSON line:
`server_vs_script`, the median ratio of useful tokens/s, and `server_vs_script_low`, its lower 90 %
bound by bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from loadgen.client.http import httpx
from loadgen.client.transport import SocketTransport
from loadgen.trace.lengths import draw_lesson1_tokens
from servers.local import servers_python, start_static
from servers.models import cache_dir, prepare

ROOT: Final = Path(__file__).resolve().parent.parent
BATCH: Final = 16
Rows = list[tuple[list[int], int]]


def lesson_rows(count: int, vocabulary: int) -> Rows:
    """(token ids, output tokens) of the batching lesson's lengths."""
    prompts, outputs = draw_lesson1_tokens(count, 42)
    rng = np.random.default_rng(42)
    return [
        (rng.integers(3, vocabulary, prompt).tolist(), int(output))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


class Script:
    """The bare script, loaded once."""

    def __init__(self, model: Path, rows: Rows) -> None:
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        self._process = subprocess.Popen(
            [servers_python(), "-m", "bench.bare_generate", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self._tell(json.dumps(batches)) == "ready"

    def run_s(self) -> float:
        return float(self._tell("go"))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, line: str) -> str:
        writer: IO[str] | None = self._process.stdin
        reader: IO[str] | None = self._process.stdout
        assert writer is not None
        assert reader is not None
        writer.write(line + "\n")
        writer.flush()
        return reader.readline().strip()


async def serve_s(url: str, rows: Rows) -> float:
    """Seconds in which the server answers all rows, sent in order and at once.

    By loadgen's own transport, and answers are kept as bytes: a client shares the server's cores,
    and httpx's lines would cost a third of what the server itself spends on a token.
    """
    async with SocketTransport() as transport:
        wires = [transport.serialise(_request(url, row)) for row in rows]
        sinks = [_Kept() for _ in rows]
        started_s = time.perf_counter()
        answers = []
        for wire, sink in zip(wires, sinks, strict=True):
            answers.append(asyncio.create_task(transport.exchange(wire, sink)))
            await asyncio.sleep(0.0005)  # in order: the batches must be the script's
        await asyncio.gather(*answers)
        took_s = time.perf_counter() - started_s
    assert [sink.tokens() for sink in sinks] == [output for _, output in rows]
    return took_s


def _request(url: str, row: tuple[list[int], int]) -> httpx.Request:
    body: dict[str, Any] = {"prompt": row[0], "max_tokens": row[1], "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return httpx.Request("POST", f"{url}/v1/completions", json=body)


class _Kept:
    """A sink that keeps the bytes of an answer."""

    def __init__(self) -> None:
        self._data = bytearray()

    def connected(self, at_s: float) -> None:
        pass

    def sent(self, at_s: float) -> None:
        pass

    def response(self, status: int, headers: Sequence[tuple[bytes, bytes]], at_s: float) -> None:
        assert status == 200

    def body(self, data: bytes, at_s: float) -> None:
        self._data += data

    def tokens(self) -> int:
        """By the server's own usage."""
        (event,) = [part for part in self._data.split(b"\n\n") if b'"choices":[]' in part]
        tokens: int = json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"]
        return tokens


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.static", description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=64)
    given = parser.parse_args(words)
    model = prepare(cache_dir())
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    rows = lesson_rows(given.requests, vocabulary)
    tokens = sum(output for _, output in rows)
    ratios: list[float] = []
    script = Script(model, rows)
    try:
        with (
            tempfile.TemporaryDirectory() as logs,
            start_static(model, Path(logs) / "static.log", batch_size=BATCH) as server,
        ):
            server.wait_ready(180)
            for pair in range(given.pairs):
                script_s = script.run_s() if pair % 2 else 0.0
                server_s = asyncio.run(serve_s(server.base_url, rows))
                script_s = script_s or script.run_s()
                ratios.append(script_s / server_s)
                print(
                    f"server {tokens / server_s:6.1f}  script {tokens / script_s:6.1f} useful "
                    f"tokens/s  ratio {ratios[-1]:.3f}  load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    finally:
        script.close()
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    result = {
        "server_vs_script": round(float(np.median(ratios)), 4),
        "server_vs_script_low": round(float(np.quantile(np.median(drawn, axis=1), 0.1)), 4),
        "pairs": len(ratios),
        "requests": given.requests,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
