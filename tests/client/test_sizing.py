"""What servers count in a prompt beside its text, and what words cost them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from loadgen.client.client import Client
from loadgen.client.negotiate import negotiate, probe
from loadgen.client.sizing import (
    MadeWith,
    Sizing,
    recipe_of_costs,
    recipe_of_whole_words,
    size_prompts,
)
from loadgen.config import LoadConfig, RequestConfig, TargetConfig
from loadgen.errors import TargetNotReady
from loadgen.live import LiveCounters
from loadgen.prompts import WORDS, PromptMaker, Recipe, load_tokenizer
from loadgen.truth import TruthConfig, TruthServer
from tests.unit.test_prompts import bytes_alone, with_special_tokens, word_level

pytestmark = pytest.mark.anyio

LENGTHS = (45, 80, 300, 1500)


@pytest.fixture
def anyio_backend() -> object:
    """uvloop, as a run has it."""
    return ("asyncio", {"use_uvloop": True})


async def size(
    *configs: dict[str, Any],
    tokenizer: Path | None = None,
    has_turns: bool = False,
    **request: Any,
) -> tuple[Sizing, list[list[int | None]]]:
    """Size prompts with truth servers; also what each then counts in prompts of LENGTHS."""
    async with AsyncExitStack() as stack:
        config = RequestConfig(tokenizer=tokenizer, **request)
        clients = []
        for number, fields in enumerate(configs):
            truth = TruthConfig(**{"ttft_ms": 1.0, "itl_ms": 1.0} | fields)
            server = await stack.enter_async_context(TruthServer(truth))
            target = TargetConfig(name=f"t{number}", base_url=server.base_url)
            clients.append(await stack.enter_async_context(Client(target, config, LiveCounters())))
        agreement = await negotiate(clients, config, LoadConfig())
        counter = None if tokenizer is None else load_tokenizer(tokenizer)
        recipe = Recipe(tokenizer=tokenizer, as_ids=config.token_ids)
        sizing = await size_prompts(clients, agreement, recipe, counter, has_turns=has_turns)
        maker = PromptMaker(0, counter, sizing.recipe)
        counts = []
        for client, options in zip(clients, agreement.options, strict=True):
            own: list[int | None] = []
            for row, tokens in enumerate(LENGTHS):
                words = maker.prompt((row, -row), tokens)
                said = maker.ids(words) if config.token_ids else " ".join(words)
                own.append((await probe(client, options, said)).prompt_tokens)
            counts.append(own)
        return sizing, counts


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("fixed", [0, 31])
async def test_words_that_are_tokens_make_exact_prompts(endpoint: str, fixed: int) -> None:
    """Without a tokenizer two probes show that words are tokens, and what a server adds to them."""
    added = {"special_tokens": fixed, "template_tokens": fixed}
    sizing, (counts,) = await size(added, endpoint=endpoint)
    assert sizing.made_with is MadeWith.CALIBRATION
    assert sizing.fixed_tokens == (fixed,)
    assert sizing.as_json() == {
        "made_with": "calibration",
        "overhead_tokens": fixed,
        "exchange_tokens": 0,
        "words": len(WORDS),
        "cost_of_a_word": [1.0, 0.0],
        "tokens_per_word": 1.0,
    }
    assert counts == list(LENGTHS)


@pytest.mark.parametrize("chars", [1.0, 3.7])
async def test_tokens_that_are_not_words_are_calibrated(chars: float) -> None:
    """Where a word costs what its letters do, prompts come near to what was asked."""
    sizing, (counts,) = await size({"chars_per_token": chars, "special_tokens": 5})
    assert sizing.made_with is MadeWith.CALIBRATION
    assert sizing.as_json()["tokens_per_word"] == pytest.approx(6.5 / chars, rel=0.05)
    for asked, served in zip(LENGTHS, counts, strict=True):
        assert served == pytest.approx(asked, abs=max(4.0, 4.0 / chars))


@pytest.mark.parametrize(
    "config", [{"usage": "never"}, {"max_model_len": 8}], ids=["no usage", "tiny context"]
)
async def test_a_server_that_cannot_be_asked(config: dict[str, Any]) -> None:
    """Where no count comes, or the probes are refused, a word is taken for a token."""
    sizing, _ = await size(config)
    assert sizing.made_with is MadeWith.WORDS
    assert sizing.fixed_tokens == (None,)
    assert sizing.recipe == Recipe()


async def test_a_stream_without_usage_is_no_hindrance() -> None:
    """Where stream_options are refused, a whole answer tells the count."""
    refuses = {"reject": frozenset({"stream_options"}), "template_tokens": 9}
    sizing, _ = await size(refuses, endpoint="chat")
    assert sizing.fixed_tokens == (9,)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_what_a_server_adds_to_the_tokenizers_count(endpoint: str, tmp_path: Path) -> None:
    """Special tokens in a completion and a template in a chat are told, and prompts are exact."""
    with_special_tokens().save(str(tmp_path / "tokenizer.json"))
    added = {"special_tokens": 2, "template_tokens": 30}
    sizing, (counts,) = await size(added, endpoint=endpoint, tokenizer=tmp_path)
    assert sizing.made_with is MadeWith.TOKENIZER
    assert sizing.fixed_tokens == ((2,) if endpoint == "completions" else (30,))
    assert len(sizing.as_json()["tokenizer_sha256"]) == 64
    assert counts == list(LENGTHS)


async def test_a_tokenizer_that_is_not_the_servers(tmp_path: Path) -> None:
    """Where the server's count is not the tokenizer's and something fixed, nothing is known."""
    bytes_alone().save(str(tmp_path / "tokenizer.json"))
    sizing, _ = await size({}, tokenizer=tmp_path)
    assert sizing.fixed_tokens == (None,)
    assert sizing.recipe.overhead_tokens == 0


async def test_targets_that_add_differently() -> None:
    """The first target's prompts are exact; what the others add is told as well."""
    sizing, counts = await size({"template_tokens": 10}, {"template_tokens": 25}, endpoint="chat")
    assert sizing.fixed_tokens == (10, 25)
    assert counts == [list(LENGTHS), [tokens + 15 for tokens in LENGTHS]]


async def test_a_first_target_that_tells_nothing() -> None:
    """Then prompts are made for the next one that counts."""
    silent = {"usage": "never", "template_tokens": 10}
    sizing, _ = await size(silent, {"template_tokens": 25}, endpoint="chat")
    assert sizing.made_with is MadeWith.CALIBRATION
    assert sizing.fixed_tokens == (None, 25)
    assert sizing.recipe.overhead_tokens == 25


async def test_token_ids_are_taken(tmp_path: Path) -> None:
    """Prompts of ids go to completions, and are counted exactly, whatever is added to a text."""
    with_special_tokens().save(str(tmp_path / "tokenizer.json"))
    sizing, (counts,) = await size({"special_tokens": 2}, tokenizer=tmp_path, token_ids=True)
    assert sizing.made_with is MadeWith.TOKEN_IDS
    assert counts == list(LENGTHS)


async def test_token_ids_that_are_refused(tmp_path: Path) -> None:
    """A target that does not take ids is named, and the run does not start."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TargetNotReady, match=r"--token-ids: t0 ") as caught:
        await size({"max_model_len": 40}, tokenizer=tmp_path, token_ids=True)
    assert "\n" not in str(caught.value)


async def test_what_an_exchange_adds_to_a_chat(tmp_path: Path) -> None:
    """A template's tokens for an earlier question and answer are told by a probe."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    added = {"template_tokens": 7, "message_tokens": 4}
    for tokenizer in (None, tmp_path):
        sizing, _ = await size(added, endpoint="chat", tokenizer=tokenizer, has_turns=True)
        assert sizing.fixed_tokens == (11,)
        assert sizing.recipe.exchange_tokens == 8


def test_whole_words_need_two_lengths() -> None:
    """What is added is known only where texts of two lengths agree on it."""

    def of(*counts: tuple[int, int]) -> Recipe | None:
        probes: Sequence[tuple[list[str], int]] = [(["time"] * n, served) for n, served in counts]
        return recipe_of_whole_words(probes, WORDS)

    assert of((8, 11), (30, 33)) == Recipe(overhead_tokens=3)
    assert of((8, 11)) is None
    assert of((8, 11), (30, 34)) is None


def test_costs_that_make_no_sense() -> None:
    """A server that tells the same count for every text does not count."""
    texts = [["time", "year"], ["people"] * 9, ["school", "state"] * 8, ["oil"] * 40]
    assert recipe_of_costs([(text, 1) for text in texts]) is None
    costs = recipe_of_costs([(text, 2 + len(" ".join(text)) // 2) for text in texts])
    assert costs is not None
    assert costs.tokens_per_char == pytest.approx(0.5, abs=0.05)
