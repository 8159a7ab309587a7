"""What the server and the model's process say to each other: one JSON text a line over a socket
pair.

To the child: an `EngineConfig`, then batches (a list of `Row`s) and the numbers of rows that ended
early. From the child: `ready`, then for each step a bare list with one token id a row, and `done`
or `failed`. JSON costs a few microseconds a step, and unlike pickle it runs nothing. Neither torch
nor HTTP is known here.
"""

import json
import select
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the child loads, and how."""

    model: str
    dtype: str
    device: str
    attention: str
    cache: str
    compile: bool
    threads: int
    batch_size: int
    max_model_len: int
    eos_ids: tuple[int, ...]
    pad_id: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request as the model sees it. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 keep the
    whole vocabulary.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False


def encode(message: object) -> bytes:
    """One line for the wire."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_batch(rows: Sequence[Row]) -> bytes:
    """The line that starts a batch."""
    return encode({"batch": [asdict(row) for row in rows]})


def decode_batch(message: dict[str, Any]) -> list[Row]:
    """The rows in a batch's message."""
    return [Row(**{**row, "prompt_ids": tuple(row["prompt_ids"])}) for row in message["batch"]]


def decode_config(message: dict[str, Any]) -> EngineConfig:
    """The configuration in the first message."""
    return EngineConfig(**{**message, "eos_ids": tuple(message["eos_ids"])})


class Link:
    """The child's end: blocking, with a look for messages that have come already."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._searched_bytes = 0

    def send(self, message: object) -> None:
        """Send one message; raises OSError once the parent is gone."""
        self._sock.sendall(encode(message))

    def receive(self) -> Any:
        """The next message; raises EOFError once the parent is gone."""
        while True:
            end = self._buffer.find(b"\n", self._searched_bytes)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched_bytes = 0
                return json.loads(line)
            self._searched_bytes = len(self._buffer)
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._buffer += data

    def waiting(self) -> bool:
        """Whether `receive` would find something; costs one system call."""
        return bool(self._buffer) or bool(select.select([self._sock], [], [], 0)[0])
