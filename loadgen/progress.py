"""What a run shows while it runs, on standard error: a line that moves, or lines now and then.

On a terminal one line is redrawn twice a second; elsewhere (a log, CI) a line is added every few
seconds. Where nobody reads them any more they are left out. It reads the live counters and nothing
else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from loadgen.clock import monotonic
from loadgen.live import LiveCounters

_TERMINAL_EVERY_S: Final = 0.5
_LOG_EVERY_S: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[2K"


class Progress:
    """Writes progress; `quiet` writes nothing."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._is_terminal = self._stream.isatty()

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._write(f"{_CLEAR_LINE if self._is_terminal else ''}{text}\n")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a closed pipe: the run is worth more than its progress
            self._stream.write(text)
            self._stream.flush()

    @contextmanager
    def watch(self, name: str, read: Callable[[], LiveCounters], total: int) -> Iterator[None]:
        """Show one target's turn while the context lasts, and once more at its end."""
        task = asyncio.create_task(self._redraw(name, read, total))
        started_s = monotonic()
        try:
            yield
        finally:
            task.cancel()
            elapsed_s = monotonic() - started_s
            live = read()
            rate = live.tokens / elapsed_s if elapsed_s > 0 else 0.0
            self.say(_line(name, live, total, rate))

    async def _redraw(self, name: str, read: Callable[[], LiveCounters], total: int) -> None:
        every_s = _TERMINAL_EVERY_S if self._is_terminal else _LOG_EVERY_S
        tokens, at_s = 0, monotonic()
        while not self._quiet:
            await asyncio.sleep(every_s)
            now_s, live = monotonic(), read()
            rate = (live.tokens - tokens) / (now_s - at_s)
            tokens, at_s = live.tokens, now_s
            line = _line(name, live, total, rate)
            self._write(f"{_CLEAR_LINE}{line}" if self._is_terminal else f"{line}\n")


def _line(name: str, live: LiveCounters, total: int, tokens_per_s: float) -> str:
    return (
        f"{name}: due {live.due}/{total}  in flight {live.in_flight}  done {live.done}  "
        f"failed {live.failed}  {tokens_per_s:,.0f} tokens/s"
    )
