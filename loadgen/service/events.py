"""Server-sent events of one run: what came before, then how far it is, four times a second.

They come from the files that the run keeps, so they begin anew after a restart of the service, and
any number of watchers costs the run nothing. Format: https://html.spec.whatwg.org/ (server-sent
events). An event is of bounded size: counters, and never requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.service.runs import progress_of, read_row
from loadgen.status import COURSE, EVERY_S, LIVE

MOST_WATCHERS: Final = 32
_MOST_POINTS: Final = 600
_HEARTBEAT_S: Final = 10.0


class Watchers:
    """How many watch; `is_closing` ends them all."""

    def __init__(self) -> None:
        self.count = 0
        self.is_closing = asyncio.Event()


async def events_of(path: Path, watchers: Watchers) -> AsyncIterator[bytes]:
    """`course`, then `live` and `state` as they change, and `end`; text/event-stream."""
    watchers.count += 1
    try:
        yield _event("course", {"points": await asyncio.to_thread(course_of, path)})
        told: dict[str, Any] = {}
        stamp, silent_s = 0, 0.0
        while True:
            row = await asyncio.to_thread(read_row, path)
            if row is None:
                yield _event("end", {"state": "removed"})
                return
            now = _stamp(path / LIVE)
            if now != stamp and (live := progress_of(path)) is not None:
                stamp, silent_s = now, 0.0
                yield _event("live", live)
            state = {"state": str(row.state), "verdict": row.verdict, "error": row.error}
            if state != told:
                told = state
                yield _event("end" if row.state.has_ended else "state", state)
            if row.state.has_ended:
                return
            if silent_s >= _HEARTBEAT_S:
                silent_s = 0.0
                yield b": still here\n\n"
            silent_s += EVERY_S
            try:
                await asyncio.wait_for(watchers.is_closing.wait(), EVERY_S)
            except TimeoutError:
                continue
            return
    finally:
        watchers.count -= 1


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
