"""Text from token ids as they come, the same as decoding the whole at once, and stop strings in it.

A multi-byte character may be spread over several tokens: until it is whole, decoding ends in
U+FFFD, and that ending is held back. The prompt's last tokens are given as context, so that
tokenizers which drop a leading space do so only where the whole text would. Of the model this knows
nothing, of the tokenizer only `decode`.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]

_CONTEXT_TOKENS = 8
_WINDOW_TOKENS = 24
# A real character ends within four bytes; a longer run of U+FFFD is what the model wrote.
_HELD_RUN = 16
_UNFINISHED_CHARS = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """One row's text. `add` returns what the new token settles, `flush` the rest."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._sent_chars = len(_settled(decode(self._ids))) if self._ids else 0

    def add(self, token_id: int) -> str:
        """The text that this token settles; often empty inside a multi-byte character."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        settled = _settled(text)
        new = settled[self._sent_chars :]
        self._sent_chars = max(self._sent_chars, len(settled))
        if len(self._ids) > _WINDOW_TOKENS and len(settled) == len(text):
            # Whole up to here: go on with a few tokens of context, so that each step decodes a
            # bounded number.
            del self._ids[:-_CONTEXT_TOKENS]
            self._sent_chars = len(_settled(self._decode(self._ids)))
        return new

    def flush(self) -> str:
        """What is still held back, broken characters as U+FFFD."""
        text = self._decode(self._ids)
        rest = text[self._sent_chars :]
        self._sent_chars = len(text)
        return rest


def _settled(text: str) -> str:
    """The part of a decoded text that further tokens cannot change."""
    whole = text.rstrip(_REPLACEMENT)
    run = len(text) - len(whole)
    return whole if run <= _HELD_RUN else text[:-_UNFINISHED_CHARS]


class StopStrings:
    """Finds stop strings in a growing text and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held_chars = max((len(stop) for stop in stops), default=1) - 1
        self._text = ""
        self._sent_chars = 0

    def add(self, new: str, armed: bool) -> tuple[str, str | None]:
        """(text to give out, the stop string met or None). Not `armed` (below min_tokens): nothing
        is looked for.
        """
        searched_from = max(0, len(self._text) - self._held_chars)
        self._text += new
        if armed and new:
            met = [(self._text.find(stop, searched_from), stop) for stop in self._stops]
            found = min(((at, stop) for at, stop in met if at >= 0), default=None)
            if found is not None:
                at, stop = found
                end = at + len(stop) if self._include else at
                return self._text[self._sent_chars : end], stop
        return self._give(len(self._text) - self._held_chars), None

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        given = self._text[self._sent_chars : end] if end > self._sent_chars else ""
        self._sent_chars = max(self._sent_chars, end)
        return given
