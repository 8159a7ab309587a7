"""Statistics of what was served, in memory that does not grow with it.

Latencies are counted in buckets that are 1 % wide, so that a percentile is within 0.5 %; means,
counts and the share that is good are exact. It keeps no request.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from loadgen.live import LiveHistogram
from loadgen.sim.engine import Served
from loadgen.slo import Slo

_WIDTH: Final = 1.01
_BOUNDS_S: Final = tuple((1e-6 * _WIDTH ** np.arange(0, 3300)).tolist())
_AT_ONCE: Final = 4096


class Tally:
    """Of one policy's requests."""

    def __init__(self, slo: Slo | None) -> None:
        self._slo = slo
        self._latencies = {name: LiveHistogram(_BOUNDS_S) for name in ("ttft_s", "tpot_s", "e2e_s")}
        self.requests = 0
        self.output_tokens = 0
        self.good = 0
        self._end_s = 0.0

    def add(self, served: Served) -> None:
        """Count one that has ended."""
        ttft_s = served.first_token_s - served.arrived_s
        e2e_s = served.end_s - served.arrived_s
        later = served.output_tokens - 1
        tpot_s = (served.end_s - served.first_token_s) / later if later else math.nan
        self.requests += 1
        self.output_tokens += served.output_tokens
        self._end_s = max(self._end_s, served.end_s)
        latencies = self._latencies
        latencies["ttft_s"].pending.append(ttft_s)
        latencies["e2e_s"].pending.append(e2e_s)
        if later:
            latencies["tpot_s"].pending.append(tpot_s)
        if self.requests % _AT_ONCE == 0:
            self._flush()
        slo = self._slo
        if slo is not None:
            self.good += not (
                (slo.ttft_s is not None and ttft_s > slo.ttft_s)
                or (slo.tpot_s is not None and later > 0 and tpot_s > slo.tpot_s)
                or (slo.e2e_s is not None and e2e_s > slo.e2e_s)
            )

    @property
    def good_share(self) -> float | None:
        return None if self._slo is None or not self.requests else self.good / self.requests

    def as_json(self, percentiles: tuple[float, ...]) -> dict[str, Any]:
        """The figures, under the names of `summary.json`."""
        self._flush()
        found: dict[str, Any] = {
            "requests": self.requests,
            "output_tokens": self.output_tokens,
            "duration_s": self._end_s,
            "output_tokens_per_s": self.output_tokens / self._end_s if self._end_s else None,
            "good_share": self.good_share,
        }
        for name, histogram in self._latencies.items():
            found[name] = {"mean": histogram.sum / histogram.count if histogram.count else None}
            for p in percentiles:
                found[name][f"p{p:g}"] = _percentile(histogram, p)
        return found

    def _flush(self) -> None:
        for histogram in self._latencies.values():
            histogram.flush()


def _percentile(histogram: LiveHistogram, p: float) -> float | None:
    """The middle of the bucket that holds it."""
    if not histogram.count:
        return None
    upto = np.cumsum(histogram.counts)
    bucket = int(np.searchsorted(upto, histogram.count * p / 100))
    return float(_BOUNDS_S[min(bucket, len(_BOUNDS_S) - 1)] / math.sqrt(_WIDTH))
