"""The HTTP routes: OpenAI's completions, chat completions and models, `/health` and `/metrics`.

A route turns its request into a job for the batcher and the job into a reply; every refusal leaves
as OpenAI's error JSON. How batches form and how tokens are made is not known here. Prompts and
answers are never logged.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from servers.static.batcher import Batcher
from servers.static.errors import ApiError
from servers.static.job import Job
from servers.static.metrics import Metrics
from servers.static.model_process import ModelProcess, State
from servers.static.prompts import Prompts
from servers.static.protocol import (
    ChatRequest,
    CompletionRequest,
    Generation,
    refuse_unsupported,
    row_of,
)
from servers.static.replies import ChatFormat, CompletionFormat, Events, Format, Identity
from servers.static.reply import Reply
from servers.static.settings import Settings
from servers.static.wire import EngineConfig

# The OpenAPI document's responses beside those of FastAPI, whose 422 this server never gives.
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
_ERROR = {
    "description": "OpenAI's error JSON",
    "content": {"application/json": {"schema": _ERROR_SCHEMA}},
}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "5XX": _ERROR}
_GENERATION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole answer, or with `stream` server-sent events",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **_ERRORS,
}
_HEALTH: dict[int | str, dict[str, Any]] = {503: {"description": "No model that can run a batch"}}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus's text format", "content": {"text/plain": {}}}
}
_KINDS = {404: "NotFoundError", 405: "MethodNotAllowedError"}
# Longer texts are tokenised off the event loop, so that running streams do not pause for them.
_LONG_TEXT_CHARS = 20_000


class Service:
    """The parts that the routes share, wired together."""

    def __init__(
        self, settings: Settings, prompts: Prompts, model: ModelProcess, metrics: Metrics
    ) -> None:
        self.settings = settings
        self.prompts = prompts
        self.model = model
        self.metrics = metrics
        self.started_s = int(time.time())
        self.fingerprint = f"static-transformers-{version('transformers')}"
        self.batcher = Batcher(
            model,
            metrics,
            time.monotonic,
            batch_size=settings.batch_size,
            max_wait_s=settings.max_wait_ms / 1000,
            max_queue=settings.max_queue,
            hold_until_end=settings.release == "batch",
        )

    def reply(self, request: Generation, prompt_ids: list[int], arrived_s: float) -> Reply:
        """Queue a request whose prompt is tokenised, and the response that will answer it."""
        row = row_of(request, prompt_ids, self.prompts.max_model_len)
        job = Job(
            row,
            self.prompts.decode,
            self.prompts.eos_ids,
            arrived_s,
            request.stops(),
            bool(request.include_stop_str_in_output),
        )
        chat = isinstance(request, ChatRequest)
        name = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(8)
        identity = Identity(
            name, int(time.time()), self.settings.served_model_name, self.fingerprint
        )
        shapes: Format = ChatFormat(identity) if chat else CompletionFormat(identity)
        events = None
        if request.stream:
            at_end, always = request.usage_wanted()
            events = Events(shapes, len(prompt_ids), usage_at_end=at_end, usage_always=always)
        self.batcher.submit(job)
        return Reply(job, shapes, events, self.batcher.abandon)

    def check(self, request: Generation) -> None:
        """Refuse what can be refused before tokenising."""
        known = self.settings.served_model_name
        if request.model is not None and request.model != known:
            message = f"The model `{request.model}` does not exist. Valid aliases: {known}."
            raise ApiError(404, message, kind="NotFoundError", param="model")
        refuse_unsupported(request)


def engine_config(settings: Settings, prompts: Prompts, cores: int) -> EngineConfig:
    """What the model's process is told."""
    return EngineConfig(
        model=settings.model,
        dtype=settings.dtype,
        device=settings.device,
        attention=settings.attention,
        cache=settings.cache,
        compile=settings.compile,
        threads=settings.threads or cores,
        batch_size=settings.batch_size,
        max_model_len=prompts.max_model_len,
        eos_ids=prompts.eos_ids,
        pad_id=prompts.pad_id,
    )


def _lifespan(
    service: Service, on_dead: Callable[[], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def supervise() -> None:
            await service.model.supervise()
            if service.model.state is State.DEAD and not service.model.description:
                on_dead()

        tasks = [asyncio.create_task(supervise()), asyncio.create_task(service.batcher.run())]
        yield
        await service.model.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return lifespan


def create_app(service: Service, on_dead: Callable[[], None]) -> FastAPI:
    """The application; `on_dead` is called if the model cannot be loaded at all."""
    app = FastAPI(
        title="Static-batch server",
        version=service.fingerprint,
        lifespan=_lifespan(service, on_dead),
        docs_url=None,
        redoc_url=None,
    )
    _add_errors(app, service.metrics)
    prompts = service.prompts

    @app.post("/v1/completions", response_model=None, responses=_GENERATION)
    async def completions(request: CompletionRequest) -> Response:
        arrived_s = time.monotonic()
        service.check(request)
        prompt, special = request.single_prompt(), request.add_special_tokens is not False
        if isinstance(prompt, str) and len(prompt) > _LONG_TEXT_CHARS:
            ids = await asyncio.to_thread(prompts.from_completion, prompt, special=special)
        else:
            ids = prompts.from_completion(prompt, special=special)
        return service.reply(request, ids, arrived_s)

    @app.post("/v1/chat/completions", response_model=None, responses=_GENERATION)
    async def chat_completions(request: ChatRequest) -> Response:
        arrived_s = time.monotonic()
        service.check(request)
        messages = [message.for_template() for message in request.messages]
        generation_prompt = request.add_generation_prompt is not False
        if sum(len(message["content"]) for message in messages) > _LONG_TEXT_CHARS:
            ids = await asyncio.to_thread(
                prompts.from_messages, messages, add_generation_prompt=generation_prompt
            )
        else:
            ids = prompts.from_messages(messages, add_generation_prompt=generation_prompt)
        return service.reply(request, ids, arrived_s)

    @app.get("/v1/models", responses=_ERRORS)
    async def models() -> JSONResponse:
        card = {
            "id": service.settings.served_model_name,
            "object": "model",
            "created": service.started_s,
            "owned_by": "static",
            "root": service.settings.model,
            "parent": None,
            "max_model_len": prompts.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/health", responses=_HEALTH)
    async def health() -> JSONResponse:
        state = service.model.state
        body = {"status": state.value, "restarts": service.model.restarts}
        return JSONResponse(body, status_code=200 if state is State.READY else 503)

    @app.get("/metrics", response_class=PlainTextResponse, responses=_METRICS)
    async def metrics() -> Response:
        return Response(service.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _add_errors(app: FastAPI, metrics: Metrics) -> None:
    def answer(error: ApiError) -> Response:
        if error.status in metrics.by_status:
            metrics.by_status[error.status].inc()
        return Response(error.body(), error.status, error.headers, "application/json")

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        # The place is ("body", field, ...); malformed JSON has a position in the field's stead.
        place = [str(part) for part in first["loc"][1:]]
        if first["type"] == "json_invalid":
            return answer(ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}"))
        param = place[0] if place else None
        return answer(
            ApiError(400, f"{first['msg']} (parameter={'.'.join(place) or 'body'})", param=param)
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        kind = _KINDS.get(error.status_code, "BadRequestError")
        return answer(
            ApiError(error.status_code, str(error.detail), kind=kind, headers=error.headers)
        )
