"""What each row of a trace says: its own text, or one that is made of its length and blocks.

A later turn of a session begins with what was said before it: the turns before it, and answers that
are made at their traced lengths, not taken from a server, so that every target gets the same bytes.
The same trace, seed and recipe give the same, in whatever order rows are asked for. It knows
neither targets nor when a row is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from loadgen.client.openai import Prompt
from loadgen.prompts import PromptMaker
from loadgen.trace import Trace
from loadgen.trace.blocks import HASH_BLOCK_TOKENS
from loadgen.trace.sessions import Sessions
from loadgen.trace.trace import MAY_END, TEXT_KEYS

_TURNS_KEPT: Final = 256
"""Turns whose text is kept until the next of their session is made."""

Message = dict[str, str]


class Script:
    """Prompts of one trace; `is_chat`: a conversation is sent as messages, and not as one text."""

    def __init__(
        self,
        trace: Trace,
        maker: PromptMaker,
        sessions: Sessions | None = None,
        *,
        is_chat: bool = False,
    ) -> None:
        self._trace = trace
        self._maker = maker
        self._parent: Mapping[int, int] = {} if sessions is None else sessions.parent
        self._is_chat = is_chat
        self._said: dict[int, list[str]] = {}
        self._messages: dict[int, list[Message]] = {}
        blocks = -(-trace.input_length // HASH_BLOCK_TOKENS)
        self._first_block = np.cumsum(blocks) - blocks

    def prompt(self, row: int) -> Prompt:
        """What row `row` sends."""
        own = self._own(row)
        if (said := own.get("messages") or own.get("prompt")) is not None:
            prompt: Prompt = said
            return prompt
        if self._before(row) is None:
            return self._as_sent(self._fresh(row))
        if self._is_chat:
            return self._conversation(row)
        return self._as_sent(self._text(row))

    def sampling(self, row: int) -> Mapping[str, Any]:
        """Fields of the row's own for the request's body."""
        sampling: Mapping[str, Any] = self._own(row).get("sampling") or {}
        return sent_sampling(sampling)

    def may_end(self, row: int) -> bool:
        """Whether the row's answer may end by itself, whatever the run holds."""
        return MAY_END in (self._own(row).get("sampling") or {})

    def _own(self, row: int) -> Mapping[str, Any]:
        return {} if self._trace.payload is None else self._trace.payload[row]

    def _before(self, row: int) -> int | None:
        """The turn whose text the row goes on from; None where it begins anew.

        It does so where the turn before brings its own text, and where its length leaves no room
        for what was said: then a real client had cut its history as well.
        """
        parent = self._parent.get(row)
        if parent is None or self._own(parent).keys() & TEXT_KEYS:
            return None
        return parent if self._new_tokens(row, parent) >= 1 else None

    def _new_tokens(self, row: int, parent: int) -> int:
        """Tokens that the row says beyond its history."""
        inputs, outputs = self._trace.input_length, self._trace.output_length
        template = self._maker.recipe.exchange_tokens if self._is_chat else 0
        return int(inputs[row] - inputs[parent] - outputs[parent]) - template

    def _chain(self, row: int, known: Mapping[int, Any]) -> list[int]:
        """The row and those before it, back to one that is known or begins, which is the last."""
        chain = [row]
        while chain[-1] not in known and (before := self._before(chain[-1])) is not None:
            chain.append(before)
        return chain

    def _text(self, row: int) -> list[str]:
        """The conversation as one text, in which nothing says who speaks."""
        *later, first = self._chain(row, self._said)
        words = self._said.pop(first, None) or self._fresh(first)
        before = first
        for turn in reversed(later):
            history = int(self._trace.input_length[before] + self._trace.output_length[before])
            words = self._maker.longer(words, f"answer {before}", history)
            words = self._maker.longer(words, f"turn {turn}", int(self._trace.input_length[turn]))
            before = turn
        _keep(self._said, row, words)
        return words

    def _conversation(self, row: int) -> list[Message]:
        *later, first = self._chain(row, self._messages)
        messages = self._messages.pop(first, None) or [_message("user", self._fresh(first))]
        before = first
        for turn in reversed(later):
            answer = int(self._trace.output_length[before])
            new = self._new_tokens(turn, before)
            messages = [
                *messages,
                _message("assistant", self._maker.message(f"answer {before}", answer)),
                _message("user", self._maker.message(f"turn {turn}", new)),
            ]
            before = turn
        _keep(self._messages, row, messages)
        return messages

    def _fresh(self, row: int) -> list[str]:
        return self._maker.prompt(self._blocks(row), int(self._trace.input_length[row]))

    def _as_sent(self, words: Sequence[str]) -> Prompt:
        return self._maker.ids(words) if self._maker.recipe.as_ids else " ".join(words)

    def _blocks(self, row: int) -> Sequence[int | str]:
        """Ids of the row's blocks; without any, those that the trace's file would have."""
        if self._trace.hash_ids is None:
            first = int(self._first_block[row])
            tokens = int(self._trace.input_length[row])
            return range(first, first - (-tokens // HASH_BLOCK_TOKENS))
        return self._trace.hash_ids[row] or (f"row {row}",)


def sent_sampling(sampling: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a row's sampling goes into its body; that it may end is told by fields left out."""
    if MAY_END not in sampling:
        return sampling
    return {key: value for key, value in sampling.items() if key != MAY_END}


def _message(role: str, words: Sequence[str]) -> Message:
    return {"role": role, "content": " ".join(words)}


def _keep(kept: dict[int, Any], row: int, said: Any) -> None:
    kept[row] = said
    if len(kept) > _TURNS_KEPT:
        del kept[next(iter(kept))]
