"""Text of a given number of tokens, deterministic from (seed, row).

With a tokenizer the count is exact, the special tokens that it adds included; without one, common
English words stand for a token each, which is near the truth for most vocabularies, and the record
says what the server counted. It knows no endpoint and no schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadgen.errors import ConfigError

# Words that the vocabularies of today's models hold whole, with a space before them.
WORDS: Final = tuple(
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city community name president team minute idea body information back
    parent face others level office door health person art war history party result change
    morning reason research girl guy moment air teacher force education foot boy age policy
    music market sense nation plan college interest death experience effect use class control
    field development role effort rate heart drug show leader light voice wife police mind price
    report decision son view relationship town road arm difference value building action season
    society tax director position player record paper space ground form event official matter
    center couple site project activity star table need court oil situation cost industry figure
    street image phone data picture practice piece land product doctor wall patient worker news
    test movie north love support technology step baby computer type attention film tree source
    organization hair look century evidence window culture chance brother energy period course
    summer plant opportunity term letter condition choice rule south floor campaign material
    population call economy hospital church risk fire future bank west sport
    """.split()
)

CountTokens = Callable[[str], int]
_TRIES: Final = 12


def load_tokenizer(path: Path) -> CountTokens:
    """A counter of tokens from `tokenizer.json`, or from a directory that holds one.

    Raises ConfigError where there is none. No hub is asked.
    """
    from tokenizers import Tokenizer  # heavy, and needed by those who name a tokenizer only

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"--tokenizer: {file}: no such file; give a tokenizer.json or its folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a bad file
        raise ConfigError(f"--tokenizer: {file}: not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


class PromptMaker:
    """Makes each row's text; two makers with the same seed and tokenizer make the same."""

    def __init__(self, seed: int, count_tokens: CountTokens | None = None) -> None:
        self._seed = seed
        self._count_tokens = count_tokens
        self._words = WORDS
        if count_tokens is not None:
            whole = tuple(word for word in WORDS if self._is_one_token(count_tokens, word))
            self._words = whole or WORDS

    def text(self, row: int, tokens: int) -> str:
        """A prompt of `tokens` tokens for row `row` of the trace."""
        rng = random.Random(f"{self._seed}:{row}")
        words = rng.choices(self._words, k=tokens)
        if self._count_tokens is None:
            return " ".join(words)
        for _ in range(_TRIES):
            surplus = self._count_tokens(" ".join(words)) - tokens
            if surplus == 0:
                break
            if surplus > 0:
                del words[max(1, len(words) - surplus) :]
            else:
                words += rng.choices(self._words, k=-surplus)
        return " ".join(words)

    @staticmethod
    def _is_one_token(count_tokens: CountTokens, word: str) -> bool:
        return count_tokens(f"{word} {word}") - count_tokens(word) == 1
