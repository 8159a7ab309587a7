"""What requests may say, without a server."""

from typing import Any

import pytest
from pydantic import ValidationError

from servers.static.errors import ApiError
from servers.static.protocol import (
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    Message,
    refuse_unsupported,
    row_of,
)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "a", **fields})


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_unsupported_fields_are_refused_by_name(name: str) -> None:
    """A field that would change the answer and is not supported is refused with its own name."""
    for neutral in UNSUPPORTED[name]:
        refuse_unsupported(completion(**{name: neutral}))
    with pytest.raises(ApiError) as caught:
        refuse_unsupported(completion(**{name: 3}))
    assert (caught.value.status, caught.value.param) == (400, name)


def test_zero_logprobs_are_logprobs() -> None:
    """`logprobs: 0` asks for logprobs and is refused, `logprobs: false` asks for none."""
    refuse_unsupported(completion(logprobs=False))
    with pytest.raises(ApiError):
        refuse_unsupported(completion(logprobs=0))


def test_unknown_fields_are_ignored() -> None:
    """A field that nobody here knows changes nothing, as in vLLM."""
    refuse_unsupported(completion(user="someone", priority=0, metadata={"a": 1}))


def test_defaults_are_openais() -> None:
    """Unset, temperature is 1, top_p 1, top_k off, a completion has 16 tokens, a chat what fits."""
    row = row_of(completion(), [1, 2, 3], 100)
    assert (row.temperature, row.top_p, row.top_k, row.max_tokens) == (1.0, 1.0, 0, 16)
    chat = ChatRequest(messages=[Message(role="user", content="a")])
    assert row_of(chat, [1, 2, 3], 100).max_tokens == 97


def test_max_completion_tokens_wins() -> None:
    """`max_completion_tokens` stands above the deprecated `max_tokens`."""
    messages = [Message(role="user", content="a")]
    chat = ChatRequest(messages=messages, max_tokens=9, max_completion_tokens=5)
    assert row_of(chat, [1], 100).max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"max_tokens": 101}, "max_tokens", id="over-the-model"),
        pytest.param({"max_tokens": 98}, "max_tokens", id="over-what-is-left"),
        pytest.param({"max_tokens": 4, "min_tokens": 5}, "min_tokens", id="min-over-max"),
    ],
)
def test_limits_that_clash(fields: dict[str, Any], param: str) -> None:
    """Limits that cannot be kept are refused with the parameter's name."""
    with pytest.raises(ApiError) as caught:
        row_of(completion(**fields), [1, 2, 3], 100)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": float("nan")},
        {"temperature": "0"},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"max_tokens": 0},
        {"max_tokens": 2.0},
        {"max_tokens": True},
        {"min_tokens": -1},
        {"seed": 2**63},
        {"stop": ""},
        {"stop": ["a"] * 17},
        {"stream": "yes"},
        {"ignore_eos": 1},
        {"prompt": {"a": 1}},
        {"prompt": [1.5]},
    ],
    ids=str,
)
def test_wrong_values_are_refused(fields: dict[str, Any]) -> None:
    """A value of the wrong type or out of its range does not pass, and nothing is converted."""
    with pytest.raises(ValidationError):
        completion(**fields)


@pytest.mark.parametrize(
    ("prompt", "single"),
    [
        pytest.param("text", "text", id="text"),
        pytest.param([1, 2], [1, 2], id="ids"),
        pytest.param(["text"], "text", id="list-of-text"),
        pytest.param([[1, 2]], [1, 2], id="list-of-ids"),
    ],
)
def test_one_prompt_in_any_form(prompt: Any, single: Any) -> None:
    """One prompt is taken as text or token ids, bare or in a list."""
    assert completion(prompt=prompt).single_prompt() == single


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [[1], [2]]], ids=str)
def test_not_one_prompt(prompt: Any) -> None:
    """No prompt, and more than one, are refused."""
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt).single_prompt()
    assert caught.value.param == "prompt"


def test_continuous_usage_needs_usage() -> None:
    """`continuous_usage_stats` counts only beside `include_usage`, as in vLLM."""
    alone = completion(stream=True, stream_options={"continuous_usage_stats": True})
    both = {"continuous_usage_stats": True, "include_usage": True}
    assert alone.usage_wanted() == (False, False)
    assert completion(stream=True, stream_options=both).usage_wanted() == (True, True)


def test_message_parts_are_joined() -> None:
    """Text parts reach the template as one text, joined by line ends; other fields as they are."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = Message.model_validate({"role": "user", "content": parts, "name": "n"})
    assert message.for_template() == {"role": "user", "content": "a\nb", "name": "n"}
