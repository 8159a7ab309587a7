"""The one module that imports httpx.

httpx builds requests, reads TLS and proxy settings, applies headers and auth, and names errors.
`httpx2`, its maintained continuation with the same API, is used where it is installed, unless
`LOADGEN_HTTPX=httpx` says otherwise. What is used stands in the run header.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx
else:
    try:
        if os.environ.get("LOADGEN_HTTPX", "httpx2") != "httpx2":
            raise ImportError("httpx was asked for")
        import httpx2 as httpx
    except ImportError:
        import httpx

__all__ = ["httpx", "library_name"]


def library_name() -> str:
    """Which library this is and its version, for the run header: `httpx2 2.16.2`."""
    return f"{httpx.__name__} {httpx.__version__}"
