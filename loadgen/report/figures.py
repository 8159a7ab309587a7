"""The rows of the results table, for the terminal and for the page: what is shown, and how.

It formats the figures of the summaries and their ratios to the first target; a value that does not
exist is a dash, never a 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.compare import divide, figures, ratio_of
from loadgen.gain import GainSplit
from loadgen.paired import ALPHA, FEWEST_BLOCKS, Comparison, Effect, Split
from loadgen.record import Outcome, RunHeader, TokenSource
from loadgen.report.split import split_in_words
from loadgen.stats import Distribution, Summary, percentile_name

USEFUL: Final = "useful_output_tokens_per_s"
"""Shown where padding makes it differ from what is served."""
COUNTS: Final = (
    ("requests ok", "completed", "{:,.0f}"),
    ("requests failed", "failed", "{:,.0f}"),
    ("duration, s", "duration_s", "{:,.2f}"),
    ("requests/s", "requests_per_s", "{:,.3f}"),
    ("output tokens", "output_tokens", "{:,.0f}"),
    ("output tokens/s", "output_tokens_per_s", "{:,.1f}"),
    ("useful tokens/s", USEFUL, "{:,.1f}"),
)
LATENCIES: Final = (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))
GOODPUT: Final = (
    ("good requests/s", "requests_per_s", "{:,.3f}", 1),
    ("good, % of all due", "share", "{:,.1f}", 100),
)
PAIRED: Final = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
CONFIDENCE: Final = f"{100 * (1 - ALPHA):.0f} %"
DASH: Final = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of every target, then its ratios."""

    title: str
    cells: tuple[str, ...]
    starts_group: bool = False


@dataclass(frozen=True, slots=True)
class PairedTable:
    """Ratios of latencies, request by request, and their intervals."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row]


def columns_of(summaries: dict[str, Summary]) -> list[str]:
    """Target names, then `other / baseline` for each but the first."""
    names = list(summaries)
    return [*names, *(f"{name} / {names[0]}" for name in names[1:])]


def rows_of(
    summaries: dict[str, Summary], percentiles: Sequence[float], ms: float = 1000.0
) -> list[Row]:
    """The table's rows, in the order in which one reads them; `ms`: what a second is told as."""
    names = list(summaries)
    headline = {name: figures(summary) for name, summary in summaries.items()}
    ratios = [ratio_of(headline[name], headline[names[0]]) for name in names[1:]]
    rows = [
        Row(
            title,
            (
                *(_cell(headline[name][key], form) for name in names),
                *(_ratio_cell(ratio[key]) for ratio in ratios),
            ),
        )
        for title, key, form in COUNTS
        if key != USEFUL
        or any(s.useful_output_tokens != s.output_tokens for s in summaries.values())
    ]
    steady = [
        None if s.steady is None else s.steady.output_tokens_per_s for s in summaries.values()
    ]
    if any(rate is not None for rate in steady):
        over = (_ratio_cell(divide(rate, steady[0])) for rate in steady[1:])
        cells = (*(_cell(rate, "{:,.1f}") for rate in steady), *over)
        rows.append(Row("steady tokens/s", cells))
    for title, key in LATENCIES:
        if all(getattr(summary, key) is None for summary in summaries.values()):
            continue  # of answers that did not stream, say: nobody has it
        for part in ("mean", *map(percentile_name, percentiles)):
            values = [headline[name][key].get(part) for name in names]
            rows.append(
                Row(
                    f"{title} {part}, ms",
                    (
                        *(_cell(value, "{:,.1f}", ms) for value in values),
                        *(_ratio_cell(ratio[key].get(part)) for ratio in ratios),
                    ),
                    starts_group=part == "mean",
                )
            )
    if any(summary.goodput is not None for summary in summaries.values()):
        for title, key, form, factor in GOODPUT:
            rows.append(
                Row(
                    title,
                    (
                        *(_cell(headline[name]["goodput"][key], form, factor) for name in names),
                        *(_ratio_cell(ratio["goodput"][key]) for ratio in ratios),
                    ),
                    starts_group=key == GOODPUT[0][1],
                )
            )
    rows += _from_due_rows(summaries, percentiles, ms)
    rows.append(_prompt_row(summaries, len(ratios)))
    return rows


def answer_of(
    summaries: dict[str, Summary],
    paired: dict[str, Comparison],
    gain: GainSplit | None = None,
    is_simulated: bool = False,
) -> str:
    """The result in words, for each target in `paired`: its output throughput, where the gain comes
    from, its E2E, how sure. What is simulated once is so sure that nothing is said of it."""
    names = list(summaries)
    headline = {name: figures(summary) for name, summary in summaries.items()}
    sentences = []
    for name in paired:
        ratio = ratio_of(headline[name], headline[names[0]])["output_tokens_per_s"]
        both = (summaries[name], summaries[names[0]])
        beside = f"{name} and {names[0]}"
        untold = f"The output tokens/s of {beside} cannot be compared: answers told no usage"
        if not all(summary.completed for summary in both):
            sentences.append(f"{beside} cannot be compared: one of them gave nothing.")
        elif any(summary.untold for summary in both):
            sentences.append(f"{untold}.")
        elif any(TokenSource.CHUNKS in summary.token_sources for summary in both):
            sentences.append(f"{untold}, and a chunk may hold several tokens.")
        elif ratio is None:
            sentences.append(f"{beside} cannot be compared: one of them gave nothing.")
        else:
            sentences.append(
                f"On this trace {name} gives {ratio:.2f}x the output of {names[0]} in the same "
                "time; simulated, so there is no noise."
                if is_simulated
                else _throughput_in_words(name, names[0], ratio, paired[name])
            )
            if gain is not None:
                sentences.append(split_in_words(gain, CONFIDENCE))
        sentences += _latency_in_words(name, names[0], paired[name])
    return " ".join(sentences)


def pairs_of(paired: dict[str, Comparison], baseline: str) -> list[PairedTable]:
    """One table for each other target: ratios of latencies, request by request."""
    tables = []
    for name, found in paired.items():
        latencies = [effect for effect in found.others if effect.metric in PAIRED]
        rows = [("all", latencies), *((_quarter(split), split.effects) for split in found.splits)]
        lines = []
        for title, effects in rows:
            by_metric = {effect.metric: effect for effect in effects}
            lines.append(Row(title, tuple(_effect_cell(by_metric.get(key)) for key in PAIRED)))
        if latencies:
            tables.append(PairedTable(f"{name} / {baseline}", tuple(PAIRED.values()), lines))
    return tables


def _throughput_in_words(name: str, baseline: str, ratio: float, found: Comparison) -> str:
    effect = found.primary
    if effect is None or effect.low is None or effect.high is None:
        return (
            f"On this trace {name} gave {ratio:.2f}x the output tokens/s of {baseline}; how sure "
            f"that is needs --blocks {FEWEST_BLOCKS} or more to tell."
        )
    interval = f"{CONFIDENCE} interval {_times(effect.low)}x to {_times(effect.high)}x"
    if effect.is_shown:
        return (
            f"On this trace {name} gave {ratio:.2f}x the output tokens/s of {baseline} "
            f"({interval}, {effect.units} blocks)."
        )
    return (
        f"No difference is shown between the output tokens/s of {name} and {baseline}: "
        f"{ratio:.2f}x ({interval}, {effect.units} blocks)."
    )


def _latency_in_words(name: str, baseline: str, found: Comparison) -> list[str]:
    for effect in found.others:
        if effect.metric != "e2e_s" or effect.low is None or effect.high is None:
            continue
        interval = f"{CONFIDENCE} interval {_times(effect.low)}x to {_times(effect.high)}x"
        ratio = f"{_times(effect.ratio)}x"
        if not effect.is_shown:
            return [
                "Request by request, no difference is shown between their E2E: "
                f"{ratio} ({interval})."
            ]
        return [f"Request by request, its E2E was {ratio} that of {baseline} ({interval})."]
    return []


def _quarter(split: Split) -> str:
    return f"{split.by} {split.low:,} to {split.high:,} tokens"


def _effect_cell(effect: Effect | None) -> str:
    if effect is None:
        return DASH
    if effect.low is None or effect.high is None:
        return f"{_times(effect.ratio)}x"
    return f"{_times(effect.ratio)}x ({_times(effect.low)} to {_times(effect.high)})"


def _times(ratio: float) -> str:
    """Two decimals, or two digits where that would be next to nothing."""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0 else f"{ratio:.2g}"


def _ratio_cell(ratio: float | None) -> str:
    return DASH if ratio is None else f"{_times(ratio)}x"


def failures_of(summary: Summary) -> str:
    """`http_5xx 3, truncated 1`, or an empty string."""
    return ", ".join(
        f"{outcome} {count}"
        for outcome, count in sorted(summary.outcomes.items())
        if outcome is not Outcome.OK
    )


def successes_of(summaries: dict[str, Summary]) -> str:
    """`Latencies are of the requests that succeeded: a 60 of 64, b 64 of 64.`"""
    counts = (f"{name} {s.completed:,} of {s.requests:,}" for name, s in summaries.items())
    return f"Latencies are of the requests that succeeded: {', '.join(counts)}."


def _from_due_rows(
    summaries: dict[str, Summary], percentiles: Sequence[float], ms: float
) -> Iterator[Row]:
    """What the trace asked for beside what was done: rates, lag, and the latencies from due."""
    rates = [
        (
            _cell(summary.request_rate_asked, "{:,.3f}"),
            _cell(summary.request_rate_sent, "{:,.3f}"),
        )
        for summary in summaries.values()
    ]
    blank = [""] * (len(summaries) - 1)
    for title, number in (("requests/s asked", 0), ("requests/s sent", 1)):
        yield Row(title, (*(rate[number] for rate in rates), *blank), starts_group=number == 0)
    lags = [_at(summary.schedule_lag_s, 99.0) for summary in summaries.values()]
    yield Row("schedule lag p99, ms", (*(_cell(lag, "{:,.1f}", ms) for lag in lags), *blank))
    for title, name in (("TTFT", "ttft_from_due_s"), ("E2E", "e2e_from_due_s")):
        for percentile in percentiles[-1:]:
            values = [_at(getattr(summary, name), percentile) for summary in summaries.values()]
            yield Row(
                f"{title} from due {percentile_name(percentile)}, ms",
                (
                    *(_cell(value, "{:,.1f}", ms) for value in values),
                    *(_ratio_cell(divide(value, values[0])) for value in values[1:]),
                ),
            )


def _at(values: Distribution | None, percentile: float) -> float | None:
    return None if values is None else values.at(percentile)


def _prompt_row(summaries: dict[str, Summary], ratios: int) -> Row:
    """How far prompts were from the length that was asked for, by the server's own count."""
    cells = [
        DASH
        if summary.prompt_tokens_off_mean is None
        else f"{summary.prompt_tokens_off_mean:,.1f} / {summary.prompt_tokens_off_max:,}"
        for summary in summaries.values()
    ]
    return Row("prompt tokens off, mean / max", (*cells, *([""] * ratios)))


def prompts_of(header: RunHeader) -> list[str]:
    """What prompts were measured with, and what the targets count in them beside their text."""
    if header.prompts is None:  # a run of an older version
        return []
    made_with = str(header.prompts.get("made_with"))
    said = _MADE_WITH.get(made_with, made_with)
    if made_with == "calibration":
        said += f", {header.prompts.get('tokens_per_word')} tokens a word"
    sentences = [f"prompts: {said}"]
    fixed = [(target.name, target.fixed_prompt_tokens) for target in header.targets]
    used = next((tokens for _, tokens in fixed if tokens is not None), None)
    for name, tokens in fixed:
        if made_with == "tokenizer" and tokens is None:
            sentences.append(
                f"{name} does not count prompts as the tokenizer does, or tells no count"
            )
        elif tokens:
            sentences.append(
                f"{name} counts {tokens} tokens in every prompt beside its text (special tokens, a "
                "chat template); "
                + (
                    "the text is that much shorter"
                    if tokens == used
                    else f"the text is {used} shorter"
                )
            )
    return sentences


_MADE_WITH: Final = {
    "token_ids": "token ids, exact",
    "tokenizer": "by the tokenizer, exact",
    "calibration": "measured by probes of the server's own count",
    "words": "a word for a token; no tokenizer was given, and no count was told",
    "trace": "the trace's own text",
}


def _cell(value: float | None, form: str, factor: float = 1.0) -> str:
    return DASH if value is None else form.format(value * factor)
