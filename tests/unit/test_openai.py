"""OpenAI's wire format: the bodies that go out, and every form of delta that comes in."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import capture

from loadgen.client.openai import (
    CHAT,
    COMPLETIONS,
    BodyOptions,
    Delta,
    Feature,
    MalformedAnswer,
    build_body,
    decode,
    error_text,
    preview,
)
from loadgen.secrets import Redactor


def body(
    prompt: Any = "hi", tokens: int = 5, endpoint: str = COMPLETIONS, **options: Any
) -> dict[str, Any]:
    made = build_body(BodyOptions(endpoint=endpoint, model="m", **options), prompt, tokens)
    content: dict[str, Any] = orjson.loads(made)
    return content


def event(**content: Any) -> bytes:
    return orjson.dumps(content)


def chat(finish: Any = None, **delta: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def test_a_completion_with_nothing_optional() -> None:
    """Without features the body holds the fields that every server takes, and no other."""
    assert body() == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
    }


def test_a_chat_wraps_text_as_one_message() -> None:
    """Chat gets the prompt as the user's only message."""
    content = body(endpoint=CHAT)
    assert content["messages"] == [{"role": "user", "content": "hi"}]
    assert "prompt" not in content


def test_messages_go_as_they_are() -> None:
    """A trace's own messages are not touched."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert body(messages, endpoint=CHAT)["messages"] == messages


def test_token_ids_go_as_they_are() -> None:
    """Completions take a prompt of token ids."""
    assert body([1, 2, 3])["prompt"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (Feature.IGNORE_EOS, {"ignore_eos": True}),
        (Feature.MIN_TOKENS, {"min_tokens": 5}),
        (Feature.STREAM_USAGE, {"stream_options": {"include_usage": True}}),
        (Feature.CONTINUOUS_USAGE, {}),
        (Feature.MAX_COMPLETION_TOKENS, {}),
    ],
    ids=str,
)
def test_each_feature_adds_its_field_alone(feature: Feature, expected: dict[str, Any]) -> None:
    """A feature adds its own field and changes no other."""
    assert body(features=frozenset({feature})) == body() | expected


def test_continuous_usage_goes_into_the_stream_options() -> None:
    """Continuous usage is asked for beside include_usage."""
    features = frozenset({Feature.STREAM_USAGE, Feature.CONTINUOUS_USAGE})
    assert body(features=features)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }


def test_no_stream_options_without_a_stream() -> None:
    """Servers refuse stream options on an answer that is not streamed."""
    content = body(stream=False, features=frozenset(Feature))
    assert content["stream"] is False
    assert "stream_options" not in content


def test_max_completion_tokens_replaces_max_tokens_in_chat() -> None:
    """The limit goes under one name only."""
    content = body(endpoint=CHAT, features=frozenset({Feature.MAX_COMPLETION_TOKENS}))
    assert content["max_completion_tokens"] == 5
    assert "max_tokens" not in content


def test_sampling_left_out_is_not_sent() -> None:
    """None means that the server's own default holds."""
    content = body(temperature=None, top_p=None)
    assert "temperature" not in content
    assert "top_p" not in content


def test_extra_body_adds_and_overrides() -> None:
    """Further fields come last, so that they win."""
    content = body(top_p=0.9, extra_body={"top_p": 0.5, "top_k": 3, "nested": {"a": [1]}})
    assert (content["top_p"], content["top_k"], content["nested"]) == (0.5, 3, {"a": [1]})


@given(
    prompt=st.text(st.characters(exclude_categories=("Cs",))),
    tokens=st.integers(1, 10_000),
    features=st.frozensets(st.sampled_from(list(Feature))),
    endpoint=st.sampled_from([CHAT, COMPLETIONS]),
)
def test_the_same_arguments_give_the_same_bytes(
    prompt: str, tokens: int, features: frozenset[Feature], endpoint: str
) -> None:
    """Every target gets the same bytes, and they are the prompt's own."""
    made = [
        build_body(
            BodyOptions(endpoint=endpoint, model="m", features=frozenset(features)), prompt, tokens
        )
        for _ in range(2)
    ]
    assert made[0] == made[1]
    content = orjson.loads(made[0])
    sent = content["messages"][0]["content"] if endpoint == CHAT else content["prompt"]
    assert sent == prompt


@pytest.mark.parametrize(
    ("data", "text", "has_content"),
    [
        (event(choices=[{"text": "a", "finish_reason": None}]), "a", True),
        (event(choices=[{"text": "", "finish_reason": None}]), "", False),
        (event(choices=[{"text": None}]), "", False),
        (event(choices=[{}]), "", False),
        (event(choices=[]), "", False),
        (chat(content="a"), "a", True),
        (chat(content=" "), " ", True),
        (chat(content=""), "", False),
        (chat(content=None), "", False),
        (chat(role="assistant"), "", False),
        (chat(role="assistant", content=""), "", False),
        (chat(role="assistant", content="a"), "a", True),
        (chat(reasoning="r"), "r", True),
        (chat(reasoning_content="r"), "r", True),
        (chat(reasoning="r", reasoning_content="r"), "r", True),
        (chat(reasoning="r", content=""), "r", True),
        (chat(reasoning="", reasoning_content="", content=""), "", False),
        (chat(reasoning="r", content="c"), "rc", True),
        (chat(refusal="no"), "no", True),
        (chat(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", True),
        (chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]), "", True),
        (chat(tool_calls=[]), "", False),
        (chat(function_call={"name": "f"}), "", True),
        (chat(function_call=None, tool_calls=None), "", False),
        (event(choices=[{"delta": {}, "finish_reason": None}]), "", False),
        (event(choices=[{"message": {"role": "assistant", "content": "a"}}]), "a", True),
    ],
)
def test_what_counts_as_content(data: bytes, text: str, has_content: bool) -> None:
    """Text, reasoning, a refusal and a tool call are content; a role or an empty string is none."""
    delta = decode(data)
    assert (delta.text, delta.has_content) == (text, has_content)
    assert delta.error is None


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "content_filter"])
def test_finish_reason(finish: str) -> None:
    """The finish reason is told, with content and without."""
    assert decode(chat(finish, content="a")) == Delta("a", True, finish)
    assert decode(chat(finish)) == Delta("", False, finish)


@pytest.mark.parametrize("finish", [1, True, {"type": "stop"}, ["stop"]], ids=repr)
def test_a_finish_reason_that_is_no_text_does_not_reach_a_record(finish: Any) -> None:
    """Whatever a server puts there, a finish reason is text or None, or it is malformed."""
    try:
        delta = decode(chat(finish, content="a"))
    except MalformedAnswer:
        return
    assert delta.finish_reason is None or isinstance(delta.finish_reason, str)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 9}),
            Delta("", False, None, 3, 9),
        ),
        (
            event(
                choices=[{"delta": {"content": "a"}, "finish_reason": "length"}],
                usage={"prompt_tokens": 3, "completion_tokens": 9},
            ),
            Delta("a", True, "length", 3, 9),
        ),
        (
            event(
                choices=[{"delta": {"role": "assistant", "content": ""}}],
                usage={"prompt_tokens": 3, "completion_tokens": 0},
            ),
            Delta("", False, None, 3, 0),
        ),
        (event(choices=[{"text": "a"}], usage=None), Delta("a", True)),
        (event(choices=[], usage={}), Delta()),
        (event(choices=[], usage={"prompt_tokens": None, "completion_tokens": "9"}), Delta()),
        (event(choices=[], usage={"prompt_tokens": -1, "completion_tokens": -9}), Delta()),
    ],
    ids=["alone", "on the last", "on a role", "null", "empty", "of other types", "negative"],
)
def test_usage(data: bytes, expected: Delta) -> None:
    """Usage is read where it stands: alone, on each chunk or on the last one."""
    assert decode(data) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (event(error={"message": "boom", "type": "x", "code": 500}), "boom"),
        (event(error={"code": 500}), "{'code': 500}"),
        (event(error="boom"), "boom"),
        (event(error="boom", error_type="overloaded"), "boom"),
        (event(object="error", message="boom", code=500), "boom"),
        (event(error={"message": "boom"}, choices=[{"text": "a"}]), "boom"),
    ],
    ids=["OpenAI", "no message", "text", "TGI", "older vLLM", "with choices"],
)
def test_error_events(data: bytes, message: str) -> None:
    """An error inside a stream is told in each of the forms that servers use."""
    delta = decode(data)
    assert delta.error == message
    assert not delta.has_content


@pytest.mark.parametrize("nothing", [None, "", False], ids=repr)
def test_an_error_that_is_none(nothing: object) -> None:
    """An `error` without a value, beside choices, is no error."""
    assert decode(event(error=nothing, choices=[{"text": "a"}])) == Delta("a", True)


def test_several_choices() -> None:
    """With n > 1 every choice's text counts, and a finish of any is told."""
    data = event(
        choices=[{"text": "a", "finish_reason": None}, {"text": "b", "finish_reason": "stop"}]
    )
    assert decode(data) == Delta("ab", True, "stop")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"hello",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{}",
        b'{"choices":null}',
        b'{"choices":{}}',
        b'{"choices":["x"]}',
        b'{"choices":[],"usage":3}',
        b"\xff\xfe",
        b"<html>502 Bad Gateway</html>",
    ],
    ids=repr,
)
def test_malformed(data: bytes) -> None:
    """What is not the API's JSON raises MalformedAnswer, with a message of one short line."""
    with pytest.raises(MalformedAnswer) as caught:
        decode(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(data=st.binary())
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    """No bytes raise anything but MalformedAnswer."""
    with contextlib.suppress(MalformedAnswer):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("ab"),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "message", "content", "text", "usage", "error", "finish_reason",
             "reasoning", "tool_calls", "completion_tokens", "index"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    content=st.dictionaries(st.sampled_from(["choices", "usage", "error", "object"]), json_values)
)
def test_any_json_is_read_or_malformed(content: dict[str, Any]) -> None:
    """No shape of JSON raises anything but MalformedAnswer, and text is text."""
    try:
        delta = decode(orjson.dumps(content))
    except MalformedAnswer:
        return
    assert isinstance(delta.text, str)
    assert isinstance(delta.has_content, bool)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "err_400.txt",
            "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer "
            "output tokens. (parameter=max_tokens, value=5000)",
        ),
        ("err_404.txt", "The model `nope` does not exist. Valid aliases: smollm2-135m."),
    ],
)
def test_error_text_of_captured_errors(name: str, message: str) -> None:
    """A real server's error body gives its message, not its reason phrase."""
    assert error_text(capture(name)) == message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"message":"slow down"}', "slow down"),
        (b'{"error":"slow down"}', "slow down"),
        (b"upstream\nconnect  error", "upstream\nconnect  error"),
        (b"", ""),
        (b"[1]", "[1]"),
    ],
    ids=repr,
)
def test_error_text_of_other_servers(data: bytes, expected: str) -> None:
    """Gateways' and frameworks' bodies give what they say."""
    assert error_text(data) == expected


def test_error_text_is_as_it_came() -> None:
    """Lines and spaces stay until secrets, which may hold them, have been struck out."""
    text = error_text(event(error={"message": "first\nwith  spaces"}))
    assert text == "first\nwith  spaces"
    assert Redactor(["with  spaces"]).excerpt(text, 100) == "first ***"


def test_preview_cuts_no_secret() -> None:
    """A page of text is shown whole, up to 64 KiB, and cut after its secrets are struck out."""
    key = "sk-canary-0123456789"
    for before in range(470, 520):
        page = b"x" * before + key.encode() + b"y" * 1000
        shown = Redactor([key]).excerpt(preview(page), 500)
        assert len(shown) <= 500
        assert shown.endswith("…")
        assert not any(key[:n] in shown for n in range(4, len(key)))
    assert len(preview(b"word" * 100_000)) == 64 * 1024


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("json_chat.txt", Delta("The capital of France is Paris.", True, "stop", 37, 8)),
        (
            "json_completions.txt",
            Delta(
                ", the city of Nova Haven was a thriving metropolis, with towering skyscrapers and "
                "bustling",
                True,
                "length",
                4,
                16,
            ),
        ),
    ],
)
def test_captured_whole_answers(name: str, expected: Delta) -> None:
    """A real server's answer that is not streamed gives text, finish and usage."""
    assert decode(capture(name)) == expected


@pytest.mark.parametrize("count", [2**32 - 1, 10**9, -1])
def test_an_absurd_count_is_none(count: int) -> None:
    """No answer has so many tokens, and nothing could hold them."""
    delta = decode(event(choices=[], usage={"completion_tokens": count, "prompt_tokens": 3}))
    assert (delta.completion_tokens, delta.prompt_tokens) == (None, 3)
