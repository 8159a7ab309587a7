"""The public files themselves, where LOADGEN_TRACES names a folder that holds them.

Rows, rates, CVs and fits are those that were measured independently on the same files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loadgen.trace.figures import describe, dispersion
from loadgen.trace.fit import fit_trace
from loadgen.trace.import_config import ImportConfig
from loadgen.trace.importing import Source, import_trace

FOLDER = os.environ.get("LOADGEN_TRACES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="LOADGEN_TRACES names no folder with the public traces"
)


def bring(name: str, file: str, **options: Any) -> Any:
    return import_trace(Source(name, Path(FOLDER) / file, ImportConfig.model_validate(options)))


@pytest.mark.parametrize(
    ("part", "rows", "rate", "cv", "windows", "sides"),
    [
        (
            "conv", 19_366, 5.530, 1.09, (1.4, 3.9, 16, 56),
            ((1155, 0.96, 6.633, 0.985, 0.159), (211, 0.77, 5.019, 0.859, 0.182)),
        ),
        (
            "code", 8_819, 2.566, 13.2, (13, 72, 164, 138),
            ((2048, 0.96, 6.999, 1.360, 0.106), (27.9, 2.15, 2.788, 0.847, 0.118)),
        ),
    ],
)  # fmt: skip
def test_azure_2023(part: str, rows: int, rate: float, cv: float, windows: Any, sides: Any) -> None:
    """Rows, rate, CV, dispersion, and the log-normal fits of both lengths."""
    trace, counts = bring("azure", f"AzureLLMInferenceTrace_{part}.csv")
    assert (counts.read, counts.kept, len(trace)) == (rows, rows, rows)
    figures = describe(trace)
    assert figures["request_rate"] == pytest.approx(rate, abs=0.0005)
    assert figures["arrival_cv"] == pytest.approx(cv, rel=0.005)
    for window_s, value in zip((1, 10, 60, 300), windows, strict=True):
        assert dispersion(trace.timestamp_ms, window_s) == pytest.approx(value, rel=0.04)
    fit = fit_trace(trace)
    for name, (mean, spread, mu, sigma, ks) in zip(("input", "output"), sides, strict=True):
        tokens = figures[f"{name}_tokens"]
        assert tokens["mean"] == pytest.approx(mean, rel=0.002)
        assert tokens["cv"] == pytest.approx(spread, abs=0.006)
        plain = next(f for f in getattr(fit, f"{name}_tokens") if f.name == "lognormal")
        assert plain.law.mu == pytest.approx(mu, abs=0.0006)  # type: ignore[attr-defined]
        assert plain.law.sigma == pytest.approx(sigma, abs=0.0006)  # type: ignore[attr-defined]
        assert plain.ks == pytest.approx(ks, abs=0.0008)


def test_mooncake() -> None:
    """Rows, lengths, fits with one and two components; nine gaps of ten are 0."""
    trace, counts = bring("mooncake", "mooncake_conversation_trace.jsonl")
    assert (counts.kept, counts.block_ids_fitted) == (12_031, 0)
    fit = fit_trace(trace)
    assert fit.zero_gaps == pytest.approx(0.90, abs=0.005)
    one = {f.name: f for f in fit.input_tokens}["lognormal"]
    assert (one.law.mu, one.law.sigma) == (  # type: ignore[attr-defined]
        pytest.approx(8.737, abs=0.0006),
        pytest.approx(1.199, abs=0.0006),
    )
    assert one.ks == pytest.approx(0.067, abs=0.0006)
    outputs = {f.name: f for f in fit.output_tokens}
    assert outputs["lognormal"].ks == pytest.approx(0.212, abs=0.0006)
    assert outputs["lognormal-2"].ks == pytest.approx(0.020, abs=0.0006)
    assert fit.output_tokens[0].name == "lognormal-2"


def test_burstgpts_head() -> None:
    """129 rows, of which 8 have no answer."""
    _, counts = bring("burstgpt", "burstgpt_1_head129.csv")
    assert (counts.read, counts.zero_dropped, counts.kept) == (129, 8, 121)


def test_azure_2024_sample() -> None:
    """Ten rows, of a week."""
    trace, counts = bring("azure", "azure_2024_head_tail_from_notebook.csv")
    assert counts.kept == 10
    assert trace.duration_s == pytest.approx(7 * 86_400, rel=1e-6)
