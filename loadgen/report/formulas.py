"""What each figure is, in one sentence: for the report, where each row leads to its own.

The table in `docs/metrics.md` says the same in the same words, which a test holds. It computes
nothing: the formulas themselves are `stats.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Formula:
    """A figure's definition; `rows` are the beginnings of the table rows that it explains."""

    key: str
    name: str
    text: str
    rows: tuple[str, ...] = ()


FORMULAS: Final = (
    Formula(
        "requests",
        "requests ok, failed",
        "ended with outcome ok, with any other outcome",
        ("requests ok", "requests failed"),
    ),
    Formula(
        "lag",
        "schedule lag",
        "start - due: the load generator's own lateness",
        ("schedule lag",),
    ),
    Formula(
        "ttft",
        "TTFT",
        "first content chunk - start; the connect is included, as in vllm bench serve",
        ("TTFT",),
    ),
    Formula("ttft-due", "TTFT from due", "first content chunk - due", ("TTFT from due",)),
    Formula(
        "e2e",
        "E2E",
        "end - start; the end is [DONE], or else the end of the body",
        ("E2E",),
    ),
    Formula("e2e-due", "E2E from due", "end - due", ("E2E from due",)),
    Formula(
        "tpot",
        "TPOT",
        "(last content chunk - first content chunk) / (output tokens - 1), one value a request; "
        "undefined up to one token",
        ("TPOT",),
    ),
    Formula("icl", "ICL", "gaps between content *chunks*"),
    Formula(
        "itl",
        "ITL",
        "gaps between *tokens*: a chunk of k tokens that came g after the one before counts as k "
        "gaps of g / k; all gaps of all requests are pooled",
        ("ITL",),
    ),
    Formula("requests-rate", "requests/s", "successful requests / duration", ("requests/s",)),
    Formula(
        "output-tokens",
        "output tokens",
        "as the server counts them, of all requests; else as the token source says",
        ("output tokens",),
    ),
    Formula(
        "output-rate",
        "output tokens/s",
        "all output tokens / duration (vLLM's output_throughput); tokens of failed requests came "
        "too, and count",
        ("output tokens/s",),
    ),
    Formula(
        "useful",
        "useful tokens/s",
        "output tokens that the trace wanted / duration: of each request min(served, wanted). It "
        "differs from output tokens/s under --gang-pad and --split-gain, where requests ask "
        "for more",
        ("useful tokens/s",),
    ),
    Formula(
        "duration",
        "duration",
        "last end - first start, of the measured requests of one target; of several turns, the sum",
        ("duration",),
    ),
    Formula(
        "steady",
        "steady tokens/s",
        "tokens whose chunk came between the first and the last due time / that time: ramp and "
        "drain left out. Where the server tells the total alone, each chunk of an answer counts "
        "as an equal part of it",
        ("steady tokens/s",),
    ),
    Formula(
        "prompt-off",
        "prompt tokens off",
        "mean and maximum of abs(prompt tokens served - asked), of successes whose server tells "
        "its count",
        ("prompt tokens off",),
    ),
    Formula(
        "rates",
        "asked, sent rate",
        "(n - 1) / (last - first) of the due times, of the starts",
        ("requests/s asked", "requests/s sent"),
    ),
    Formula(
        "good",
        "good",
        "ended ok, and within every limit of --goodput: TTFT, TPOT and E2E from the start, in ms, "
        "as vLLM's. One token has no TPOT and breaks no limit of it; an answer whose TTFT or TPOT "
        "nobody knows is not good, so --no-stream takes e2el alone",
    ),
    Formula(
        "goodput",
        "goodput",
        "good requests / duration; the share is over *all* that were due",
        ("good",),
    ),
)


def formula_of(row: str) -> Formula | None:
    """The definition of a table row, by its title; of several that fit, the most exact."""
    fitting = [
        (len(start), formula)
        for formula in FORMULAS
        for start in formula.rows
        if row.startswith(start)
    ]
    return max(fitting, key=lambda found: found[0])[1] if fitting else None
