"""What is settled with the targets before a run: model, endpoint, and the fields they take.

A field that some server refuses (`ignore_eos` at OpenAI, say) must not turn into failures of a run,
and in a comparison every target must get the same bytes: so each optional field is tried beforehand
with a request of one token, and what all targets take is used. Nothing is negotiated during a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.request import getproxies

import orjson

from loadgen.client import openai
from loadgen.client.answer import Answer
from loadgen.client.client import Client, is_tls_failure
from loadgen.client.http import httpx
from loadgen.client.openai import BodyOptions, Feature, Prompt
from loadgen.clock import monotonic
from loadgen.config import Endpoint, LoadConfig, RequestConfig, Transport
from loadgen.errors import ConfigError, TargetNotReady
from loadgen.live import LiveCounters
from loadgen.record import TargetInfo
from loadgen.secrets import clean_url, one_line

_PROMPT: Final = "Say yes."
_HOLD_TOKENS: Final = 16
"""Asked of a server that takes `ignore_eos`: one that ignores it stops earlier."""
_RETRY_S: Final = 0.25
_BUSY: Final = (429, 502, 503, 504)
"""What a server, or a gateway before it, answers that may take the very same a little later."""
_PATIENCE_S: Final = 10.0
"""How long a busy server is asked again what it takes."""
HOLDS_LENGTH: Final = frozenset({Feature.IGNORE_EOS, Feature.MIN_TOKENS})
"""Either of them keeps an answer from ending before its asked length."""
_REFUSALS: Final = (400, 404, 405, 415, 422)
"""What servers answer to a field or path that they do not take."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was settled: body options for each target, and what to write of them in the header."""

    options: tuple[BodyOptions, ...]
    targets: tuple[TargetInfo, ...]

    @property
    def length_is_held(self) -> bool:
        """Whether outputs are held to their asked length, so that a short one is a fault."""
        return bool(self.options[0].features & HOLDS_LENGTH)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a target answered to a probe."""

    status: int | None
    error: str
    server: str
    tokens: int | None = None
    """Output tokens that its usage tells."""
    usage_events: int = 0
    prompt_tokens: int | None = None

    @property
    def took_it(self) -> bool:
        return self.status == 200 and not self.error


async def negotiate(
    clients: Sequence[Client],
    request: RequestConfig,
    load: LoadConfig,
    *,
    has_messages: bool = False,
    sampling: Mapping[str, Any] | None = None,
) -> Agreement:
    """Settle everything with all targets; raises TargetNotReady, one line that says what to do.

    `has_messages`: the trace brings chat messages, which only the chat endpoint takes. `sampling`:
    one value of each sampling field that its rows bring; they cannot be left out.
    """
    if has_messages and request.endpoint is Endpoint.COMPLETIONS:
        raise ConfigError("--endpoint: the trace has chat messages; use /v1/chat/completions")
    if has_messages and request.token_ids:
        raise ConfigError("--token-ids: the trace has chat messages, which are sent as they are")
    deadline_s = monotonic() + load.ready_timeout
    models = [await _model(client, request, deadline_s) for client in clients]
    wanted = [request.endpoint]
    if request.token_ids:
        wanted = [Endpoint.COMPLETIONS]
    elif request.endpoint is Endpoint.AUTO:
        wanted = [Endpoint.CHAT] if has_messages else [Endpoint.COMPLETIONS, Endpoint.CHAT]
    problem = ""
    for endpoint in wanted:
        options, replies, problem, is_refusal = await _try_endpoint(
            clients, [model for model, _ in models], endpoint, request
        )
        if not problem:
            break
        if not is_refusal:  # it may well serve this endpoint, only not now
            raise TargetNotReady(problem)
    else:
        raise TargetNotReady(problem)
    if any(Feature.MAX_COMPLETION_TOKENS in option.features for option in options):
        options = await _all_newer(clients, options)
    own = [await _features(client, o, request) for client, o in zip(clients, options, strict=True)]
    common = await _common(clients, options, own)
    if request.ignore_eos and not common & HOLDS_LENGTH:
        raise TargetNotReady(_who_holds_no_length(clients, own))
    if sampling:
        await _check_sampling(clients, [replace(o, features=common) for o in options], sampling)
    return Agreement(
        tuple(replace(option, features=common) for option in options),
        tuple(
            TargetInfo(
                name=client.target.name,
                base_url=clean_url(client.target.base_url),
                endpoint=option.endpoint,
                model=option.model,
                features=tuple(sorted(common)),
                server=reply.server or None,
                max_model_len=context,
            )
            for client, option, reply, (_, context) in zip(
                clients, options, replies, models, strict=True
            )
        ),
    )


async def _model(
    client: Client, request: RequestConfig, deadline_s: float
) -> tuple[str, int | None]:
    """(model, its context length where told), once the target answers at all."""
    asked = request.to(client.target).model
    where = _where(client)
    while True:
        try:
            response = await client.get("/v1/models", max(1.0, deadline_s - monotonic()))
        except httpx.HTTPError as error:
            if is_tls_failure(error):
                raise TargetNotReady(
                    f"{where}: TLS failed ({error}); give --insecure if you trust it all the same"
                ) from None
            problem = f"does not answer ({type(error).__name__}: {error})"
            if request.transport is Transport.SOCKET and getproxies():
                problem += "; the proxy of the environment is used by --transport httpx only"
        else:
            if response.status_code < 500:
                break
            problem = f"answers {response.status_code} to /v1/models"
        if monotonic() >= deadline_s:
            raise TargetNotReady(
                client.redactor.strike(
                    f"{where}: {problem}; start it, mend --base-url, or raise --ready-timeout"
                )
            )
        await asyncio.sleep(_RETRY_S)
    if response.status_code in (401, 403):
        raise TargetNotReady(_wants_key(client, request, response.status_code))
    served = _served_models(response.content) if response.status_code == 200 else {}
    if asked is not None:
        return asked, served.get(asked)
    if len(served) == 1:
        return next(iter(served.items()))
    found = f"it serves {', '.join(sorted(served)[:10])}" if served else "it lists no models"
    raise TargetNotReady(f"{where}: say which --model to ask for: {found}")


def _served_models(body: bytes) -> dict[str, int | None]:
    try:
        entries = orjson.loads(body)["data"]
        contexts = {str(entry["id"]): entry.get("max_model_len") for entry in entries}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: context if isinstance(context, int) else None for name, context in contexts.items()
    }


async def _try_endpoint(
    clients: Sequence[Client], models: Sequence[str], endpoint: str, request: RequestConfig
) -> tuple[list[BodyOptions], list[Reply], str, bool]:
    """Options and replies of all targets at `endpoint`, or the first problem, and whether that is
    the endpoint being refused."""
    all_options: list[BodyOptions] = []
    replies: list[Reply] = []
    for client, model in zip(clients, models, strict=True):
        options = BodyOptions(
            endpoint=endpoint,
            model=model,
            stream=request.stream,
            temperature=request.temperature,
            top_p=request.top_p,
            extra_body=request.extra_body,
        )
        reply = await probe(client, options)
        if reply.status in _REFUSALS and endpoint == openai.CHAT:
            newer = replace(options, features=frozenset({Feature.MAX_COMPLETION_TOKENS}))
            second = await probe(client, newer)
            if second.took_it:
                options, reply = newer, second
        if reply.status in (401, 403):
            raise TargetNotReady(_wants_key(client, request, reply.status))
        if not reply.took_it:
            what = reply.status if reply.status is not None else "no answer"
            problem = f"{_where(client)}: {endpoint} for model {model}: {what}: {reply.error}"
            return [], [], problem, reply.status in _REFUSALS
        all_options.append(options)
        replies.append(reply)
    return all_options, replies, "", False


async def _common(
    clients: Sequence[Client], options: Sequence[BodyOptions], own: Sequence[frozenset[Feature]]
) -> frozenset[Feature]:
    """What all targets act upon, of what each acts upon by itself (`own`)."""
    common = frozenset[Feature].intersection(*own)
    # Of two fields that hold a length, a server may heed just the one that another refuses.
    for client, option, features in zip(clients, options, own, strict=True):
        if common & HOLDS_LENGTH and features & HOLDS_LENGTH != common & HOLDS_LENGTH:
            common &= await _honoured(client, option, common)
    return common


def _who_holds_no_length(clients: Sequence[Client], own: Sequence[frozenset[Feature]]) -> str:
    names = [
        c.target.name for c, fields in zip(clients, own, strict=True) if not fields & HOLDS_LENGTH
    ]
    who = " and ".join(names) or "one target or another, given what all take,"
    return (
        f"--ignore-eos: {who} refuses ignore_eos and min_tokens, or ends outputs early all the "
        "same; leave it out"
    )


async def _features(
    client: Client, base: BodyOptions, request: RequestConfig
) -> frozenset[Feature]:
    """The optional fields that this target takes beside `base`: all at once, or else one by one."""
    candidates: list[frozenset[Feature]] = []
    if request.stream:
        candidates += [
            frozenset({Feature.STREAM_USAGE}),
            frozenset({Feature.STREAM_USAGE, Feature.CONTINUOUS_USAGE}),
        ]
    if request.ignore_eos is not False:
        candidates += [frozenset({Feature.IGNORE_EOS}), frozenset({Feature.MIN_TOKENS})]
    everything = base.features.union(*candidates)
    if (await probe(client, replace(base, features=everything))).took_it:
        return await _honoured(client, base, everything)
    taken = base.features
    for some in candidates:
        if (await probe(client, replace(base, features=base.features | some))).took_it:
            taken |= some
    return await _honoured(client, base, taken)


async def _honoured(
    client: Client, base: BodyOptions, taken: frozenset[Feature]
) -> frozenset[Feature]:
    """Of the fields that a server takes, those that it also acts upon: many ignore what they do
    not know."""
    reply = await probe(client, replace(base, features=taken), tokens=_HOLD_TOKENS)
    if not reply.took_it:
        return base.features
    if reply.usage_events == 0:
        taken -= {Feature.STREAM_USAGE, Feature.CONTINUOUS_USAGE}
    elif reply.usage_events == 1:
        taken -= {Feature.CONTINUOUS_USAGE}
    if reply.tokens is not None and reply.tokens < _HOLD_TOKENS:
        taken -= {Feature.IGNORE_EOS, Feature.MIN_TOKENS}
    return taken


async def _all_newer(
    clients: Sequence[Client], options: Sequence[BodyOptions]
) -> list[BodyOptions]:
    """All targets must take `max_completion_tokens` where one takes nothing else."""
    newer = [
        replace(option, features=option.features | {Feature.MAX_COMPLETION_TOKENS})
        for option in options
    ]
    for client, option in zip(clients, newer, strict=True):
        if not (await probe(client, option)).took_it:
            raise TargetNotReady(
                f"{_where(client)}: takes max_tokens only, another target max_completion_tokens "
                "only: they cannot be sent the same requests"
            )
    return newer


async def _check_sampling(
    clients: Sequence[Client], options: Sequence[BodyOptions], sampling: Mapping[str, Any]
) -> None:
    for client, option in zip(clients, options, strict=True):
        reply = await probe(client, option, sampling=sampling)
        if not reply.took_it:
            raise TargetNotReady(
                f"{_where(client)}: refuses the trace's sampling ({', '.join(sampling)}): "
                f"{reply.status}: {reply.error}; take it out of the trace"
            )


async def probe(
    client: Client,
    options: BodyOptions,
    prompt: Prompt = _PROMPT,
    tokens: int = 1,
    sampling: Mapping[str, Any] | None = None,
) -> Reply:
    """Send one request beside the load, and see what comes of it.

    A busy answer says nothing of what the server takes, so it is asked again. Raises TargetNotReady
    where it stays busy.
    """
    body = openai.build_body(options, prompt, tokens, sampling)
    deadline_s = monotonic() + _PATIENCE_S
    while True:
        answer = Answer(LiveCounters())
        failure, error = await client.ask(client.prepare(options.endpoint, body), answer)
        error = answer.error or (error if failure is not None else "")
        if answer.status not in _BUSY:
            break
        if monotonic() >= deadline_s:
            raise TargetNotReady(
                f"{_where(client)}: {options.endpoint} for model {options.model}: {answer.status} "
                f"for {_PATIENCE_S:g} s: {client.redactor.excerpt(error, 300)}; it is too busy to "
                "tell what it takes: come again later"
            )
        await asyncio.sleep(_RETRY_S)
    return Reply(
        answer.status,
        client.redactor.excerpt(error, 300),
        one_line(answer.header(b"server").decode("latin-1"))[:100],
        answer.output_tokens,
        answer.usage_events,
        answer.prompt_tokens,
    )


def _where(client: Client) -> str:
    return f"{client.target.name} ({clean_url(client.target.base_url)})"


def _wants_key(client: Client, request: RequestConfig, status: int | None) -> str:
    name = request.to(client.target).api_key_env
    return f"{_where(client)}: answers {status}: set {name} to an API key that it takes"
