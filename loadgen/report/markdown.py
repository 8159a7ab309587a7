"""A result as Markdown, for a pull request: the answer, the verdict, a short table. No links.

Names and error texts come from configurations and servers: what Markdown or HTML would read as
mark-up in them is escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from loadgen.report.figures import answer_of, columns_of, rows_of, successes_of
from loadgen.report.simulated import (
    counts_iterations,
    in_iterations,
    is_simulated,
    simulated_of,
)

if TYPE_CHECKING:
    from loadgen.report.result import Result

_SHOWN: Final = (
    "requests ok",
    "requests failed",
    "requests/s",
    "output tokens/s",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "TPOT p50",
    "E2E p50",
    "E2E p99",
    "good requests/s",
    "good, %",
)
"""The rows of the long table that a reviewer reads."""


def result_as_markdown(result: Result) -> str:
    """Headline, answer, verdict with reasons, table, and where the numbers are from."""
    header = result.run.header
    title = header.label or " vs ".join(result.summaries)
    lines = [f"### loadgen: {plain(title)}", ""]
    for said in simulated_of(header):
        lines += [f"{said[0].upper()}{plain(said[1:])}.", ""]
    if answer := answer_of(result.summaries, result.paired, result.gain, is_simulated(header)):
        lines += [plain(answer), ""]
    lines.append(f"**Verdict: {result.verdict.grade}**")
    lines += [
        f"- {reason.grade} {plain(reason.target)}: {plain(reason.text)}"
        for reason in result.verdict.reasons
    ]
    columns, counted = columns_of(result.summaries), counts_iterations(header)
    lines += ["", _row("", *columns), f"| --- |{' ---: |' * len(columns)}"]
    lines += [
        _row(in_iterations(row.title) if counted else row.title, *row.cells)
        for row in rows_of(result.summaries, result.percentiles, ms=1 if counted else 1000)
        if row.title.startswith(_SHOWN)
        and not row.title.startswith(("requests/s asked", "requests/s sent"))
    ]
    lines += [
        "",
        plain(successes_of(result.summaries)),
        f"Run {plain(header.run_id)}, trace SHA-256 {header.trace_sha256[:12]}, loadgen "
        f"{plain(header.versions.get('loadgen', '?'))}.",
    ]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def plain(text: str) -> str:
    """The text as it is, on one line, wherever it stands."""
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*_\[\]<>|~#&])", r"\\\1", one_line)
    # What hosts of Markdown make links or mentions of, without any mark-up.
    return re.sub(
        r"(?i)(@|://|www\.)", lambda found: found[1][0] + "\u2060" + found[1][1:], escaped
    )
