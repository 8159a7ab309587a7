"""What a transport hands to whoever reads an answer: events with their time, pushed, not pulled.

The sink is called from within the socket's read, so that no queue, task switch or generator stands
between a byte's arrival and its time stamp. It must not block and must not raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ByteSink(Protocol):
    """Receives one exchange; times are `clock.monotonic` seconds."""

    def connected(self, at_s: float) -> None:
        """A new connection stands, TLS included; not called for a reused one."""

    def sent(self, at_s: float) -> None:
        """The last byte of the request was handed to the socket."""

    def response(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], first_byte_s: float
    ) -> None:
        """Status and headers are complete; informational (1xx) responses are not told."""

    def body(self, data: bytes, at_s: float) -> None:
        """A piece of the body, of any size, transfer coding removed."""
