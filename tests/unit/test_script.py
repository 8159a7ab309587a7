"""What rows of a trace say: their own text, or one of their length and blocks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from loadgen.prompts import PromptMaker, Recipe, load_tokenizer
from loadgen.script import Script
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.sessions import Sessions, sessions_of
from loadgen.trace.trace import parse_trace
from tests.unit.test_prompts import TOKENIZERS, Build, word_level


def made_trace(*tokens: int, **columns: object) -> Trace:
    """Rows a second apart with so many prompt tokens."""
    count = len(tokens)
    times = np.arange(count) * 1000.0
    return Trace(times, np.array(tokens), np.full(count, 5), **columns)  # type: ignore[arg-type]


def said(trace: Trace, seed: int = 0) -> list[object]:
    script = Script(trace, PromptMaker(seed))
    return [script.prompt(row) for row in range(len(trace))]


def test_a_drawn_trace_and_its_file_say_the_same() -> None:
    """The ids that a file is given when it is written are those that rows without any have."""
    drawn = made_trace(3, 512, 513, 1500, 20)
    assert said(drawn) == said(parse_trace(trace_bytes(drawn), "t"))


def test_a_trace_of_short_prompts_is_worded_by_its_rows() -> None:
    """Below 512 tokens a row's block has the row's number, and its words are its own."""
    assert said(made_trace(6, 6))[0] == "town view town week wall kind"


def test_shared_ids_are_shared_text() -> None:
    """Two rows with one first block begin with the same 512 words, and end on their own."""
    trace = made_trace(600, 700, 90, hash_ids=((1, 2), (1, 3), (1,)))
    one, other, short = (str(text).split() for text in said(trace))
    assert one[:512] == other[:512]
    assert one[512:522] != other[512:522]
    assert short == one[:90]


@pytest.mark.parametrize("ids", [((),), ((4,),), ((4, 5, 6),)], ids=["none", "few", "many"])
def test_ids_that_do_not_cover_the_prompt(ids: tuple[tuple[int, ...]]) -> None:
    """Too few or too many block ids change nothing of the length."""
    (text,) = said(made_trace(1000, hash_ids=ids))
    assert len(str(text).split()) == 1000


def test_text_of_the_trace_is_sent_as_it_is() -> None:
    """A row's own prompt or messages are sent, whatever its length says."""
    messages = [{"role": "user", "content": "hello"}]
    trace = made_trace(9, 9, 9, payload=({"prompt": "hi"}, {"messages": messages}, {}))
    assert said(trace)[:2] == ["hi", messages]
    assert len(str(said(trace)[2]).split()) == 9


def test_the_seed_and_nothing_else_changes_the_text(tmp_path: Path) -> None:
    """The same file and seed give the same, row by row in any order; another seed does not."""
    file = tmp_path / "t.jsonl"
    file.write_bytes(trace_bytes(made_trace(40, 600, 70)))
    trace, _ = read_trace(file)
    script = Script(trace, PromptMaker(7))
    backwards = [script.prompt(row) for row in (2, 1, 0)]
    assert backwards[::-1] == said(read_trace(file)[0], 7)
    assert said(trace, 8) != said(trace, 7)


def conversation(*turns: tuple[int, int], **more: object) -> tuple[Trace, Sessions]:
    """Turns of one session, with so many prompt and output tokens."""
    payload = tuple({"session_id": "s"} for _ in turns)
    inputs, outputs = (np.array(side) for side in zip(*turns, strict=True))
    trace = Trace(np.arange(len(turns)) * 1.0, inputs, outputs, None, more.get("payload", payload))  # type: ignore[arg-type]
    sessions = sessions_of(trace)
    assert sessions is not None
    return trace, sessions


TURNS = ((600, 40), (700, 30), (760, 9), (1500, 50), (1600, 2))


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_conversation_as_one_text(build: Build, tmp_path: Path) -> None:
    """Each turn begins with the one before it and is exactly as long as the trace says."""
    build().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    trace, sessions = conversation(*TURNS)
    script = Script(trace, PromptMaker(0, tokenizer, Recipe(overhead_tokens=3)), sessions)
    texts = [str(script.prompt(row)) for row in range(5)]
    assert [tokenizer(text) + 3 for text in texts] == [tokens for tokens, _ in TURNS]
    assert all(after.startswith(before + " ") for before, after in pairwise(texts))
    again = Script(trace, PromptMaker(0, tokenizer, Recipe(overhead_tokens=3)), sessions)
    assert [again.prompt(row) for row in (4, 2, 2, 3, 0, 1)] == [
        texts[row] for row in (4, 2, 2, 3, 0, 1)
    ]


@pytest.mark.parametrize("build", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_conversation_as_messages(build: Build, tmp_path: Path) -> None:
    """In a chat, questions and scripted answers alternate, each of its own exact length, and the
    template's tokens are counted in."""
    build().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    special = tokenizer("")
    template, exchange = 20, 9
    recipe = Recipe(overhead_tokens=template - special, exchange_tokens=exchange)
    trace, sessions = conversation(*TURNS)
    script = Script(trace, PromptMaker(0, tokenizer, recipe), sessions, is_chat=True)
    assert isinstance(script.prompt(0), str)
    before: list[dict[str, str]] = [{"role": "user", "content": str(script.prompt(0))}]
    for row in range(1, 5):
        messages = script.prompt(row)
        assert isinstance(messages, list)
        assert messages[:-2] == before
        assert [m["role"] for m in messages] == ["user", "assistant"] * row + ["user"]
        counts = [len(tokenizer.ids(message["content"])) for message in messages]
        assert sum(counts) + template + row * exchange == TURNS[row][0]
        assert counts[1::2] == [answer for _, answer in TURNS[:row]]
        before = messages
    again = Script(trace, PromptMaker(0, tokenizer, recipe), sessions, is_chat=True)
    assert again.prompt(4) == before


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_turn_without_room_for_its_history_begins_anew(is_chat: bool) -> None:
    """As a client does that cut its history: the turn has its length, and shares nothing."""
    trace, sessions = conversation((100, 50), (120, 10), (140, 10))
    script = Script(trace, PromptMaker(0), sessions, is_chat=is_chat)
    second = script.prompt(1)
    assert isinstance(second, str)
    assert len(second.split()) == 120
    third = script.prompt(2)
    start = third if isinstance(third, str) else third[0]["content"]  # type: ignore[call-overload, index]
    assert start.startswith(second)
    assert not second.startswith(str(script.prompt(0))[:30])


def test_a_turn_after_the_traces_own_text_begins_anew() -> None:
    """What is said in a text that we did not make is not known to have a length."""
    own = {"session_id": "s"}
    trace, sessions = conversation((9, 1), (90, 5), payload=(own | {"prompt": "hi"}, own))
    script = Script(trace, PromptMaker(0), sessions)
    assert script.prompt(0) == "hi"
    assert len(str(script.prompt(1)).split()) == 90


def test_a_conversation_of_token_ids(tmp_path: Path) -> None:
    """Ids go on from the ids before them, and are as many as was asked."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    trace, sessions = conversation(*TURNS)
    maker = PromptMaker(0, load_tokenizer(tmp_path), Recipe(as_ids=True))
    script = Script(trace, maker, sessions)
    said_ids = [script.prompt(row) for row in range(5)]
    assert [len(ids) for ids in said_ids] == [tokens for tokens, _ in TURNS]
    assert all(list(b)[: len(a)] == list(a) for a, b in pairwise(said_ids))


def test_many_sessions_at_once_are_the_same_as_one_after_another() -> None:
    """What is kept of conversations under way is bounded, and changes no text."""
    count = 700
    payload = tuple({"session_id": n % (count // 2)} for n in range(count))
    trace = Trace(
        np.arange(count) * 1.0,
        np.where(np.arange(count) < count // 2, 20, 40),
        np.full(count, 5),
        None,
        payload,
    )
    sessions = sessions_of(trace)
    script = Script(trace, PromptMaker(0), sessions)
    at_once = [script.prompt(row) for row in range(count)]
    alone = [Script(trace, PromptMaker(0), sessions).prompt(row) for row in (0, 350, 699)]
    assert alone == [at_once[row] for row in (0, 350, 699)]


def test_a_rows_own_sampling() -> None:
    """Fields of a row are its own; other rows have none."""
    trace = made_trace(1, 1, payload=({"sampling": {"seed": 4}}, {}))
    script = Script(trace, PromptMaker(0))
    assert [script.sampling(row) for row in (0, 1)] == [{"seed": 4}, {}]
