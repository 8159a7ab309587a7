"""What is checked before a route sees a request, and what every answer carries.

A name that is not ours (DNS rebinding: a page elsewhere that has its name point here), a request
that another site's page makes (cross-site posts), a missing token, a body that is too large, is no
JSON, or does not come: all end here. It is a plain ASGI layer; it knows no run.

Host and Origin: RFC 9110, 7.2, and RFC 6454; Sec-Fetch-Site: https://www.w3.org/TR/fetch-metadata/.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadgen.service.refusal import Refusal
from loadgen.service.settings import Settings, host_in

COOKIE: Final = "loadgen_session"
MAX_BODY_BYTES: Final = 1 << 20
UPLOAD: Final = "/api/traces"
BODY_S: Final = 20.0
"""A body has come by then; a trace has a second more for each MiB that it may have."""
_S_PER_MIB: Final = 1.0
_OPEN: Final = frozenset({"/", "/health", "/api/login"})
"""Paths that need no token: they tell nothing of any run."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_UPLOAD_TYPES: Final = frozenset(
    {
        "application/jsonl",
        "application/x-ndjson",
        "application/x-jsonlines",
        "application/octet-stream",
    }
)

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "sandbox allow-popups; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""A report holds texts of servers: nothing in it may run or be fetched, and it has no origin."""
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class Guard:
    """Refuses what must not reach the application, and passes on the rest."""

    def __init__(self, app: ASGIApp, settings: Settings, on_answer: Callable[[int], None]) -> None:
        self._app = app
        self._settings = settings
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        has_begun = False

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                self._on_answer(message["status"])
                message = {**message, "headers": _with_policy(message["headers"])}
            await send(message)

        try:
            self._check(scope, Headers(scope=scope))
        except Refusal as refusal:
            await refuse(guarded, refusal)
            return
        try:
            await self._app(scope, self._in_time(scope["path"], receive), guarded)
        except ClientDisconnect:  # there is nobody to answer
            return
        except Exception:
            if not has_begun:
                await refuse(guarded, Refusal(500, "a bug of the service; its log has more"))
            raise

    def _in_time(self, path: str, receive: Receive) -> Receive:
        """The body, as long as it comes in time; raises Refusal when the application waits for it
        any longer."""
        limit_s = BODY_S
        if path == UPLOAD:
            limit_s += self._settings.flags.max_trace_mib * _S_PER_MIB
        deadline_s = asyncio.get_running_loop().time() + limit_s
        is_whole = False

        async def timed() -> Message:
            nonlocal is_whole
            if is_whole:  # what comes now is that the client is gone
                return await receive()
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await receive()
            except TimeoutError:
                text = f"the body did not come within {limit_s:.0f} s"
                raise Refusal(408, text, {"Connection": "close"}) from None
            is_whole = not message.get("more_body", False)
            return message

        return timed

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises Refusal."""
        host = _host_of(headers)
        if host not in self._settings.hosts:
            raise Refusal(421, "this service is not known by that name; see --allowed-host")
        path, method = scope["path"], scope["method"]
        if method not in _SAFE:
            _check_same_site(headers)
        is_open = path in _OPEN or path.startswith("/page/")
        is_open = is_open or (path == "/metrics" and self._settings.flags.open_metrics)
        if not is_open and not is_authorised(headers, self._settings.token):
            raise Refusal(
                401,
                "give the token: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="loadgen"'},
            )
        if method in ("POST", "PUT", "PATCH"):
            self._check_body(path, headers)

    def _check_body(self, path: str, headers: Headers) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_upload = path == UPLOAD
        if kind not in (_UPLOAD_TYPES if is_upload else {"application/json"}):
            wanted = "application/jsonl" if is_upload else "application/json"
            raise Refusal(415, f"content-type: must be {wanted}")
        length = headers.get("content-length")
        limit = self._settings.flags.max_trace_mib * 2**20 if is_upload else MAX_BODY_BYTES
        if length is not None and (not length.isdecimal() or int(length) > limit):
            raise Refusal(413, f"the body is over the limit of {limit} bytes")


def _host_of(headers: Headers) -> str:
    """The name in the Host header, in lower case and without its port; raises Refusal."""
    hosts = headers.getlist("host")
    found = host_in(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        raise Refusal(400, "host: one is needed, a name with or without a port")
    return found


def _check_same_site(headers: Headers) -> None:
    """A browser says whose page asks; other clients say nothing, and need not."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Refusal(403, "another site's page may not do that")
    origin = headers.get("origin")
    if origin is None:
        return
    try:
        asked = urlsplit(origin)
    except ValueError:
        raise Refusal(403, "origin: not one") from None
    if asked.scheme not in ("http", "https") or asked.netloc.lower() != headers["host"].lower():
        raise Refusal(403, "another site's page may not do that")


def is_authorised(headers: Headers, token: str | None) -> bool:
    """Whether a request brings the token, or the cookie of the page's login."""
    if token is None:
        return True
    scheme, _, offered = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and is_token(offered.strip(), token):
        return True
    session = cookie_parser(headers.get("cookie", "")).get(COOKIE)
    return session is not None and is_token(session, session_of(token))


def is_token(offered: str, token: str) -> bool:
    """In a time that tells nothing of the token."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (offered, token)]
    return hmac.compare_digest(*digests)


def session_of(token: str) -> str:
    """What the cookie holds: proof of the token, and not the token."""
    return hmac.new(token.encode(), b"loadgen page", hashlib.sha256).hexdigest()


def _with_policy(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    own = list(headers)
    names = {name.lower() for name, _ in own}
    if b"content-security-policy" not in names:
        own.append((b"content-security-policy", POLICY.encode()))
    if b"cache-control" not in names:
        own.append((b"cache-control", b"no-store"))
    return own + [pair for pair in _ALWAYS if pair[0] not in names]


def error_body(text: str) -> bytes:
    """The JSON of every refusal."""
    return orjson.dumps({"error": {"message": text[:1000]}})


async def refuse(send: Send, refusal: Refusal) -> None:
    """Answer, and close: what is left of the body must not be read as the next request."""
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(name.lower().encode(), text.encode()) for name, text in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": error_body(str(refusal))})
