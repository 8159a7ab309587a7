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
from loadgen.report.plots.series import ITERATIONS, SECONDS, Clock
from loadgen.report.plots.slots import slots
from loadgen.report.simulated import counts_iterations

if TYPE_CHECKING:
    from loadgen.report.result import Result


def draw_run(result: Result) -> list[Plot]:
    """Every plot of a run; of a simulation its slots come first."""
    clock = ITERATIONS if counts_iterations(result.run.header) else SECONDS
    return [*draw_slots(result.held, clock), *draw_all(result.columns, clock)]


def draw_all(
    targets: Mapping[str, Columns | Iterable[RequestRecord]], clock: Clock = SECONDS
) -> list[Plot]:
    """Every plot for which the measured records of each target have data."""
    series = {name: Columns.of(records) for name, records in targets.items()}
    plots = [
        throughput(series, clock),
        in_flight(series, clock),
        distribution_of(series, "TTFT", "Time to first token", "ttft_s", clock),
        distribution_of(series, "E2E", "End-to-end latency", "e2e_s", clock),
        by_output_length(series, clock),
        by_position(series, clock),
        *ratios(series),
        *slots(series, clock),
        lag(series, clock),
    ]
    return [plot for plot in plots if plot is not None]
