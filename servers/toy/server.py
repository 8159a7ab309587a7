"""OpenAI's completions, chat completions and models in front of the toy's engine.

Requests and answers have the static server's models and shapes, which are vLLM's. A prompt's words
are its tokens; every token of an answer is the word "toy"; an answer has as many as were asked for.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError

from loadgen.clock import monotonic
from loadgen.http1 import EVENT_STREAM, LAST_CHUNK, Connection, Refusal, Request, chunk
from servers.static.errors import ApiError, bad_request, queue_full
from servers.static.job import Piece
from servers.static.protocol import (
    ChatRequest,
    CompletionRequest,
    Generation,
    refuse_unsupported,
    row_of,
)
from servers.static.replies import ChatFormat, CompletionFormat, Events, Format, Identity
from servers.toy.engine import Engine, Job
from servers.toy.metrics import LABEL, Metrics

Model = TypeVar("Model", bound=Generation)

OWNER = "loadgen-toy"
"""Stands in /v1/models and in the Server header, by which reports know a toy."""
WORD = " toy"
CHAT_TOKENS = 64
"""Of a chat that asks for no length: no token of a toy ends an answer."""


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections share."""

    engine: Engine
    metrics: Metrics
    model: str
    max_model_len: int
    max_body_bytes: int
    started_s: int = field(default_factory=lambda: int(time.time()))
    connections: set[ToyConnection] = field(default_factory=set)


class ToyConnection(Connection):
    """One client's connection."""

    server_name = OWNER.encode()

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.most_bytes = service.max_body_bytes
        self._service = service
        self._job: Job | None = None

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._service.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._service.connections.discard(self)
        if self._job is not None:
            self._service.engine.cancel(self._job)

    def answer(self, request: Request) -> None:
        try:
            self._route(request)
        except ApiError as error:
            self._count(error.status)
            headers = {name.encode(): value.encode() for name, value in error.headers.items()}
            self.send(error.body(), error.status, headers=headers)

    def refuse(self, refusal: Refusal) -> None:
        self._count(refusal.status)
        super().refuse(refusal)

    def end(self) -> None:
        self._job = None
        super().end()

    def _count(self, status: int) -> None:
        if status in self._service.metrics.by_status:
            self._service.metrics.by_status[status].inc()

    def _route(self, request: Request) -> None:
        service = self._service
        known = {
            b"/v1/completions": b"POST",
            b"/v1/chat/completions": b"POST",
            b"/v1/models": b"GET",
            b"/health": b"GET",
            b"/metrics": b"GET",
        }
        if request.path not in known:
            raise ApiError(404, "Not Found", kind="NotFoundError")
        if request.method != known[request.path]:
            raise ApiError(405, "Method Not Allowed", kind="MethodNotAllowedError")
        if request.path == b"/v1/models":
            self.send_json({"object": "list", "data": [self._card()]})
        elif request.path == b"/health":
            self.send_json({"status": "ready", "label": LABEL})
        elif request.path == b"/metrics":
            self.send(service.metrics.exposition(), content_type=CONTENT_TYPE_LATEST.encode())
        elif request.path == b"/v1/completions":
            asked = _read(CompletionRequest, request.body)
            prompt = asked.single_prompt()
            self._generate(asked, len(prompt.split() if isinstance(prompt, str) else prompt))
        else:
            chat = _read(ChatRequest, request.body)
            texts = [str(message.for_template()["content"]) for message in chat.messages]
            self._generate(chat, sum(len(text.split()) for text in texts))

    def _card(self) -> dict[str, object]:
        service = self._service
        return {
            "id": service.model,
            "object": "model",
            "created": service.started_s,
            "owned_by": OWNER,
            "root": LABEL,
            "parent": None,
            "max_model_len": service.max_model_len,
        }

    def _generate(self, request: Generation, prompt_tokens: int) -> None:
        arrived_s = monotonic()
        service = self._service
        if request.model is not None and request.model != service.model:
            message = f"The model `{request.model}` does not exist. Valid aliases: {service.model}."
            raise ApiError(404, message, kind="NotFoundError", param="model")
        refuse_unsupported(request)
        if request.stops():
            raise bad_request("stop is not supported by this server (parameter=stop)", "stop")
        prompt_tokens = max(1, prompt_tokens)
        if prompt_tokens >= service.max_model_len:
            raise bad_request(
                f"This model's maximum context length is {service.max_model_len} tokens. However, "
                f"your prompt contains {prompt_tokens} input tokens. Please reduce its length.",
                "messages" if isinstance(request, ChatRequest) else "prompt",
            )
        row = row_of(request, [0] * prompt_tokens, service.max_model_len)
        tokens, finish = row.max_tokens, "length"
        if isinstance(request, ChatRequest) and not (
            request.max_tokens or request.max_completion_tokens or row.ignore_eos
        ):
            tokens, finish = min(tokens, max(CHAT_TOKENS, row.min_tokens)), "stop"
        if service.engine.is_full:
            raise queue_full(service.engine.max_queue)
        answer = Answer(self, request, prompt_tokens, tokens, finish, service.model)
        self._job = Job(
            row=0,
            prompt_tokens=prompt_tokens,
            output_tokens=tokens,
            arrived_s=arrived_s,
            reply=answer.tell,
        )
        service.engine.submit(self._job)


class Answer:
    """One answer: bytes as tokens come, or one JSON object with the last of them."""

    def __init__(
        self,
        connection: ToyConnection,
        request: Generation,
        prompt_tokens: int,
        tokens: int,
        finish: str,
        model: str,
    ) -> None:
        is_chat = isinstance(request, ChatRequest)
        name = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(8)
        identity = Identity(name, int(time.time()), model, OWNER)
        self._shapes: Format = ChatFormat(identity) if is_chat else CompletionFormat(identity)
        self._events: Events | None = None
        if request.stream:
            at_end, always = request.usage_wanted()
            self._events = Events(
                self._shapes, prompt_tokens, usage_at_end=at_end, usage_always=always
            )
        self._connection = connection
        self._prompt_tokens = prompt_tokens
        self._tokens = tokens
        self._finish = finish
        self._told = 0

    def tell(self, tokens: int) -> None:
        """It has so many tokens now."""
        pieces = [self._piece(number) for number in range(self._told + 1, tokens + 1)]
        is_first, is_last = self._told == 0, tokens == self._tokens
        self._told = tokens
        connection = self._connection
        if self._events is None:
            if is_last:
                text = WORD * tokens
                whole = self._shapes.whole(text, pieces[-1], self._prompt_tokens)
                connection.send(whole.encode())
            return
        data = connection.head(200, None, EVENT_STREAM) if is_first else b""
        data += b"".join(chunk(self._events.of(piece).encode()) for piece in pieces)
        connection.transport.write(data + LAST_CHUNK if is_last else data)
        if is_last:
            connection.end()

    def _piece(self, number: int) -> Piece:
        return Piece(WORD, number, self._finish if number == self._tokens else None)


def _read(model: type[Model], body: bytes) -> Model:
    """A request's body; raises ApiError."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "json_invalid":
        raise ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}")
    place = [str(part) for part in first["loc"]]
    where = ".".join(place) or "body"
    raise ApiError(400, f"{first['msg']} (parameter={where})", param=place[0] if place else None)


async def serve(service: Service, host: str, port: int, stop: asyncio.Event) -> None:
    """Serve until `stop`; says where on standard output. Raises OSError where it cannot listen."""
    server = await asyncio.get_running_loop().create_server(
        lambda: ToyConnection(service), host, port, backlog=4096
    )
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    print(f"http://{shown}:{bound_port}", flush=True)
    engine = asyncio.create_task(service.engine.run())
    ended = asyncio.create_task(stop.wait())
    await asyncio.wait((engine, ended), return_when=asyncio.FIRST_COMPLETED)
    server.close()
    for connection in tuple(service.connections):
        connection.transport.abort()
    ended.cancel()
    engine.cancel()
    with suppress(asyncio.CancelledError):
        await engine
