"""Where the gain comes from, in words. It formats what `gain.py` finds, and computes nothing."""

from __future__ import annotations

from loadgen.gain import GainSplit
from loadgen.paired import Effect


def split_in_words(gain: GainSplit, confidence: str) -> str:
    """`Of the 4.2x, 2.4x is the engine (...) and 1.7x the scheduling (...).`"""
    engine, policy = _factor(gain.engine), _factor(gain.policy)
    sure = (
        f"; {confidence} intervals over {gain.total.units} blocks"
        if gain.engine.has_interval and gain.policy.has_interval
        else ""
    )
    return (
        f"Of the {gain.total.ratio:.2f}x, {engine} is the engine ({gain.other} in the same padded "
        f"batches) and {policy} the scheduling ({gain.other}'s own, against those batches); the "
        f"factors multiply{sure}."
    )


def _factor(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.2f}x"
    return f"{effect.ratio:.2f}x ({effect.low:.2f}x to {effect.high:.2f}x)"
