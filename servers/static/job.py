"""One request on its way through the queue and a batch: its row, its text as it grows, and what its
client is told.

The batcher feeds a job token ids and reads when it has ended; the reply reads `pieces`. Nothing is
known here of other jobs, of HTTP, or of the model.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from servers.static.detokenize import Decode, Detokenizer, StopStrings
from servers.static.errors import ApiError
from servers.static.wire import Row


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token added: its text, the tokens made so far, and on the last one why it is the
    last.
    """

    text: str
    completion_tokens: int
    finish_reason: str | None = None
    stop_reason: str | None = None


class Job:
    """One request. `pieces` yields a `Piece` a token, or an `ApiError` that ends the request."""

    def __init__(
        self,
        row: Row,
        decode: Decode,
        eos_ids: Sequence[int],
        arrived_s: float,
        stops: Sequence[str] = (),
        include_stop: bool = False,
    ) -> None:
        self.row = row
        self.arrived_s = arrived_s
        self.pieces: asyncio.Queue[Piece | ApiError] = asyncio.Queue()
        self.made_tokens = 0
        self.ended = False  # its row needs no more tokens; not so because its client has left
        self.closed = False  # its client has been told the end, or has left
        self.last_token_s: float | None = None
        self._eos_ids = frozenset() if row.ignore_eos else frozenset(eos_ids)
        self._detokenizer = Detokenizer(decode, row.prompt_ids)
        self._stops = StopStrings(stops, include_stop) if stops else None

    def take(self, token_id: int) -> Piece:
        """Account for one more token of this row; the piece says so if it was the last."""
        self.made_tokens += 1
        finish_reason: str | None = None
        stop_reason: str | None = None
        if token_id in self._eos_ids:
            # As in vLLM, the token that ends the sequence counts as a token and adds no text of its
            # own.
            text, finish_reason = "", "stop"
        else:
            text = self._detokenizer.add(token_id)
            if self.made_tokens >= self.row.max_tokens:
                finish_reason = "length"
        if finish_reason is not None:
            text += self._detokenizer.flush()
        if self._stops is not None:
            text, stop_reason = self._stops.add(text, armed=self.made_tokens > self.row.min_tokens)
            if stop_reason is not None:
                finish_reason = "stop"
            elif finish_reason is not None:
                text += self._stops.flush()
        self.ended = finish_reason is not None
        return Piece(text, self.made_tokens, finish_reason, stop_reason)
