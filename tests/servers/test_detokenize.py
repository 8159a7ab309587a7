"""Text from tokens, one at a time, against decoding the whole."""

import random
from pathlib import Path

import pytest

from servers.static.detokenize import Detokenizer, StopStrings
from servers.static.prompts import Prompts

TEXTS = {
    "ascii": "The quick brown fox, it jumps... over the lazy dog's back. " * 3,
    "accents": "Zürich, naïve café, Ærøskøbing, façade. " * 3,
    "emoji": "📙🌑, 👩\u200d👩\u200d👧 and 😀😀 — done\ufffd! " * 3,
    "east-asian": "日本語のテキスト、한국어 텍스트。" * 4,
}


@pytest.fixture(scope="module", params=["small", "embedded"])
def prompts(request: pytest.FixtureRequest) -> Prompts:
    """The tokenizer of either model."""
    model: Path = request.getfixturevalue(f"{request.param}_model")
    return Prompts(str(model), None)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_same_text_as_the_whole(prompts: Prompts, text: str) -> None:
    """Pieces of real text add up to the text itself, multi-byte characters included."""
    ids = prompts.encode(text, special=False, param="prompt")
    row = Detokenizer(prompts.decode, prompts.encode("Say it: ", special=False, param="prompt"))
    assert "".join([row.add(token) for token in ids] + [row.flush()]) == text


@pytest.mark.parametrize("seed", range(30))
def test_same_text_for_broken_characters(prompts: Prompts, seed: int) -> None:
    """Pieces of random tokens, mostly broken characters, add up to decoding all of them at once."""
    draw = random.Random(seed)
    ids = [draw.randrange(3, prompts.vocabulary) for _ in range(200)]
    row = Detokenizer(prompts.decode, [])
    assert "".join([row.add(token) for token in ids] + [row.flush()]) == prompts.decode(ids)


def test_no_half_characters(prompts: Prompts) -> None:
    """No piece of a well-formed text holds a replacement character."""
    ids = prompts.encode("😀日本語" * 5, special=False, param="prompt")
    row = Detokenizer(prompts.decode, [])
    assert not any("\ufffd" in row.add(token) for token in ids)


@pytest.mark.parametrize("cut", range(1, 7))
@pytest.mark.parametrize(
    ("stops", "include", "given", "stop"),
    [
        pytest.param(("cd",), False, "ab", "cd", id="plain"),
        pytest.param(("cd",), True, "abcd", "cd", id="included"),
        pytest.param(("ef", "bcd"), False, "a", "bcd", id="first-of-two"),
        pytest.param(("xyz",), False, "abcdefgh", None, id="none"),
        pytest.param(("h!",), False, "abcdefgh", None, id="only-its-beginning"),
    ],
)
def test_stop_strings_across_pieces(
    cut: int, stops: tuple[str, ...], include: bool, given: str, stop: str | None
) -> None:
    """However a text is cut, what precedes the first stop string is given out, and no more."""
    text = "abcdefgh"
    row, out, met = StopStrings(stops, include), "", None
    for start in range(0, len(text), cut):
        new, met = row.add(text[start : start + cut], armed=True)
        out += new
        if met:
            break
    else:
        out += row.flush()
    assert (out, met) == (given, stop)


def test_stop_strings_wait_for_min_tokens() -> None:
    """Below min_tokens a stop string is not looked for, and its text is given out."""
    row = StopStrings(("b",), include=False)
    assert row.add("ab", armed=False) == ("ab", None)
    assert row.add("cb", armed=True) == ("c", "b")
