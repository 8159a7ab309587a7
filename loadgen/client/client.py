"""One shot in, one record out: whatever the target does, it is data in the record.

It joins a transport, the answer's sink and the timeouts, and names failures of the connection. It
does not know when a shot is due (`replay.py`) nor where records go (`journal.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from loadgen import __version__
from loadgen.client import library
from loadgen.client.allowed import VARIABLE, Allowed
from loadgen.client.answer import Answer
from loadgen.client.http import httpx
from loadgen.client.transport import SocketTransport
from loadgen.client.wire import Form, Wire
from loadgen.clock import monotonic
from loadgen.config import DEFAULT_API_KEY_ENV, RequestConfig, TargetConfig, Transport
from loadgen.errors import ConfigError
from loadgen.live import LiveCounters
from loadgen.record import ERROR_CHARS, Outcome, RequestRecord
from loadgen.schedule import Shot
from loadgen.secrets import Redactor, basic_auth, secrets_of_requests

Prepared = httpx.Request | Wire
"""A request that is ready to be sent, on httpx's transport or on ours."""

MAX_PLAIN_BYTES: Final = 16 * 2**20
"""Of an answer beside the load: lists of all models that a hub serves have a few."""
_HUNG_UP: Final = re.compile("hung up|disconnected")
"""What our transport, and httpx's, call a connection that ended without a byte of an answer."""
_VERSIONED: Final = re.compile(r"/v\d+[a-z0-9]*(?:/|$)")
"""A path that names its version needs no /v1: `/v1`, `/api/paas/v4`, `/v1beta/openai`."""
_ENDPOINT_PATHS: Final = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, slots=True)
class Labels:
    """Where in a run a record belongs."""

    target: str
    epoch_s: float
    """The run's start on the monotonic clock: times in records count from it."""
    block: int = 0
    repeat: int = 0
    worker: int = 0


class Client:
    """Speaks to one target. Use it as an async context manager."""

    def __init__(self, target: TargetConfig, config: RequestConfig, live: LiveCounters) -> None:
        self.target = target
        self._config = config = config.to(target)
        self._live = live
        api_key = api_key_of(config)
        headers = httpx.Headers(
            {"user-agent": f"loadgen/{__version__}", "accept-encoding": "identity"}
        )
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        if (basic := basic_auth(target.base_url)) is not None:
            headers["authorization"] = basic
        headers.update(config.header)
        self.redactor = redactor_of([target], config)
        self._forms: dict[str, Form] = {}
        self._sockets: SocketTransport | None = None
        if config.transport is Transport.SOCKET:
            tls = httpx.create_ssl_context(verify=False) if config.insecure else None
            self._sockets = SocketTransport(ssl_context=tls)
        elif Allowed.here() is not None:  # a proxy, or the library, would resolve the name
            raise ConfigError(f"--transport httpx: cannot be held to {VARIABLE}; leave it out")
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=not config.insecure,
            timeout=httpx.Timeout(None, connect=config.connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=self._sockets,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def prepare(self, endpoint: str, body: bytes) -> Prepared:
        """The request, built (and on our own transport serialised) ahead of its due time.

        httpx builds the first one of each endpoint; those after it differ in their body alone.
        """
        form = self._forms.get(endpoint)
        if form is not None:
            return form.fill(body)
        request = self._http.build_request(
            "POST",
            url_of(self.target.base_url, endpoint),
            content=body,
            headers={"content-type": "application/json"},
        )
        if self._sockets is None:
            return request
        wire = self._sockets.serialise(request)
        self._forms[endpoint] = Form.of(wire)
        return wire

    @property
    def open_connections(self) -> int:
        """Connections that stand now; 0 on httpx's transport, which does not tell."""
        return 0 if self._sockets is None else self._sockets.open_connections

    async def get(self, endpoint: str, timeout_s: float) -> httpx.Response:
        """A plain GET beside the load, such as the list of models, within `timeout_s` in all.

        Raises httpx's errors, also where it takes longer or brings over MAX_PLAIN_BYTES.
        """
        url = url_of(self.target.base_url, endpoint)
        content = bytearray()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream("GET", url, timeout=httpx.Timeout(timeout_s)) as response,
            ):
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > MAX_PLAIN_BYTES:
                        text = f"an answer of over {MAX_PLAIN_BYTES} bytes"
                        raise httpx.RemoteProtocolError(text)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer within {timeout_s:.3g} s") from None
        return httpx.Response(response.status_code, content=bytes(content))

    async def ask(self, request: Prepared, answer: Answer) -> tuple[Outcome | None, str]:
        """Send and wait for the end, within the timeouts.

        Returns the failure of the *exchange* and what is known of it, or (None, "") where the
        answer ended and has to be judged by what it holds.
        """
        loop = asyncio.get_running_loop()
        config = self._config
        first_token_timer: asyncio.TimerHandle | None = None
        try:
            async with asyncio.timeout(config.total_timeout) as scope:
                if config.stream:
                    first_token_timer = loop.call_later(
                        config.first_token_timeout, _give_up_on_first_token, answer, scope
                    )
                await self._exchange(request, answer)
                answer.end(monotonic(), is_whole=True)
        except TimeoutError:
            if answer.saw_done:
                return None, ""
            comes_first = config.first_token_timeout <= config.total_timeout
            if answer.first_token_s is None and config.stream and comes_first:
                return Outcome.TIMEOUT_FIRST_TOKEN, "no token within --first-token-timeout"
            return Outcome.TIMEOUT_TOTAL, "no end within --total-timeout"
        except httpx.HTTPError as error:
            if answer.saw_done or answer.finish_reason is not None:
                return None, ""
            return outcome_of(error, answer), f"{type(error).__name__}: {error}"
        finally:
            if first_token_timer is not None:
                first_token_timer.cancel()
            if answer.done_s is None:
                answer.end(monotonic(), is_whole=False)
        return None, ""

    async def _exchange(self, request: Prepared, answer: Answer) -> None:
        if isinstance(request, Wire):
            assert self._sockets is not None
            await self._sockets.exchange(
                request, answer, connect_timeout_s=self._config.connect_timeout
            )
        else:
            await library.exchange(self._http, request, answer)

    async def send(
        self,
        shot: Shot,
        request: Prepared,
        labels: Labels,
        due_s: float,
        *,
        length_is_held: bool,
        count_tokens: Callable[[str], int] | None = None,
    ) -> RequestRecord:
        """Fire one shot. `due_s` is absolute; the record's times count from `labels.epoch_s`.

        Cancelling it cuts it off, which is an outcome too.

        `length_is_held`: the request forbids an early stop, so a short answer is a fault.
        """
        keep_text = self._config.keep_text
        start_s = monotonic()
        answer = Answer(
            self._live,
            keep_text=keep_text or count_tokens is not None,
            start_s=start_s,
            due_s=due_s,
        )
        self._live.started(start_s - due_s)
        failure: Outcome | None
        try:
            failure, error = await self.ask(request, answer)
        except asyncio.CancelledError:
            failure, error = Outcome.CANCELLED, "the run was stopped"
        if failure is None:
            outcome = answer.outcome(asked_tokens=shot.output_tokens, length_is_held=length_is_held)
        else:
            outcome = answer.fault or failure
        error = answer.error or error
        served, token_source = answer.served_tokens(count_tokens)
        self._live.settle((served or 0) - answer.counted_tokens)
        epoch_s = labels.epoch_s

        def since_epoch(at_s: float | None) -> float | None:
            return None if at_s is None else round(at_s - epoch_s, 6)

        chunk_s = tuple(round(at_s - epoch_s, 6) for at_s in answer.chunk_s)
        record = RequestRecord(
            seq=shot.seq,
            target=labels.target,
            phase=shot.phase,
            session=shot.session,
            parent=shot.parent,
            gang=shot.gang,
            block=labels.block,
            repeat=labels.repeat,
            worker=labels.worker,
            due_s=round(due_s - epoch_s, 6),
            start_s=round(start_s - epoch_s, 6),
            connected_s=since_epoch(answer.connected_s),
            sent_s=since_epoch(answer.sent_s),
            first_byte_s=since_epoch(answer.first_byte_s),
            first_token_s=since_epoch(answer.first_token_s),
            chunk_s=chunk_s,
            chunk_tokens=answer.tokens_by_chunk(),
            last_token_s=chunk_s[-1] if chunk_s else None,
            end_s=round((answer.done_s or monotonic()) - epoch_s, 6),
            prompt_tokens_asked=shot.prompt_tokens,
            prompt_tokens_served=answer.prompt_tokens,
            output_tokens_asked=shot.output_tokens,
            output_tokens_wanted=shot.wanted_tokens,
            output_tokens_served=served,
            token_source=token_source,
            outcome=outcome,
            http_status=answer.status,
            finish_reason=answer.finish_reason,
            error=self.redactor.excerpt(error, ERROR_CHARS) if error else None,
            text=self.redactor.strike("".join(answer.text)) if keep_text else None,
        )
        self._live.ended(record)
        return record


def api_key_of(config: RequestConfig) -> str | None:
    """The key in the environment; raises ConfigError where one was named and is not there."""
    api_key = os.environ.get(config.api_key_env) or None
    if api_key is None and config.api_key_env != DEFAULT_API_KEY_ENV:
        raise ConfigError(f"API key: {config.api_key_env} is not set in the environment")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(f"{config.api_key_env}: the key must be printable ASCII")
    return api_key


def redactor_of(targets: Sequence[TargetConfig], config: RequestConfig) -> Redactor:
    """Knows every secret that requests to these targets carry."""
    urls = [target.base_url for target in targets]
    carried = secrets_of_requests(urls, config.header, config.extra_body)
    keys = [api_key_of(config.to(target)) for target in targets]
    return Redactor([*keys, *carried])


def url_of(base_url: str, endpoint: str) -> str:
    """The endpoint's URL; the base may have /v1 or not, end in an endpoint, and carry a query.

    `http://h:1`, `http://h:1/v1/` and `http://h:1/v1/completions` all give the same. A user and a
    password go with the headers (`secrets.basic_auth`), and not with the URL.
    """
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    for known in _ENDPOINT_PATHS:
        path = path.removesuffix(known)
    if _VERSIONED.search(path):
        endpoint = endpoint.removeprefix("/v1")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, path + endpoint, parts.query, ""))


def outcome_of(error: httpx.HTTPError, answer: Answer) -> Outcome:
    """The outcome that a failure of the connection stands for."""
    if isinstance(error, httpx.ConnectTimeout):
        return Outcome.TIMEOUT_CONNECT
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return Outcome.TLS if is_tls_failure(error) else Outcome.CONNECT
    never_answered = answer.status is None
    if isinstance(error, httpx.RemoteProtocolError):
        garbage = never_answered and not _HUNG_UP.search(str(error))
        return Outcome.MALFORMED if garbage else Outcome.TRUNCATED
    if isinstance(error, httpx.NetworkError):
        return Outcome.TRUNCATED
    return Outcome.MALFORMED


def is_tls_failure(error: BaseException) -> bool:
    """Whether a failure of the connection is one of TLS: a certificate, a protocol, a name."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _give_up_on_first_token(answer: Answer, scope: asyncio.Timeout) -> None:
    if answer.first_token_s is None and not scope.expired():
        scope.reschedule(asyncio.get_running_loop().time())
