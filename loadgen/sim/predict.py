"""A measured run beside the simulator's records of the same trace.

Requests come at the times, or in the closed loops and gangs, of the run; the server is a cost file
that says its policy (`calibrate.py` writes one). Both sides go through the same statistics. It
knows neither what a calibration is nor how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from loadgen.archive import Run
from loadgen.columns import Columns
from loadgen.config import LoadConfig, Pace
from loadgen.errors import ConfigError, RunDirectoryError
from loadgen.journal import TRACE
from loadgen.record import RequestRecord
from loadgen.schedule import Shot, block_rows, closed_loop, gangs, open_loop, open_sessions
from loadgen.sim.arrivals import Arrivals, ClosedLoop, Gangs, OpenLoop
from loadgen.sim.config import PolicyConfig
from loadgen.sim.cost import CostFile
from loadgen.sim.engine import Replica, Served, drive
from loadgen.sim.simulate import record_of
from loadgen.sim.timeline import Timeline
from loadgen.stats import Summary, summarise
from loadgen.trace import Trace, read_trace
from loadgen.trace.sessions import Sessions, sessions_of

RATE: Final = "output_tokens_per_s"
LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")
PERCENTILES: Final = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run sent to a target, as far as a server's times depend on it."""

    load: LoadConfig
    blocks: int
    trace: Trace
    sessions: Sessions | None

    @staticmethod
    def of(run: Run, target: str) -> Asked:
        """Of a run directory; raises RunDirectoryError, ConfigError."""
        config = run.header.config
        try:
            fields = LoadConfig.model_fields
            said = {k: v for k, v in config["load"].items() if v != fields[k].default}
            load = LoadConfig.model_validate(said)  # a pace and another's default contradict
            blocks = int(config["compare"]["blocks"])
            gang_size = config["compare"].get("split_gain")
            if gang_size is not None and target == run.header.targets[-1].name:
                load = load.in_gangs(gang_size)
        except (AttributeError, KeyError, TypeError, ValueError, ValidationError):
            raise RunDirectoryError(
                f"{run.path}: its header does not say how the trace was sent; predictions need a "
                "run of `loadgen run` or `loadgen compare`"
            ) from None
        if load.pace is Pace.OPEN and load.max_concurrency is not None:
            raise ConfigError(
                f"{run.path}: an open loop under --max-concurrency is not modelled; replay the "
                "trace without it"
            )
        if load.pace is Pace.CLOSED and load.ramp_up:
            raise ConfigError(f"{run.path}: a closed loop's --ramp-up is not modelled")
        trace, _ = read_trace(run.path / TRACE)
        return Asked(load, blocks, trace, sessions_of(trace))

    def arrivals(self, block: int) -> Arrivals:
        """Of one turn."""
        load, trace, sessions = self.load, self.trace, self.sessions
        if sessions is not None:
            part = block_rows(len(sessions.firsts), block, self.blocks)
            shots = open_sessions(trace, sessions, ramp_up_s=load.ramp_up, block=part)
            return OpenLoop(shots, has_sessions=True)
        rows = block_rows(len(trace), block, self.blocks)
        if load.gang is not None:
            return Gangs(gangs(trace, load.gang, pad=load.gang_pad, rows=rows))
        if load.max_concurrency is not None:
            return ClosedLoop(closed_loop(trace, rows=rows), load.max_concurrency)
        return OpenLoop(open_loop(trace, ramp_up_s=load.ramp_up, rows=rows))


class Delayed:
    """Arrivals that reach the server so much later than they were sent."""

    def __init__(self, arrivals: Arrivals, delay_s: float) -> None:
        self._arrivals = arrivals
        self._delay_s = delay_s

    @property
    def due_s(self) -> float:
        return self._arrivals.due_s + self._delay_s

    @property
    def follow_ends(self) -> bool:
        return self._arrivals.follow_ends

    def take(self) -> Shot:
        return self._arrivals.take()

    def ended(self, shot: Shot, end_s: float) -> None:
        self._arrivals.ended(shot, end_s)


def simulate_asked(asked: Asked, model: CostFile, target: str) -> Iterator[RequestRecord]:
    """The records of one target, turn by turn; raises NeverFitsError."""
    config = policy_of(model)
    overhead_s = model.overhead_ms / 1000
    began_s = 0.0
    for block in range(asked.blocks):
        timeline = Timeline()
        replica = Replica(config.build(config.policy[0]), model.cost, timeline=timeline)
        done: list[Served] = []
        drive(Delayed(asked.arrivals(block), overhead_s), [replica], done.append)
        at_end = replica.policy.releases_at_end
        for served in done:
            record = record_of(served, target, timeline, at_end=at_end)
            sent_s = record.start_s - overhead_s
            record = replace(record, due_s=sent_s, start_s=sent_s, sent_s=sent_s, block=block)
            yield _later(record, began_s)
        began_s += replica.totals.end_s + 1.0  # a turn begins when the one before has ended


def policy_of(model: CostFile) -> PolicyConfig:
    """The policy of a cost file; raises ConfigError where it says none."""
    if model.server is None:
        raise ConfigError(
            f"{model.name}: the cost file says no policy (key `server`); `loadgen calibrate` "
            "writes one that does"
        )
    if len(model.server.policy) != 1:
        raise ConfigError(f"{model.name}: server.policy: one server has one policy")
    return model.server


def _later(record: RequestRecord, by_s: float) -> RequestRecord:
    if by_s == 0.0:
        return record
    moved: dict[str, Any] = {
        name: getattr(record, name) + by_s
        for name in ("due_s", "start_s", "sent_s", "first_byte_s", "first_token_s")
    }
    return replace(
        record,
        **moved,
        chunk_s=tuple(at_s + by_s for at_s in record.chunk_s),
        last_token_s=None if record.last_token_s is None else record.last_token_s + by_s,
        end_s=record.end_s + by_s,
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """One target, measured and simulated."""

    model: CostFile
    measured: Summary
    predicted: Summary

    def figures(self) -> dict[str, tuple[float | None, float | None]]:
        """(measured, predicted) of each figure, seconds and tokens a second."""
        found = {RATE: (self.measured.output_tokens_per_s, self.predicted.output_tokens_per_s)}
        for latency in LATENCIES:
            for percentile in PERCENTILES:
                found[f"{latency.removesuffix('_s')}_p{percentile:g}_s"] = (
                    _at(self.measured, latency, percentile),
                    _at(self.predicted, latency, percentile),
                )
        return found

    def errors(self) -> dict[str, float | None]:
        """predicted / measured - 1 of each figure; None where either is not known."""
        return {
            name: None if not measured or predicted is None else predicted / measured - 1
            for name, (measured, predicted) in self.figures().items()
        }

    def as_json(self) -> dict[str, Any]:
        """What `prediction.json` holds of a target."""
        return {
            "model": self.model.model_dump(mode="json", exclude_unset=True),
            "figures": {
                name: {"measured": measured, "predicted": predicted, "error": self.errors()[name]}
                for name, (measured, predicted) in self.figures().items()
            },
            "failed": self.measured.failed,
            "output_tokens": {
                "measured": self.measured.output_tokens,
                "predicted": self.predicted.output_tokens,
            },
        }


def predict(run: Run, models: Mapping[str, CostFile]) -> dict[str, Prediction]:
    """Predictions for the targets in `models`; raises LoadgenError."""
    names = [target.name for target in run.header.targets]
    if unknown := [name for name in models if name not in names]:
        raise ConfigError(f"{run.path}: no target {unknown[0]}; there are {', '.join(names)}")
    found = {}
    for name, model in models.items():
        measured = summarise(Columns.of(run.of_target(name)), PERCENTILES)
        predicted = summarise(simulate_asked(Asked.of(run, name), model, name), PERCENTILES)
        found[name] = Prediction(model, measured, predicted)
    return found


def _at(summary: Summary, latency: str, percentile: float) -> float | None:
    distribution = getattr(summary, latency)
    return None if distribution is None else float(distribution.at(percentile))
