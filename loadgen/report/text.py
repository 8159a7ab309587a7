"""The final table in the terminal, what is to be said beside it, and the verdict.

It prints; it computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.gain import GainSplit
from loadgen.paired import Comparison
from loadgen.record import TokenSource
from loadgen.report.figures import (
    CONFIDENCE,
    PairedTable,
    answer_of,
    columns_of,
    failures_of,
    pairs_of,
    prompts_of,
    rows_of,
)
from loadgen.report.result import Result
from loadgen.report.simulated import (
    counts_iterations,
    in_iterations,
    is_simulated,
    simulated_of,
)
from loadgen.report.toy import toys_of
from loadgen.stats import Summary
from loadgen.verdict import Grade, Verdict

_COLOURS: Final = {Grade.VALID: "green", Grade.SUSPECT: "yellow", Grade.INVALID: "bold red"}


def print_result(result: Result, console: Console) -> None:
    """Table, failures, answer and verdict."""
    header = result.run.header
    counted = counts_iterations(header)
    print_figures(result.summaries, result.percentiles, console, counted=counted)
    for sentence in (*simulated_of(header), *toys_of(header), *prompts_of(header)):
        console.print(escape(sentence))
    if result.run.torn_lines:
        console.print(f"left out: {result.run.torn_lines} record(s) that a kill cut short")
    if len(result.summaries) > 1:
        simulated = is_simulated(header)
        print_paired(result.summaries, result.paired, console, result.gain, simulated)
    print_verdict(result.verdict, console)


def print_figures(
    summaries: dict[str, Summary],
    percentiles: Sequence[float],
    console: Console,
    *,
    counted: bool = False,
) -> None:
    """The table, and of what its latencies are; `counted`: in iterations."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in columns_of(summaries):
        table.add_column(escape(column), justify="right")
    for row in rows_of(summaries, percentiles, ms=1 if counted else 1000):
        if row.starts_group:
            table.add_section()
        table.add_row(in_iterations(row.title) if counted else row.title, *row.cells)
    console.print(table)
    for name, summary in summaries.items():
        if summary.failed:
            console.print(
                f"{escape(name)} failures: {failures_of(summary)}; "
                f"latencies are of its {summary.completed} successes"
            )
        sources = summary.token_sources
        if summary.itl_s is not None and TokenSource.CONTINUOUS_USAGE not in sources:
            console.print(
                f"{escape(name)} does not tell the tokens of a chunk: ITL counts each as one"
            )


def print_paired(
    summaries: dict[str, Summary],
    paired: dict[str, Comparison],
    console: Console,
    gain: GainSplit | None = None,
    is_simulated: bool = False,
) -> None:
    """Ratios request by request, and the answer in words."""
    for pairs in pairs_of(paired, next(iter(summaries))):
        console.print(_paired_table(pairs))
    console.print(escape(answer_of(summaries, paired, gain, is_simulated)))


def print_verdict(verdict: Verdict, console: Console, of: str = "") -> None:
    """The grade with its reasons; `of` names the run where there are several."""
    console.print(f"Verdict{of}: [{_COLOURS[verdict.grade]}]{verdict.grade}[/]")
    for reason in verdict.reasons:
        console.print(f"  {reason.grade} {escape(reason.target)}: {escape(reason.text)}")


def _paired_table(pairs: PairedTable) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(escape(f"paired, {pairs.title} ({CONFIDENCE} interval)"))
    for column in pairs.columns:
        table.add_column(column, justify="right")
    for row in pairs.rows:
        table.add_row(row.title, *row.cells)
    return table
