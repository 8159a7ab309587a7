"""Server-sent events of one run: what came before, then how far it is, four times a second.

They come from the files that the run keeps, so they begin anew after a restart of the service. The
files are read once for all who watch a run, and while it goes on one small file alone: watchers
cost the run nothing. Format: https://html.spec.whatwg.org/ (server-sent events). An event is of
bounded size: counters, and never requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from loadgen.service.refusal import Refusal
from loadgen.service.runs import Folder, Row, State, progress_of
from loadgen.status import COURSE, EVERY_S, LIVE

MOST_WATCHERS: Final = 32
_MOST_POINTS: Final = 600
_HEARTBEAT_S: Final = 10.0
_LOOKS_ALIKE: Final = 4
"""So many looks in a row may find nothing new before more than `live.json` is read."""
_log: Final = logging.getLogger(__name__)


class _Feed:
    """What all watchers of one run are told."""

    def __init__(self, folder: Folder, run_id: str) -> None:
        self.watchers = 0
        self.live = b""
        self.state = b""
        self.has_ended = False
        self.looked = asyncio.Event()
        """Set at the next look, and then replaced."""
        self._folder = folder
        self._id = run_id
        self._path = folder.path / run_id
        self._row: Row | None = None
        self._stamp = 0
        self._alike = 0
        self.task = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        try:
            while not self.has_ended:
                await asyncio.to_thread(self._look)
                looked, self.looked = self.looked, asyncio.Event()
                looked.set()
                await asyncio.sleep(EVERY_S)
        except Exception:  # noqa: BLE001 - whoever watches is let go, and may come again
            _log.exception("%s", self._id)
        finally:
            self.has_ended = True
            self.looked.set()

    def _look(self) -> None:
        stamp = _stamp(self._path / LIVE)
        is_going_on = self._row is not None and self._row.state is State.RUNNING
        if stamp != self._stamp and (live := progress_of(self._path)) is not None:
            self._stamp, self._alike = stamp, 0
            self.live = _event("live", live)
            is_going_on = is_going_on and live.get("state") == "running"
        self._alike += 1
        if is_going_on and self._alike <= _LOOKS_ALIKE:
            return
        self._row = row = self._folder.row(self._id)
        if row is None:
            self.state, self.has_ended = _event("end", {"state": "removed"}), True
            return
        told = {"state": str(row.state), "verdict": row.verdict, "error": row.error}
        self.state = _event("end" if row.state.has_ended else "state", told)
        self.has_ended = row.state.has_ended


class Watchers:
    """Who watches, each with a place, and the feeds of the runs that they watch."""

    def __init__(self, folder: Folder) -> None:
        self.count = 0
        self._is_closing = False
        self._folder = folder
        self._feeds: dict[str, _Feed] = {}

    def close(self) -> None:
        """End them all."""
        self._is_closing = True
        for feed in self._feeds.values():
            feed.task.cancel()

    def watch(self, run_id: str) -> StreamingResponse:
        """`course`, then `live` and `state` as they change, and `end`; raises Refusal."""
        if self.count >= MOST_WATCHERS:
            raise Refusal(429, "too many watch already", {"Retry-After": "5"})
        self.count += 1
        return _Watch(self, run_id)

    async def events(self, run_id: str) -> AsyncIterator[bytes]:
        """What one watcher is told."""
        path = self._folder.path / run_id
        yield _event("course", {"points": await asyncio.to_thread(course_of, path)})
        if self._is_closing:
            return
        feed = self._feeds.get(run_id)
        if feed is None or feed.has_ended:
            feed = self._feeds[run_id] = _Feed(self._folder, run_id)
        feed.watchers += 1
        try:
            live = state = b""
            silent_s = 0.0
            while True:
                looked, has_ended = feed.looked, feed.has_ended
                if feed.live != live:
                    live, silent_s = feed.live, 0.0
                    yield live
                if feed.state != state:
                    state = feed.state
                    yield state
                if has_ended:
                    return
                if silent_s >= _HEARTBEAT_S:
                    silent_s = 0.0
                    yield b": still here\n\n"
                silent_s += EVERY_S
                await looked.wait()
        finally:
            feed.watchers -= 1
            if not feed.watchers:
                feed.task.cancel()
                if self._feeds.get(run_id) is feed:
                    del self._feeds[run_id]


class _Watch(StreamingResponse):
    """An answer that gives its place back however it ends, also where it never began."""

    def __init__(self, watchers: Watchers, run_id: str) -> None:
        self._watchers = watchers
        super().__init__(
            watchers.events(run_id),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.count -= 1


def course_of(path: Path) -> list[dict[str, Any]]:
    """The course of a run so far, at most some hundred points of it."""
    points = []
    try:
        with (path / COURSE).open("rb") as lines:
            points = [orjson.loads(line) for line in lines if line.endswith(b"\n")]
    except (OSError, orjson.JSONDecodeError):
        pass
    step = -(-len(points) // _MOST_POINTS) or 1
    return points[::step]


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(content))
