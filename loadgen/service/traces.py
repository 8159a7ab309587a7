"""Traces that clients have sent: kept by the SHA-256 of their bytes, and used by it alone.

A client never names a path. A file is written beside its place as it comes, and takes it when
`loadgen trace inspect`, in a process of its own, could read it: that alone takes a
turn, however long the bytes take to come. It knows no HTTP.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.archive import read_object
from loadgen.journal import write_whole
from loadgen.service import process
from loadgen.service.refusal import Refusal
from loadgen.service.settings import Settings
from loadgen.service.spec import TRACE_ID

_MOST_UPLOADS: Final = 8
"""At once: each has a file."""


class Traces:
    """The uploaded traces of a service."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.traces
        self._most_bytes = settings.flags.max_trace_mib * 2**20
        self._most_requests = settings.flags.max_requests
        self._keep = settings.flags.keep_traces
        self._uploads = 0

    def remove_partial(self) -> None:
        """What a service that was killed in an upload has left."""
        for path in self._path.glob(".*.part"):
            path.unlink(missing_ok=True)

    def path(self, trace_id: str) -> Path:
        """The file of a trace; raises Refusal where there is none, or it is too long for a run."""
        path = self._path / f"{trace_id}.jsonl"
        if not TRACE_ID.fullmatch(trace_id) or not path.is_file():
            raise Refusal(422, "trace: no such trace; POST it to /api/traces")
        requests = read_object(_meta(path)).get("requests")
        if isinstance(requests, int) and requests > self._most_requests:
            most = self._most_requests
            raise Refusal(422, f"trace: has {requests} requests; at most {most} here")
        with suppress(OSError):
            os.utime(path)  # the one that was used the longest ago goes first
        return path

    def listed(self) -> list[dict[str, Any]]:
        """Of each trace, its id and what is in it; the latest used first."""
        files = sorted(
            self._path.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True
        )
        return [{"id": path.stem, **read_object(_meta(path))} for path in files]

    async def add(
        self,
        chunks: AsyncIterator[bytes],
        environment: Mapping[str, str],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        in_use: Callable[[], set[str]],
    ) -> dict[str, Any]:
        """Take a trace's bytes; returns its id and figures. Raises Refusal.

        `turn` is entered for what takes processor time; `in_use` tells what must not be pruned.
        """
        if self._uploads >= _MOST_UPLOADS:
            raise Refusal(429, "too much is being sent already", {"Retry-After": "5"})
        self._uploads += 1
        partial = self._path / f".{secrets.token_hex(8)}.part"
        digest, size = hashlib.sha256(), 0
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._most_bytes:
                        raise Refusal(413, f"a trace has at most {self._most_bytes} bytes here")
                    digest.update(chunk)
                    file.write(chunk)
            try:
                words = process.command("trace", "inspect", str(partial), "--json")
                async with turn():
                    done = await process.call(words, environment)
            except process.CommandError as error:
                text = str(error).replace(str(partial), "trace")
                raise Refusal(422, text) from None
            figures = orjson.loads(done.stdout)
            path = self._path / f"{digest.hexdigest()}.jsonl"
            meta = {"bytes": size, **_told(figures)}
            write_whole(_meta(path), orjson.dumps(meta))
            partial.replace(path)
        except OSError as error:
            raise Refusal(507, f"the trace cannot be written: {error.strerror or error}") from None
        finally:
            self._uploads -= 1
            with suppress(OSError):
                partial.unlink()
        self._prune({*in_use(), path.stem})
        return {"id": path.stem, **meta}

    def _prune(self, in_use: set[str]) -> None:
        for trace in self.listed()[self._keep :]:
            if trace["id"] not in in_use:
                path = self._path / f"{trace['id']}.jsonl"
                path.unlink(missing_ok=True)
                _meta(path).unlink(missing_ok=True)


def _meta(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def _told(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "requests": figures["requests"],
        "duration_s": figures["duration_s"],
        "prompt_tokens": figures["input_tokens"]["total"],
        "output_tokens": figures["output_tokens"]["total"],
    }
