"""The trace: one row a request, as columns; and its file.

The file is JSONL in Mooncake's keys, so that other tools replay it too: `timestamp` (ms, a float),
`input_length`, `output_length` (tokens), `hash_ids` (ids of 512-token blocks; equal ids mean equal
text), optional `prompt` or `messages`. Read and written floats are exact. It does not know how a
trace comes about, nor how it is replayed. Format: https://github.com/kvcache-ai/Mooncake.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from loadgen.errors import TraceError

HASH_BLOCK_TOKENS: Final = 512
MOST: Final = 100_000_000
"""Tokens of one prompt or output: beyond this it is a mistake of unit."""
_OPTIONAL_KEYS: Final = ("prompt", "messages")
_KNOWN_KEYS: Final = {"timestamp", "input_length", "output_length", "hash_ids", *_OPTIONAL_KEYS}
_NOT_YET: Final = {"session_id", "delay", "sampling"}


@dataclass(frozen=True, slots=True)
class Trace:
    """n requests in the order of their timestamps; all columns have length n."""

    timestamp_ms: NDArray[np.float64]
    """Arrivals; the first is 0."""
    input_length: NDArray[np.int64]
    """Prompt tokens, >= 1."""
    output_length: NDArray[np.int64]
    """Output tokens, >= 1."""
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    """Ids of each prompt's 512-token blocks; None: every block is its own."""
    payload: tuple[Mapping[str, Any], ...] | None = None
    """`prompt` or `messages` of each row, where the trace brings its own text."""

    def __len__(self) -> int:
        return len(self.timestamp_ms)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.timestamp_ms[-1]) / 1000.0


def trace_bytes(trace: Trace) -> bytes:
    """The trace as the bytes of its file."""
    return b"".join(_lines(trace))


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_trace(path: Path, trace: Trace, meta: Mapping[str, Any]) -> str:
    """Write `path` and beside it `NAME.meta.json`, how it was made; returns the file's SHA-256.

    Both appear whole or not at all. Raises TraceError where they cannot be written.
    """
    if not path.name or path.is_dir():
        raise TraceError(f"--output: {path}: a file name is needed, such as trace.jsonl")
    data = trace_bytes(trace)
    digest = sha256_of(data)
    side = orjson.dumps({**meta, "sha256": digest}, option=orjson.OPT_INDENT_2) + b"\n"
    partials = [
        (target.with_name(f".{target.name}.{os.getpid()}.part"), target, content)
        for target, content in ((meta_path(path), side), (path, data))
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for partial, _, content in partials:
            partial.write_bytes(content)
        for partial, target, _ in partials:
            partial.replace(target)
    except OSError as error:
        for partial, _, _ in partials:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None
    return digest


def meta_path(path: Path) -> Path:
    """The sidecar of `NAME.jsonl`: `NAME.meta.json`."""
    return path.with_name(path.name.removesuffix(".jsonl") + ".meta.json")


def read_trace(path: Path) -> tuple[Trace, bytes]:
    """The trace in `path` and the file's bytes, which the run directory keeps.

    Rows are sorted by time, stably, and the first arrival becomes 0. Raises TraceError, which names
    the line that cannot be used.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_trace(data, str(path)), data


def parse_trace(data: bytes, name: str) -> Trace:
    """The trace in a file's bytes; `name` is used in errors. Raises TraceError."""
    if data.startswith(b"version https://git-lfs"):
        raise TraceError(f"{name}: a git-lfs pointer, not the data; run `git lfs pull` first")
    rows = [
        _row(line, f"{name}:{number}")
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1)
        if line.strip()
    ]
    if not rows:
        raise TraceError(f"{name}: holds no request")
    rows.sort(key=lambda row: row["timestamp"])
    timestamps = np.array([row["timestamp"] for row in rows], dtype=np.float64)
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    with_ids = sum("hash_ids" in row for row in rows)
    if 0 < with_ids < len(rows):
        raise TraceError(
            f"{name}: hash_ids: {len(rows) - with_ids} of {len(rows)} rows have none; "
            "give them to all rows or to none"
        )
    if with_ids:
        hash_ids = tuple(tuple(row["hash_ids"]) for row in rows)
    payload: tuple[Mapping[str, Any], ...] | None = None
    if any(key in row for row in rows for key in _OPTIONAL_KEYS):
        payload = tuple({key: row[key] for key in _OPTIONAL_KEYS if key in row} for row in rows)
    return Trace(
        timestamps - timestamps[0],
        np.array([row["input_length"] for row in rows], dtype=np.int64),
        np.array([row["output_length"] for row in rows], dtype=np.int64),
        hash_ids,
        payload,
    )


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(
            f"{where}: not JSON ({error}); a trace has one JSON object a line"
        ) from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: not a JSON object; a trace has one JSON object a line")
    timestamp = row.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise TraceError(
            f"{where}: timestamp: a number of milliseconds is needed, got {timestamp!r}"
        )
    for key in ("input_length", "output_length"):
        tokens = row.get(key)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST:
            raise TraceError(f"{where}: {key}: a number of tokens from 1 is needed, got {tokens!r}")
    for key in row.keys() & _NOT_YET:
        raise TraceError(f"{where}: {key}: cannot be replayed yet; take it out of the trace")
    unknown = row.keys() - _KNOWN_KEYS
    if unknown:
        raise TraceError(
            f"{where}: {min(unknown)!r}: no such key; known are {', '.join(sorted(_KNOWN_KEYS))}"
        )
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(block, int) for block in ids):
        raise TraceError(f"{where}: hash_ids: a list of whole numbers is needed")
    if not isinstance(row.get("prompt", ""), str):
        raise TraceError(f"{where}: prompt: text is needed")
    messages = row.get("messages", [{}])
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise TraceError(f"{where}: messages: a list of chat messages is needed")
    return row


def _lines(trace: Trace) -> Iterator[bytes]:
    next_id = 0
    for seq in range(len(trace)):
        input_length = int(trace.input_length[seq])
        blocks = -(-input_length // HASH_BLOCK_TOKENS)
        row: dict[str, Any] = {
            "timestamp": float(trace.timestamp_ms[seq]),
            "input_length": input_length,
            "output_length": int(trace.output_length[seq]),
        }
        if trace.hash_ids is not None:
            row["hash_ids"] = trace.hash_ids[seq]
        else:
            row["hash_ids"] = list(range(next_id, next_id + blocks))
            next_id += blocks
        if trace.payload is not None:
            row.update(trace.payload[seq])
        yield orjson.dumps(row) + b"\n"
