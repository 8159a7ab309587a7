"""The schedule: a trace turned into shots with absolute due times. Pure, and drawn before the run.

It knows neither clocks nor targets: due times count from the start of a target's turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.record import Phase
from loadgen.trace import Trace


@dataclass(frozen=True, slots=True)
class Shot:
    """One request that will be sent."""

    seq: int
    due_s: float
    prompt_tokens: int
    output_tokens: int
    phase: Phase = Phase.MEASURED


def open_loop(trace: Trace) -> list[Shot]:
    """Every row at its own time, however late the answers before it are."""
    return [
        Shot(seq, due_ms / 1000.0, prompt_tokens, output_tokens)
        for seq, (due_ms, prompt_tokens, output_tokens) in enumerate(
            zip(
                trace.timestamp_ms.tolist(),
                trace.input_length.tolist(),
                trace.output_length.tolist(),
                strict=True,
            )
        )
    ]


def warmups(trace: Trace, count: int) -> list[Shot]:
    """The first rows again (over and over if need be), to be sent one by one before the trace."""
    return [
        Shot(
            seq % len(trace),
            0.0,
            int(trace.input_length[seq % len(trace)]),
            int(trace.output_length[seq % len(trace)]),
            Phase.WARMUP,
        )
        for seq in range(count)
    ]
