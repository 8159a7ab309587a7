"""What a client of the service is told when it cannot have what it asked for.

    Refusal              carries its HTTP status; the text is one line for the user

Nothing here knows how it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.errors import LoadgenError


class Refusal(LoadgenError):
    """A request that is refused, with the status to say so."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})
