"""Our own and our user's mistakes; a failure of the *target* is data (`record.Outcome`).

    LoadgenError                 exit code 2, one line on standard error
    ├── ConfigError              a flag, key or value that cannot be used
    ├── TraceError               a trace file that cannot be read or replayed
    ├── TargetNotReady           a target that does not answer, or not in a way we can use
    └── RunDirectoryError        a run directory that is not one, or too broken to read

The message says where, what was wrong and what would do; the command line prints it as it is.
"""

from __future__ import annotations


class LoadgenError(Exception):
    """A problem that the user can mend; `str(error)` is the whole of what is shown."""


class ConfigError(LoadgenError):
    """A flag, configuration key or value that cannot be used."""


class TraceError(LoadgenError):
    """A trace that cannot be read, or holds what cannot be replayed."""


class TargetNotReady(LoadgenError):
    """A target that does not answer, or refuses what a run needs."""


class RunDirectoryError(LoadgenError):
    """A run directory that is missing, or too broken to be reported on."""
