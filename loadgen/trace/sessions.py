"""Sessions of a trace: which rows begin, and which row follows which.

Rows of one `session_id` are the turns of one conversation, in the order of their times. A row
without one stands alone, and begins. It does not know when a later turn is due, nor what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Sessions:
    """n rows, of which h begin."""

    firsts: NDArray[np.int64]
    """Shape (h,): rows that begin, in the trace's order."""
    turns: NDArray[np.int64]
    """Shape (h,): how many turns each of these has, itself counted."""
    later: Mapping[int, int]
    """From each row that has one, to the next turn of its session."""
    parent: Mapping[int, int]
    """The other way round."""
    name: Mapping[int, str]
    """Of each row that has a session."""
    delay_s: Mapping[int, float]
    """Think time before a row, where it has one."""


def sessions_of(trace: Trace) -> Sessions | None:
    """The trace's sessions; None where no row has one."""
    if trace.payload is None:
        return None
    name: dict[int, str] = {}
    delay_s: dict[int, float] = {}
    last: dict[str, int] = {}
    place: dict[str, int] = {}
    later: dict[int, int] = {}
    firsts: list[int] = []
    turns: list[int] = []
    for row, own in enumerate(trace.payload):
        session = _name(own)
        if session is not None:
            name[row] = session
            if own.get("delay"):
                delay_s[row] = own["delay"] / 1000.0
            before = last.get(session)
            last[session] = row
            if before is not None:
                later[before] = row
                turns[place[session]] += 1
                continue
            place[session] = len(firsts)
        firsts.append(row)
        turns.append(1)
    if not name:
        return None
    parent = {after: before for before, after in later.items()}
    return Sessions(np.array(firsts), np.array(turns), later, parent, name, delay_s)


def _name(own: Mapping[str, Any]) -> str | None:
    session = own.get("session_id")
    return None if session is None else str(session)
