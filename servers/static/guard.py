"""What is checked before the application sees a request: its size, and the bearer token where one
is required.

A plain ASGI layer around the application, so that an oversized body is never held in memory. It
knows no JSON.
"""

import hashlib
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servers.static.errors import ApiError


class Guard:
    """Answers 413 and 401 itself and passes on the rest."""

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, api_key: str | None, refused: Callable[[int], None]
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._key_hash = hashlib.sha256(api_key.encode()).digest() if api_key else None
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (
            self._key_hash is not None
            and scope["path"].startswith("/v1")
            and not self._authorised(headers)
        ):
            message = "a valid API key is required as `Authorization: Bearer KEY`"
            await self._refuse(send, ApiError(401, message, kind="AuthenticationError"))
            return
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > self._max_body_bytes:
            await self._refuse(send, self._too_large())
            return
        body = await self._read(receive)
        if body is None:
            await self._refuse(send, self._too_large())
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None as soon as it is over the limit."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return bytes(body)  # whoever reads on is told the same
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)

    def _authorised(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        offered = hashlib.sha256(key.strip().encode()).digest()
        return scheme.lower() == "bearer" and secrets.compare_digest(offered, self._key_hash or b"")

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is over the limit of {self._max_body_bytes} bytes",
            kind="RequestTooLarge",
        )

    async def _refuse(self, send: Send, error: ApiError) -> None:
        self._refused(error.status)
        # The connection is closed: what is left of the body must not be read as the next request.
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": error.body(), "more_body": False})
