"""Request by request, how two targets differ: the ratio of E2E by the length of the output."""

from __future__ import annotations

from typing import Final

import numpy as np

from loadgen.paired import pair
from loadgen.report.draw import Plot, draw, rule_at
from loadgen.report.plots.series import LOG, Series, points

_MOST_DOTS: Final = 500


def ratios(series: Series) -> list[Plot | None]:
    """One plot for each target but the first, the baseline."""
    if not series:
        return []
    baseline, *others = series
    return [_ratio(series, baseline, name) for name in others]


def _ratio(series: Series, baseline: str, name: str) -> Plot | None:
    first, second = pair(series[baseline], series[name])
    before_s, after_s = series[baseline].e2e_s[first], series[name].e2e_s[second]
    known = (before_s > 0) & (after_s > 0)
    if not known.any():
        return None
    ratio = after_s[known] / before_s[known]
    asked = series[baseline].output_tokens_asked[first][known]
    told = (
        f"{name} was faster in {(ratio < 1).mean():.0%} of {len(ratio):,} requests; "
        f"half of the ratios lie between {np.quantile(ratio, 0.25):.2g} and "
        f"{np.quantile(ratio, 0.75):.2g}."
    )
    at = np.maximum(asked, 1)
    around_1 = [min(0.8, float(ratio.min())), max(1.25, float(ratio.max()))]
    return draw(
        f"E2E of {name} / {baseline}, request by request",
        f"One dot a request, served by both; below the line at 1, {name} was faster. {told}",
        points(name, at, ratio, _MOST_DOTS),
        list(series),
        {"type": "point", "filled": True, "size": 30, "opacity": 0.85},
        x=("t", "output tokens asked (log)", LOG | {"padding": 6}),
        y=("y", "E2E ratio (log)", LOG | {"domain": around_1}),
        layers=[rule_at(1.0)],
    )
