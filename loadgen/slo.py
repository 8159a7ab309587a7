"""Service-level objectives: what a request must meet to count as good. Pure.

Goodput counts requests that ended ok within every objective, over *all* that were due: one that
failed, or was never sent, is not good. The names and milliseconds are those of `vllm bench serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.columns import Columns, Flags
from loadgen.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits in seconds; None: no limit. All from the start, as vLLM's."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @staticmethod
    def of(goodput_ms: Mapping[Any, float]) -> Slo:
        """From `{"ttft": ms, "tpot": ms, "e2el": ms}`, each of which may be left out."""
        seconds = {name: ms / 1000 for name, ms in goodput_ms.items()}
        return Slo(seconds.get("ttft"), seconds.get("tpot"), seconds.get("e2el"))

    def is_met_by(self, record: RequestRecord) -> bool:
        """Whether a record is good. An answer of one token has no TPOT, and breaks no limit of it;
        one whose TPOT is not known is not good."""
        if not record.is_ok:
            return False
        if self.ttft_s is not None and (record.ttft_s is None or record.ttft_s > self.ttft_s):
            return False
        if self.tpot_s is not None:
            has_none = record.tpot_s is None and record.output_tokens_served in (0, 1)
            if not has_none and (record.tpot_s is None or record.tpot_s > self.tpot_s):
                return False
        return self.e2e_s is None or record.e2e_s <= self.e2e_s

    def are_met_by(self, c: Columns) -> Flags:
        """`is_met_by` of every row, shape (n,)."""
        good = c.is_ok
        if self.ttft_s is not None:
            good = good & (c.ttft_s <= self.ttft_s)  # NaN is not
        if self.tpot_s is not None:
            has_none = (c.output_tokens_served >= 0) & (c.output_tokens_served <= 1)
            good = good & ((c.tpot_s <= self.tpot_s) | (np.isnan(c.tpot_s) & has_none))
        if self.e2e_s is not None:
            good = good & (c.e2e_s <= self.e2e_s)
        return good
