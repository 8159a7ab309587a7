"""Plots of policies: slots over time, throughput and waste by batch size and by output lengths.

Sweeps take the trace's first rows, all waiting from the start, so that a policy's own limits show
and not the load's. Drawn as the report's plots are; nothing is computed here that is quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen.errors import ConfigError
from loadgen.report.draw import Plot, draw
from loadgen.report.pages import templates
from loadgen.report.plots.held import draw_slots
from loadgen.report.plots.series import ITERATIONS as IN_ITERATIONS
from loadgen.report.plots.series import SECONDS, Clock
from loadgen.sim.config import ArrivalConfig, PolicyName, SimulateConfig
from loadgen.sim.cost import ITERATIONS
from loadgen.sim.simulate import (
    Costs,
    Work,
    first,
    holds_of,
    load_work,
    play,
    read_costs,
    work_done,
)
from loadgen.trace.laws import LogNormal

_SWEPT: Final = 512
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
_CVS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_TEMPLATES: Final = templates("loadgen.sim")


def make_folder(folder: Path) -> None:
    """Raises ConfigError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plots: {folder}: {error.strerror}") from None


def write_plots(config: SimulateConfig, folder: Path) -> None:
    """Write each plot as SVG into `folder`, and a page that shows all; raises ConfigError."""
    plots = draw_plots(config)
    page = _TEMPLATES.get_template("page.html.j2").render(plots=plots.values(), said=_said(config))
    make_folder(folder)
    try:
        for name, plot in plots.items():
            (folder / f"{name}.svg").write_text(plot.as_svg(), encoding="utf-8")
        (folder / "index.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plots: {folder}: {error.strerror}") from None


def draw_plots(config: SimulateConfig) -> dict[str, Plot]:
    """All plots, by name; raises LoadgenError where the trace cannot be served."""
    work, costs = load_work(config), read_costs(config)
    is_counted = all(cost is ITERATIONS for cost, _ in costs.values())
    clock = IN_ITERATIONS if is_counted else SECONDS
    held = {
        name: [asdict(hold) for hold in holds_of(config, work, PolicyName(name), cost)]
        for name, (cost, _) in costs.items()
    }
    found: dict[str, Plot | None] = {
        f"slots-{name}": plot for name, plot in zip(held, draw_slots(held, clock), strict=True)
    }
    swept = first(work, _SWEPT)
    at_once = config.model_copy(update={"load": ArrivalConfig(at_once=True)})
    by_size = [
        (float(size), _with_size(at_once, size), swept)
        for size in _SIZES
        if size <= at_once.policies.token_budget
    ]
    by_cv = [(cv, at_once, _with_cv(swept, cv, config.generate.seed)) for cv in _CVS]
    for key, what, points in (
        ("batch-size", "batch size (log)", by_size),
        ("output-cv", "coefficient of variation of output lengths", by_cv),
    ):
        scale = {"type": "log", "base": 2, "nice": False} if key == "batch-size" else {}
        found |= _sweep(key, what, scale, points, costs, clock)
    return {name: plot for name, plot in found.items() if plot is not None}


def _sweep(
    key: str,
    what: str,
    scale: dict[str, Any],
    points: Sequence[tuple[float, SimulateConfig, Work]],
    costs: Costs,
    clock: Clock,
) -> dict[str, Plot | None]:
    throughput, waste = [], []
    for x, config, work in points:
        for name, (cost, _) in costs.items():
            done = work_done(play(config, work, PolicyName(name), cost, _forget, replicas=1))
            rate = done["output_tokens"] / done["end_s"]
            throughput.append({"target": name, "t": x, "y": rate})
            waste.append({"target": name, "t": x, "y": 100 * (done["wasted_row_share"] or 0.0)})
    mark = {"type": "line", "point": True, "strokeWidth": 2}
    names = list(costs)
    return {
        f"throughput-by-{key}": draw(
            f"Throughput by {what.removesuffix(' (log)')}",
            f"Output tokens/{clock.per}; all requests wait from the start.",
            throughput,
            names,
            mark,
            x=("t", what, scale),
            y=("y", f"output tokens/{clock.per}", {}),
        ),
        f"waste-by-{key}": draw(
            f"Waste by {what.removesuffix(' (log)')}",
            "Share of decoded rows that belong to requests which had ended.",
            waste,
            names,
            mark,
            x=("t", what, scale),
            y=("y", "wasted rows, %", {"domain": [0, 100]}),
        ),
    }


def _said(config: SimulateConfig) -> str:
    """What is drawn, in a sentence."""
    policies = config.policies
    trace = "a drawn trace" if config.trace is None else config.trace.name
    return (
        f"Simulated, not measured: {' and '.join(policies.policy)} batching of {trace}, "
        f"{policies.batch_size} slots where nothing else is said; cost: {policies.cost}."
    )


def _forget(served: object) -> None:
    """What became of a request does not matter here."""


def _with_size(config: SimulateConfig, size: int) -> SimulateConfig:
    policies = config.policies.model_copy(update={"batch_size": size})
    return config.model_copy(update={"policies": policies})


def _with_cv(work: Work, cv: float, seed: int) -> Work:
    """The same prompts, with log-normal outputs of the same mean and another CV.

    No row asks for more tokens than the trace's largest, which a server is known to serve.
    """
    trace = work.trace
    mean = float(trace.output_length.mean())
    drawn = np.full(len(trace), mean)
    if cv > 0:
        drawn = LogNormal.of_mean_cv(mean, cv).draw(len(trace), np.random.default_rng(seed))
    most = int((trace.input_length + trace.output_length).max())
    outputs = np.clip(np.rint(drawn), 1, most - trace.input_length).astype(np.int64)
    return replace(work, trace=replace(trace, output_length=outputs))
