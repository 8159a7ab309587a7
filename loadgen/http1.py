"""The server's side of one HTTP/1.1 connection, for servers whose timing must be exact.

It reads a request, hands it to `answer`, and reads no other before that one is answered; what is
larger than its bound is refused. Bytes go straight to asyncio's transport. It knows no API and no
time; the truth server and `servers/toy` say what is answered, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools
import orjson

REASONS: Final = {
    200: b"OK",
    307: b"Temporary Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    422: b"Unprocessable Entity",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
JSON: Final = b"application/json"
LAST_CHUNK: Final = b"0\r\n\r\n"
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What came."""

    method: bytes
    path: bytes
    """Without its query."""
    authorization: bytes
    body: bytes


class Refusal(Exception):
    """An HTTP error, with OpenAI's JSON."""

    def __init__(
        self, status: int, message: str, headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.status}
        return {"error": error}


class Connection(asyncio.Protocol):
    """One client's connection; a server says by `answer` what is done with a request."""

    server_name: bytes
    most_bytes: int = MOST_BYTES
    """Of one request, its headers included."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.keeps_alive = True
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._authorization = b""
        self._body: list[bytes] = []
        self._bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether an answer is under way."""
        raise NotImplementedError

    def answer(self, request: Request) -> None:
        """Answer now, or later; raises Refusal."""
        raise NotImplementedError

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._bytes += len(data)
        if self._bytes > self.most_bytes:
            self.keeps_alive = False
            self.refuse(Refusal(413, f"a request has at most {self.most_bytes} bytes"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del self._parser  # which refers to this object

    # Called by httptools.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._authorization = value

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        request = Request(
            self._parser.get_method(),
            self._url.partition(b"?")[0],
            self._authorization,
            b"".join(self._body),
        )
        self._url, self._authorization, self._body, self._bytes = b"", b"", [], 0
        self.keeps_alive = self._parser.should_keep_alive()
        if self.is_busy:  # no pipelining
            self.transport.abort()
            return
        try:
            self.answer(request)
        except Refusal as refusal:
            self.refuse(refusal)

    # What answers are made of.

    def refuse(self, refusal: Refusal) -> None:
        self.send_json(refusal.body(), refusal.status, refusal.headers)

    def send_json(
        self, content: object, status: int = 200, headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.send(orjson.dumps(content), status, JSON, headers)

    def send(
        self,
        data: bytes,
        status: int = 200,
        content_type: bytes = JSON,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """A whole answer."""
        self.transport.write(self.head(status, len(data), content_type, headers) + data)
        self.end()

    def head(
        self,
        status: int,
        length: int | None,
        content_type: bytes = JSON,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> bytes:
        """Status line and headers of an answer of `length` bytes; None: of chunks."""
        lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Asked For"))]
        lines += [b"server: " + self.server_name, b"content-type: " + content_type]
        sized = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        lines += [sized, *(b"%b: %b" % item for item in (headers or {}).items())]
        return b"\r\n".join((*lines, b"", b""))

    def end(self) -> None:
        """The answer is whole."""
        if not self.keeps_alive:
            self.transport.close()


EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"


def chunk(data: bytes) -> bytes:
    """HTTP's framing of a part of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
