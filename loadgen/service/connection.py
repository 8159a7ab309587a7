"""One HTTP connection of the service, which nobody holds without using it.

uvicorn waits without end for the first request of a connection, and for a client that does not read
its answer. Here whole headers must come in time, answers must be taken in time, and where there are
too many connections, of one peer or in all, the one that has waited the longest for its request
ends: so idle ones never shut others out. It knows no route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """uvicorn's own, with limits of time and number."""

    FIRST_S = 10.0
    """For the headers of the first request."""
    NEXT_S = 40.0
    """For those of the next, counted from the last answer; uvicorn closes idle ones before."""
    TAKEN_S = 30.0
    """For a client to take what is buffered for it."""
    MOST = 240
    MOST_OF_A_PEER = 160

    _due: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _waits_since_s: float | None = None
    """Since when no request of it was whole; None: one is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self.FIRST_S)
        ours = [found for found in self.connections if isinstance(found, Connection)]
        of_peer = [found for found in ours if found._peer == self._peer]
        if len(of_peer) > self.MOST_OF_A_PEER:
            _end_one(of_peer)
        elif len(ours) > self.MOST:
            _end_one(ours)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._due)
        _cancel(self._stuck)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        _cancel(self._due)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._waits_since_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # none was sent behind it that is being answered now
            self._wait(self.NEXT_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.TAKEN_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stuck)

    @property
    def _peer(self) -> Any:
        return self.client and self.client[0]

    def _wait(self, limit_s: float) -> None:
        _cancel(self._due)
        self._waits_since_s = self.loop.time()
        self._due = self.loop.call_later(limit_s, self._end)

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():  # which would keep it open until it was read
            self.transport.abort()
        else:
            self.transport.close()


def _end_one(connections: Iterable[Connection]) -> None:
    """The one that has waited the longest; there is one, for the newest waits."""
    waiting = [found for found in connections if found._waits_since_s is not None]
    min(waiting, key=lambda found: found._waits_since_s or 0.0).transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
