"""Plots: SVG from records, whatever the records are."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from made_records import made_record

from loadgen.record import Outcome, RequestRecord
from loadgen.report import draw, look
from loadgen.report.plots import draw_all
from loadgen.report.plots.series import ITERATIONS

GOOD = [
    made_record(n, due=n * 0.5, chunks=(n + 1.0, n + 1.5, n + 2.0), chunk_tokens=(1, 1, 1))
    for n in range(8)
]
TITLES = ["Output tokens per second over time", "Requests in flight", "Time to first token (TTFT)",
          "End-to-end latency (E2E)", "End-to-end latency by output length",
          "Inter-token latency by position in the answer",
          "E2E of vllm / static, request by request",
          "Who was in flight when: static", "Who was in flight when: vllm",
          "Schedule lag over time"]  # fmt: skip


def test_every_plot_of_a_comparison() -> None:
    """Two targets with answers give ten plots: well-formed SVG, words and a table of values."""
    found = draw_all({"static": GOOD, "vllm": GOOD})
    assert [plot.title for plot in found] == TITLES
    for plot in found:
        for svg in (plot.svg, plot.narrow, plot.as_svg()):
            assert ET.fromstring(svg).tag.endswith("svg")
        told = plot.title + plot.caption + plot.svg
        assert "vllm" in told or plot.title.endswith("static")
        assert "static" in told or plot.title.endswith("vllm")
        assert plot.rows
        assert all(len(row) == len(plot.columns) for row in plot.rows)


def test_iterations_are_no_seconds() -> None:
    """Where a simulation counts iterations no plot speaks of seconds, in axes, words or hover."""
    for plot in draw_all({"static": GOOD, "vllm": GOOD}, ITERATIONS):
        told = f"{plot.title} {plot.caption} {json.dumps(plot.spec)} {plot.columns}"
        assert not re.search(r"\b(seconds?|ms|tokens/s)\b|\d s\b", told), told
    told = " ".join(plot.caption for plot in draw_all({"a": GOOD}, ITERATIONS))
    assert re.search(r"median 2\.75 iterations, p90", told), told


def test_a_drawing_on_a_page_is_one_named_image() -> None:
    """Screen readers get a name and no marks; a mouse gets each mark's values; a phone neither."""
    for plot in draw_all({"a": GOOD, "b": GOOD}):
        root = ET.fromstring(plot.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == plot.title
        assert not re.search(r"aria-(?!label)", plot.svg)
        titles = re.findall("<title>(.*?)</title>", plot.svg)
        assert titles
        assert all(title.startswith(("a: ", "b: ")) for title in titles)
        assert "<title>" not in plot.narrow


def test_a_drawing_in_a_file_stands_on_white() -> None:
    """SVG and PNG take no colour from a page, and bring their title along."""
    (plot, *_) = draw_all({"a": GOOD})
    svg = plot.as_svg()
    assert "currentColor" not in svg
    assert "#ffffff" in svg
    assert f"<title>{plot.title}</title>" in svg
    assert plot.as_png().startswith(b"\x89PNG")


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", look.PALETTE)
@pytest.mark.parametrize("page", ["#ffffff", "#14171a"])
def test_colours_stand_out(colour: str, page: str) -> None:
    """Each has a contrast of 3 or more to the white and to the black page (WCAG 2.2, 1.4.11)."""
    low, high = sorted((luminance(colour), luminance(page)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_targets_differ_without_colour() -> None:
    """Lines have dashes and dots have shapes of their own, as many as there are colours."""
    for plot in draw_all({"a": GOOD, "b": GOOD}):
        (own,) = (own for own in plot.spec["layer"] if own.get("name") in ("marks", "dots"))
        if own["mark"]["type"] in ("line", "point"):
            looks = own["encoding"].get("strokeDash") or own["encoding"]["shape"]
            assert looks["scale"]["domain"] == ["a", "b"]
            assert looks["scale"]["range"][0] != looks["scale"]["range"][1]
    assert len(look.PALETTE) == len(look.DASHES) == len(look.SHAPES)


def test_captions_say_what_is_seen() -> None:
    """Numbers worked out by hand: TTFT of 0.5 n + 1 s, three tokens, E2E twice as long."""
    slow = [
        made_record(n, target="b", due=n * 0.5, chunks=(n * 0.5 + 2.0, n * 0.5 + 4.0))
        for n in range(8)
    ]
    fast = [made_record(n, due=n * 0.5, chunks=(n * 0.5 + 1.0, n * 0.5 + 2.0)) for n in range(8)]
    told = {plot.title: plot.caption for plot in draw_all({"a": fast, "b": slow})}
    assert "a: median 1.0 s, p90 1.0 s, p99 1.0 s (8 of 8)" in told["Time to first token (TTFT)"]
    assert "b: median 2.0 s" in told["Time to first token (TTFT)"]
    assert "b was faster in 0% of 8 requests" in told["E2E of b / a, request by request"]
    assert "between 2 and 2." in told["E2E of b / a, request by request"]
    assert "50% of the time in flight was waiting" in told["Who was in flight when: a"]
    assert "a: median 1.0 s" in told["Inter-token latency by position in the answer"]
    assert "a: 3.0 on average, at most 4" not in told["Requests in flight"]


def test_positions_in_the_answer() -> None:
    """A chunk of k tokens takes k positions, each after a k-th of the gap."""
    record = made_record(0, chunks=(1.0, 2.0, 5.0), chunk_tokens=(2, 1, 3), served=6)
    (plot,) = (p for p in draw_all({"a": [record]}) if p.title.startswith("Inter-token"))
    values = [(row["t"], round(row["y"])) for row in plot.spec["data"]["values"]]
    assert values == [(3, 1000), (4, 1000), (5, 1000), (6, 1000)]


def test_turns_lie_end_to_end() -> None:
    """Between two turns a target was idle; the plots over time leave that out."""
    records = [
        made_record(n, due=at, chunks=(at + 1.0, at + 2.0), block=block)
        for n, (at, block) in enumerate(((0.0, 0), (1.0, 0), (1000.0, 1), (1001.0, 1)))
    ]
    for plot in draw_all({"a": records}):
        if plot.spec["encoding"]["x"]["title"].startswith("seconds of"):
            assert max(row["t"] for row in plot.spec["data"]["values"]) <= 6.1, plot.title


def test_lanes_hold_one_request_at_a_time() -> None:
    """No two bars of a lane overlap, and there are as many lanes as requests at once."""
    records = [made_record(n, due=n * 0.5, chunks=(n * 0.5 + 0.5, n * 0.5 + 1.6)) for n in range(9)]
    (plot,) = (p for p in draw_all({"a": records}) if p.title.startswith("Who"))
    rows = sorted(plot.spec["data"]["values"], key=lambda row: (row["y"], row["t"]))
    for before, after in itertools.pairwise(rows):
        assert before["y"] != after["y"] or before["end"] <= after["t"]
    assert max(row["y"] for row in rows) == 4


def test_ticks_of_batch_sizes_are_powers_of_two() -> None:
    """On an axis of base 2."""
    assert draw.log_ticks(1, 64, base=2) == [1, 2, 4, 8, 16, 32, 64]
    assert draw.log_ticks(3, 5, base=2) == [4]


@pytest.mark.parametrize(("low", "high"), [(0.01, 9.0), (1, 1), (3.0, 3.5), (1e-6, 1e9), (10, 300)])
def test_log_ticks(low: float, high: float) -> None:
    """Round numbers within the range, never many."""
    ticks = draw.log_ticks(low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 9
    assert ticks == sorted(ticks)


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
    plots = draw_all({"a": many, "b": many, "c": many})
    assert sum(len(plot.svg) + len(plot.narrow) for plot in plots) < 2_000_000


@pytest.mark.parametrize(
    "span_s", [1e-6, 0.012, 0.9999, 1.0, 7.3, 12.0, 119.9, 120.0, 86_400.0, 1e7]
)
def test_bins_are_round_and_few(span_s: float) -> None:
    """A bin is 1, 2 or 5 times a power of ten and gives at most as many bins as fit."""
    bin_s = draw.nice_bin(span_s)
    assert span_s / bin_s <= draw._MAX_BINS * (1 + 1e-9)
    digits = f"{bin_s:.6e}".split("e")[0]
    assert float(digits) in (1.0, 2.0, 5.0)


def test_answers_that_came_whole_are_throughput_too() -> None:
    """Tokens of an answer that did not stream arrive at its end, and are not 0."""
    whole = [
        replace(one, chunk_s=(), chunk_tokens=None, first_token_s=None, last_token_s=None)
        for one in GOOD
    ]
    (plot, *_) = draw_all({"a": whole})
    assert plot.title == "Output tokens per second over time"
    assert "at most 0" not in plot.caption
    assert any(float(row[-1]) > 0 for row in plot.rows)


def test_throughput_over_time_shares_a_total_among_chunks() -> None:
    """What is drawn comes to all tokens that were told; of untold answers nothing is drawn."""
    told = [
        made_record(n, due=float(n), chunks=(n + 0.2, n + 0.7), asked=20, served=20)
        for n in range(10)
    ]
    untold = [made_record(n, due=float(n), end=n + 0.7) for n in range(10)]
    plots = {plot.title: plot for plot in draw_all({"a": told, "b": untold})}
    values = plots["Output tokens per second over time"].spec["data"]["values"]
    assert {value["target"] for value in values} == {"a"}
    bin_s = values[1]["t"] - values[0]["t"]
    assert sum(value["y"] * bin_s for value in values) == pytest.approx(200)
