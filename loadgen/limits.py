"""What the operating system allows: descriptors and local ports, looked at before a run starts.

A run that hits one of these in the middle measures the limit and not the server. It knows numbers,
and nothing of connections.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from loadgen.config import LoadConfig, Pace
from loadgen.errors import ConfigError
from loadgen.trace import Trace

_SPARE_FILES: Final = 128
"""What a worker has open beside its connections."""
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def raise_file_limit() -> int:
    """Raise the soft limit of descriptors to the hard one, for workers too; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def most_in_flight(load: LoadConfig, trace: Trace) -> int | None:
    """The most requests that can be in flight at once, where that is known beforehand."""
    if load.pace is Pace.GANG:
        return min(load.gang or 1, len(trace))
    if load.max_concurrency is not None:
        return min(load.max_concurrency, len(trace))
    if trace.duration_s == 0:
        return len(trace)
    return None


def check_limits(in_flight: int, workers: int, *, files: int, ports: int | None = None) -> None:
    """Raise ConfigError where so many connections to one address cannot be had.

    `files`: descriptors a process may have; `ports`: local ports, by default the system's.
    """
    needed = -(-in_flight // workers) + _SPARE_FILES
    if needed > files:
        raise ConfigError(
            f"--max-concurrency: {in_flight} connections in {workers} worker(s) need {needed} "
            f"descriptors each, and {files} are allowed: raise `ulimit -Hn`, or ask for fewer"
        )
    free = _local_ports() if ports is None else ports
    if in_flight > free:
        raise ConfigError(
            f"--max-concurrency: {in_flight} connections to one address need as many local ports, "
            f"and there are {free}: widen {_PORT_RANGE}, or ask for fewer"
        )


def _local_ports() -> int:
    try:
        low, high = map(int, _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return 65_535  # not Linux: the most there can be
    return high - low + 1
