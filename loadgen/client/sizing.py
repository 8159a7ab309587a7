"""How long a text is to a server: what its `usage.prompt_tokens` tells of a few probes.

With a tokenizer a probe shows what the server counts beyond it (a chat template, special tokens);
without one, what a word costs. Prompts are then made that much shorter. All targets of a comparison
get the same bytes, so the first answer is used, and that of the others is written down. It is
asked before a run and never during it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

import numpy as np

from loadgen.client import openai
from loadgen.client.client import Client
from loadgen.client.negotiate import Agreement, probe
from loadgen.client.openai import BodyOptions, Feature
from loadgen.errors import TargetNotReady
from loadgen.prompts import WORDS, PromptMaker, Recipe, TextTokenizer, sha256_of_tokenizer

Known = TypeVar("Known")

_SEED: Final = 2**32
"""No run has it, so that no probe warms a cache for a prompt."""
_PROBE_TOKENS: Final = (12, 48)
_FEWEST_WORDS: Final = 8
_GROUPS: Final = 8
_FEWEST_WHOLE_GROUPS: Final = 2
_GROUP_WORDS: Final = 64
_PLAUSIBLE: Final = (0.2, 20.0)
"""Tokens of a word; a server that tells anything else does not count."""


class MadeWith(StrEnum):
    """What prompts are measured with, best first."""

    TOKEN_IDS = "token_ids"
    TOKENIZER = "tokenizer"
    CALIBRATION = "calibration"
    WORDS = "words"
    """Nothing is known: a word is taken for a token."""
    TRACE = "trace"
    """The trace brings the text of all prompts."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The recipe for all prompts of a run, and what it rests on."""

    recipe: Recipe
    made_with: MadeWith
    fixed_tokens: tuple[int | None, ...]
    """Of each target: tokens in every prompt that are not its text; None where it is not known."""

    def as_json(self) -> dict[str, Any]:
        """For the run's header: with the trace and the seed, all that the bytes sent depend on."""
        recipe = self.recipe
        shown: dict[str, Any] = {
            "made_with": str(self.made_with),
            "overhead_tokens": recipe.overhead_tokens,
            "exchange_tokens": recipe.exchange_tokens,
        }
        if recipe.tokenizer is not None:
            shown["tokenizer_sha256"] = sha256_of_tokenizer(recipe.tokenizer)
        if self.made_with is MadeWith.CALIBRATION:
            mean_chars = 1 + sum(map(len, recipe.words)) / len(recipe.words)
            shown |= {
                "words": len(recipe.words),
                "cost_of_a_word": [recipe.tokens_per_word, recipe.tokens_per_char],
                "tokens_per_word": round(
                    recipe.tokens_per_word + recipe.tokens_per_char * mean_chars, 4
                ),
            }
        return shown


async def size_prompts(
    clients: Sequence[Client],
    agreement: Agreement,
    recipe: Recipe,
    tokenizer: TextTokenizer | None,
    *,
    has_turns: bool = False,
) -> Sizing:
    """Ask all targets; `recipe` says which tokenizer there is and whether ids are to be sent.

    `has_turns`: the trace has sessions, so a chat's history is to be counted too.
    Raises TargetNotReady where ids are wanted and a target does not take them.
    """
    options = [_countable(option) for option in agreement.options]
    each = list(zip(clients, options, strict=True))
    if recipe.as_ids:
        for client, option in each:
            await _check_ids(client, option, PromptMaker(_SEED, tokenizer, recipe))
        return Sizing(recipe, MadeWith.TOKEN_IDS, (0,) * len(each))
    if tokenizer is not None:
        maker = PromptMaker(_SEED, tokenizer, recipe)
        beyond = [await _beyond(client, option, maker, tokenizer) for client, option in each]
        fixed = [None if n is None else n + maker.special_tokens for n in beyond]
        recipe = replace(recipe, overhead_tokens=_first(beyond) or 0)
        sizing = Sizing(recipe, MadeWith.TOKENIZER, tuple(fixed))
    else:
        found = [
            await _calibrate(client, option, info.max_model_len)
            for (client, option), info in zip(each, agreement.targets, strict=True)
        ]
        fixed = [None if own is None else own.overhead_tokens for own in found]
        chosen = _first(found)
        made_with = MadeWith.WORDS if chosen is None else MadeWith.CALIBRATION
        sizing = Sizing(chosen or recipe, made_with, tuple(fixed))
    counts = [place for place, n in enumerate(sizing.fixed_tokens) if n is not None]
    if has_turns and counts and agreement.options[0].endpoint == openai.CHAT:
        exchange = await _exchange_tokens(*each[counts[0]], tokenizer, sizing.recipe)
        sizing = replace(sizing, recipe=replace(sizing.recipe, exchange_tokens=exchange))
    return sizing


def _first(known: Sequence[Known | None]) -> Known | None:
    return next((one for one in known if one is not None), None)


def _countable(options: BodyOptions) -> BodyOptions:
    """A whole answer tells usage also where a streamed one does not."""
    if options.stream and Feature.STREAM_USAGE not in options.features:
        return replace(options, stream=False)
    return options


async def _served(
    client: Client, options: BodyOptions, prompt: str | list[int] | list[dict[str, str]]
) -> int | None:
    """Tokens that the server counts in a prompt, if it takes it and tells."""
    reply = await probe(client, options, prompt)
    return reply.prompt_tokens if reply.took_it else None


async def _check_ids(client: Client, options: BodyOptions, maker: PromptMaker) -> None:
    ids = maker.ids(maker.prompt(("probe",), _PROBE_TOKENS[-1]))
    reply = await probe(client, options, ids)
    if not reply.took_it:
        problem = f"refused ({reply.status}: {reply.error})"
    elif reply.prompt_tokens not in (None, len(ids)):
        problem = f"{len(ids)} were counted as {reply.prompt_tokens}"
    else:
        return
    raise TargetNotReady(
        f"--token-ids: {client.target.name} does not take prompts of token ids: {problem}; "
        "leave it out, or give the model's own --tokenizer"
    )


async def _beyond(
    client: Client, options: BodyOptions, maker: PromptMaker, tokenizer: TextTokenizer
) -> int | None:
    """What the server counts beyond the tokenizer; None where it does not tell, or where that is
    not the same for each text: then the tokenizer is not the server's."""
    found = set()
    for tokens in _PROBE_TOKENS:
        text = " ".join(maker.prompt((f"probe {tokens}",), tokens))
        served = await _served(client, options, text)
        found.add(None if served is None else served - tokenizer(text))
    return found.pop() if len(found) == 1 else None


async def _exchange_tokens(
    client: Client, options: BodyOptions, tokenizer: TextTokenizer | None, recipe: Recipe
) -> int:
    """What a question and an answer before the last question add beside their text."""
    maker = PromptMaker(_SEED, tokenizer, recipe)
    said = [" ".join(maker.message(f"probe {n}", _PROBE_TOKENS[0])) for n in range(3)]
    roles = ("user", "assistant", "user")
    messages = [{"role": r, "content": text} for r, text in zip(roles, said, strict=True)]
    alone = await _served(client, options, said[0])
    together = await _served(client, options, messages)
    if alone is None or together is None:
        return 0
    return together - alone - 2 * _PROBE_TOKENS[0]


async def _calibrate(
    client: Client, options: BodyOptions, max_model_len: int | None
) -> Recipe | None:
    """What words cost at this server; None where it does not tell."""
    rng = random.Random(_SEED)
    most = max(_FEWEST_WORDS, min(len(WORDS), (max_model_len or 4096) // 4))
    probes: list[tuple[list[str], int]] = []

    async def count(words: list[str]) -> bool:
        served = await _served(client, options, " ".join(words))
        if served is not None:
            probes.append((words, served))
        return served is not None

    for words in (rng.sample(WORDS, _FEWEST_WORDS), rng.sample(WORDS, most)):
        if not await count(words):
            return None
    if recipe := recipe_of_whole_words(probes, WORDS):
        return recipe
    by_length = sorted(set(WORDS), key=lambda word: (len(word), word))
    size = min(_GROUP_WORDS, most)
    groups = [
        by_length[n * len(by_length) // _GROUPS : (n + 1) * len(by_length) // _GROUPS]
        for n in range(_GROUPS)
    ]
    for group in groups:
        if not await count(rng.choices(group, k=size)):
            return recipe_of_costs(probes)
    beyond = [served - len(words) for words, served in probes[-_GROUPS:]]
    whole = [group for group, n in zip(groups, beyond, strict=True) if n == min(beyond)]
    if len(whole) >= _FEWEST_WHOLE_GROUPS:
        pool = tuple(word for group in whole for word in group)
        await count(rng.choices(pool, k=_FEWEST_WORDS))
        own = [item for item in probes[2:] if set(item[0]) <= set(pool)]
        if recipe := recipe_of_whole_words(own, pool):
            return recipe
    return recipe_of_costs(probes)


def recipe_of_whole_words(
    probes: Sequence[tuple[Sequence[str], int]], words: tuple[str, ...]
) -> Recipe | None:
    """Every word is a token, whatever stands around it: prompts can be exact. Else None.

    `probes`: (words, tokens that the server counted), of at least two lengths.
    """
    beyond = {served - len(said) for said, served in probes}
    lengths = {len(said) for said, _ in probes}
    if len(beyond) > 1 or len(lengths) < 2:
        return None
    return Recipe(overhead_tokens=beyond.pop(), words=words)


def recipe_of_costs(probes: Sequence[tuple[Sequence[str], int]]) -> Recipe | None:
    """Tokens a text, a word and a character, by least squares; None where that makes no sense."""
    rows = np.array([(1.0, len(said), len(" ".join(said))) for said, _ in probes])
    served = np.array([count for _, count in probes], dtype=np.float64)
    fixed, per_word, per_char = np.linalg.lstsq(rows, served, rcond=None)[0].tolist()
    mean_chars = 1 + sum(map(len, WORDS)) / len(WORDS)
    if not _PLAUSIBLE[0] <= per_word + per_char * mean_chars <= _PLAUSIBLE[1]:
        return None
    return Recipe(overhead_tokens=round(fixed), tokens_per_word=per_word, tokens_per_char=per_char)
