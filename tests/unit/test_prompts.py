"""Prompts: deterministic, and exact wherever there is a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from loadgen.errors import ConfigError
from loadgen.prompts import (
    WORDS,
    PromptMaker,
    Recipe,
    TextTokenizer,
    find_tokenizer,
    load_tokenizer,
)

Build = Callable[[], Tokenizer]


def word_level() -> Tokenizer:
    """Every known word is one token."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *sorted(set(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def with_special_tokens() -> Tokenizer:
    """A beginning and an end of sequence around each text."""
    tokenizer = word_level()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    names = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=names
    )
    return tokenizer


def byte_level_bpe(size: int = 600) -> Tokenizer:
    """A small vocabulary of bytes and merges, as today's models have: some words are whole."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    return tokenizer


def cut_off() -> Tokenizer:
    """A tokenizer whose file tells to cut texts at 16 tokens, as some do."""
    tokenizer = word_level()
    tokenizer.enable_truncation(16)
    return tokenizer


def padded() -> Tokenizer:
    """A tokenizer whose file tells to pad texts to 64 tokens, as some do."""
    tokenizer = word_level()
    tokenizer.enable_padding(length=64)
    return tokenizer


def bytes_alone() -> Tokenizer:
    """Every byte is a token: no word is whole, and neither is the space before it."""
    return byte_level_bpe(256)


TOKENIZERS: dict[str, Build] = {
    "word level": word_level,
    "special tokens": with_special_tokens,
    "byte-level BPE": byte_level_bpe,
    "bytes": bytes_alone,
    "truncation": cut_off,
    "padding": padded,
}


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
def test_prompts_have_exactly_the_asked_tokens(build: Build, tmp_path: Path) -> None:
    """The model's own tokenizer counts exactly what was asked, its special tokens included."""
    file = tmp_path / "tokenizer.json"
    build().save(str(file))
    maker = PromptMaker(0, load_tokenizer(file))
    judge = build()
    judge.no_truncation()
    judge.no_padding()
    for row in range(20):
        for tokens in (3, 4, 17, 100, 1000):
            text = maker.text(row, tokens)
            assert len(judge.encode(text).ids) == tokens
            assert text.strip()


def test_a_prompt_shorter_than_the_special_tokens_is_one_word() -> None:
    """What cannot be reached is not tried for ever: the shortest text there is."""
    tokenizer = with_special_tokens()
    maker = PromptMaker(0, lambda text: len(tokenizer.encode(text).ids))
    assert len(maker.text(0, 1).split()) == 1


def test_the_same_seed_gives_the_same_text() -> None:
    """Two makers agree on every row; another seed gives other text."""
    assert [PromptMaker(1).text(row, 20) for row in range(9)] == [
        PromptMaker(1).text(row, 20) for row in range(9)
    ]
    assert PromptMaker(1).text(0, 20) != PromptMaker(2).text(0, 20)


def test_the_order_of_rows_does_not_matter() -> None:
    """A worker that makes row 5 alone makes the same text as one that makes all rows."""
    maker = PromptMaker(0)
    for row in range(5):
        maker.text(row, 10)
    assert maker.text(5, 10) == PromptMaker(0).text(5, 10)


def test_text_is_the_same_on_every_machine() -> None:
    """Prompts are part of a workload: no version of ours or of Python may change them."""
    assert PromptMaker(0).text(0, 6) == "town view town week wall kind"


def test_different_rows_differ() -> None:
    """No two prompts share a beginning that a prefix cache could use for long."""
    texts = [PromptMaker(0).text(row, 20) for row in range(500)]
    assert len(set(texts)) == 500
    beginnings = {" ".join(text.split()[:5]) for text in texts}
    assert len(beginnings) == 500


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_without_a_tokenizer_a_word_is_a_token(tokens: int) -> None:
    """n tokens are n common words."""
    words = PromptMaker(0).text(3, tokens).split(" ")
    assert len(words) == tokens
    assert set(words) <= set(WORDS)


def test_words_are_plain() -> None:
    """The words are lower-case ASCII, so that every vocabulary knows their letters."""
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_a_folder_or_a_file(tmp_path: Path) -> None:
    """A tokenizer is given by its file or by the folder that holds it."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(path)("time year people") == 3


@pytest.mark.parametrize(
    "content", [None, "", "{}", "hello"], ids=["missing", "empty", "{}", "text"]
)
def test_what_is_no_tokenizer(content: str | None, tmp_path: Path) -> None:
    """A file that is no tokenizer is told in one line that names flag and file."""
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(tmp_path)
    assert "--tokenizer" in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_a_directory_brings_its_tokenizer(tmp_path: Path) -> None:
    """A model's name that is a local directory with a tokenizer.json is enough; others are not."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    assert find_tokenizer(str(tmp_path)) == tmp_path / "tokenizer.json"
    for name in ("gpt-4", "org/model", str(tmp_path / "none"), "a\0b", "x" * 9999, ""):
        assert find_tokenizer(name) is None


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("overhead", [0, 37])
def test_equal_blocks_give_equal_text(build: Build, overhead: int, tmp_path: Path) -> None:
    """Prompts that share block ids share their beginning, whatever follows, and stay exact."""
    build().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    maker = PromptMaker(3, tokenizer, Recipe(overhead_tokens=overhead))
    cases: list[tuple[tuple[int, ...], int]] = [
        ((5, 6, 7), 1400), ((5, 6, 8), 1300), ((5, 9), 513), ((5, 6, 7), 1100), ((5,), 300),
    ]  # fmt: skip
    texts = [" ".join(maker.prompt(blocks, tokens)) for blocks, tokens in cases]
    assert [tokenizer(text) + overhead for text in texts] == [tokens for _, tokens in cases]
    edge = 12  # what the exact count may change at a prompt's end, in characters
    for shared, (one, other) in {1024: (0, 1), 450: (0, 2), 1040: (0, 3), 240: (0, 4)}.items():
        both = [texts[one], texts[other]]
        same = next((n for n, (a, b) in enumerate(zip(*both, strict=False)) if a != b), None)
        same = min(map(len, both)) if same is None else same
        assert tokenizer(both[0][: same + edge]) >= shared
    assert not texts[1].endswith(texts[0][-60:])


def test_blocks_that_differ_share_nothing() -> None:
    """Other ids give other text from the first word on."""
    starts = {tuple(PromptMaker(0).prompt((n, n + 1000), 600)[:6]) for n in range(300)}
    assert len(starts) == 300


def test_what_a_server_adds_is_taken_off() -> None:
    """A prompt is as much shorter as the server counts beside its text, down to one word."""
    maker = PromptMaker(0, recipe=Recipe(overhead_tokens=30))
    assert len(maker.text(0, 100).split()) == 70
    assert len(maker.text(0, 10).split()) == 1
    blocks = maker.prompt((0, 1), 520)
    assert len(blocks) == 490
    assert blocks[:480] == PromptMaker(0).prompt((0, 7), 600)[:480]


def test_costs_of_words_and_characters() -> None:
    """Without a tokenizer, texts come to the asked number of tokens by what probes have told."""
    recipe = Recipe(overhead_tokens=3, tokens_per_word=0.1, tokens_per_char=0.25)
    maker = PromptMaker(0, recipe=recipe)
    for row in range(20):
        for tokens in (20, 100, 1000):
            text = maker.text(row, tokens)
            cost = 3 + 0.1 * len(text.split()) + 0.25 * len(text)
            assert abs(cost - tokens) <= 2


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
def test_token_ids_are_exact(build: Build, tmp_path: Path) -> None:
    """A prompt of ids has as many as were asked for, all of them the tokenizer's own words."""
    build().save(str(tmp_path / "tokenizer.json"))
    maker = PromptMaker(0, load_tokenizer(tmp_path), Recipe(as_ids=True))
    ids = maker.ids(maker.prompt((0, 1), 700))
    assert len(ids) == 700
    assert len(set(ids)) > 10
    assert ids[:512] == maker.ids(maker.prompt((0, 2), 900))[:512]
    special = {build().token_to_id(token) for token in ("<s>", "</s>")}
    assert not special & set(ids)


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
def test_what_is_added_keeps_what_was_there(build: Build, tmp_path: Path) -> None:
    """A longer prompt begins with the shorter one, and is exact as well."""
    build().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    maker = PromptMaker(0, tokenizer)
    words = maker.prompt((0,), 80)
    longer = maker.longer(words, "more", 120)
    assert longer[: len(words)] == words
    assert tokenizer(" ".join(longer)) == 120
    message = " ".join(maker.message("said", 25))
    assert len(tokenizer.ids(message)) == 25


def test_an_answer_has_no_special_tokens() -> None:
    """They are a prompt's: the tokens of what a model wrote are those of the text alone."""
    count = TextTokenizer(with_special_tokens())
    assert count("time year") > count.of_answer("time year") == 2
    assert count.of_answer("") == 0
