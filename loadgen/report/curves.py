"""The result of a sweep or a search: one curve as JSON and as a self-contained page.

The page has no script and needs no network, like a run's report; Jinja escapes every text. Figures
come from the points; it computes the knee and nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.archive import read_header
from loadgen.capacity import CONFIDENCE, Found, Goal, Trial
from loadgen.errors import RunDirectoryError
from loadgen.journal import write_whole
from loadgen.knee import Knee
from loadgen.points import Axis, Point, knee_in
from loadgen.report.curve_plots import draw_curves
from loadgen.report.pages import templates

SCHEMA_VERSION: Final = 1
DASH: Final = "-"
_TEMPLATES: Final = templates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points in the order of their load, and what is said of them."""

    kind: str
    """`sweep` or `capacity`."""
    axis: Axis
    points: tuple[Point, ...]
    knee: Knee | None
    answer: str
    goodput_ms: dict[str, float]
    share: float | None
    """The share that a capacity is found for."""
    trials: tuple[tuple[Trial, Goal], ...]
    capacity: Found | None
    command: tuple[str, ...]
    trace: tuple[str, str]
    """Name and SHA-256 of what all points are cut from."""

    @staticmethod
    def of(
        *,
        kind: str,
        axis: Axis,
        points: Sequence[Point],
        goodput_ms: dict[str, float],
        command: tuple[str, ...],
        trace: tuple[str, str],
        answer: str | None = None,
        share: float | None = None,
        trials: Sequence[tuple[Trial, Goal]] = (),
        capacity: Found | None = None,
        missing: int = 0,
    ) -> Curve:
        """With its knee; without an `answer` that is what is said of it."""
        taken = [point for point in points if point.refused is None]
        knee = knee_in(taken)
        if knee is not None:  # an index among all points
            knee = Knee(list(points).index(taken[knee.index]), knee.is_inside)
        said = _knee_in_words(axis, points, knee)
        if missing:
            said = f"{said} {missing} of {missing + len(points)} points are not done."
        return Curve(
            kind=kind,
            axis=axis,
            points=tuple(points),
            knee=knee,
            answer=said if answer is None else f"{answer} {said}",
            goodput_ms=goodput_ms,
            share=share,
            trials=tuple(trials),
            capacity=capacity,
            command=command,
            trace=trace,
        )

    @property
    def has_refused(self) -> bool:
        """Whether a point says nothing of its target."""
        return any(point.refused is not None for point in self.points)

    def as_json(self) -> dict[str, Any]:
        """The content of `sweep.json` or `capacity.json`."""
        knee = None if self.knee is None else self.points[self.knee.index]
        content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "axis": str(self.axis),
            "answer": self.answer,
            "knee": None
            if knee is None or self.knee is None
            else {"load": knee.load, "run": knee.run, "is_inside": self.knee.is_inside},
            "goodput_ms": self.goodput_ms,
            "trace": {"name": self.trace[0], "sha256": self.trace[1]},
            "points": [
                {key: value for key, value in point.as_json().items() if key != "evidence"}
                for point in self.points
            ],
        }
        if self.kind == "capacity":
            found = self.capacity
            content |= {
                "share": self.share,
                "found": found is not None,
                "rate": None if found is None else found.rate,
                "passed": None if found is None or not found.passed else found.passed.rate,
                "failed": None if found is None or not found.failed else found.failed.rate,
                "trials": [_trial_json(trial, goal) for trial, goal in self.trials],
            }
        return content


def write_curve(path: Path, curve: Curve) -> None:
    """Write `<kind>.json` and, where there is a point, `report.html`."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_whole(path / f"{curve.kind}.json", orjson.dumps(curve.as_json(), option=option))
    if curve.points:
        write_whole(path / "report.html", _page(path, curve).encode())


def columns_of(curve: Curve) -> tuple[str, ...]:
    """Headings of `rows_of`."""
    return (
        curve.axis.in_words,
        "requests",
        "ok",
        "requests/s",
        "output tokens/s",
        *("TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "E2E p50, ms", "E2E p99, ms"),
        *(("good, %",) if curve.goodput_ms else ()),
        "verdict",
    )


def rows_of(curve: Curve) -> list[tuple[str, ...]]:
    """A row for each point; the knee is told in the first cell."""
    rows = []
    for index, p in enumerate(curve.points):
        is_knee = curve.knee is not None and curve.knee.index == index
        good = p.good_share
        rows.append(
            (
                f"{p.load:g}" + (f", look {p.look + 1}" if p.look else "") + " (knee)" * is_knee,
                f"{p.requests:,}",
                f"{p.completed:,}",
                _cell(p.requests_per_s, "{:,.3g}"),
                _cell(p.output_tokens_per_s, "{:,.1f}"),
                *(
                    _cell(None if seconds is None else 1000 * seconds, "{:,.1f}")
                    for seconds in (
                        *(p.ttft_p50_s, p.ttft_p99_s, p.tpot_p50_s),
                        *(p.e2e_p50_s, p.e2e_p99_s),
                    )
                ),
                *(
                    (_cell(None if good is None else 100 * good, "{:.1f}"),)
                    * bool(curve.goodput_ms)
                ),
                str(p.verdict) + (", not counted" if p.refused else ""),
            )
        )
    return rows


def _cell(value: float | None, form: str) -> str:
    return DASH if value is None else form.format(value)


def _knee_in_words(axis: Axis, points: Sequence[Point], knee: Knee | None) -> str:
    if not points:
        return "No point is done."
    if knee is None:
        return "No point has both a throughput and a latency: there is no knee."
    point = points[knee.index]
    where = (
        f"{point.load:g} {axis.in_words}: {point.output_tokens_per_s:,.1f} output tokens/s at a "
        f"mean E2E of {1000 * (point.e2e_mean_s or 0.0):,.0f} ms"
    )
    if knee.is_inside:
        return f"The knee lies at {where}."
    return (
        f"The most throughput for its latency is at an end of the points, {where}; the knee may "
        "lie beyond."
    )


def _trial_json(trial: Trial, goal: Goal) -> dict[str, Any]:
    ruling = trial.ruling(goal)
    low, high = trial.interval
    return {
        "rate": trial.rate,
        "looks": len(trial.looks),
        "requests": trial.requests,
        "good_share": trial.share,
        "low": low,
        "high": high,
        "confidence": CONFIDENCE,
        "growth": [look.growth for look in trial.looks],
        "decision": None if ruling is None else asdict(ruling),
    }


def _trial_rows(trials: Sequence[tuple[Trial, Goal]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for trial, goal in trials:
        ruling = trial.ruling(goal)
        low, high = trial.interval
        said = "open" if ruling is None else "passed" if ruling.passed else "failed"
        if ruling is not None and not ruling.is_sure:
            said += ", not surely"
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        grew = ", ".join("-" if g is None else f"{100 * g:.1f}" for g in _growths(trial))
        looks = str(len(trial.looks))
        share = f"{100 * trial.share:.1f}"
        rows.append((f"{trial.rate:g}", looks, f"{trial.requests:,}", share, interval, grew, said))
    return rows


def _growths(trial: Trial) -> list[float | None]:
    return [look.growth for look in trial.looks]


def _page(path: Path, curve: Curve) -> str:
    return _TEMPLATES.get_template("curves.html.j2").render(
        title=f"{curve.kind.capitalize()}: {path.name}",
        curve=curve,
        runs=[(row[0], point.run) for row, point in zip(rows_of(curve), curve.points, strict=True)],
        columns=columns_of(curve),
        rows=rows_of(curve),
        reasons=[(f"{p.load:g}", reason) for p in curve.points for reason in p.reasons],
        trial_rows=_trial_rows(curve.trials),
        confidence=f"{100 * CONFIDENCE:g} %",
        plots=draw_curves(curve.axis, curve.points, curve.knee, curve.share),
        facts=_facts(path, curve),
        command=shlex.join(curve.command),
    )


def _facts(path: Path, curve: Curve) -> list[tuple[str, Any]]:
    """How it was measured, from the header of the latest point."""
    facts: list[tuple[str, Any]] = [("trace", f"{curve.trace[0]}, SHA-256 {curve.trace[1]}")]
    if curve.goodput_ms:
        limits = ", ".join(f"{name} <= {ms:g} ms" for name, ms in curve.goodput_ms.items())
        facts.append(("good", f"ended ok within {limits}"))
    try:
        header = read_header(path / curve.points[-1].run)
    except RunDirectoryError:
        return facts  # it was removed; its figures stay
    facts += [(t.name, f"{t.base_url} · {t.model} · {t.endpoint}") for t in header.targets]
    pairs: dict[str, Mapping[str, Any]] = {"versions": header.versions, "machine": header.machine}
    facts += [(key, ", ".join(f"{k} {v}" for k, v in said.items())) for key, said in pairs.items()]
    return facts + list(header.metadata.items())
