"""The final table in the terminal, what is to be said beside it, and the verdict.

It prints; it computes nothing.
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
from loadgen.report.toy import toys_of
from loadgen.verdict import Grade

_COLOURS: Final = {Grade.VALID: "green", Grade.SUSPECT: "yellow", Grade.INVALID: "bold red"}


def print_result(result: Result, console: Console) -> None:
    """Table, failures, answer and verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in columns_of(result.summaries):
        table.add_column(escape(column), justify="right")
    for row in rows_of(result.summaries, result.percentiles):
        if row.starts_group:
            table.add_section()
        table.add_row(row.title, *row.cells)
    console.print(table)
    for name, summary in result.summaries.items():
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
    for sentence in (*toys_of(result.run.header), *prompts_of(result.run.header)):
        console.print(escape(sentence))
    if result.run.torn_lines:
        console.print(f"left out: {result.run.torn_lines} record(s) that a kill cut short")
    if len(result.summaries) > 1:
        for pairs in pairs_of(result.paired, next(iter(result.summaries))):
            console.print(_paired_table(pairs))
        console.print(escape(answer_of(result.summaries, result.paired)))
    grade = result.verdict.grade
    console.print(f"Verdict: [{_COLOURS[grade]}]{grade}[/]")
    for reason in result.verdict.reasons:
        console.print(f"  {reason.grade} {escape(reason.target)}: {escape(reason.text)}")


def _paired_table(pairs: PairedTable) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(escape(f"paired, {pairs.title} ({CONFIDENCE} interval)"))
    for column in pairs.columns:
        table.add_column(column, justify="right")
    for row in pairs.rows:
        table.add_row(row.title, *row.cells)
    return table
