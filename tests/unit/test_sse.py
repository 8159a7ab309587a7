"""The parser of server-sent events: any split of the bytes gives the same events."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import STREAMS, capture

from loadgen.client import sse
from loadgen.client.sse import Event, EventTooLong, SSEParser


def parse(*pieces: bytes) -> list[Event]:
    """All events of a stream that comes in these pieces."""
    parser = SSEParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def byte_by_byte(stream: bytes) -> list[Event]:
    return parse(*(stream[at : at + 1] for at in range(len(stream))))


def split_at(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


def reference(stream: bytes) -> list[Event]:
    """The specification's algorithm, read off it step by step, over the whole stream at once.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    if stream[:3] == b"\xef\xbb\xbf":
        stream = stream[3:]
    lines, line, at = [], b"", 0
    while at < len(stream):
        byte = stream[at : at + 1]
        at += 1
        if byte == b"\r":
            if stream[at : at + 1] == b"\n":
                at += 1
            lines.append(line)
            line = b""
        elif byte == b"\n":
            lines.append(line)
            line = b""
        else:
            line += byte
    events: list[Event] = []
    data_buffer, type_buffer = b"", b""
    for line in lines:
        if line == b"":
            if data_buffer != b"":
                events.append((type_buffer, data_buffer[:-1]))
            data_buffer, type_buffer = b"", b""
            continue
        colon = line.find(b":")
        if colon == 0:
            continue
        field, value = (line, b"") if colon < 0 else (line[:colon], line[colon + 1 :])
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            type_buffer = value
        elif field == b"data":
            data_buffer += value + b"\n"
    return events


PARTS = (
    b"data:",
    b"data: ",
    b"data",
    b'data: {"a":1}\n\n',
    b"data:x\r\n\r\n",
    b"data: y\r\r",
    b"dat",
    b"event: e\n",
    b"event:",
    b"id: 7\n",
    b"retry: 10\n",
    b": ping\n\n",
    b":",
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\xc2\x85",
    b"\x0b\x0c\x1c\x85\x00",
    "é📙".encode(),
)
streams = st.one_of(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join), st.binary())


@settings(max_examples=400, deadline=None)
@given(stream=streams, cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_any_split_gives_the_events_of_the_specification(stream: bytes, cuts: list[int]) -> None:
    """Whole, byte by byte and in any pieces, the events are those of the specification's steps."""
    expected = reference(stream)
    assert parse(stream) == expected
    assert byte_by_byte(stream) == expected
    assert parse(*split_at(stream, cuts)) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_captured_streams_in_any_split(name: str) -> None:
    """A real server's stream gives its data lines, however it is cut."""
    stream = capture(name)
    expected = [
        (b"", line.removeprefix(b"data: "))
        for line in stream.split(b"\n")
        if line.startswith(b"data: ")
    ]
    assert parse(stream) == expected
    assert byte_by_byte(stream) == expected
    rng = random.Random(name)
    for _ in range(20):
        cuts = [rng.randrange(len(stream)) for _ in range(rng.randrange(1, 60))]
        assert parse(*split_at(stream, cuts)) == expected


def test_captured_exchange_with_its_head_removed() -> None:
    """The beginning of a stream gives its whole events, and not the one that is cut short."""
    body = capture("sse_headers.txt")
    assert len(parse(body)) == body.count(b"\n\n")


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_line_endings(ending: bytes) -> None:
    """LF, CRLF and CR each end a line."""
    lines = [b"event: e", b"data: 1", b"data: 2", b"", b"data: 3", b"", b""]
    stream = ending.join(lines)
    expected = [(b"e", b"1\n2"), (b"", b"3")]
    assert parse(stream) == expected
    assert byte_by_byte(stream) == expected


def test_mixed_line_endings() -> None:
    """One stream may use all three endings."""
    assert parse(b"data: a\r\n\ndata: b\r\rdata: c\n\r\n") == [
        (b"", b"a"),
        (b"", b"b"),
        (b"", b"c"),
    ]


def test_cr_at_the_end_of_a_read_completes_the_event_at_once() -> None:
    """A blank line that ends in CR is an event now: the next read need not come for it."""
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [(b"", b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [(b"", b"b")]


def test_an_empty_read_between_cr_and_lf_changes_nothing() -> None:
    """A read of no bytes is no byte: the LF after it still belongs to the CR before it."""
    assert parse(b"data: a\r", b"", b"\ndata: b\r\n\r\n") == [(b"", b"a\nb")]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data:x\n\n", [(b"", b"x")]),
        (b"data: x\n\n", [(b"", b"x")]),
        (b"data:  x\n\n", [(b"", b" x")]),
        (b"data:\n\n", [(b"", b"")]),
        (b"data: \n\n", [(b"", b"")]),
        (b"data\n\n", [(b"", b"")]),
        (b"data: a:b\n\n", [(b"", b"a:b")]),
        (b"data: a\ndata:b\n\n", [(b"", b"a\nb")]),
        (b"data: a\n\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [(b"error", b"x"), (b"", b"y")]),
        (b"event: e\n\ndata: x\n\n", [(b"", b"x")]),
        (b"id: 1\nretry: 5\ndata: x\n\n", [(b"", b"x")]),
        (b"id: 1\n\nretry: 5\n\n", []),
        (b": ping\n\n", []),
        (b": ping\n\ndata: x\n\n", [(b"", b"x")]),
        (b"data: x\n: ping\ndata: y\n\n", [(b"", b"x\ny")]),
        (b"DATA: x\n\n data: x\n\n", []),
        (b"\xef\xbb\xbfdata: x\n\n", [(b"", b"x")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
    ids=repr,
)
def test_fields(stream: bytes, expected: list[Event]) -> None:
    """Each form of line means what the specification says."""
    assert parse(stream) == expected
    assert byte_by_byte(stream) == expected


def test_a_comment_alone_in_a_read_is_no_event() -> None:
    """A keep-alive between events gives nothing and disturbs nothing."""
    assert parse(b"data: a\n\n", b": ping\n\n", b"data: b\n\n") == [(b"", b"a"), (b"", b"b")]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u001c"])
def test_no_cut_at_other_line_separators(mark: str) -> None:
    """Only CR and LF end a line: JSON may hold every other separator that Unicode knows."""
    data = f'{{"text":"a{mark}b"}}'.encode()
    stream = b"data: " + data + b"\n\n"
    assert parse(stream) == [(b"", data)]
    assert byte_by_byte(stream) == [(b"", data)]


@pytest.mark.parametrize("cut", [7, 8, 9, 10])
def test_a_split_inside_a_character(cut: int) -> None:
    """A read may end inside a UTF-8 character."""
    stream = "data: 📙\n\n".encode()
    assert parse(stream[:cut], stream[cut:]) == [(b"", "📙".encode())]


def test_a_byte_order_mark_split_over_reads() -> None:
    """The mark is dropped though its bytes come one by one."""
    assert parse(b"\xef", b"\xbb", b"\xbf", b"data: x\n\n") == [(b"", b"x")]


@pytest.mark.parametrize("stream", [b"data: x", b"data: x\n", b"data: x\r\n", b"event: e\n"])
def test_an_unfinished_event_is_discarded(stream: bytes) -> None:
    """What the stream's end cuts short is no event."""
    assert parse(b"data: whole\n\n" + stream) == [(b"", b"whole")]


def feed_often(parser: SSEParser, piece: bytes) -> None:
    for _ in range(200):
        parser.feed(piece)


@pytest.mark.parametrize(
    "piece",
    [b"x" * 100, b"data: " + b"x" * 94 + b"\n", b"data:\n" * 20],
    ids=["line", "lines", "empty"],
)
def test_an_event_that_never_ends_is_an_error(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event over the bound raises EventTooLong, be it one line or many."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SSEParser()
    parser.feed(b"data: ")
    with pytest.raises(EventTooLong):
        feed_often(parser, piece)


def test_an_event_within_the_bound_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many events, each below the bound, are no error."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    stream = b"data: " + b"x" * 990 + b"\n\n"
    assert len(byte_by_byte(stream * 5)) == 5


def test_nothing_grows_once_an_event_was_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on after EventTooLong cannot fill the memory."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10_000)
    parser = SSEParser()
    piece = b"x" * 1000
    tracemalloc.start()
    try:
        for _ in range(1000):
            try:
                parser.feed(piece)
            except EventTooLong:
                continue
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 100_000
