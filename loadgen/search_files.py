"""What the files of a sweep's or a search's directory say of it, to whoever lists or watches it.

It reads `search.json`, which `exploration.py` writes after each point, and the result made of it
(`sweep.json`, `capacity.json`). It is tolerant: what cannot be read says nothing. To go on with a
directory, `exploration.py` reads it strictly. It knows no points' records.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadgen.archive import read_object
from loadgen.journal import TRACE
from loadgen.locks import is_held

SEARCH: Final = "search.json"
KINDS: Final = ("sweep", "capacity")


def header_of(path: Path) -> dict[str, Any]:
    """Of a sweep or a search, what a run's header says of a run; {} where `path` is none."""
    search = read_object(path / SEARCH)
    if search.get("kind") not in KINDS:
        return {}
    run = _object(_object(search.get("config")).get("run"))
    targets = run.get("targets")
    return {
        "kind": search["kind"],
        "label": _object(run.get("output")).get("label"),
        "started_at": search.get("started_at"),
        "trace_sha256": search.get("trace_sha256"),
        "targets": [t for t in targets if isinstance(t, dict)] if isinstance(targets, list) else [],
        "config": run | {search["kind"]: _options(search)},
    }


def _options(search: Mapping[str, Any]) -> dict[str, Any]:
    config = _object(search.get("config"))
    return {key: value for key, value in config.items() if key != "run"}


def result_of(path: Path) -> dict[str, Any]:
    """The content of `sweep.json` or `capacity.json`; {} before the end."""
    for kind in KINDS:
        if found := read_object(path / f"{kind}.json"):
            return found
    return {}


def course_of(path: Path) -> dict[str, Any] | None:
    """How far it is: points done, of how many (None: nobody knows), and which is under way."""
    search = read_object(path / SEARCH)
    points = search.get("points")
    if not isinstance(points, list):
        return None
    under_way = search.get("under_way")
    return {
        "done": len(points),
        "of": search.get("points_in_all"),
        "load": under_way[0] if isinstance(under_way, list) and under_way else None,
        "rows": [
            {key: value for key, value in point.items() if key != "evidence"}
            for point in points
            if isinstance(point, dict)
        ],
    }


def has_ended(path: Path) -> bool:
    """Whether it came to its end, and not only to a stop; of a directory that says no state."""
    result, course = result_of(path), course_of(path)
    if not result or course is None:
        return False
    if result.get("kind") == "capacity":
        return bool(result.get("found"))
    return bool(course["done"] == course["of"])


def goes_on(path: Path) -> bool:
    """Whether a process measures its points; it holds the trace until it ends."""
    return is_held(path / TRACE)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
