"""A sweep: one run at each of several loads, in ascending order, and the curve that they give.

It goes on where it was stopped. It knows no flags; the command is in `explore_cli.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.exploration import Exploration
from loadgen.explore_config import SweepConfig, requests_for
from loadgen.exporter import Exporter
from loadgen.points import in_order
from loadgen.progress import Progress
from loadgen.report.curves import Curve, write_curve


@dataclass(frozen=True, slots=True)
class Swept:
    """Where the results are, what they come to, and whether the user stopped it before its end."""

    path: Path
    curve: Curve
    was_interrupted: bool


async def sweep(
    config: SweepConfig,
    command: Sequence[str],
    progress: Progress,
    exporter: Exporter | None = None,
    resume: Path | None = None,
) -> Swept:
    """Do all points, or with `resume` those that a directory lacks; raises LoadgenError.

    Ctrl-C stops it as it stops a run; what is done is kept, and the curve drawn of that.
    """
    axis = config.axis
    if resume is None:
        requests = max(requests_for(config, axis, load) for load in config.loads)
        exploration = Exploration.begin("sweep", config, command, axis, requests)
        progress.say(f"results: {exploration.path}")
    else:
        exploration = Exploration.go_on("sweep", config, resume)
    done = {point.load for point in exploration.points}
    was_interrupted = False
    with exploration.going_on(progress):
        for load in config.loads:
            if load in done:
                continue
            point = await exploration.measure(axis, load, 0, progress, exporter)
            if point is None:
                was_interrupted = True
                break
            exploration.keep(point)
        curve = Curve.of(
            kind="sweep",
            axis=axis,
            points=in_order(exploration.points),
            goodput_ms={str(name): ms for name, ms in config.run.output.goodput.items()},
            command=exploration.command,
            trace=(exploration.trace_name, exploration.trace_sha256),
            missing=len(config.loads) - len(exploration.points),
        )
        write_curve(exploration.path, curve)
    if was_interrupted:
        exploration.say_how_to_go_on(progress)
    return Swept(exploration.path, curve, was_interrupted)
