"""What rows of a trace say: their own text, or one of their length and blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadgen.prompts import PromptMaker
from loadgen.script import Script
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.trace import parse_trace


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
