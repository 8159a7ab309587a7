"""An alarm that wakes one waiter at an absolute moment, to a fraction of a millisecond.

Event loops round their timers to whole milliseconds (uvloop) or wake late behind other timers; a
timerfd armed for an absolute time is a file like any other to them and costs no CPU while it waits.
Where there is none, the loop's timer serves. It knows nothing of schedules. Source:
timerfd_create(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import Final

from loadgen.clock import monotonic

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """For one event loop and one waiter at a time. Close it in the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = -1
        if hasattr(self._libc, "timerfd_create"):
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._on_timer)

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    async def until(self, at_s: float) -> None:
        """Return at `at_s` on the monotonic clock, or as soon as `ring` is called."""
        left_s = at_s - monotonic()
        if left_s <= 0:
            return
        if self._file >= 0:
            self._arm(at_s)
            await self.until_rung()
            return
        handle = self._loop.call_later(left_s, self.ring)
        try:
            await self.until_rung()
        finally:
            handle.cancel()

    async def until_rung(self) -> None:
        """Return when `ring` is called, or when the time that was last asked for comes."""
        self._waiter = waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def ring(self) -> None:
        """Wake the waiter now, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _arm(self, at_s: float) -> None:
        seconds, fraction = divmod(at_s, 1.0)
        # A value of all zeros would disarm it.
        value = _Timespec(int(seconds), max(1, int(fraction * 1e9)))
        spec = _Itimerspec(_Timespec(0, 0), value)
        if self._libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _on_timer(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was armed anew since
            return
        self.ring()
