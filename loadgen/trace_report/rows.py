"""A trace's figures as rows of text, for the terminal and for the page. It computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

DASH: Final = "–"
_LENGTHS: Final = ("mean", "cv", "p50", "p90", "p99", "min", "max")


def shown(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, whole ones with separators; a dash for none."""
    if value is None or value != value:
        return DASH
    if value in (float("inf"), float("-inf")):
        return "inf"
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{round(value):,}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.2e}"


def arrival_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Requests, duration, rate, gaps and dispersion."""
    rows = [
        ("requests", shown(figures["requests"])),
        ("duration, s", shown(figures["duration_s"])),
        ("rate, 1/s", shown(figures["request_rate"])),
        ("CV of the gaps", shown(figures["arrival_cv"])),
    ]
    if figures.get("gap_ms"):
        rows += [(f"gap {name}, ms", shown(gap)) for name, gap in figures["gap_ms"].items()]
    if figures.get("zero_gaps") is not None:
        rows.append(("gaps of 0, %", shown(100 * figures["zero_gaps"], 3)))
    rows += [
        (f"dispersion at {window} s", shown(value, 3))
        for window, value in figures["dispersion"].items()
    ]
    return rows


def length_rows(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What is told of prompts and of outputs."""
    sides = (figures["input_tokens"], figures["output_tokens"])
    rows = [("total", *(shown(side["total"]) for side in sides))]
    rows += [(_name(part), *(shown(side[part]) for side in sides)) for part in _LENGTHS]
    return rows  # type: ignore[return-value]


def drawn_rows(account: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, asked, drawn) of a generated trace."""
    law, drawn, distance = account["law"], account["drawn"], account["ks"]
    rows = [
        (title, shown(law[name]), shown(drawn[name]))
        for title, name in (("rate, 1/s", "request_rate"), ("CV of the gaps", "arrival_cv"))
    ]
    rows += [
        (f"dispersion at {window} s", shown(law["dispersion"][window]), shown(value, 3))
        for window, value in drawn["dispersion"].items()
    ]
    rows.append(_distance_row("KS distance of the gaps", distance["gaps"], drawn["requests"]))
    for side in ("input", "output"):
        name = f"{side}_tokens"
        asked = law[name] or {}
        rows += [
            (f"{side} {_name(part)}", shown(asked.get(part)), shown(drawn[name][part]))
            for part in _LENGTHS
        ]
        rows.append(_distance_row(f"{side} KS distance", distance[name], drawn["requests"]))
    return rows


def _distance_row(title: str, distance: float | None, n: int) -> tuple[str, str, str]:
    """19 of 20 samples of the very law lie under 1.36 / sqrt(n)."""
    usual = DASH if distance is None else f"under {shown(1.36 / math.sqrt(n), 2)}"
    return title, usual, shown(distance, 2)


def _name(part: str) -> str:
    return "CV" if part == "cv" else part
