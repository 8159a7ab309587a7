"""Files that appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from loadgen.errors import TraceError


def write_whole(*files: tuple[Path, Iterable[bytes]]) -> None:
    """Write each file from its pieces, in order; then rename all, the first one last.

    What fails, or is interrupted, leaves nothing behind. Raises TraceError.
    """
    check_is_file_name(files[0][0])
    partials = [path.with_name(f".{path.name}.{os.getpid()}.part") for path, _ in files]
    try:
        for (path, pieces), partial in zip(files, partials, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.writelines(pieces)
        for (path, _), partial in reversed(list(zip(files, partials, strict=True))):
            partial.replace(path)
    except OSError as error:
        raise TraceError(f"{files[0][0]}: cannot be written: {error.strerror}") from None
    finally:
        for partial in partials:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def check_is_file_name(path: Path) -> None:
    """Raises TraceError where `path` cannot be the name of a file to write."""
    if not path.name or path.is_dir():
        raise TraceError(f"--output: {path}: a file name is needed, such as trace.jsonl")
