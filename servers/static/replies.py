"""The bytes a client receives: chunks as server-sent events, or one JSON object, key for key as
vLLM writes them.

A format knows its endpoint's shapes and builds each chunk from parts made once a request, since
this runs for every row in every step. Nothing is known here of how they are sent.
"""

import json
from dataclasses import dataclass
from typing import Protocol

from servers.static.job import Piece


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _usage(prompt: int, completion: int) -> str:
    total = prompt + completion
    return f'"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}'


@dataclass(frozen=True, slots=True)
class Identity:
    """What stands in every chunk of one reply."""

    id: str
    created: int
    model: str
    fingerprint: str

    def head(self, kind: str) -> str:
        """The beginning of each of its JSON objects."""
        model = _json(self.model)
        return (
            f'{{"id":"{self.id}","object":"{kind}","created":{self.created},'
            f'"model":{model},"choices":['
        )

    def tail(self) -> str:
        """The member that the last object carries."""
        return f',"system_fingerprint":{_json(self.fingerprint)}'


class Format(Protocol):
    """One endpoint's shapes."""

    opening: str
    usage_details: str

    def choice(self, piece: Piece) -> str:
        """The choice of a chunk."""

    def head(self) -> str:
        """A chunk up to its choices."""

    def tail(self) -> str:
        """The member that the last chunk carries."""

    def whole(self, text: str, last: Piece, prompt_tokens: int) -> str:
        """The object that answers a request without streaming."""


class CompletionFormat:
    """`/v1/completions`."""

    opening = ""
    usage_details = ""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def head(self) -> str:
        return self._identity.head("text_completion")

    def tail(self) -> str:
        return self._identity.tail()

    def choice(self, piece: Piece) -> str:
        return (
            f'{{"index":0,"text":{_json(piece.text)},"logprobs":null,"finish_reason":{_json(piece.finish_reason)},'
            f'"stop_reason":{_json(piece.stop_reason)},"prompt_token_ids":null,"token_ids":null}}'
        )

    def whole(self, text: str, last: Piece, prompt_tokens: int) -> str:
        return (
            f'{self.head()}{{"index":0,"text":{_json(text)},"logprobs":null,"finish_reason":{_json(last.finish_reason)},'
            f'"stop_reason":{_json(last.stop_reason)},"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}}],'
            f'"service_tier":null{self.tail()},'
            f'"usage":{{{_usage(prompt_tokens, last.completion_tokens)},'
            f'"prompt_tokens_details":null,"completion_tokens_details":null}}}}'
        )


class ChatFormat:
    """`/v1/chat/completions`."""

    opening = (
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    )
    usage_details = ',"completion_tokens_details":null'

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def head(self) -> str:
        return self._identity.head("chat.completion.chunk")

    def tail(self) -> str:
        return self._identity.tail()

    def choice(self, piece: Piece) -> str:
        stop = f',"stop_reason":{_json(piece.stop_reason)}' if piece.finish_reason else ""
        return (
            f'{{"index":0,"delta":{{"content":{_json(piece.text)}}},"logprobs":null,'
            f'"finish_reason":{_json(piece.finish_reason)}{stop},"token_ids":null}}'
        )

    def whole(self, text: str, last: Piece, prompt_tokens: int) -> str:
        message = (
            f'{{"role":"assistant","content":{_json(text)},"refusal":null,"annotations":null,"audio":null,'
            f'"function_call":null,"reasoning":null}}'
        )
        return (
            f'{self._identity.head("chat.completion")}{{"index":0,"message":{message},"logprobs":null,'
            f'"finish_reason":{_json(last.finish_reason)},"stop_reason":{_json(last.stop_reason)},"token_ids":null}}],'
            f'"service_tier":null{self.tail()},'
            f'"usage":{{{_usage(prompt_tokens, last.completion_tokens)},'
            f'"prompt_tokens_details":null,"completion_tokens_details":null}},"prompt_logprobs":null,'
            f'"prompt_token_ids":null,"prompt_text":null}}'
        )


class Events:
    """A job's pieces as server-sent events."""

    def __init__(
        self, shapes: Format, prompt_tokens: int, *, usage_at_end: bool, usage_always: bool
    ) -> None:
        self._shapes = shapes
        self._prompt_tokens = prompt_tokens
        self._usage_at_end = usage_at_end
        self._usage_always = usage_always
        self._head = "data: " + shapes.head()
        self._opened = False

    def of(self, piece: Piece) -> str:
        """The events that a piece gives rise to: its chunk, before the first the opening, after the
        last the end.
        """
        text = ""
        if not self._opened:
            self._opened = True
            if self._shapes.opening:
                more = ',"prompt_token_ids":null,"prompt_text":null'
                text = f"{self._head}{self._shapes.opening}]{self._stats(0)}{more}}}\n\n"
        last = piece.finish_reason is not None
        closing = self._shapes.tail() if last and not self._usage_at_end else ""
        stats = self._stats(piece.completion_tokens)
        text += f"{self._head}{self._shapes.choice(piece)}]{stats}{closing}}}\n\n"
        if last and self._usage_at_end:
            usage = _usage(self._prompt_tokens, piece.completion_tokens)
            text += f'{self._head}],"usage":{{{usage}}}{self._shapes.tail()}}}\n\n'
        return text + "data: [DONE]\n\n" if last else text

    def _stats(self, completion_tokens: int) -> str:
        if not self._usage_always:
            return ""
        usage = _usage(self._prompt_tokens, completion_tokens)
        return f',"usage":{{{usage}{self._shapes.usage_details}}}'
