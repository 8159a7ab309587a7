"""Several replicas behind one router: who takes which request.

Round robin and prefix need to know the request alone; least loaded asks each replica how many it
has not answered when the request is due.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

from loadgen.schedule import Shot
from loadgen.sim.config import Router
from loadgen.sim.engine import Replica, Route
from loadgen.trace import Trace


def route_by(router: Router, replicas: Sequence[Replica], trace: Trace) -> Route:
    """The route that `router` takes over these replicas."""
    if len(replicas) == 1:
        return lambda shot, due_s: 0
    if router is Router.ROUND_ROBIN:
        turns = itertools.cycle(range(len(replicas)))
        return lambda shot, due_s: next(turns)
    if router is Router.LEAST_LOADED:
        numbers = range(len(replicas))
        return lambda shot, due_s: min(numbers, key=lambda n: replicas[n].in_flight(due_s))
    return lambda shot, due_s: zlib.crc32(prefix_of(shot, trace)) % len(replicas)


def prefix_of(shot: Shot, trace: Trace) -> bytes:
    """What requests of one prefix share: the first block's id, else the session, else nothing."""
    if trace.hash_ids is not None and len(ids := trace.hash_ids[shot.seq]):
        return f"block {ids[0]}".encode()
    return f"session {shot.session}".encode() if shot.session else f"row {shot.seq}".encode()
