"""The stored result of `loadgen selfcheck`: how far this machine's client can be trusted.

It is good for the machine, the Python and the versions that it was measured with, and for no other.
Measuring is `selfcheck.py`'s job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import orjson

from loadgen import __version__
from loadgen.client.http import library_name
from loadgen.journal import write_whole
from loadgen.machine import describe_machine


def save(result: dict[str, Any]) -> Path:
    """Keep the result for later runs on this machine."""
    path = stored_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def load_stored() -> dict[str, Any] | None:
    """The result of this machine, if it was made by this version of everything; else None."""
    try:
        result = orjson.loads(stored_path().read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(result, dict) or result.get("key") != key():
        return None
    return {key: value for key, value in result.items() if key not in ("loads", "key")}


def stored_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LOADGEN_CACHE") or Path(base) / "loadgen") / "selfcheck.json"


def key() -> list[Any]:
    machine = describe_machine()
    return [__version__, library_name(), sys.version, machine["cpu"], machine["cores"]]
