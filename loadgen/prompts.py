"""Prompts of a given number of tokens, deterministic from (seed, ids of their blocks).

With a tokenizer the count is exact, the special tokens that it adds included. Without one, a
`Recipe` says what a word costs; its default is a token for a common English word, which is near the
truth for most vocabularies. Equal ids of 512-token blocks give equal text, so that prefix caches
see what a trace says. It knows no endpoint and no schedule; `client/sizing.py` makes recipes.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loadgen.errors import ConfigError
from loadgen.trace.blocks import HASH_BLOCK_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Words that the vocabularies of today's models hold whole, with a space before them and without:
# the first of a text has none.
WORDS: Final = tuple(
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city community name president team minute idea body information back
    parent face others level office door health person art war history party result change
    user reason research girl key moment air teacher force education foot boy age policy
    music market sense nation plan college interest death experience effect use class control
    field development role list rate heart drug show leader light voice wife map mind price
    report decision son view relationship town road arm difference value building action season
    page tax director position player record paper space ground form event official matter
    center color site project activity star table need court oil model cost industry figure
    street image phone data picture practice piece land product doctor wall patient worker news
    test movie north love support technology step baby computer type attention film tree source
    organization hair look century evidence window culture network brother energy period course
    summer plant server term letter condition choice rule south floor tool material
    population call message hospital church risk fire future bank west link
    """.split()
)

CountTokens = Callable[[str], int]
"""Tokens of a text as a prompt: the special tokens around it are counted in."""
_TRIES: Final = 12
_FILLERS: Final = ("a", "e", "1", ".", "-")
"""Put to a last word, where no whole word has the tokens that are left."""
_BLOCKS_KEPT: Final = 2048


class TextTokenizer:
    """Counts and names tokens; calling it counts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def of_answer(self, text: str) -> int:
        """Tokens of what a model wrote: a server puts special tokens to prompts alone."""
        return len(self.ids(text))

    def ids(self, text: str) -> list[int]:
        """Token ids of the text alone, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer in `tokenizer.json`, or in a directory that holds one.

    Raises ConfigError where there is none. No hub is asked.
    """
    from tokenizers import Tokenizer  # heavy, and needed by those who have a tokenizer only

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"--tokenizer: {file}: no such file; give a tokenizer.json or its folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a bad file
        raise ConfigError(f"--tokenizer: {file}: not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextTokenizer(tokenizer)


def find_tokenizer(model: str) -> Path | None:
    """The `tokenizer.json` in the local directory that a model's name is, if it is one.

    With LOADGEN_LOCAL_TOKENIZERS=0 no name is taken for a directory: those who name the model are
    then not those who own the machine.
    """
    if os.environ.get("LOADGEN_LOCAL_TOKENIZERS") == "0":
        return None
    try:
        file = Path(model) / "tokenizer.json"
        return file if file.is_file() else None
    except (OSError, ValueError):  # a name that no path can have
        return None


def sha256_of_tokenizer(path: Path) -> str:
    """Of `tokenizer.json`, or of the one in a directory."""
    file = path / "tokenizer.json" if path.is_dir() else path
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How prompts are made so that a server counts what was asked; one for all targets."""

    tokenizer: Path | None = None
    as_ids: bool = False
    """Token ids are sent in place of text."""
    overhead_tokens: int = 0
    """What the server counts in any prompt beyond its text as the tokenizer counts it."""
    exchange_tokens: int = 0
    """What a chat template adds for each earlier question and its answer."""
    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0
    """This and the next say what a text costs where there is no tokenizer."""
    tokens_per_char: float = 0.0


class PromptMaker:
    """Makes texts, as lists of words; two makers with the same arguments make the same.

    A key names an endless stream of words; what is cut from two streams of one key shares its
    beginning.
    """

    def __init__(
        self, seed: int, count_tokens: CountTokens | None = None, recipe: Recipe = Recipe()
    ) -> None:
        self._seed = seed
        self.recipe = recipe
        self._words = recipe.words
        self._count_text = count_tokens
        self._ids: dict[str, int] = {}
        self.special_tokens = 0 if count_tokens is None or recipe.as_ids else count_tokens("")
        """Of the tokens that are counted in a text, those that are not the text's own."""
        if recipe.as_ids:
            assert isinstance(count_tokens, TextTokenizer)
            self._ids = _ids_of_words(count_tokens)
            self._words = tuple(self._ids)
            self._count: Callable[[Sequence[str]], int] = len
        elif count_tokens is None:
            self._count = self._estimate
        else:
            whole = tuple(word for word in WORDS if _is_one_token(count_tokens, word))
            self._words = whole or WORDS
            self._count = _sum_of_words(count_tokens, whole) or self._count_joined
        some = self._words * (1 if len(self._words) > 1 else 2)
        self._tokens_per_word = max(
            0.05, (self._count(some) - self._count(some[:1])) / (len(some) - 1)
        )
        self._block = lru_cache(_BLOCKS_KEPT)(self._make_block)

    def text(self, row: int, tokens: int) -> str:
        """A prompt of `tokens` tokens whose only block has the id `row`."""
        return " ".join(self.prompt((row,), tokens))

    def ids(self, words: Sequence[str]) -> list[int]:
        """The words as token ids, where the recipe is for ids."""
        return [self._ids[word] for word in words]

    def prompt(self, blocks: Sequence[int | str], tokens: int) -> list[str]:
        """Words of the blocks with these ids, cut so that a server counts `tokens`.

        The last block goes on where they are too few. Nothing is shorter than one word.
        """
        wanted = tokens - self.recipe.overhead_tokens
        used = max(1, min(len(blocks), -(-wanted // HASH_BLOCK_TOKENS)))
        words: list[str] = []
        for block in blocks[: used - 1]:
            words += self._block(block)
        about = wanted - (used - 1) * HASH_BLOCK_TOKENS
        return self._go_on(words, blocks[used - 1], about, wanted, 1)

    def longer(self, words: Sequence[str], key: str, tokens: int) -> list[str]:
        """`words`, and others after them, so that a server counts `tokens`; one more at least."""
        wanted = tokens - self.recipe.overhead_tokens
        about = wanted - self._count(words)
        return self._go_on(list(words), key, about, wanted, len(words) + 1)

    def message(self, key: str, tokens: int) -> list[str]:
        """Words that count as `tokens` within a chat, whose template is not counted in."""
        return self._go_on([], key, tokens, tokens + self.special_tokens, 1)

    def _go_on(
        self, words: list[str], key: object, about: int, wanted: int, fewest: int
    ) -> list[str]:
        """Add `about` tokens' worth of the stream `key`, and then what fits the sum exactly."""
        rng = random.Random(f"{self._seed}:{key}")
        words += rng.choices(self._words, k=max(1, round(about / self._tokens_per_word)))
        self._fit(words, rng, wanted, fewest)
        return words

    def _make_block(self, key: int | str) -> tuple[str, ...]:
        rng = random.Random(f"{self._seed}:{key}")
        words = rng.choices(self._words, k=round(HASH_BLOCK_TOKENS / self._tokens_per_word))
        if self._tokens_per_word != 1.0:
            self._fit(words, rng, HASH_BLOCK_TOKENS + self.special_tokens, 1)
        return tuple(words)

    def _fit(self, words: list[str], rng: random.Random, tokens: int, fewest: int) -> None:
        """Cut or lengthen `words` at their end; the first `fewest` stay."""
        for _ in range(_TRIES):
            surplus = self._count(words) - tokens
            if surplus == 0:
                return
            if surplus > 0 and len(words) == fewest:
                break
            step = max(1, round(abs(surplus) / self._tokens_per_word))
            if surplus > 0:
                del words[max(fewest, len(words) - step) :]
            else:
                words += rng.choices(self._words, k=step)
        if self._count == self._count_joined:
            self._fill(words, tokens, fewest)
        elif self.recipe.tokens_per_char > 0:
            self._choose_last(words, tokens, fewest)

    def _choose_last(self, words: list[str], tokens: int, fewest: int) -> None:
        """End with the word of the length that is missing, as near as estimates go."""
        while len(words) > fewest and self._count(words) > tokens:
            words.pop()
        missing = tokens - self._count(words[:-1])
        per_word, per_char = self.recipe.tokens_per_word, self.recipe.tokens_per_char
        words[-1] = min(
            self._words, key=lambda word: abs(per_word + per_char * (len(word) + 1) - missing)
        )

    def _fill(self, words: list[str], tokens: int, fewest: int) -> None:
        """Reach a count that no number of whole words has, by letters put to the last."""
        while len(words) > fewest and self._count(words) > tokens:
            words.pop()
        if self._count(words) > tokens:
            words[-1] = _FILLERS[0]
        while (missing := tokens - self._count(words)) > 0:
            for filler in _FILLERS:
                last = words[-1]
                words[-1] = last + filler
                if 0 <= tokens - self._count(words) < missing:
                    break
                words[-1] = last
            else:
                return

    def _count_joined(self, words: Sequence[str]) -> int:
        assert self._count_text is not None
        return self._count_text(" ".join(words))

    def _estimate(self, words: Sequence[str]) -> int:
        if self.recipe.tokens_per_char == 0.0 and self.recipe.tokens_per_word == 1.0:
            return len(words)
        chars = sum(map(len, words)) + max(0, len(words) - 1)
        return round(self.recipe.tokens_per_word * len(words) + self.recipe.tokens_per_char * chars)


def _is_one_token(count_tokens: CountTokens, word: str) -> bool:
    return count_tokens(f"{word} {word}") - count_tokens(word) == 1


def _sum_of_words(
    count_tokens: CountTokens, whole: Sequence[str]
) -> Callable[[Sequence[str]], int] | None:
    """Counts without tokenising, where every word but the first is one token wherever it stands.

    A long prompt would else take the event loop tens of milliseconds. None where a trial shows that
    neighbours matter.
    """
    first = {word: count_tokens(word) for word in whole}

    def count(words: Sequence[str]) -> int:
        return first[words[0]] + len(words) - 1 if words else count_tokens("")

    rng = random.Random(0)
    for _ in range(3):
        trial = rng.sample(whole, len(whole))
        if not trial or count(trial) != count_tokens(" ".join(trial)):
            return None
    return count


def _ids_of_words(tokenizer: TextTokenizer) -> dict[str, int]:
    """Words that are one token after a space, and its id; where there are none, their pieces."""
    found = {word: tokenizer.ids(f"{word} {word}") for word in WORDS if len(word) > 1}
    whole = {
        word: ids[-1] for word, ids in found.items() if len(ids) - len(tokenizer.ids(word)) == 1
    }
    return whole or {str(piece): piece for ids in found.values() for piece in ids}
