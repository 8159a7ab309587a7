"""Traces in the terminal: tables, and small histograms of block characters. It computes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.trace.fit import Fit, TraceFit, parameters_of
from loadgen.trace.inspect import Histogram, Inspection
from loadgen.trace_report.rows import arrival_rows, drawn_rows, length_rows, shown

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 60
_CLAMPED: Final = 0.05
_MANY_ZEROS: Final = 0.01


def print_drawn(account: Mapping[str, Any], console: Console) -> None:
    """What was asked beside what was drawn, and what clamping did to the laws."""
    drawn = account["drawn"]
    for side in ("input", "output"):
        parts = drawn[f"{side}_tokens"]
        console.print(
            f"{side} tokens: {parts['total']:,} in all, mean {parts['mean']:.1f}, "
            f"CV {parts['cv']:.2f}, p50 {parts['p50']:g}, p99 {parts['p99']:.0f}, "
            f"{parts['min']} to {parts['max']}",
            soft_wrap=True,
        )
    console.print(
        f"arrivals: {drawn['requests']:,} over {drawn['duration_s']:.2f} s",
        soft_wrap=True,
    )
    console.print(_table(("", "asked", "drawn"), drawn_rows(account)))
    for side in ("input", "output"):
        law = account["law"][f"{side}_tokens"]
        if law is None or abs(law["mean"] / law["unclamped_mean"] - 1) <= _CLAMPED:
            continue
        console.print(
            f"note: clamping {side}s to {law['min']:,}..{law['max']:,} takes the law's mean from "
            f"{shown(law['unclamped_mean'])} to {shown(law['mean'])}",
            soft_wrap=True,
        )


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Figures, and a histogram a line."""
    figures = inspection.figures
    console.print(_table(("arrivals", ""), arrival_rows(figures)))
    console.print(_table(("tokens", "prompt", "output"), length_rows(figures)))
    correlation = figures["length_correlation"]
    console.print(f"rank correlation of prompt and output length: {shown(correlation, 2)}")
    edges = inspection.arrivals.edges
    console.print(
        f"arrivals over {shown(edges[-1])} s, up to {max(inspection.arrivals.counts):,} "
        f"in {shown(edges[1] - edges[0])} s"
    )
    console.print(f"  {bars(inspection.arrivals.counts)}")
    for name, histogram in (
        ("prompt", inspection.input_tokens),
        ("output", inspection.output_tokens),
    ):
        console.print(f"{name} tokens, {_span(histogram)}, log scale")
        console.print(f"  {bars(histogram.counts)}")


def _span(histogram: Histogram) -> str:
    return f"{histogram.edges[0]:,.0f} to {histogram.edges[-1] - 1:,.0f}"


def bars(counts: Sequence[int]) -> str:
    """One character a bin, at most 60: its height is the share of the highest; none is a space."""
    each = -(-len(counts) // _WIDTH)
    sums = [sum(counts[at : at + each]) for at in range(0, len(counts), each)]
    most = max(sums)
    return "".join(
        _BLOCKS[min(len(_BLOCKS) - 1, count * len(_BLOCKS) // most)] if count else " "
        for count in sums
    )


def print_fit(fit: TraceFit, console: Console) -> None:
    """The laws of gaps, prompts and outputs, the best first, and the flags that draw them."""
    for title, fits in (
        ("gaps, s", fit.gaps),
        ("prompt tokens", fit.input_tokens),
        ("output tokens", fit.output_tokens),
    ):
        if not fits:
            console.print(f"{title}: one value; nothing to fit")
            continue
        console.print(_fit_table(title, fits))
    if fit.zero_gaps > _MANY_ZEROS:
        console.print(
            f"note: {fit.zero_gaps:.0%} of the gaps are 0: times were rounded to a tick, and no "
            "law of gaps fits; import with --dither TICK first",
            soft_wrap=True,
        )
    if any(not each.keeps_mean for each in fit.gaps):
        console.print("free: fitted to the shape alone; it would lose the rate", soft_wrap=True)
    if drifts(fit.figures):
        console.print(
            "note: dispersion grows with the window: the rate drifts, which no law of gaps gives; "
            "add --rate-profile trace:FILE",
            soft_wrap=True,
        )
    command = shlex.join(["loadgen", "trace", "generate", *fit.flags, "-o", "drawn.jsonl"])
    console.print(command, soft_wrap=True)


def drifts(figures: Mapping[str, Any]) -> bool:
    """Whether the dispersion at the widest window is over twice that at the narrowest."""
    known = [value for value in figures["dispersion"].values() if value is not None]
    return len(known) > 1 and known[-1] > 2 * max(known[0], 1.0)


def _fit_table(title: str, fits: Sequence[Fit]) -> Table:
    table = _table((title, "mean", "CV", "KS", "log-likelihood", "AIC", "parameters"), [])
    for fit in fits:
        words = ", ".join(f"{name} {shown(v)}" for name, v in parameters_of(fit.law).items())
        numbers = (shown(fit.law.mean), shown(fit.law.cv), f"{fit.ks:.3f}")
        likely = (f"{fit.log_likelihood:,.0f}", f"{fit.aic:,.0f}")
        table.add_row(fit.name, *numbers, *likely, words)
    return table


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(heads[0])
    for head in heads[1:]:
        table.add_column(head, justify="left" if head == "parameters" else "right")
    for row in rows:
        table.add_row(*row)
    return table
