"""A search for a capacity, carried out: probes are runs, `capacity.py` says which comes next.

It goes on where it was stopped: what to do next follows from the probes that are done. It knows no
flags; the command is in `explore_cli.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.capacity import Ask, Found, Goal, Look, Trial, in_words, search
from loadgen.exploration import Exploration
from loadgen.explore_config import CapacityConfig
from loadgen.exporter import Exporter
from loadgen.points import Axis, Point, in_order
from loadgen.progress import Progress
from loadgen.report.curves import Curve, write_curve

_MOST_DRAWN: Final = 20_000
"""Requests of a trace that is drawn for probes of which nobody knows how many they will need."""
_TRIES: Final = 3
"""Of a probe whose own client was late: once or twice may be chance."""


@dataclass(frozen=True, slots=True)
class Searched:
    """Where the results are, and what was found; `found` is None where it came to no end."""

    path: Path
    curve: Curve
    found: Found | None
    refused: str | None
    """Why it was given up, where it was: a probe that says nothing of the target."""
    was_interrupted: bool


async def capacity(
    config: CapacityConfig,
    command: Sequence[str],
    progress: Progress,
    exporter: Exporter | None = None,
    resume: Path | None = None,
) -> Searched:
    """Search to the end, or with `resume` go on in a directory; raises LoadgenError.

    Ctrl-C stops it as it stops a run; what is done is kept.
    """
    goal = goal_of(config)
    if resume is None:
        most = math.ceil(config.seconds_per_point * config.max_rate)
        each = max(config.num_prompts, min(most, _MOST_DRAWN))
        requests = max(config.num_prompts, min(each * config.max_looks, _MOST_DRAWN))
        exploration = Exploration.begin("capacity", config, command, Axis.RATE, requests)
        progress.say(f"results: {exploration.path}")
    else:
        exploration = Exploration.go_on("capacity", config, resume)
    with exploration.going_on(progress):
        step, refused, was_interrupted = await _probe(exploration, goal, progress, exporter)
        found = step if isinstance(step, Found) else None
        curve = _curve(exploration, goal, found, refused)
        write_curve(exploration.path, curve)
    if found is None:
        exploration.say_how_to_go_on(progress)
    return Searched(exploration.path, curve, found, refused, was_interrupted)


async def _probe(
    exploration: Exploration[CapacityConfig],
    goal: Goal,
    progress: Progress,
    exporter: Exporter | None,
) -> tuple[Ask | Found, str | None, bool]:
    """All probes to the end: (the end, or what would be next; why refused; was interrupted)."""
    tries = 0
    while isinstance(step := search(_looks(exploration.points), goal), Ask):
        point = await exploration.measure(Axis.RATE, step.rate, step.look, progress, exporter)
        if point is None:
            return step, None, True
        if point.refused is None:
            tries = 0
            exploration.keep(point)
            _say(exploration.points, step, goal, progress)
            continue
        progress.say(f"not counted: {point.refused}")
        if point.refused.startswith("--"):  # a limit of the load would cut it again
            return step, f"at {step.rate:g} requests/s, {point.refused}", False
        tries += 1
        if tries == _TRIES:
            return step, f"at {step.rate:g} requests/s, {_TRIES} times: {point.refused}", False
    return step, None, False


def goal_of(config: CapacityConfig) -> Goal:
    """What the configuration looks for."""
    return Goal(
        share=config.share,
        start_rate=config.start_rate,
        min_rate=config.min_rate,
        max_rate=config.max_rate,
        tolerance=config.tolerance,
        max_looks=config.max_looks,
    )


def _looks(points: Sequence[Point]) -> dict[float, list[Look]]:
    looks: dict[float, list[Look]] = defaultdict(list)
    for point in points:
        if point.evidence is not None:
            looks[point.load].append(point.evidence)
    return looks


def _say(points: Sequence[Point], step: Ask, goal: Goal, progress: Progress) -> None:
    trial = _trial_at(points, step.rate)
    ruling = trial.ruling(goal)
    said = "open" if ruling is None else "passed" if ruling.passed else "failed"
    low, high = trial.interval
    text = f"{trial.share:.1%} good ({low:.1%} to {high:.1%})" if ruling is None else ruling.text
    progress.say(f"{step.rate:g} requests/s: {said}: {text}")


def _trial_at(points: Sequence[Point], rate: float) -> Trial:
    return Trial(rate, tuple(_looks(points)[rate]))


def _curve(
    exploration: Exploration[CapacityConfig], goal: Goal, found: Found | None, refused: str | None
) -> Curve:
    goodput_ms = {str(name): ms for name, ms in exploration.config.run.output.goodput.items()}
    name = exploration.config.run.targets[0].name
    target = "the target" if name == "target" else name
    if found is not None:
        answer = in_words(found, goal, target, goodput_ms)
    elif refused is not None:
        answer = f"No capacity was found: {refused}."
    else:
        answer = "No capacity yet: the search was stopped before its end."
    rates = list(dict.fromkeys(point.load for point in exploration.points))
    return Curve.of(
        kind="capacity",
        axis=Axis.RATE,
        points=in_order(exploration.points),
        goodput_ms=goodput_ms,
        command=exploration.command,
        trace=(exploration.trace_name, exploration.trace_sha256),
        answer=answer,
        share=goal.share,
        trials=[(_trial_at(exploration.points, rate), goal) for rate in rates],
        capacity=found,
    )
