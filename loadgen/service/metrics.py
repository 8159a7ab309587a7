"""What `GET /metrics` tells: the newest runs' own metrics, and a few of the service itself.

A run keeps its metrics in a file of its directory; the files of the newest are joined by family,
so the number of series is bounded however many runs there are. Format:
https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from loadgen.exporter import RUNS_KEPT
from loadgen.service.runs import Row, State
from loadgen.status import METRICS

_FAMILY: Final = re.compile(rb"^# HELP (\S+) ", re.MULTILINE)


class ServiceMetrics:
    """The service's own metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "loadgen_service_answers",
            "HTTP answers, by the first digit of their status.",
            ["status"],
            registry=self.registry,
        )
        self._runs = Gauge(
            "loadgen_service_runs", "Runs in the folder.", ["state"], registry=self.registry
        )
        self._bytes = Gauge(
            "loadgen_service_runs_bytes", "What they take on disk.", registry=self.registry
        )
        self._watchers = Gauge(
            "loadgen_service_watchers", "Clients that watch a run.", registry=self.registry
        )
        for status in "2345":
            self._answers.labels(f"{status}xx")

    def answered(self, status: int) -> None:
        self._answers.labels(f"{status // 100}xx").inc()

    def text(self, rows: Sequence[Row], watchers: int) -> bytes:
        """The service's part of the page."""
        for state in State:
            self._runs.labels(str(state)).set(sum(row.state is state for row in rows))
        self._bytes.set(sum(row.bytes for row in rows))
        self._watchers.set(watchers)
        return generate_latest(self.registry)


def newest(rows: Iterable[Row]) -> list[Row]:
    """The runs whose metrics are told. One that was killed would say for ever that it goes on."""
    told = [
        row
        for row in rows
        if row.is_ours and row.state not in (State.QUEUED, State.INTERRUPTED, State.FAILED)
    ]
    return told[:RUNS_KEPT]


def join(folder: Path, rows: Iterable[Row]) -> bytes:
    """The metrics of these runs as one text: each family once, with the samples of all."""
    families: dict[bytes, tuple[bytes, list[bytes]]] = {}
    for row in rows:
        try:
            text = (folder / row.id / METRICS).read_bytes()
        except OSError:
            continue
        starts = [*(match.start() for match in _FAMILY.finditer(text)), len(text)]
        for start, end in pairwise(starts):
            block = text[start:end]
            name = block.split(b" ", 3)[2]
            lines = block.split(b"\n", 2)
            if len(lines) < 3:  # cut off
                continue
            head, samples = b"\n".join(lines[:2]) + b"\n", lines[2]
            families.setdefault(name, (head, []))[1].append(samples)
    return b"".join(head + b"".join(samples) for head, samples in families.values())
