"""What `make lesson2` prints of a comparison; the script itself runs by hand."""

from __future__ import annotations

from typing import Any

from scripts.lesson2_main import lines_of


def comparison(static: float | None, vllm: float | None, **more: Any) -> dict[str, Any]:
    rates = {"static": static, "vllm": vllm}
    ratio = vllm / static if static and vllm is not None else None
    targets = {name: {"requests_per_s": rate} for name, rate in rates.items()}
    ratios = {"requests_per_s": ratio}
    return {"targets": targets, "ratio": ratios, "split": None, "verdict": "SUSPECT", **more}


def test_the_lessons_metric() -> None:
    """Requests/s of each, (vllm / static - 1) in per cent, and how far they can be trusted."""
    assert lines_of(comparison(2.0, 8.4)) == [
        *("static: 2.000 requests/s", "vllm: 8.400 requests/s", "improvement: 320 %"),
        "verdict: SUSPECT",
    ]


def test_what_does_not_exist_is_not_made_up() -> None:
    """Of a target that gave nothing there is a dash, and no improvement."""
    assert lines_of(comparison(None, 8.4)) == [
        *("static: - requests/s", "vllm: 8.400 requests/s", "verdict: SUSPECT")
    ]


def test_the_split_is_printed() -> None:
    """Each factor, with its interval where there is one."""
    split = {
        "engine": 2.4,
        "policy": 1.75,
        "total": 4.2,
        "intervals": {"engine": [2.3, 2.5], "policy": [1.6, 1.9], "total": None},
    }
    assert lines_of(comparison(2.0, 8.4, split=split))[-2] == (
        "useful tokens/s: engine 2.40x (2.30x to 2.50x), scheduling 1.75x (1.60x to 1.90x), "
        "total 4.20x"
    )
