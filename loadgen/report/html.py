"""The report as one self-contained HTML file: no network, no script; it opens from a mail.

Jinja escapes every text, since much of it came from servers; the plots' SVG alone is trusted, and
Vega escapes the texts in it. It lays out; figures come from the summaries.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from loadgen.report.facts import facts_of
from loadgen.report.figures import (
    CONFIDENCE,
    answer_of,
    columns_of,
    pairs_of,
    prompts_of,
    rows_of,
    successes_of,
)
from loadgen.report.formulas import FORMULAS, formula_of
from loadgen.report.pages import templates
from loadgen.report.plots import draw_run
from loadgen.report.simulated import (
    counts_iterations,
    in_iterations,
    is_simulated,
    simulated_of,
)
from loadgen.report.toy import toys_of

if TYPE_CHECKING:
    from loadgen.report.result import Result

_TEMPLATES = templates()


def render_html(result: Result) -> str:
    """The whole page."""
    header = result.run.header
    names, counted = list(result.summaries), counts_iterations(header)
    return _TEMPLATES.get_template("report.html.j2").render(
        title=header.label or " vs ".join(names),
        header=header,
        verdict=result.verdict,
        summaries=result.summaries,
        answers=[
            answer_of(result.summaries, {other: found}, result.gain, is_simulated(header))
            for other, found in result.paired.items()
        ],
        confidence=CONFIDENCE,
        pairs=pairs_of(result.paired, names[0]),
        columns=columns_of(result.summaries),
        rows=rows_of(result.summaries, result.percentiles, ms=1 if counted else 1000),
        shown=in_iterations if counted else str,
        simulated=simulated_of(header),
        successes=successes_of(result.summaries),
        formulas=FORMULAS,
        formula_of=formula_of,
        plots=draw_run(result),
        facts=_facts(result),
        command=shlex.join(header.command),
    )


def _facts(result: Result) -> list[tuple[str, str]]:
    """What the header tells, and what the answers told beside."""
    facts = [*(("toy", said) for said in toys_of(result.run.header)), *facts_of(result.run.header)]
    for name, summary in result.summaries.items():
        sources = ", ".join(f"{source} ({n})" for source, n in summary.token_sources.items())
        facts.append((f"tokens of {name} counted by", sources or "nothing"))
    if said := prompts_of(result.run.header):
        facts.append(("prompts", "; ".join(said).removeprefix("prompts: ")))
    if result.run.torn_lines:
        facts.append(("torn records", f"{result.run.torn_lines}, left out"))
    return facts
