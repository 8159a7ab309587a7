"""Plots of policies: slots over time, throughput and waste by batch size and by output lengths.

Sweeps take the trace's first rows, all waiting from the start, so that a policy's own limits show
and not the load's. Drawn as the report's plots are; nothing is computed here that is quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen.errors import ConfigError
from loadgen.report.draw import Plot, draw
from loadgen.report.look import PALETTE
from loadgen.sim.config import ArrivalConfig, PolicyName, SimulateConfig
from loadgen.sim.cost import ITERATIONS, StepCost
from loadgen.sim.simulate import Costs, Work, load_work, play, read_costs, work_done
from loadgen.sim.slots import Hold, SlotWatch, Use
from loadgen.trace import Trace
from loadgen.trace.laws import LogNormal

_SHOWN: Final = 64
"""Requests in the picture of slots: more is no longer a picture."""
_SWEPT: Final = 512
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
_CVS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_WIDTH: Final = 760
_SLOT_HEIGHT: Final = 13
_COLOURS: Final = {Use.PREFILL: PALETTE[1], Use.DECODE: PALETTE[2], Use.WASTED: PALETTE[0]}


def write_plots(config: SimulateConfig, folder: Path) -> None:
    """Write each plot as SVG into `folder`, and a page that shows all; raises ConfigError."""
    plots = draw_plots(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in plots.items():
            (folder / f"{name}.svg").write_text(plot.as_svg(), encoding="utf-8")
        (folder / "index.html").write_text(_page(plots.values()), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plots: {folder}: {error.strerror}") from None


def draw_plots(config: SimulateConfig) -> dict[str, Plot]:
    """All plots, by name; raises LoadgenError where the trace cannot be served."""
    work, costs = load_work(config), read_costs(config)
    unit = "iterations" if all(cost is ITERATIONS for cost, _ in costs.values()) else "s"
    holds = {name: holds_of(config, work, PolicyName(name), costs[name][0]) for name in costs}
    end_s = max(hold.end_s for own in holds.values() for hold in own)
    found: dict[str, Plot | None] = {
        f"slots-{name}": _slots(name, own, end_s, unit) for name, own in holds.items()
    }
    swept = _first(work, _SWEPT)
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
        found |= _sweep(key, what, scale, points, costs, unit)
    return {name: plot for name, plot in found.items() if plot is not None}


def holds_of(
    config: SimulateConfig, work: Work, name: PolicyName, cost: StepCost, most: int = _SHOWN
) -> list[Hold]:
    """Who holds which slot of one replica, of the first `most` requests."""
    watch = SlotWatch(config.policies.batch_size, is_static=name is PolicyName.STATIC)
    play(config, _first(work, most), name, cost, _forget, replicas=1, watch=watch.watch)
    return watch.holds


def _slots(name: str, holds: Sequence[Hold], end_s: float, unit: str) -> Plot:
    """`end_s` is the end of the time axis, so that policies can be held against each other."""
    values = [
        {"slot": h.slot, "row": str(h.row), "use": str(h.use), "from": h.start_s, "to": h.end_s}
        for h in holds
    ]
    labels = [
        {"slot": hold.slot, "row": str(hold.row), "from": hold.start_s}
        for hold in holds
        if hold.use is Use.DECODE and hold.end_s - hold.start_s > end_s / 40
    ]
    title = f"Slots over time: {name} batching"
    text = {"labelColor": "currentColor", "titleColor": "currentColor"}
    y = {"field": "slot", "type": "ordinal", "title": "slot", "axis": {"ticks": False}}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "height": {"step": _SLOT_HEIGHT},
        "background": None,
        "layer": [
            {
                "data": {"values": values},
                "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5},
                "encoding": {
                    "x": {
                        "field": "from",
                        "type": "quantitative",
                        "title": unit,
                        "scale": {"domain": [0, end_s], "nice": False},
                    },
                    "x2": {"field": "to"},
                    "y": y,
                    "color": {
                        "field": "use",
                        "type": "nominal",
                        "scale": {
                            "domain": [str(use) for use in _COLOURS],
                            "range": list(_COLOURS.values()),
                        },
                        "legend": {"orient": "top", "title": None, "labelColor": "currentColor"},
                    },
                },
            },
            {
                "data": {"values": labels},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "dx": 3,
                    "fontSize": 9,
                    "color": "white",
                },
                "encoding": {
                    "x": {"field": "from", "type": "quantitative"},
                    "y": y,
                    "text": {"field": "row"},
                },
            },
        ],
        "config": {
            "font": "system-ui, sans-serif",
            "view": {"stroke": None},
            "axis": text | {"grid": False, "domainColor": "currentColor"},
        },
    }
    caption = (
        f"Each bar is a request (its row in the trace) in a slot, the first {_SHOWN} requests. "
        "Where a slot is held by one that has ended, it is computed for nobody."
    )
    rows = tuple(
        (str(h.slot), str(h.row), str(h.use), f"{h.start_s:g}", f"{h.end_s:g}") for h in holds
    )
    return Plot(title, caption, ("slot", "request", "use", "from", "to"), rows, spec)


def _sweep(
    key: str,
    what: str,
    scale: dict[str, Any],
    points: Sequence[tuple[float, SimulateConfig, Work]],
    costs: Costs,
    unit: str,
) -> dict[str, Plot | None]:
    throughput, waste = [], []
    for x, config, work in points:
        for name, (cost, _) in costs.items():
            done = work_done(play(config, work, PolicyName(name), cost, _forget, replicas=1))
            rate = done["output_tokens"] / done["end_s"]
            throughput.append({"target": name, "t": x, "y": rate})
            waste.append({"target": name, "t": x, "y": 100 * (done["wasted_row_share"] or 0.0)})
    mark = {"type": "line", "point": True, "strokeWidth": 2}
    names, per = list(costs), "iteration" if unit == "iterations" else "s"
    return {
        f"throughput-by-{key}": draw(
            f"Throughput by {what.removesuffix(' (log)')}",
            f"Output tokens/{per}; all requests wait from the start.",
            throughput,
            names,
            mark,
            x=("t", what, scale),
            y=("y", f"output tokens/{per}", {}),
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


def _forget(served: object) -> None:
    """What became of a request does not matter here."""


def _first(work: Work, most: int) -> Work:
    """The first rows; sessions fall apart into requests."""
    trace = work.trace
    part = slice(0, min(most, len(trace)))
    rows = Trace(trace.timestamp_ms[part], trace.input_length[part], trace.output_length[part])
    return Work(rows, work.name, b"", None)


def _with_size(config: SimulateConfig, size: int) -> SimulateConfig:
    policies = config.policies.model_copy(update={"batch_size": size})
    return config.model_copy(update={"policies": policies})


def _with_cv(work: Work, cv: float, seed: int) -> Work:
    """The same prompts, with log-normal outputs of the same mean and another CV."""
    trace = work.trace
    mean = float(trace.output_length.mean())
    drawn = np.full(len(trace), mean)
    if cv > 0:
        drawn = LogNormal.of_mean_cv(mean, cv).draw(len(trace), np.random.default_rng(seed))
    outputs = np.maximum(np.rint(drawn), 1).astype(np.int64)
    return replace(work, trace=replace(trace, output_length=outputs))


def _page(plots: Iterable[Plot]) -> str:
    figures = "\n".join(
        f"<figure><h2>{escape(plot.title)}</h2>{plot.svg}"
        f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
        for plot in plots
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Policies, simulated'
        "</title><style>:root{color-scheme:light dark}body{font-family:system-ui,sans-serif;"
        "max-width:60rem;margin:2rem auto;padding:0 1rem}svg{max-width:100%;height:auto}"
        "figcaption{opacity:.8}figure{margin:0 0 2.5rem}</style></head><body>"
        f"<h1>Policies, simulated</h1>\n{figures}\n</body></html>\n"
    )
