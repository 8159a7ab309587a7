"""An exchange over httpx's own transport: for proxies, HTTP/2, and for comparison.

It pushes into the same `ByteSink` as our own transport. Its times are the library's: bytes are
stamped when its iterator yields them, after its pool, its parser and a task switch.
"""

from __future__ import annotations

from typing import Any, Final

from loadgen.client.http import httpx
from loadgen.client.sink import ByteSink
from loadgen.clock import monotonic

_CONNECTED: Final = ("connection.connect_tcp.complete", "connection.start_tls.complete")


async def exchange(http: httpx.AsyncClient, request: httpx.Request, sink: ByteSink) -> None:
    """Send `request` and push the answer into `sink`; returns at its end; raises httpx's errors."""
    first_byte_s: float | None = None

    async def watch(event: str, info: dict[str, Any]) -> None:
        nonlocal first_byte_s
        if event in _CONNECTED:
            sink.connected(monotonic())
        elif event.endswith("send_request_body.complete"):
            sink.sent(monotonic())
        elif event.endswith("receive_response_headers.complete"):
            first_byte_s = monotonic()

    request.extensions["trace"] = watch
    response = await http.send(request, stream=True)
    try:
        sink.response(response.status_code, response.headers.raw, first_byte_s or monotonic())
        async for data in response.aiter_raw():
            sink.body(data, monotonic())
    finally:
        await response.aclose()
