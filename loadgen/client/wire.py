"""What goes over a wire: where to, the bytes, and how long each phase may take. No I/O.

httpx builds a request; `serialise` makes bytes of it, and `Form` makes the next request's bytes of
the first one's, which differ in their body alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from loadgen.client.http import httpx

_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)")
_BREAKS_A_HEAD: Final = re.compile(rb"[\r\n\x00]")

Headers = Sequence[tuple[bytes, bytes]]


class Origin(NamedTuple):
    """Where a connection leads; requests to the same one share connections."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Wire:
    """One request, ready to be sent."""

    origin: Origin
    data: bytes
    is_head: bool = False
    """The answer has no body, whatever its headers say."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each phase may take, as httpx counts them: `read_s` is silence, not a total."""

    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


class Form(NamedTuple):
    """A request without its body: the next one to the same place differs in nothing else."""

    origin: Origin
    before_length: bytes
    after_length: bytes

    @staticmethod
    def of(wire: Wire) -> Form:
        """Of a request with a body; raises ValueError where it tells no length."""
        head, _, _ = wire.data.partition(b"\r\n\r\n")
        length = _LENGTH_LINE.search(head)
        if length is None:
            raise ValueError("no Content-Length in the request's head")
        return Form(wire.origin, head[: length.start(1)], head[length.end(1) :] + b"\r\n\r\n")

    def fill(self, body: bytes) -> Wire:
        data = b"%b%d%b%b" % (self.before_length, len(body), self.after_length, body)
        return Wire(self.origin, data)


def serialise(request: httpx.Request) -> Wire:
    """The bytes of `request`, whose body must have been read.

    Raises UnsupportedProtocol, and LocalProtocolError for what would break out of the head.
    """
    url = request.url
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol(f"'{url.scheme}' in {url}: use http or https")
    body = request.content
    head = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() == b"transfer-encoding":  # the body is whole: its length is known
            name, value = b"Content-Length", b"%d" % len(body)
        head.append(b"%b: %b" % (name, value))
    if any(_BREAKS_A_HEAD.search(line) for line in head):
        raise httpx.LocalProtocolError("a line break or NUL in the request's head")
    port = url.port or (443 if url.scheme == "https" else 80)
    origin = Origin(url.scheme, url.raw_host.decode("ascii"), port)
    return Wire(origin, b"\r\n".join((*head, b"", body)), request.method == "HEAD")
