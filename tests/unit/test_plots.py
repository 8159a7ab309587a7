"""Plots: SVG from records, whatever the records are."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from made_records import made_record

from loadgen.record import Outcome, RequestRecord
from loadgen.report import draw
from loadgen.report.plots import draw_all

GOOD = [
    made_record(n, due=n * 0.5, chunks=(n + 1.0, n + 1.5, n + 2.0), chunk_tokens=(1, 1, 1))
    for n in range(8)
]
TITLES = ["Output tokens per second over time", "Requests in flight", "Time to first token (TTFT)",
          "End-to-end latency (E2E)", "End-to-end latency by output length"]  # fmt: skip


def test_every_plot_of_a_comparison() -> None:
    """Two targets with answers give five plots, each of them well-formed SVG that names both."""
    found = draw_all({"static": GOOD, "vllm": GOOD})
    assert [plot.title for plot in found] == TITLES
    for plot in found:
        root = ET.fromstring(plot.svg)
        assert root.tag.endswith("svg")
        assert "static" in plot.svg
        assert "vllm" in plot.svg
        assert plot.caption


def test_no_records_draw_nothing() -> None:
    """A run without records has no plots, and no error."""
    assert draw_all({"a": []}) == []
    assert draw_all({}) == []


@pytest.mark.parametrize(
    "records",
    [
        [made_record(0, outcome=Outcome.CONNECT)],
        [made_record(0, end=1.0, outcome=Outcome.HTTP_5XX)],
        [made_record(0, due=1.0, start=5.0, end=5.0, outcome=Outcome.DROPPED)],
        [made_record(0, chunks=(1.0,), served=1)],
        [made_record(0, chunks=(0.0,), end=0.0)],
        [made_record(0, end=1.0, served=4)],
        [made_record(0, due=1e6, chunks=(1e6 + 1e-6,))],
    ],
    ids=["no time", "failure", "dropped", "one token", "all at 0", "not streamed", "far and short"],
)
def test_odd_records_can_be_drawn(records: list[RequestRecord]) -> None:
    """Failures, answers of no length and of one token make no plot fail."""
    for plot in draw_all({"a": records, "b": GOOD}):
        ET.fromstring(plot.svg)


def test_a_chunk_after_the_end_can_be_drawn() -> None:
    """A server that sends text long after [DONE] cannot break the report."""
    late = made_record(0, chunks=(1.0, 500.0), end=1.0)
    assert draw_all({"a": [late]})


def test_a_request_that_was_never_sent_was_never_in_flight() -> None:
    """Dropped requests change nothing in the plot of requests in flight."""
    dropped = [
        made_record(100 + n, due=n * 0.5, start=3.0, end=3.0, outcome=Outcome.DROPPED)
        for n in range(5)
    ]
    alone, beside = (draw_all({"a": records})[1] for records in (GOOD, [*GOOD, *dropped]))
    assert alone.title == "Requests in flight"
    assert beside.svg == alone.svg


def test_many_records_give_a_page_of_bounded_size() -> None:
    """A plot of 20,000 requests is thinned out, not drawn dot by dot."""
    many = [
        made_record(n, due=n * 0.01, chunks=(n * 0.01 + 0.1, n * 0.01 + 0.2)) for n in range(20_000)
    ]
    assert sum(len(plot.svg) for plot in draw_all({"a": many})) < 2_000_000


@pytest.mark.parametrize(
    "span_s", [1e-6, 0.012, 0.9999, 1.0, 7.3, 12.0, 119.9, 120.0, 86_400.0, 1e7]
)
def test_bins_are_round_and_few(span_s: float) -> None:
    """A bin is 1, 2 or 5 times a power of ten and gives at most as many bins as fit."""
    bin_s = draw.nice_bin(span_s)
    assert span_s / bin_s <= draw._MAX_BINS * (1 + 1e-9)
    digits = f"{bin_s:.6e}".split("e")[0]
    assert float(digits) in (1.0, 2.0, 5.0)
