"""OpenAI's wire format: request bodies out, deltas in.

Sources: the API reference of OpenAI for completions and chat completions, and vLLM's extensions to
it (`ignore_eos`, `min_tokens`, `continuous_usage_stats`, `reasoning`), as real servers stream them.
It knows neither time nor transport. A chunk is not a token: a delta says whether it carries content
and, where the server tells, how many tokens have been generated so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

DONE: Final = b"[DONE]"

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


_MOST_SHOWN_BYTES: Final = 64 * 1024
_MOST_TOKENS: Final = 10_000_000
"""A count beyond what a trace may ask of one request is a server's nonsense, as a -1 that was taken
for unsigned."""

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids (completions only), or chat messages (chat only)."""


class Feature(StrEnum):
    """Optional request fields, agreed on with every target before a run and never during it."""

    STREAM_USAGE = "stream_options.include_usage"
    CONTINUOUS_USAGE = "stream_options.continuous_usage_stats"
    IGNORE_EOS = "ignore_eos"
    MIN_TOKENS = "min_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    """The limit goes by its newer name (chat only); without it, by `max_tokens`."""


class MalformedAnswer(ValueError):
    """Bytes that are not the JSON that OpenAI's API answers with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """What every request of a run has in common."""

    endpoint: str
    model: str
    stream: bool = True
    features: frozenset[Feature] = frozenset()
    temperature: float | None = 0.0
    top_p: float | None = None
    extra_body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event (or one whole JSON answer) says."""

    text: str = ""
    has_content: bool = False
    """It carries text, reasoning or a tool call; a role or an empty string is none."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Generated so far, where the server says it."""
    error: str | None = None


def build_body(
    options: BodyOptions,
    prompt: Prompt,
    output_tokens: int,
    sampling: Mapping[str, Any] | None = None,
) -> bytes:
    """The request's JSON body: the same arguments give the same bytes.

    `sampling`: fields of this request alone, which come before those of the run.
    """
    body: dict[str, Any] = {"model": options.model}
    if options.endpoint == CHAT:
        is_messages = not isinstance(prompt, str)
        body["messages"] = prompt if is_messages else [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    features = options.features
    newer = options.endpoint == CHAT and Feature.MAX_COMPLETION_TOKENS in features
    body["max_completion_tokens" if newer else "max_tokens"] = output_tokens
    if Feature.MIN_TOKENS in features:
        body["min_tokens"] = output_tokens
    if Feature.IGNORE_EOS in features:
        body["ignore_eos"] = True
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.top_p is not None:
        body["top_p"] = options.top_p
    body["stream"] = options.stream
    if options.stream and Feature.STREAM_USAGE in features:
        body["stream_options"] = {"include_usage": True}
        if Feature.CONTINUOUS_USAGE in features:
            body["stream_options"]["continuous_usage_stats"] = True
    if options.extra_body:
        body.update(options.extra_body)
    if sampling:
        body.update(sampling)
    return orjson.dumps(body)


def decode(data: bytes) -> Delta:
    """Read one event's data, or one whole JSON answer; raises MalformedAnswer."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedAnswer(f"not JSON: {error}: {preview(data)}") from None
    if not isinstance(answer, dict):
        raise MalformedAnswer(f"not a JSON object: {preview(data)}")
    message = error_message(answer)
    if message is not None:
        return Delta(error=message)
    choices = answer.get("choices")
    usage = answer.get("usage")
    if not isinstance(choices, list) or not (usage is None or isinstance(usage, dict)):
        raise MalformedAnswer(f"neither choices nor an error: {preview(data)}")
    text = ""
    has_content = False
    finish_reason: str | None = None
    for choice in choices:
        if not isinstance(choice, dict):
            raise MalformedAnswer(f"a choice that is no object: {preview(data)}")
        piece, carries = _content_of(choice)
        text += piece
        has_content = has_content or carries
        reason = choice.get("finish_reason")
        if reason is not None and not isinstance(reason, str):
            raise MalformedAnswer(f"a finish_reason that is no text: {preview(data)}")
        finish_reason = reason or finish_reason
    if usage is None:
        return Delta(text, has_content, finish_reason)
    return Delta(
        text,
        has_content,
        finish_reason,
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
    )


def error_message(answer: Mapping[str, Any]) -> str | None:
    """The error that an answer carries in one of the forms that servers use, or None."""
    error = answer.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if answer.get("object") == "error":  # the form of older vLLM and of FastChat
        return str(answer.get("message") or answer)
    return None


def error_text(body: bytes) -> str:
    """What an HTTP error's body says, as it says it."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return preview(body)
    if isinstance(answer, dict):
        return error_message(answer) or str(answer.get("detail") or answer.get("message") or answer)
    return preview(body)


def preview(data: bytes) -> str:
    """What a server sent, as it is and perhaps long: it is cut, and put into one line, when secrets
    have been struck out of it, since a secret that is changed is known no more."""
    return data[:_MOST_SHOWN_BYTES].decode("utf-8", "replace")


def _content_of(choice: Mapping[str, Any]) -> tuple[str, bool]:
    """(text, carries content) of a chunk's delta, of a whole message, or of a completion."""
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return (text, True) if isinstance(text, str) and text else ("", False)
    text = ""
    for key in ("reasoning_content", "reasoning", "content", "refusal"):
        piece = delta.get(key)
        if isinstance(piece, str):
            if key != "reasoning" or not delta.get("reasoning_content"):  # some send both
                text += piece
        elif isinstance(piece, list):  # content parts
            text += "".join(str(part.get("text", "")) for part in piece if isinstance(part, dict))
    has_call = bool(delta.get("tool_calls") or delta.get("function_call"))
    return text, bool(text) or has_call


def _count(usage: Mapping[str, Any], key: str) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else None
