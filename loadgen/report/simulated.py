"""What is said of a run that is simulated: how its time counts, and who held which slot.

`loadgen simulate` writes `simulation.json` beside the records; nothing else of it is known here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.errors import RunDirectoryError
from loadgen.record import RunHeader

KIND: Final = "simulate"
ITERATIONS: Final = "iterations"
_FILE: Final = "simulation.json"
_HOLD: Final = {"slot": int, "row": int, "use": str, "start_s": int | float, "end_s": int | float}

Holds = dict[str, list[dict[str, Any]]]
"""By policy: who held which slot, what for, from when to when."""


def is_simulated(header: RunHeader) -> bool:
    """Whether nothing was measured: the times are a model's."""
    return header.kind == KIND


def counts_iterations(header: RunHeader) -> bool:
    """Whether a second of it is an iteration."""
    costs = list((header.config.get("costs") or {}).values())
    return is_simulated(header) and all(cost == ITERATIONS for cost in costs)


def time_unit(header: RunHeader) -> str:
    """What a second of its records is: `seconds`, or of some simulations `iterations`."""
    return ITERATIONS if counts_iterations(header) else "seconds"


def simulated_of(header: RunHeader) -> list[str]:
    """What a reader must know before any number."""
    if not is_simulated(header):
        return []
    if counts_iterations(header):
        return [
            "simulated, not measured: time counts iterations. In JSON and records a second is an "
            "iteration, a millisecond a thousandth of one"
        ]
    return ["simulated, not measured: iterations take what a cost file says"]


def differences_of(a: RunHeader, b: RunHeader) -> list[str]:
    """What a reader must know of two runs that are not both measured, or not in one unit."""
    said = []
    if is_simulated(a) != is_simulated(b):
        said.append(
            "one is simulated and the other measured: what differs is the model's error as much as "
            "the server's"
        )
    if counts_iterations(a) != counts_iterations(b):
        said.append("one counts iterations and the other seconds: their ratios say nothing of time")
    return said


def in_iterations(title: str) -> str:
    """A figure's name, where its seconds are iterations."""
    title = title.replace(", ms", ", iterations").replace(", s", ", iterations")
    return title.replace("/s", "/iteration")


def read_holds(path: Path) -> Holds:
    """Of the simulation in a run directory, if it is one; raises RunDirectoryError."""
    file = path / _FILE
    try:
        content = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        raise RunDirectoryError(f"{file}: not JSON ({error})") from None
    held = content.get("slots", {}) if isinstance(content, dict) else None
    if not isinstance(held, dict) or not all(map(_are_holds, held.values())):
        raise RunDirectoryError(f"{file}: `slots` is not what loadgen simulate writes")
    return held


def _are_holds(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(k), kind) for k, kind in _HOLD.items())
        for row in rows
    )
