"""The report as one self-contained HTML file: no network, no script; it opens from a mail.

Jinja escapes every text, since much of it came from servers; the plots' SVG alone is trusted, and
Vega escapes the texts in it. It lays out; figures come from the summaries.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from loadgen.report.figures import (
    CONFIDENCE,
    answer_of,
    columns_of,
    pairs_of,
    prompts_of,
    rows_of,
)
from loadgen.report.plots import draw_all
from loadgen.report.toy import toys_of

if TYPE_CHECKING:
    from loadgen.report.result import Result

_TEMPLATES = Environment(
    loader=PackageLoader("loadgen.report", "."),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
)


def render_html(result: Result) -> str:
    """The whole page."""
    header = result.run.header
    names = list(result.summaries)
    return _TEMPLATES.get_template("report.html.j2").render(
        title=header.label or " vs ".join(names),
        header=header,
        verdict=result.verdict,
        summaries=result.summaries,
        answer=answer_of(result.summaries, result.paired),
        confidence=CONFIDENCE,
        pairs=pairs_of(result.paired, names[0]),
        columns=columns_of(result.summaries),
        rows=rows_of(result.summaries, result.percentiles),
        plots=draw_all(result.columns),
        facts=_facts(result),
        command=shlex.join(header.command),
    )


def _load_of(config: dict[str, Any]) -> str:
    """How the trace was made into load, as far as it differs from the defaults."""
    load = {key: value for key, value in config.get("load", {}).items() if value}
    drawn = config.get("generate", {}) if config.get("trace") is None else {}
    said = (drawn | load).items()
    facts = {key: value for key, value in said if value is not None and value is not False}
    return ", ".join(f"{key} {value}" for key, value in facts.items()) or "open loop"


def _facts(result: Result) -> list[tuple[str, Any]]:
    header = result.run.header
    facts: list[tuple[str, Any]] = [("toy", said) for said in toys_of(header)]
    for target in header.targets:
        fields = ", ".join(target.features) or "no optional fields"
        facts.append(
            (target.name, f"{target.base_url} · {target.model} · {target.endpoint} · {fields}")
        )
    for name, summary in result.summaries.items():
        sources = ", ".join(f"{source} ({n})" for source, n in summary.token_sources.items())
        facts.append((f"tokens of {name} counted by", sources or "nothing"))
    if said := prompts_of(header):
        facts.append(("prompts", "; ".join(said).removeprefix("prompts: ")))
    facts += [
        ("trace", f"{header.trace_name}, SHA-256 {header.trace_sha256}"),
        ("prompt seed", header.seed),
        ("load", _load_of(header.config)),
        ("transport", header.transport),
        ("versions", ", ".join(f"{name} {v}" for name, v in header.versions.items())),
        ("machine", ", ".join(f"{name} {v}" for name, v in header.machine.items())),
        *header.metadata.items(),
    ]
    if result.run.torn_lines:
        facts.append(("torn records", f"{result.run.torn_lines}, left out"))
    return facts
