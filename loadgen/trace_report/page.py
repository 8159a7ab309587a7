"""An inspected trace as one self-contained HTML page: no network, no script.

Jinja escapes every text; the plots' SVG alone is trusted. It lays out; figures come from
`trace/inspect.py`.
"""

from __future__ import annotations

from typing import Any

from loadgen.report.draw import Plot, draw
from loadgen.report.pages import templates
from loadgen.trace.inspect import Histogram, Inspection
from loadgen.trace_report.rows import arrival_rows, length_rows, shown

_TEMPLATES = templates("loadgen.trace_report")
_STEPS = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
_LOG = {"type": "log", "nice": False}


def render_page(name: str, digest: str, inspection: Inspection) -> str:
    """The whole page; `digest` is the file's SHA-256."""
    return _TEMPLATES.get_template("page.html.j2").render(
        name=name,
        digest=digest,
        figures=inspection.figures,
        arrivals=arrival_rows(inspection.figures),
        lengths=length_rows(inspection.figures),
        correlation=shown(inspection.figures["length_correlation"], 2),
        plots=[plot for plot in _plots(inspection) if plot is not None],
    )


def _plots(inspection: Inspection) -> list[Plot | None]:
    bin_s = inspection.arrivals.edges[1] - inspection.arrivals.edges[0]
    over_time = _steps("arrivals", inspection.arrivals, scale=bin_s) if bin_s else []
    lengths = _steps("prompt", inspection.input_tokens) + _steps("output", inspection.output_tokens)
    windows: list[dict[str, Any]] = [
        {"target": "trace", "t": window_s, "y": value}
        for window_s, value in inspection.dispersion
        if value > 0
    ]
    windows += [{"target": "Poisson", "t": point["t"], "y": 1.0} for point in windows]
    return [
        draw(
            "Arrivals over time",
            f"Arrivals a second in each {shown(bin_s)} s.",
            over_time,
            ["arrivals"],
            _STEPS,
            x=("t", "seconds since the first arrival", {}),
            y=("y", "requests/s", {}),
        ),
        draw(
            "Lengths",
            "Requests in bins of equal ratio.",
            lengths,
            ["prompt", "output"],
            _STEPS,
            x=("t", "tokens (log)", _LOG),
            y=("y", "requests", {}),
        ),
        draw(
            "Index of dispersion",
            "Variance / mean of the arrivals in windows of each size: 1 for a Poisson process; "
            "where it grows with the window, the rate drifts.",
            windows,
            ["trace", "Poisson"],
            {"type": "line", "point": True, "strokeWidth": 2},
            x=("t", "window, seconds (log)", _LOG),
            y=("y", "variance / mean (log)", _LOG),
        ),
    ]


def _steps(name: str, histogram: Histogram, scale: float = 1.0) -> list[dict[str, Any]]:
    """Points of a step line, ended by a point on the last edge."""
    heights = [*histogram.counts, histogram.counts[-1]]
    return [
        {"target": name, "t": edge, "y": height / scale}
        for edge, height in zip(histogram.edges, heights, strict=True)
    ]
