"""Plots of a run, from records alone: one colour, dash and shape a target everywhere.

It computes nothing that is quoted as a figure, but for the captions, which say in words what is
seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from loadgen.columns import Columns
from loadgen.record import RequestRecord
from loadgen.report.draw import Plot
from loadgen.report.plots.held import draw_slots
from loadgen.report.plots.latency import by_output_length, by_position, distribution_of
from loadgen.report.plots.over_time import in_flight, lag, throughput
from loadgen.report.plots.ratios import ratios
from loadgen.report.plots.slots import slots
from loadgen.report.simulated import counts_iterations

if TYPE_CHECKING:
    from loadgen.report.result import Result


def draw_run(result: Result) -> list[Plot]:
    """Every plot of a run; of a simulation its slots come first."""
    unit = "iterations" if counts_iterations(result.run.header) else "seconds"
    return [*draw_slots(result.held, unit), *draw_all(result.columns)]


def draw_all(targets: Mapping[str, Columns | Iterable[RequestRecord]]) -> list[Plot]:
    """Every plot for which the measured records of each target have data."""
    series = {name: Columns.of(records) for name, records in targets.items()}
    plots = [
        throughput(series),
        in_flight(series),
        distribution_of(series, "TTFT", "Time to first token", "ttft_s"),
        distribution_of(series, "E2E", "End-to-end latency", "e2e_s"),
        by_output_length(series),
        by_position(series),
        *ratios(series),
        *slots(series),
        lag(series),
    ]
    return [plot for plot in plots if plot is not None]
