"""The trace: one row a request, as columns; and its file.

The file is JSONL in Mooncake's keys, so that other tools replay it too: `timestamp` (ms, a float),
`input_length`, `output_length` (tokens), `hash_ids` (ids of 512-token blocks; equal ids mean equal
text), optional `prompt` or `messages`, `session_id` and `delay` (ms) of a conversation's turns, and
`sampling`. Read and written floats are exact. It does not know how a trace comes about, nor how it
is replayed. Format: https://github.com/kvcache-ai/Mooncake.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from loadgen.errors import TraceError
from loadgen.trace.blocks import HASH_BLOCK_TOKENS, BlockIds
from loadgen.trace.files import check_is_file_name, write_whole

MOST: Final = 100_000_000
"""Tokens of one prompt or output: beyond this it is a mistake of unit."""
_ROWS_AT_ONCE: Final = 50_000
TEXT_KEYS: Final = frozenset({"prompt", "messages"})
_OPTIONAL_KEYS: Final = ("prompt", "messages", "session_id", "delay", "sampling")
_KNOWN_KEYS: Final = {"timestamp", "input_length", "output_length", "hash_ids", *_OPTIONAL_KEYS}
_MOST_DELAY_MS: Final = 1e9
_MOST_CHARS: Final = 200
_SAMPLING: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "seed": (-(2**63), 2**63 - 1),
}
"""What `sampling` may say, and its bounds; a top_p of 0 is none."""
MAY_END: Final = "ignore_eos"
"""False in `sampling`: the row's answer may end before its output length."""


@dataclass(frozen=True, slots=True)
class Trace:
    """n requests in the order of their timestamps; all columns have length n."""

    timestamp_ms: NDArray[np.float64]
    """Arrivals; the first is 0."""
    input_length: NDArray[np.int64]
    """Prompt tokens, >= 1."""
    output_length: NDArray[np.int64]
    """Output tokens, >= 1."""
    hash_ids: Sequence[Sequence[int]] | None = None
    """Ids of each prompt's 512-token blocks; None: every block is its own."""
    payload: Sequence[Mapping[str, Any]] | None = None
    """What else each row says, by its key: text, session, delay, sampling."""

    def __len__(self) -> int:
        return len(self.timestamp_ms)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.timestamp_ms[-1]) / 1000.0


def trace_bytes(trace: Trace) -> bytes:
    """The trace as the bytes of its file."""
    return b"".join(trace_pieces(trace))


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_trace(path: Path, trace: Trace, meta: Mapping[str, Any]) -> str:
    """Write `path` and beside it `NAME.meta.json`, how it was made; returns the file's SHA-256.

    Both appear whole or not at all. Raises TraceError where they cannot be written.
    """
    check_is_file_name(path)
    digest = hashlib.sha256()

    def body() -> Iterator[bytes]:
        for piece in trace_pieces(trace):
            digest.update(piece)
            yield piece

    def side() -> Iterator[bytes]:  # comes after the body, whose digest it tells
        yield orjson.dumps({**meta, "sha256": digest.hexdigest()}, option=orjson.OPT_INDENT_2)
        yield b"\n"

    write_whole((path, body()), (meta_path(path), side()))
    return digest.hexdigest()


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
    timestamps, inputs, outputs = array("d"), array("q"), array("q")
    ids: list[list[int]] = []
    payloads: list[Mapping[str, Any]] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        row = _row(line, f"{name}:{number}")
        timestamps.append(row["timestamp"])
        inputs.append(row["input_length"])
        outputs.append(row["output_length"])
        if "hash_ids" in row:
            ids.append(row["hash_ids"])
        payloads.append({key: row[key] for key in _OPTIONAL_KEYS if key in row} or _NO_TEXT)
    if not timestamps:
        raise TraceError(f"{name}: holds no request")
    if 0 < len(ids) < len(timestamps):
        raise TraceError(
            f"{name}: hash_ids: {len(timestamps) - len(ids)} of {len(timestamps)} rows have none; "
            "give them to all rows or to none"
        )
    return ordered(
        np.array(timestamps, dtype=np.float64),
        np.array(inputs, dtype=np.int64),
        np.array(outputs, dtype=np.int64),
        BlockIds.of(ids) if ids else None,
        payloads if any(payloads) else None,
    )


_NO_TEXT: Final[Mapping[str, Any]] = {}


def ordered(
    timestamp_ms: NDArray[np.float64],
    input_length: NDArray[np.int64],
    output_length: NDArray[np.int64],
    hash_ids: BlockIds | None,
    payload: Sequence[Mapping[str, Any]] | None,
) -> Trace:
    """The rows sorted by time, stably, with the first arrival at 0."""
    order = np.argsort(timestamp_ms, kind="stable")
    times = timestamp_ms[order]
    return Trace(
        times - times[0],
        input_length[order],
        output_length[order],
        None if hash_ids is None else hash_ids.take(order),
        None if payload is None else tuple(payload[row] for row in order.tolist()),
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
    unknown = row.keys() - _KNOWN_KEYS
    if unknown:
        raise TraceError(
            f"{where}: {min(unknown)!r}: no such key; known are {', '.join(sorted(_KNOWN_KEYS))}"
        )
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(i) is int and -(2**63) <= i < 2**63 for i in ids):
        raise TraceError(f"{where}: hash_ids: a list of whole numbers below 2^63 is needed")
    if not isinstance(row.get("prompt", ""), str):
        raise TraceError(f"{where}: prompt: text is needed")
    messages = row.get("messages", [{}])
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise TraceError(f"{where}: messages: a list of chat messages is needed")
    if row.keys() & {"session_id", "delay", "sampling"}:
        _check_extras(row, where)
    return row


def _check_extras(row: dict[str, Any], where: str) -> None:
    session = row.get("session_id")
    if "session_id" in row and not (
        type(session) is int or (isinstance(session, str) and 0 < len(session) <= _MOST_CHARS)
    ):
        raise TraceError(
            f"{where}: session_id: a text of up to {_MOST_CHARS} characters, or a whole number, is "
            f"needed, got {str(session)[:60]!r}"
        )
    delay = row.get("delay", 0)
    if not _is_within(delay, 0, _MOST_DELAY_MS):
        raise TraceError(f"{where}: delay: milliseconds from 0 are needed, got {delay!r}")
    if "delay" in row and session is None:
        raise TraceError(
            f"{where}: delay: it goes with a session_id, whose last turn it counts from"
        )
    sampling = row.get("sampling", {})
    if not isinstance(sampling, dict):
        raise TraceError(f"{where}: sampling: an object of {', '.join(_SAMPLING)} is needed")
    for key, value in sampling.items():
        if key == MAY_END:
            if value is not False:
                raise TraceError(
                    f"{where}: sampling: {key}: false lets the answer end by itself; nothing else "
                    f"may be said, got {value!r}"
                )
            continue
        if key not in _SAMPLING:
            known = ", ".join((*_SAMPLING, MAY_END))
            raise TraceError(f"{where}: sampling: {key!r}: known are {known}")
        low, high = _SAMPLING[key]
        is_good = _is_within(value, low, high) and not (key == "seed" and type(value) is not int)
        if not is_good or (key == "top_p" and value == 0):
            raise TraceError(
                f"{where}: sampling: {key}: needs a {'whole ' if key == 'seed' else ''}number "
                f"from {low:g} to {high:g}, got {value!r}"
            )


def _is_within(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


def trace_pieces(trace: Trace) -> Iterator[bytes]:
    """The file's lines, some ten thousand at a time; numbers become text a column at once."""
    ids = None if trace.hash_ids is None else BlockIds.of(trace.hash_ids)
    next_id = 0
    for start in range(0, len(trace), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        if ids is None:
            blocks = -(-trace.input_length[part] // HASH_BLOCK_TOKENS)
            total = int(blocks.sum())
            flat, next_id = np.arange(next_id, next_id + total), next_id + total
            ends = np.cumsum(blocks)
        else:
            offsets = ids.offsets[start : start + _ROWS_AT_ONCE + 1]
            flat, ends = ids.flat[offsets[0] : offsets[-1]], offsets[1:] - offsets[0]
        words = _texts(flat)
        at = [0, *ends.tolist()]
        columns = zip(
            _texts(trace.timestamp_ms[part]),
            _texts(trace.input_length[part]),
            _texts(trace.output_length[part]),
            (",".join(words[a:b]) for a, b in pairwise(at)),
            _own_texts(trace, part),
            strict=True,
        )
        yield "".join(
            f'{{"timestamp":{time},"input_length":{asked},"output_length":{answer},'
            f'"hash_ids":[{blocks}]{own}}}\n'
            for time, asked, answer, blocks, own in columns
        ).encode()


def _texts(column: NDArray[Any]) -> list[str]:
    if not len(column):
        return []
    dumped = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY)
    return dumped.decode()[1:-1].split(",")


def _own_texts(trace: Trace, part: slice) -> Iterator[str]:
    """`,"prompt":...` of each row, or nothing."""
    if trace.payload is None:
        return iter([""] * len(trace.timestamp_ms[part]))
    return (f",{orjson.dumps(own).decode()[1:-1]}" if own else "" for own in trace.payload[part])
