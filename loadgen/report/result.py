"""A run directory turned into its results: summary, comparison, Parquet, HTML.

Everything here can be made again from `header.json` and the records, so it is: at the end of a run,
and whenever `loadgen report` is called, on a torn run too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen import stats
from loadgen.archive import Run, read_run
from loadgen.columns import Columns
from loadgen.compare import comparison
from loadgen.gain import GainSplit, split_gain
from loadgen.journal import write_whole
from loadgen.paired import Comparison, compare_paired
from loadgen.record import SCHEMA_VERSION
from loadgen.report.html import render_html
from loadgen.report.simulated import Holds, read_holds, time_unit
from loadgen.report.table import write_parquet
from loadgen.slo import Slo
from loadgen.stats import Summary
from loadgen.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Result:
    """A run and what its records come to."""

    run: Run
    columns: dict[str, Columns]
    summaries: dict[str, Summary]
    verdict: Verdict
    paired: dict[str, Comparison]
    """Of each target but the first, against the first; of none that was sent padded gangs."""
    gain: GainSplit | None
    """Where the gain comes from, if --split-gain asked for it and it can be told."""
    percentiles: tuple[float, ...]
    slo: Slo | None
    """What --goodput asked for."""
    held: Holds
    """Of a simulation: who held which slot."""

    def as_json(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run.header.run_id,
            "kind": self.run.header.kind,
            "label": self.run.header.label,
            "time_unit": time_unit(self.run.header),
            "verdict": str(self.verdict.grade),
            "reasons": [asdict(reason) for reason in self.verdict.reasons],
            "torn_lines": self.run.torn_lines,
            "stopped": self.run.stopped,
            "workers": [asdict(health) for health in self.run.health],
            "targets": {name: stats.as_json(s) for name, s in self.summaries.items()},
        }

    def comparison(self) -> dict[str, Any]:
        """The content of `comparison.json`."""
        return comparison(self.summaries, self.verdict, self.paired, self.gain)


def rebuild(path: Path) -> Result:
    """Read the run at `path` and write all of its results anew; raises RunDirectoryError."""
    result = read_result(read_run(path))
    write_whole(path / "summary.json", _json(result.as_json()))
    if len(result.summaries) > 1:
        write_whole(path / "comparison.json", _json(result.comparison()))
    write_parquet(path / "records.parquet", result.run.records())
    write_whole(path / "report.html", render_html(result).encode())
    return result


def read_result(run: Run) -> Result:
    """What a run's records come to; writes nothing."""
    percentiles = tuple(run.header.config["output"]["metric_percentiles"])
    columns = {target.name: Columns.of(run.of_target(target.name)) for target in run.header.targets}
    goodput_ms = run.header.config["output"].get("goodput")
    slo = Slo.of(goodput_ms) if goodput_ms else None
    summaries = {name: stats.summarise(c, percentiles, slo) for name, c in columns.items()}
    stopped = run.stopped or ("the run is still going on" if run.is_running else None)
    verdict = judge(run.header, summaries, percentiles, health=run.health, stopped=stopped)
    first, *others = columns
    is_split = (run.header.config.get("compare") or {}).get("split_gain") is not None
    compared = others[:1] if is_split else others
    paired = {name: compare_paired(columns[first], columns[name], slo) for name in compared}
    gain = split_gain(columns) if is_split else None
    held = read_holds(run.path)
    return Result(run, columns, summaries, verdict, paired, gain, percentiles, slo, held)


def _json(content: dict[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
