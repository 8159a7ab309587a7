"""A lock that a process holds on a file while it works, so that others know that it lives.

The system lets go of it however the process ends. Not all file systems have locks.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Final

_TRIES: Final = 50


def hold(descriptor: int) -> None:
    """Hold the file until it is closed; raises BlockingIOError where another process does, and
    OSError where the file system has no locks."""
    for left in range(_TRIES, -1, -1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:  # whoever looks whether it is held has it for a moment
            if left == 0:
                raise
            time.sleep(0.001)


def is_held(file: Path) -> bool:
    """Whether a process holds the file; False as well where there is none, or no locks."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
