"""Targets side by side: each one's figures, and their ratio to the first target's. Pure.

A ratio is always (other / baseline) of the same figure; what has no value on either side, or 0 in
the baseline, has no ratio (None).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from loadgen.gain import GainSplit
from loadgen.paired import Comparison
from loadgen.record import SCHEMA_VERSION
from loadgen.stats import LATENCIES, Distribution, Goodput, Summary
from loadgen.verdict import Verdict

COUNTS: Final = (
    "completed",
    "failed",
    "duration_s",
    "requests_per_s",
    "output_tokens",
    "output_tokens_per_s",
    "useful_output_tokens_per_s",
)


def comparison(
    summaries: dict[str, Summary],
    verdict: Verdict,
    paired: dict[str, Comparison],
    gain: GainSplit | None = None,
) -> dict[str, Any]:
    """The content of `comparison.json`; the first target is the baseline.

    `ratio` holds the second target's ratios; `ratios` those of every target but the first. `paired`
    holds what `paired.py` finds, of the same targets as `ratios` but for the one in gangs; `split`
    what `gain.py` finds, where --split-gain asked for it.
    """
    targets = {name: figures(summary) for name, summary in summaries.items()}
    baseline, *others = targets
    ratios = {name: ratio_of(targets[name], targets[baseline]) for name in others}
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": baseline,
        "targets": targets,
        "ratio": ratios[others[0]] if others else {},
        "ratios": ratios,
        "paired": {name: asdict(found) for name, found in paired.items()},
        "split": None if gain is None else gain.as_json(),
        "verdict": str(verdict.grade),
        "reasons": [
            {"grade": str(r.grade), "target": r.target, "rule": r.rule, "text": r.text}
            for r in verdict.reasons
        ],
    }


def figures(summary: Summary) -> dict[str, Any]:
    """One target's headline figures: counts, rates, and mean and percentiles of each latency."""
    headline: dict[str, Any] = {name: getattr(summary, name) for name in COUNTS}
    for name in LATENCIES:
        headline[name] = _latency(getattr(summary, name))
    headline["goodput"] = _goodput(summary.goodput)
    return headline


def ratio_of(other: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """other / baseline, figure by figure."""
    return {key: divide(other[key], baseline[key]) for key in baseline}


def _latency(values: Distribution | None) -> dict[str, float | None]:
    if values is None:
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    shown = values.as_dict()
    return {key: value for key, value in shown.items() if key == "mean" or key.startswith("p")}


def _goodput(goodput: Goodput | None) -> dict[str, float | None]:
    if goodput is None:
        return dict.fromkeys(("good", "requests_per_s", "share"))
    return {
        "good": goodput.good,
        "requests_per_s": goodput.requests_per_s,
        "share": goodput.share,
    }


def divide(other: Any, baseline: Any) -> Any:
    """other / baseline, of figures or of mappings of figures; None where there is no ratio."""
    if isinstance(baseline, dict):
        return {key: divide(other.get(key), baseline[key]) for key in baseline}
    if other is None or not baseline:
        return None
    return other / baseline
