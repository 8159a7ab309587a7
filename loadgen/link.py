"""The link between a run and each of its workers: messages over a socket that nobody waits at.

`Frames` is the framing alone, without I/O: a message is its length, in eight bytes, and its pickle.
`Link` moves frames over a socket that never blocks. What the other side does not take waits in
memory, and who sends what can be left out looks at `is_full` before. That the other side has ended
is told to who reads, after all that it had sent. It knows no message.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from contextlib import suppress
from typing import Any, Final

_LENGTH: Final = struct.Struct("!Q")
_READ_BYTES: Final = 1 << 18


class Frames:
    """Takes bytes as they come, in pieces of any size, and gives whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @staticmethod
    def made_of(message: Any) -> bytes:
        """The message as bytes; anything but None is one."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        return _LENGTH.pack(len(content)) + content

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> Any:
        """The next message, or None where it has not come whole."""
        if len(self._bytes) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < end:
            return None
        message = pickle.loads(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        return message


class Link:
    """One end of a connected socket, which it owns, on a running event loop.

    An event loop makes what it watches non-blocking, so a write may take a part and a read may give
    one. What is sent goes at once as far as the socket takes it, since orders have a time, and the
    rest when it takes more. A write that fails is not told: it means that the other side has ended,
    and what that had sent before, such as why, can still be read.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._came = Frames()
        self._unsent = bytearray()
        self._is_sent = asyncio.Event()
        self._is_sent.set()

    @property
    def is_full(self) -> bool:
        """Whether something waits for the other side to read."""
        return not self._is_sent.is_set()

    def send(self, message: Any) -> None:
        """Send a message, whole and after those before it; never waits."""
        self._unsent += Frames.made_of(message)
        if not self.is_full:
            self._write()

    async def sent(self) -> None:
        """Wait until nothing waits any more, or the other side has ended."""
        await self._is_sent.wait()

    async def receive(self) -> Any:
        """The next message, to one task at a time; raises EOFError where the link has ended."""
        while (message := self._came.take()) is None:
            data = b""
            with suppress(OSError):
                data = await asyncio.get_running_loop().sock_recv(self._socket, _READ_BYTES)
            if not data:
                raise EOFError("the link has ended")
            self._came.feed(data)
        return message

    def close(self) -> None:
        """End the link; the other side is told at once, after what it has not read yet."""
        self._forget_unsent()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a reader here may still hold the socket open
        self._socket.close()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if not self.is_full:
                self._is_sent.clear()
                asyncio.get_running_loop().add_writer(self._socket, self._write)
        except OSError:
            self._forget_unsent()
        else:
            self._forget_unsent()

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        if self.is_full:
            asyncio.get_running_loop().remove_writer(self._socket)
            self._is_sent.set()
