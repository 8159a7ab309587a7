"""One answer, fed with captured and made-up streams at made-up times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from made_records import STREAMS, capture

from loadgen.client.answer import MAX_ERROR_BYTES, Answer
from loadgen.client.sse import MAX_EVENT_BYTES
from loadgen.live import LiveCounters
from loadgen.record import Outcome, TokenSource

SSE = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)
JSON = ((b"content-type", b"application/json"),)


def answered(
    events: Sequence[bytes],
    times: Sequence[float] | None = None,
    *,
    status: int = 200,
    headers: Sequence[tuple[bytes, bytes]] = SSE,
    is_whole: bool = True,
    keep_text: bool = False,
    live: LiveCounters | None = None,
) -> Answer:
    """An answer whose n-th piece came at 10 + n (or at `times[n]`), and that then ended."""
    answer = Answer(live or LiveCounters(), keep_text=keep_text)
    answer.sent(9.0)
    answer.response(status, headers, 9.5)
    times = [10.0 + n for n in range(len(events))] if times is None else times
    for piece, at_s in zip(events, times, strict=True):
        answer.body(piece, at_s)
    answer.end(1000.0, is_whole=is_whole)
    return answer


def outcome_of(answer: Answer, asked: int = 16, *, held: bool = False) -> Outcome:
    return answer.outcome(asked_tokens=asked, length_is_held=held)


def events_of(name: str) -> list[bytes]:
    """A captured stream, an event a piece."""
    return [event + b"\n\n" for event in capture(name).split(b"\n\n") if event]


def sse(content: dict[str, Any] | str) -> bytes:
    data = content.encode() if isinstance(content, str) else orjson.dumps(content)
    return b"data: " + data + b"\n\n"


def text(piece: str, finish: str | None = None, tokens: int | None = None) -> bytes:
    content: dict[str, Any] = {"choices": [{"text": piece, "finish_reason": finish}]}
    if tokens is not None:
        content["usage"] = {"prompt_tokens": 3, "completion_tokens": tokens}
    return sse(content)


def usage(tokens: int) -> bytes:
    return sse({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


DONE = sse("[DONE]")


@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "chunks", "source", "finish"),
    [
        ("sse_chat_continuous_usage.txt", 34, 16, 16, TokenSource.CONTINUOUS_USAGE, "length"),
        ("sse_chat_include_usage.txt", 37, 8, 7, TokenSource.USAGE, "stop"),
        ("sse_completions_continuous_usage.txt", 4, 16, 16, TokenSource.CONTINUOUS_USAGE, "length"),
        ("sse_completions_include_usage.txt", 4, 16, 16, TokenSource.USAGE, "length"),
        ("sse_completions_plain.txt", None, 8, 8, TokenSource.CHUNKS, "length"),
        ("sse_completions_unicode.txt", 19, 48, 24, TokenSource.USAGE, "length"),
    ],
    ids=STREAMS,
)
def test_captured_streams(
    name: str, prompt: int | None, tokens: int, chunks: int, source: TokenSource, finish: str
) -> None:
    """A real server's stream gives its tokens, their source, its chunks and how it ended."""
    answer = answered(events_of(name))
    assert outcome_of(answer) is Outcome.OK
    assert answer.prompt_tokens == prompt
    assert answer.served_tokens(None) == (tokens, source)
    assert len(answer.chunk_s) == chunks
    assert answer.finish_reason == finish
    assert answer.error is None


def test_a_role_alone_does_not_set_ttft() -> None:
    """The first token is the first chunk with content, not the first chunk."""
    answer = answered(events_of("sse_chat_include_usage.txt"))
    assert answer.first_byte_s == 9.5
    assert answer.first_token_s == 11.0  # the role came at 10


def test_finish_and_usage_add_no_interval() -> None:
    """Neither an empty finish chunk, nor usage, nor [DONE] counts as a chunk of tokens."""
    answer = answered(events_of("sse_chat_include_usage.txt"))
    assert answer.chunk_s == [11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]  # then finish, usage, DONE
    assert answer.done_s == 20.0


def test_empty_chunks_set_no_time() -> None:
    """Chunks without text, of characters whose bytes are not all there yet, are no content."""
    answer = answered(events_of("sse_completions_unicode.txt"))
    assert answer.first_token_s == 12.0  # the third chunk is the first with text
    assert answer.tokens_by_chunk() is None  # 48 tokens came in 24 chunks


def test_the_end_is_done_and_not_the_close() -> None:
    """The answer ended with [DONE], however late the connection closed after it."""
    answer = answered([text("a", "stop"), DONE], [10.0, 11.0])
    assert answer.saw_done
    assert answer.done_s == 11.0


def test_tokens_by_chunk_with_continuous_usage() -> None:
    """Where the server tells the count so far, each chunk has its own."""
    answer = answered(events_of("sse_completions_continuous_usage.txt"))
    assert answer.tokens_by_chunk() == (1,) * 16


def test_merged_tokens() -> None:
    """Several tokens in one chunk are counted as several."""
    answer = answered(
        [text("a", tokens=1), text("bcd", tokens=4), text("ef", "length", tokens=6), usage(6), DONE]
    )
    assert answer.tokens_by_chunk() == (1, 3, 2)
    assert answer.served_tokens(None) == (6, TokenSource.CONTINUOUS_USAGE)


def test_tokens_of_empty_chunks_belong_to_the_next_content() -> None:
    """A token whose text comes with the next one is counted there, and nowhere twice."""
    answer = answered(
        [text("", tokens=1), text("é", tokens=2), text("", tokens=3), text("ü", tokens=4), DONE]
    )
    assert answer.chunk_s == [11.0, 13.0]
    assert answer.tokens_by_chunk() == (2, 2)


def test_as_many_chunks_as_tokens_is_one_each() -> None:
    """With usage at the end alone, equal numbers tell that each chunk held one token."""
    answer = answered([text("a"), text("b", "stop"), usage(2), DONE])
    assert answer.tokens_by_chunk() == (1, 1)
    assert answer.served_tokens(None) == (2, TokenSource.USAGE)


def test_usage_on_the_last_content_chunk() -> None:
    """Usage on the last chunk gives the total; the tokens of the others are not known."""
    answer = answered([text("a"), text("bc", "length", tokens=5), DONE])
    assert answer.served_tokens(None) == (5, TokenSource.USAGE)
    assert answer.tokens_by_chunk() is None


def test_live_tokens_are_counted_once() -> None:
    """The live counter agrees with the total, also where only the last chunk tells it."""
    live = LiveCounters()
    answered([text("a"), text("b"), text("c", "length", tokens=3), DONE], live=live)
    assert (live.chunks, live.tokens) == (3, 3)


def test_live_tokens_with_continuous_usage() -> None:
    """The live counter moves by the tokens of each chunk."""
    live = LiveCounters()
    answered([text("a", tokens=1), text("bcd", tokens=4), usage(4), DONE], live=live)
    assert (live.chunks, live.tokens) == (2, 4)


def test_a_count_that_falls_gives_no_negative_tokens() -> None:
    """A server whose count runs backwards cannot make a chunk of less than no tokens."""
    live = LiveCounters()
    answer = answered([text("a", tokens=5), text("b", "stop", tokens=2), DONE], live=live)
    assert all(tokens >= 0 for tokens in answer.tokens_by_chunk() or ())
    assert live.tokens >= 0


def test_the_tokenizer_counts_where_the_server_does_not() -> None:
    """Without usage the text is counted whole, once, not chunk by chunk."""
    answer = answered([text("a b"), text("c d", "stop"), DONE], keep_text=True)
    assert answer.served_tokens(lambda whole: len(whole.split())) == (3, TokenSource.TOKENIZER)


def test_several_events_in_one_read_have_one_time() -> None:
    """What came in one read came at one moment."""
    answer = answered([text("a") + text("b") + text("c", "stop") + DONE], [10.0])
    assert answer.chunk_s == [10.0, 10.0, 10.0]
    assert answer.done_s == 10.0


def test_an_event_split_over_reads_has_the_time_of_its_last_byte() -> None:
    """A chunk is there when it is there whole."""
    whole = text("📙", "stop")
    answer = answered([whole[:30], whole[30:-1], whole[-1:], DONE], [10.0, 11.0, 12.0, 13.0])
    assert answer.chunk_s == [12.0]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_sets_ttft(field: str) -> None:
    """A model that thinks first has sent its first token when it thinks."""
    answer = answered(
        [
            sse({"choices": [{"delta": {"role": "assistant"}}]}),
            sse({"choices": [{"delta": {field: "hm"}}]}),
            sse({"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}),
            DONE,
        ]
    )
    assert answer.first_token_s == 11.0
    assert answer.chunk_s == [11.0, 12.0]


def test_a_tool_call_sets_ttft() -> None:
    """An answer that only calls a tool has content."""
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}
    answer = answered([sse({"choices": [{"delta": call, "finish_reason": "tool_calls"}]}), DONE])
    assert outcome_of(answer) is Outcome.OK
    assert answer.first_token_s == 10.0


@pytest.mark.parametrize(
    "event",
    [
        sse({"error": {"message": "boom", "code": 500}}),
        sse({"object": "error", "message": "boom", "code": 500}),
        sse({"error": "boom"}),
        b"event: error\n" + sse({"error": {"message": "boom"}}),
        b"event: error\n" + sse({"message": "boom", "code": 500}),
    ],
    ids=["OpenAI", "older vLLM", "text", "typed", "typed, bare"],
)
@pytest.mark.parametrize("tail", [[], [DONE]], ids=["then nothing", "then DONE"])
def test_an_error_inside_a_200(event: bytes, tail: list[bytes]) -> None:
    """An error event is a failure though the status was 200, tokens came, and [DONE] follows."""
    answer = answered([text("a"), text("b"), event, *tail])
    assert outcome_of(answer) is Outcome.STREAM_ERROR
    assert answer.error is not None
    assert "boom" in answer.error
    assert answer.served_tokens(None) == (2, TokenSource.CHUNKS)


def test_truncation() -> None:
    """A stream that ends with neither finish reason nor [DONE] is cut short."""
    answer = answered(events_of("sse_completions_continuous_usage.txt")[:5])
    assert outcome_of(answer) is Outcome.TRUNCATED
    assert answer.served_tokens(None) == (5, TokenSource.CONTINUOUS_USAGE)
    assert answer.error


def test_done_missing_after_a_finish_reason() -> None:
    """A finish reason without [DONE] is a whole answer, which ended with its body."""
    answer = answered(events_of("sse_chat_include_usage.txt")[:-1])
    assert outcome_of(answer) is Outcome.OK
    assert answer.done_s == 1000.0


def test_done_without_a_finish_reason() -> None:
    """[DONE] without a finish reason is a whole answer."""
    assert outcome_of(answered([text("a"), DONE])) is Outcome.OK


def test_nothing_counts_after_done() -> None:
    """[DONE] is the end: no chunk of a record comes later than the end."""
    answer = answered([text("a", "stop"), DONE, text("ghost")])
    assert answer.done_s is not None
    assert all(at_s <= answer.done_s for at_s in answer.chunk_s)


def test_json_where_a_stream_was_asked() -> None:
    """A server that does not stream is believed, and has no TTFT."""
    answer = answered([capture("json_completions.txt")], headers=JSON)
    assert outcome_of(answer, held=True) is Outcome.OK
    assert answer.first_token_s is None
    assert answer.chunk_s == []
    assert answer.served_tokens(None) == (16, TokenSource.USAGE)
    assert answer.prompt_tokens == 4
    assert answer.finish_reason == "length"
    assert answer.done_s == 1000.0


def test_json_in_small_pieces() -> None:
    """A JSON body may come in any pieces."""
    whole = capture("json_chat.txt")
    answer = answered([whole[at : at + 7] for at in range(0, len(whole), 7)], headers=JSON)
    assert outcome_of(answer) is Outcome.OK


def test_an_error_in_a_json_200() -> None:
    """An error body with status 200 is no success."""
    answer = answered([b'{"error":{"message":"boom"}}'], headers=JSON)
    assert outcome_of(answer) is Outcome.STREAM_ERROR
    assert answer.error == "boom"


@pytest.mark.parametrize(
    "content_type",
    [b"text/event-stream", b"text/event-stream;charset=UTF-8", b"Text/Event-Stream"],
    ids=repr,
)
def test_media_types_are_compared_without_case(content_type: bytes) -> None:
    """A stream is one by its media type, whose case does not matter (RFC 9110, 8.3.1)."""
    answer = answered([text("a", "stop"), DONE], headers=((b"Content-Type", content_type),))
    assert outcome_of(answer) is Outcome.OK
    assert answer.first_token_s == 10.0


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (429, Outcome.HTTP_429),
        (400, Outcome.HTTP_4XX),
        (404, Outcome.HTTP_4XX),
        (422, Outcome.HTTP_4XX),
        (500, Outcome.HTTP_5XX),
        (503, Outcome.HTTP_5XX),
        (307, Outcome.MALFORMED),
        (204, Outcome.MALFORMED),
    ],
)
def test_statuses(status: int, expected: Outcome) -> None:
    """Each status but 200 is a failure of its own kind, and its body's message is kept."""
    answer = answered([b'{"error":{"message":"boom"}}'], status=status, headers=JSON)
    assert outcome_of(answer) is expected
    assert answer.error == "boom"
    assert answer.first_token_s is None


@pytest.mark.parametrize("name", ["err_400.txt", "err_404.txt"])
def test_captured_errors(name: str) -> None:
    """A real server's refusal keeps its own words."""
    answer = answered([capture(name)], status=int(name[4:7]), headers=JSON)
    assert outcome_of(answer) is Outcome.HTTP_4XX
    assert answer.error == orjson.loads(capture(name))["error"]["message"]


def test_a_stream_with_an_error_status_is_no_stream() -> None:
    """Events under a 500 are an error's body, not tokens."""
    answer = answered([text("a", "stop"), DONE], status=500)
    assert outcome_of(answer) is Outcome.HTTP_5XX
    assert answer.chunk_s == []


def test_an_error_body_is_bounded() -> None:
    """An endless error page does not fill the memory."""
    answer = answered([b"x" * MAX_ERROR_BYTES] * 8, status=500)
    assert answer.error is not None
    assert len(answer.error) <= MAX_ERROR_BYTES


@pytest.mark.parametrize(
    "events",
    [
        [text("", "stop"), DONE],
        [sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), DONE],
        [usage(0), DONE],
        [DONE],
    ],
    ids=["empty text", "role", "usage", "DONE alone"],
)
def test_empty(events: list[bytes]) -> None:
    """A well-ended answer without content is empty, not a success."""
    answer = answered(events)
    assert outcome_of(answer) is Outcome.EMPTY
    assert answer.error


def test_empty_json() -> None:
    """A whole answer without text is empty as well."""
    answer = answered([b'{"choices":[{"text":"","finish_reason":"stop"}]}'], headers=JSON)
    assert outcome_of(answer) is Outcome.EMPTY


@pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
def test_short(held: bool) -> None:
    """Fewer tokens than asked are a fault where an early stop was forbidden, and only there."""
    answer = answered([text("a"), text("b", "stop"), usage(2), DONE])
    assert outcome_of(answer, asked=5, held=held) is (Outcome.SHORT if held else Outcome.OK)


def test_exact_length_is_not_short() -> None:
    """As many tokens as asked are enough."""
    answer = answered([text("a"), text("b", "length"), usage(2), DONE])
    assert outcome_of(answer, asked=2, held=True) is Outcome.OK


def test_unknown_length_is_not_short() -> None:
    """Chunks are no tokens: without a count nobody can say that an answer was short."""
    answer = answered([text("a b c d e", "length"), DONE])
    assert outcome_of(answer, asked=5, held=True) is Outcome.OK


@pytest.mark.parametrize(
    "piece", [b"data: {oops\n\n", b"data: hello\n\n", b"data: []\n\n", b"data: \n\n"], ids=repr
)
def test_malformed_json_in_a_stream(piece: bytes) -> None:
    """An event that is no JSON object makes the answer malformed, whatever comes after."""
    answer = answered([text("a"), piece, text("b", "stop"), DONE])
    assert outcome_of(answer) is Outcome.MALFORMED
    assert answer.error


@pytest.mark.parametrize("content", [b"<html>hi</html>", b"{", b"[]", b"{}"], ids=repr)
def test_malformed_json_body(content: bytes) -> None:
    """A 200 that is not the API's JSON is malformed."""
    assert outcome_of(answered([content], headers=JSON)) is Outcome.MALFORMED


def test_the_first_fault_stays() -> None:
    """A second problem does not hide the first."""
    answer = answered([text("a"), sse({"error": "first"}), b"data: {oops\n\n"])
    assert outcome_of(answer) is Outcome.STREAM_ERROR
    assert answer.error == "first"


def test_an_endless_event_is_malformed() -> None:
    """An event beyond the bound fails the answer and does not raise into the transport."""
    answer = answered([b"data: " + b"x" * MAX_EVENT_BYTES, b"x"])
    assert outcome_of(answer) is Outcome.MALFORMED


def test_comments_change_nothing() -> None:
    """Keep-alives between chunks are neither chunks nor faults."""
    answer = answered([b": ping\n\n", text("a"), b": ping\n\n", text("b", "stop"), DONE])
    assert outcome_of(answer) is Outcome.OK
    assert answer.chunk_s == [11.0, 13.0]


def test_text_is_kept_on_request_only() -> None:
    """Without a request for it no generated text stays in memory."""
    events = events_of("sse_chat_include_usage.txt")
    assert answered(events).text == []
    assert "".join(answered(events, keep_text=True).text) == "The capital of France is Paris."


def test_header_by_name() -> None:
    """Header names have no case; one that is not there is empty."""
    answer = answered([DONE], headers=(*SSE, (b"Server", b"uvicorn")))
    assert answer.header(b"server") == b"uvicorn"
    assert answer.header(b"x-nothing") == b""
