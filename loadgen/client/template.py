"""An exact shortcut past the JSON parser: most chunks of a stream differ in their text alone.

Learnt from one chunk that was decoded in full: the bytes before its text and those after it, with
the token counts of continuous usage as numbers to be expected. A later event that has exactly
these bytes around printable ASCII without quote or backslash *is* that JSON with that text, so
nothing is left to parse. Anything else goes the long way. It knows bytes, and nothing of time.
"""

from __future__ import annotations

import re
from typing import Final

from loadgen.client.openai import Delta

_PLAIN: Final = re.compile(r"[ !#-\[\]-~]+")
"""ASCII that JSON writes as it is."""
_PLAIN_BYTES: Final = re.compile(_PLAIN.pattern.encode()).fullmatch
_NUMBERED: Final = 4096
_NUMBERS: Final = tuple(b"%d" % number for number in range(_NUMBERED))
"""Formatting two numbers an event would cost as much as looking at the text."""
_TEXT_KEY: Final = re.compile(rb'"(?:text|content|reasoning|reasoning_content)":\s*"')
_COUNT: Final = re.compile(rb'"(completion|total)_tokens":\s*(\d+)')


class ChunkTemplate:
    """The bytes around one stream's texts."""

    __slots__ = ("_head", "_head_bytes", "_pieces", "_prompt_tokens", "_tail", "tells_tokens")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._head_bytes = len(head)
        self._tail = tail
        self._pieces: tuple[bytes, bytes, bytes] | None = None  # around total and completion
        self._prompt_tokens = 0
        self.tells_tokens = False
        """Whether each chunk carries its count."""

    @staticmethod
    def learn(event: bytes, delta: Delta) -> ChunkTemplate | None:
        """The template of the chunk that `delta` was decoded from, or None where it is not plain.

        Only a chunk with one plain text, no finish reason and, if any, exact counts is.
        """
        text = delta.text.encode()
        if not _PLAIN.fullmatch(delta.text) or delta.finish_reason is not None or delta.error:
            return None
        keys = [m for m in _TEXT_KEY.finditer(event) if event.startswith(text + b'"', m.end())]
        filled = [m for m in _TEXT_KEY.finditer(event) if event[m.end() : m.end() + 1] != b'"']
        if len(keys) != 1 or len(filled) != 1:
            return None
        start = keys[0].end()
        template = ChunkTemplate(b"data: " + event[:start], event[start + len(text) :] + b"\n\n")
        if delta.completion_tokens is None:
            return template if b'"usage":{' not in template._tail else None
        return template if template._expect_counts(delta) else None

    def _expect_counts(self, delta: Delta) -> bool:
        counts = list(_COUNT.finditer(self._tail))
        completion, prompt = delta.completion_tokens, delta.prompt_tokens
        if completion is None or prompt is None or _COUNT.search(self._head):
            return False
        if [(m[1], int(m[2])) for m in counts] != [
            (b"total", prompt + completion),
            (b"completion", completion),
        ]:
            return False
        total, done = counts
        self._pieces = (
            self._tail[: total.start(2)],
            self._tail[total.end(2) : done.start(2)],
            self._tail[done.end(2) :],
        )
        self._prompt_tokens = prompt
        self.tells_tokens = True
        return True

    def fits(self, framed: bytes, tokens: int) -> bool:
        """Whether an event is the template with a text and with `tokens` generated so far.

        `framed` is the whole event as it is sent: `data: `, the JSON, two line feeds.
        """
        if self._pieces is not None:
            before, between, after = self._pieces
            total = self._prompt_tokens + tokens
            if total < _NUMBERED:
                tail = before + _NUMBERS[total] + between + _NUMBERS[tokens] + after
            else:
                tail = b"%b%d%b%d%b" % (before, total, between, tokens, after)
            self._tail = tail
        else:
            tail = self._tail
        return (
            framed.endswith(tail)
            and framed.startswith(self._head)
            and _PLAIN_BYTES(framed, self._head_bytes, len(framed) - len(tail)) is not None
        )

    def text(self, framed: bytes) -> str:
        """The text of the event that has just been found to fit."""
        return framed[self._head_bytes : -len(self._tail)].decode()
