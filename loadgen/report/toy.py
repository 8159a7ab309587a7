"""What is said of a target that is a toy: a simulation in real time (`servers/toy`).

A toy is known by its `Server` header, which the run's header keeps. It knows nothing else of it.
"""

from __future__ import annotations

from typing import Final

from loadgen.record import RunHeader

TOY_SERVER: Final = "loadgen-toy"


def toys_of(header: RunHeader) -> list[str]:
    """One sentence for each target that is a toy."""
    return [
        f"{target.name} is a toy: a simulation in real time, not a model"
        for target in header.targets
        if (target.server or "").startswith(TOY_SERVER)
    ]
