"""Tie a process's life to that of the process that started it, by Linux's parent-death signal.

`servers.local` passes its process id in an environment variable and each server calls
`die_with_parent` first, so that no server outlives a starter that was killed by signal 9. The
kernel keeps the setting across `exec`. Elsewhere than on Linux this does nothing. See prctl(2),
PR_SET_PDEATHSIG.
"""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "LOADGEN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int | None, signum: int = signal.SIGTERM) -> None:
    """Ask the kernel to send `signum` to this process when its parent ends; end now if that has
    happened already.

    The signal follows the *thread* that started this process: start servers from a thread that
    lives as long as they.
    """
    if parent_pid is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(f"the process that started this one ({parent_pid}) is gone")


def stated_parent() -> int | None:
    """The process id in the environment, taken out of it so that our own children do not read it as
    theirs.
    """
    text = os.environ.pop(PARENT_VARIABLE, "")
    return int(text) if text.isdecimal() else None
