"""Server-sent events from bytes, without I/O.

Follows https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation:
lines end in LF, CR or CRLF and in nothing else (not in U+2028 or U+0085), a leading BOM is dropped,
comments and unknown fields are ignored, data lines are joined by LF, an event without data is none,
and an event that the stream's end cuts short is discarded. Any split of the bytes gives the same
events. It does not know what the data mean, and it reads bytes: the JSON parser decodes UTF-8.
"""

from __future__ import annotations

from typing import Final

Event = tuple[bytes, bytes]
"""(type, data); the type is b"" where the stream names none."""

BOM: Final = b"\xef\xbb\xbf"
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""An event that grows beyond this is an error: nothing from a server may fill our memory."""


class EventTooLong(ValueError):
    """One event has more than MAX_EVENT_BYTES bytes."""


class SSEParser:
    """Feed it bytes as they come; it gives the events that they complete."""

    __slots__ = (
        "_at_start",
        "_data",
        "_data_bytes",
        "_skip_lf",
        "_tail",
        "_type",
        "is_between_events",
    )

    def __init__(self) -> None:
        self._tail = b""  # the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._data_bytes = 0
        self._type = b""
        self._skip_lf = False  # the last byte was a CR that ended a line: an LF now belongs to it
        self._at_start = True
        self.is_between_events = False
        """Nothing is pending: what comes next begins an event."""

    def feed(self, chunk: bytes) -> list[Event]:
        """Take `chunk` and return the events that end in it.

        Raises EventTooLong, after which the stream cannot be read any further.
        """
        if not chunk:
            return []
        # Nearly every read holds whole events of one data line each, ended by LF LF.
        if (
            (self.is_between_events or self._at_start)
            and not self._tail
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and b"\r" not in chunk
        ):
            self._at_start = False
            self.is_between_events = True
            blocks = chunk[6:-2].split(b"\n\ndata: ")
            for block in blocks:
                if b"\n" in block:
                    break
            else:
                return [(b"", block) for block in blocks]
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        buffer = self._tail + chunk
        if self._at_start:
            if len(buffer) < len(BOM) and BOM.startswith(buffer):
                self._tail = buffer
                return events
            self._at_start = False
            buffer = buffer.removeprefix(BOM)
        lines = buffer.splitlines()  # bytes.splitlines ends lines at LF, CR and CRLF alone
        if buffer and buffer[-1] not in b"\r\n":
            self._tail = lines.pop()
        else:
            self._tail = b""
            self._skip_lf = buffer.endswith(b"\r")
        for line in lines:
            if line:
                self._take_line(line)
            else:
                if self._data:
                    events.append((self._type, b"\n".join(self._data)))
                self._reset_event()
        self.is_between_events = not (
            self._tail or self._data or self._type or self._skip_lf or self._at_start
        )
        if self._data_bytes + len(self._tail) > MAX_EVENT_BYTES:
            self._tail, self._data, self._data_bytes = b"", [], 0
            raise EventTooLong(f"a server-sent event has over {MAX_EVENT_BYTES} bytes")
        return events

    def _take_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
        elif name == b"event":
            self._type = value

    def _reset_event(self) -> None:
        self._data = []
        self._data_bytes = 0
        self._type = b""
