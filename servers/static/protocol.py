"""What a request may say: strict models of OpenAI's completions and chat completions, and the row
they ask for.

Fields nobody here knows are ignored, as vLLM ignores them; known fields with wrong values, and
fields that would change the answer but are not supported (`UNSUPPORTED`), are refused with 400 and
the field's name. Spec: https://platform.openai.com/docs/api-reference/completions and .../chat;
vLLM's additions: `min_tokens`, `top_k`, `ignore_eos`, `include_stop_str_in_output`,
`stream_options.continuous_usage_stats`.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from servers.static.errors import bad_request
from servers.static.wire import Row

# Field -> the values with which it asks for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "min_p": (None, 0, 0.0),
    "use_beam_search": (None, False),
    "stop_token_ids": (None, []),
    "bad_words": (None, []),
    "allowed_token_ids": (None, []),
    "skip_special_tokens": (None, True),
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
    "return_token_ids": (None, False),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "chat_template": (None,),
    "continue_final_message": (None, False),
}

_INT64 = 2**63
# Below this vLLM decodes greedily, and so do we.
_GREEDY_BELOW = 1e-5


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(_Strict):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(BaseModel):
    """The fields that both endpoints share."""

    # Unknown fields are kept until `refuse_unsupported` has looked at them.
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=_INT64)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]
    ) | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def usage_wanted(self) -> tuple[bool, bool]:
        """(usage in a last chunk, usage in every chunk); the second needs the first, as in vLLM."""
        options = self.stream_options or StreamOptions()
        include = bool(options.include_usage)
        return include, include and bool(options.continuous_usage_stats)


class CompletionRequest(Generation):
    """The body of `/v1/completions`: one prompt, as text or token ids, bare or in a list of one."""

    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    add_special_tokens: bool | None = None

    def single_prompt(self) -> str | list[int]:
        """The one prompt."""
        prompt = self.prompt
        if prompt is None or prompt == "" or prompt == []:
            raise bad_request("prompt must be given and not empty", "prompt")
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return prompt
        if len(prompt) > 1:
            raise bad_request(f"one prompt a request is supported, not {len(prompt)}", "prompt")
        return prompt[0]


class TextPart(_Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation; further fields reach the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: str | list[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as templates expect it: content is one text, its parts joined by line ends as
        in vLLM.
        """
        fields = dict(self.model_extra or {})
        content = self.content
        text = (
            "\n".join(part.text for part in content) if isinstance(content, list) else content or ""
        )
        return {**fields, "role": self.role, "content": text}


class ChatRequest(Generation):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    add_generation_prompt: bool | None = None


def refuse_unsupported(request: Generation) -> None:
    """Raise a 400 for the first field that asks for something this server does not do."""
    for name, value in (request.model_extra or {}).items():
        neutral = UNSUPPORTED.get(name)
        # Types are compared too: for Python False == 0, but `"logprobs": 0` asks for logprobs.
        if neutral is not None and not any(
            type(value) is type(known) and value == known for known in neutral
        ):
            raise bad_request(f"{name} is not supported by this server (parameter={name})", name)
    if request.stream_options is not None and not request.stream:
        raise bad_request(
            "Stream options can only be defined when `stream=True`.", "stream_options"
        )


def row_of(request: Generation, prompt_ids: list[int], max_model_len: int) -> Row:
    """The row the model is to run for a request whose prompt is tokenised. Raises a 400 where
    limits clash.
    """
    room = max_model_len - len(prompt_ids)
    name, asked = "max_tokens", request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", request.max_completion_tokens
    max_tokens = room if asked is None else asked
    if max_tokens > max_model_len:
        raise bad_request(
            f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter={name}, value={max_tokens})",
            name,
        )
    if max_tokens > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {max_tokens} output tokens and your prompt contains {len(prompt_ids)} "
            f"input tokens. Please reduce either. (parameter={name}, value={max_tokens})",
            name,
        )
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(
            f"min_tokens must be less than or equal to {name}={max_tokens}, got {min_tokens}.",
            "min_tokens",
        )
    temperature = 1.0 if request.temperature is None else request.temperature
    return Row(
        prompt_ids=tuple(prompt_ids),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        # A row without a seed of its own draws one: rows never share a generator.
        seed=secrets.randbits(63) if request.seed is None else request.seed % _INT64,
        ignore_eos=bool(request.ignore_eos),
    )
