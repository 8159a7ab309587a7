"""The addresses of a run's targets, looked up before it is queued, so that a refusal comes at once.

The run's own transport checks again at every connect (`client/allowed.py`): that is what holds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from loadgen.client.allowed import Allowed
from loadgen.config import TargetConfig
from loadgen.service.refusal import Refusal

_LOOKUP_S: Final = 3.0


async def check_targets(targets: Iterable[TargetConfig], allowed: Allowed) -> None:
    """Raises Refusal where one may not be asked, or its name has no address."""
    for target in targets:
        parts = urlsplit(target.base_url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await _addresses_of(host, target.name)
        if problem := allowed.problem(host, port, addresses):
            raise Refusal(403, f"targets: {target.name}: {problem}")


async def _addresses_of(host: str, name: str) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await asyncio.wait_for(
            loop.getaddrinfo(host, None, type=socket.SOCK_STREAM), _LOOKUP_S
        )
    except (OSError, UnicodeError, TimeoutError):
        raise Refusal(422, f"targets: {name}: {host} has no address that can be found") from None
    return [str(entry[4][0]) for entry in found]
