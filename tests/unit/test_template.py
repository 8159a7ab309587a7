"""The shortcut past the JSON parser is exact: with it and without it an answer is the same."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import STREAMS, capture

from loadgen.client.answer import Answer
from loadgen.client.openai import decode
from loadgen.client.template import ChunkTemplate
from loadgen.live import LiveCounters

HEADERS = ((b"content-type", b"text/event-stream"),)


def seen(pieces: list[bytes], *, learns: bool, keep_text: bool = True) -> dict[str, Any]:
    """All that can be seen of an answer that came in these pieces, a second apart."""
    live = LiveCounters()
    answer = Answer(live, keep_text=keep_text)
    if not learns:
        answer._lessons_left = 0
    answer.response(200, HEADERS, 0.5)
    for at, piece in enumerate(pieces):
        answer.body(piece, 1.0 + at)
    answer.end(1000.0, is_whole=True)
    return {
        "outcome": answer.outcome(asked_tokens=3, length_is_held=True),
        "error": answer.error,
        "first_token_s": answer.first_token_s,
        "chunk_s": answer.chunk_s,
        "chunk_tokens": answer.tokens_by_chunk(),
        "served": answer.served_tokens(None),
        "prompt_tokens": answer.prompt_tokens,
        "finish_reason": answer.finish_reason,
        "text": answer.text,
        "done": (answer.saw_done, answer.done_s),
        "live": (live.chunks, live.tokens),
    }


def same(pieces: list[bytes]) -> None:
    for keep_text in (True, False):
        with_it = seen(pieces, learns=True, keep_text=keep_text)
        assert with_it == seen(pieces, learns=False, keep_text=keep_text)


def event(text: str, tokens: int | None, form: str, finish: str | None = None) -> bytes:
    """One chunk as real servers write them; `tokens` so far where usage is continuous."""
    choice: dict[str, Any] = {"index": 0}
    if form == "text":
        choice["text"] = text
    else:
        choice["delta"] = {form: text}
    choice["finish_reason"] = finish
    content: dict[str, Any] = {"id": "x", "choices": [choice]}
    if tokens is not None:
        content["usage"] = {
            "prompt_tokens": 9,
            "total_tokens": 9 + tokens,
            "completion_tokens": tokens,
        }
    return b"data: " + orjson.dumps(content) + b"\n\n"


FORMS = ("text", "content", "reasoning", "reasoning_content", "refusal")
words = st.one_of(
    st.sampled_from([" the", "a", "", " ", '"', "\\", "é", "📙", "\n", '","text":"', "null", "1"]),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
)
others = st.sampled_from(
    [
        b"data: [DONE]\n\n",
        b": ping\n\n",
        b"event: e\n",
        b"data: {oops\n\n",
        b'data: {"error":{"message":"boom"}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n',
        b'data: {"id":"x","choices":[{"index":0,"text":"a"}],"error":"boom"}\n\n',
    ]
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_stream_is_seen_the_same(data: st.DataObject) -> None:
    """Texts, counts, escapes, errors, merged tokens and cut reads: the shortcut changes nothing."""
    form = data.draw(st.sampled_from(FORMS))
    continuous = data.draw(st.booleans())
    pieces, tokens = [], 0
    for _ in range(data.draw(st.integers(1, 14))):
        if data.draw(st.integers(0, 5)) == 0:
            pieces.append(data.draw(others))
            continue
        tokens += data.draw(st.sampled_from([1, 1, 1, 0, 2, -1]))
        finish = data.draw(st.sampled_from([None, None, None, None, "stop"]))
        other_form = data.draw(st.sampled_from([form, form, form, *FORMS]))
        told = max(0, tokens) if continuous else None
        pieces.append(event(data.draw(words), told, other_form, finish))
    if data.draw(st.booleans()):
        stream = b"".join(pieces)
        size = data.draw(st.integers(1, 200))
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    same(pieces)


@pytest.mark.parametrize("size", [1, 7, 100, 100_000, None])
@pytest.mark.parametrize("name", STREAMS)
def test_captured_streams_are_seen_the_same(name: str, size: int | None) -> None:
    """Real servers' streams, cut in any way, give the same answer with the shortcut."""
    stream = capture(name)
    if size is None:
        same([part + b"\n\n" for part in stream.split(b"\n\n") if part])
    else:
        same([stream[at : at + size] for at in range(0, len(stream), size)])


@pytest.mark.parametrize(
    "text", [b"a\xffb", b"\xc3", b"\xed\xa0\x80", b"a\tb", b"a\x00b"], ids=repr
)
def test_a_text_that_is_no_json_is_malformed_with_the_shortcut_too(text: bytes) -> None:
    """Bytes that JSON does not allow in a string are not content, and raise nothing."""
    head, tail = event("WORD", None, "text").split(b"WORD")
    same([head + b"good" + tail, head + text + tail, head + b"good" + tail])


@pytest.mark.parametrize("form", ["text", "content", "reasoning", "reasoning_content"])
@pytest.mark.parametrize("tokens", [None, 5], ids=["no usage", "continuous usage"])
def test_the_shortcut_is_taken(form: str, tokens: int | None) -> None:
    """A chunk of the forms that servers send teaches a template that the next chunk fits."""
    first = event(" the", tokens, form)[6:-2]
    template = ChunkTemplate.learn(first, decode(first))
    assert template is not None
    assert template.tells_tokens is (tokens is not None)
    after = None if tokens is None else tokens + 1
    assert template.fits(event(" city", after, form), 6)
    assert template.text(event(" city", after, form)) == " city"
    assert not template.fits(event(' "city"', after, form), 6)
    assert not template.fits(event(" city", after, form, "stop"), 6)


def test_a_count_that_is_not_the_next_one_is_no_match() -> None:
    """A chunk of several tokens goes the long way, where they are counted."""
    first = event(" the", 5, "text")[6:-2]
    template = ChunkTemplate.learn(first, decode(first))
    assert template is not None
    assert not template.fits(event(" city", 7, "text"), 6)


@pytest.mark.parametrize(
    "chunk",
    [
        event("", None, "text"),
        event("é", None, "text"),
        event('say "hi"', None, "text"),
        event("a", None, "text", "stop"),
        event("a", None, "refusal"),
        b'data: {"choices":[{"delta":{"reasoning":"a","reasoning_content":"a"}}]}\n\n',
        b'data: {"choices":[{"text":"a"},{"text":"b"}]}\n\n',
    ],
    ids=["empty", "not ASCII", "quotes", "finish", "refusal", "twice", "two choices"],
)
def test_what_teaches_no_template(chunk: bytes) -> None:
    """Only a chunk whose one text can be told from all else is learnt from."""
    assert ChunkTemplate.learn(chunk[6:-2], decode(chunk[6:-2])) is None
