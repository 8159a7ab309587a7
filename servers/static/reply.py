"""The ASGI response that turns a job's pieces into server-sent events or into one JSON object.

It notices a client who leaves. The bytes are those of `replies.py`.
"""

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from servers.static.errors import ApiError
from servers.static.job import Job
from servers.static.replies import Events, Format


class Reply(Response):
    """The response to one job. `leave` is called once if the client goes before its end."""

    def __init__(
        self, job: Job, shapes: Format, events: Events | None, leave: Callable[[Job], None]
    ) -> None:
        super().__init__()
        self._job = job
        self._shapes = shapes
        self._events = events
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, while watching for the client to hang up."""
        answer = asyncio.ensure_future(
            self._stream(send, self._events) if self._events else self._whole(send)
        )
        watch = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            # Also when the server cancels this task because its time to drain is over.
            self._leave(self._job)
            answer.cancel()
            watch.cancel()

    async def _stream(self, send: Send, events: Events) -> None:
        begun = False
        while True:
            piece = await self._job.pieces.get()
            if isinstance(piece, ApiError):
                if not begun:
                    await _send_json(send, piece.status, piece.body(), piece.headers)
                    return
                await _send_body(
                    send, b"data: " + piece.body() + b"\n\ndata: [DONE]\n\n", more=False
                )
                return
            text = events.of(piece)
            if not begun:
                # Only now: a batch that fails before its first token can still be answered with a
                # 500.
                begun = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            last = piece.finish_reason is not None
            await _send_body(send, text.encode(), more=not last)
            if last:
                return

    async def _whole(self, send: Send) -> None:
        texts: list[str] = []
        while True:
            piece = await self._job.pieces.get()
            if isinstance(piece, ApiError):
                await _send_json(send, piece.status, piece.body(), piece.headers)
                return
            texts.append(piece.text)
            if piece.finish_reason is not None:
                whole = self._shapes.whole("".join(texts), piece, len(self._job.row.prompt_ids))
                await _send_json(send, 200, whole.encode(), {})
                return


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _send_json(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    lines = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    lines += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await _send_body(send, body, more=False)
