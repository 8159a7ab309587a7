"""The knee of a latency-throughput curve: where power, throughput / mean latency, is greatest.

Kleinrock, Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer
Communications (ICC 1979). It needs no smoothing and no scale, and further points beyond saturation
do not move it, as they do where a curve is normalised to its range (Kneedle). It is pure, and knows
neither what the points are nor whether the latency there is good enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Knee:
    """The point of the greatest power, and whether the curve bends there."""

    index: int
    is_inside: bool
    """There are lower and higher loads; else the true knee may lie beyond the points."""


def knee_of(
    loads: Sequence[float],
    throughput: Sequence[float | None],
    latency_s: Sequence[float | None],
) -> Knee | None:
    """Of points, several of which may have one load; None where no point has both figures.

    Of equal powers the first counts.
    """
    powers = [
        rate / seconds if rate is not None and seconds else -1.0
        for rate, seconds in zip(throughput, latency_s, strict=True)
    ]
    best = max(powers, default=-1.0)
    if best < 0:
        return None
    index = powers.index(best)
    return Knee(index, min(loads) < loads[index] < max(loads))
