"""A file's bytes, some megabytes at a time, cut at line ends; plain or gzip.

What is no text file is told at once: a git-lfs pointer, an archive, UTF-16. It knows no format.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from loadgen.errors import TraceError

BLOCK_BYTES: Final = 4 << 20
LONGEST_LINE_BYTES: Final = 64 << 20
_HEAD_BYTES: Final = 32
_BOM: Final = b"\xef\xbb\xbf"
_NOT_TEXT: Final = {
    b"version https://git-lfs": "a git-lfs pointer, not the data; run `git lfs pull` first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (zstd -d), or pack it by gzip",
    b"BZh": "compressed by bzip2; unpack it first, or pack it by gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it first, or pack it by gzip",
    b"PAR1": "a Parquet file; import it as `parquet`",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file's content, unpacked where it is gzip. Raises TraceError for what cannot be read."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not is_gzip:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield unpacked
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: broken gzip ({error}); fetch it again") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The content piece by piece, without a byte order mark. Raises TraceError for no text."""
    with opened(path) as file:
        head = b""
        while len(head) < _HEAD_BYTES and (piece := file.read(max(block_bytes, 1))):
            head += piece
        for magic, words in _NOT_TEXT.items():
            if head.startswith(magic):
                raise TraceError(f"{path}: {words}")
        if head := head.removeprefix(_BOM):
            yield head
        while piece := file.read(block_bytes):
            yield piece


def line_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines), one after another; the last may lack its end."""
    line, rest = 1, b""
    for piece in blocks(path, block_bytes):
        rest += piece
        end = rest.rfind(b"\n") + 1
        if end:
            yield line, rest[:end]
            line += rest.count(b"\n", 0, end)
            rest = rest[end:]
        elif len(rest) > LONGEST_LINE_BYTES:
            raise TraceError(
                f"{path}:{line}: a line of over {LONGEST_LINE_BYTES >> 20} MiB; "
                "is it the right format?"
            )
    if rest:
        yield line, rest
