"""One simulation, from its configuration to its run directory or its statistics.

The directory is that of a run, with one target a policy, so that reports, comparisons and gates
read it unchanged; `simulation.json` in it says what the policies computed. It knows no flags.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen import __version__
from loadgen.errors import ConfigError
from loadgen.journal import (
    EVENTS,
    HEADER,
    TRACE,
    EventLog,
    Journal,
    begin_run,
    new_run_path,
    write_whole,
)
from loadgen.machine import describe_machine
from loadgen.record import Outcome, RequestRecord, RunHeader, TargetInfo, TokenSource
from loadgen.schedule import Shot, closed_loop, gangs, open_loop, open_sessions
from loadgen.sim.arrivals import Arrivals, ClosedLoop, Gangs, OpenLoop
from loadgen.sim.config import ArrivalConfig, PolicyName, SimulateConfig
from loadgen.sim.cost import ITERATIONS, CostFile, StepCost, read_cost
from loadgen.sim.engine import Known, Replica, Served, Totals, Watch, drive
from loadgen.sim.fleet import route_by
from loadgen.sim.policy import NeverFitsError
from loadgen.sim.prefix import PrefixCache
from loadgen.sim.slots import Hold, SlotWatch
from loadgen.sim.tally import Tally
from loadgen.sim.timeline import Timeline
from loadgen.slo import Slo
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.generate import generate
from loadgen.trace.sessions import Sessions, sessions_of
from loadgen.trace.trace import sha256_of

KIND: Final = "simulate"
SIMULATION: Final = "simulation.json"
SHOWN: Final = 64
"""Requests whose slots are kept: more is no longer a picture."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of the simulated servers."""

    trace: Trace
    name: str
    data: bytes
    sessions: Sessions | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came of it: a run directory, or statistics where no records were wanted."""

    path: Path | None
    work_done: dict[str, dict[str, Any]]
    """By policy: what all its replicas computed, and how much of it for nobody."""
    figures: dict[str, dict[str, Any]]
    """By policy, where no records were wanted."""
    notes: list[str]
    """What a reader should know of the costs."""


def simulate(config: SimulateConfig, command: Sequence[str] = ()) -> Simulation:
    """Do the whole simulation; raises LoadgenError."""
    work = load_work(config)
    costs = read_costs(config)
    done: dict[str, dict[str, Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    if not config.output.records:
        for name in config.policies.policy:
            tally, totals = play_for_statistics(config, work, name, costs)
            done[str(name)] = work_done(totals)
            figures[str(name)] = tally.as_json(config.output.metric_percentiles)
        return Simulation(None, done, figures, notes_on(config, costs))
    started = datetime.now(UTC)
    path = config.output.run_dir or new_run_path(config.output.result_dir, KIND, started)
    begin_run(path, _header(config, work, costs, command, path, started), work.data)
    try:
        with closing(EventLog(path)) as log:
            for number, name in enumerate(config.policies.policy):
                log.turn_began(name, 0, 0, 0.0)
                journal = Journal(path, number)
                done[str(name)] = work_done(_play_for_records(config, work, name, costs, journal))
    except (
        NeverFitsError,
        KeyboardInterrupt,
    ):  # half a simulation is of no use, and made anew at no cost
        if config.output.run_dir is None:
            shutil.rmtree(path)
        else:  # the folder is somebody else's
            names = (HEADER, TRACE, EVENTS)
            for file in (*map(path.joinpath, names), *path.glob("records-*.jsonl")):
                file.unlink()
        raise
    held = {
        name: [asdict(hold) for hold in holds_of(config, work, PolicyName(name), cost)]
        for name, (cost, _) in costs.items()
    }
    content = {"schema_version": 1, "policies": done, "slots": held}
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_whole(path / SIMULATION, orjson.dumps(content, option=option))
    return Simulation(path, done, {}, notes_on(config, costs))


def describe_simulation(config: SimulateConfig) -> dict[str, Any]:
    """What would be simulated; raises LoadgenError."""
    work = load_work(config)
    read_costs(config)
    return {
        "targets": {str(name): f"simulated:{name}" for name in config.policies.policy},
        "trace": work.name,
        "requests": len(work.trace),
        "prompt_tokens": int(work.trace.input_length.sum()),
        "output_tokens": int(work.trace.output_length.sum()),
        "replicas": config.fleet.replicas,
        "batch_size": config.policies.batch_size,
        "cost": config.policies.cost,
    }


Costs = dict[str, tuple[StepCost, CostFile | None]]
"""By policy."""


def read_costs(config: SimulateConfig) -> Costs:
    """What --cost says; raises ConfigError."""
    text = config.policies.cost
    names = [str(name) for name in config.policies.policy]
    files = dict.fromkeys(names, text)
    if "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        files = {name.strip(): file.strip() for name, _, file in pairs}
        if set(files) != set(names) or len(pairs) > len(names):
            raise ConfigError(f"--cost: give one file to each of {', '.join(names)}, got {text!r}")
    return {
        name: (ITERATIONS, None) if file == "iterations" else read_cost(Path(file))
        for name, file in files.items()
    }


def notes_on(config: SimulateConfig, costs: Costs) -> list[str]:
    """A sentence on iterations that count as seconds, and on each cost file that says more than is
    simulated."""
    notes = []
    if any(told is None for _, told in costs.values()):
        notes.append("An iteration counts as a second: give --cost FILE for seconds.")
    for name, (_, told) in costs.items():
        if told is not None and (left := _left_out(config, name, told)):
            told_of = ", ".join(left)
            notes.append(f"{name}: left out of --cost: {told_of}. `loadgen predict` uses them.")
    return notes


def _left_out(config: SimulateConfig, name: str, told: CostFile) -> list[str]:
    """Keys of a cost file that what is simulated differs from."""
    simulated = config.policies.model_copy(update={"policy": (PolicyName(name),)})
    server = told.server
    said = set() if server is None else server.model_fields_set - {"cost"}
    left = [f"server.{key}" for key in said if getattr(server, key) != getattr(simulated, key)]
    return sorted(left) + ["overhead_ms"] * (told.overhead_ms > 0)


def load_work(config: SimulateConfig) -> Work:
    """The trace, read or drawn; raises TraceError, ConfigError."""
    if config.trace is None:
        trace = generate(config.generate)
        return Work(trace, "generated", trace_bytes(trace) if config.output.records else b"", None)
    trace, data = read_trace(config.trace)
    sessions = sessions_of(trace)
    if sessions is not None and config.load.model_fields_set:
        raise ConfigError(
            f"{config.trace.name} has sessions, whose turns wait for the ones before; leave out "
            "--at-once, --closed-loop and --gang"
        )
    return Work(trace, config.trace.name, data, sessions)


def arrivals_of(load: ArrivalConfig, work: Work) -> Arrivals:
    """When the requests of `work` come."""
    if work.sessions is not None:
        return OpenLoop(open_sessions(work.trace, work.sessions), has_sessions=True)
    if load.gang is not None:
        return Gangs(gangs(work.trace, load.gang))
    if load.max_concurrency is not None:
        return ClosedLoop(closed_loop(work.trace), load.max_concurrency)
    return OpenLoop(closed_loop(work.trace) if load.at_once else open_loop(work.trace))


def play(
    config: SimulateConfig,
    work: Work,
    name: PolicyName,
    cost: StepCost,
    sink: Callable[[Served], None],
    *,
    replicas: int | None = None,
    timelines: Sequence[Timeline] | None = None,
    watch: Watch | None = None,
) -> list[Totals]:
    """Serve the whole of `work` by one policy; what each replica computed.

    Raises NeverFitsError for a request that could never be served.
    """
    servers = [
        Replica(
            config.policies.build(name),
            cost,
            number=number,
            timeline=None if timelines is None else timelines[number],
            watch=watch,
            known=_known(config, work, name),
        )
        for number in range(replicas or config.fleet.replicas)
    ]
    route = route_by(config.fleet.router, servers, work.trace)
    drive(arrivals_of(config.load, work), servers, sink, route)
    return [server.totals for server in servers]


def holds_of(config: SimulateConfig, work: Work, name: PolicyName, cost: StepCost) -> list[Hold]:
    """Who holds which slot of one replica, were the first SHOWN requests the only ones."""
    watch = SlotWatch(config.policies.batch_size, is_static=name is PolicyName.STATIC)
    play(config, first(work, SHOWN), name, cost, _forget, replicas=1, watch=watch.watch)
    return watch.holds


def first(work: Work, most: int) -> Work:
    """The first rows; sessions fall apart into requests."""
    trace = work.trace
    part = slice(0, min(most, len(trace)))
    rows = Trace(trace.timestamp_ms[part], trace.input_length[part], trace.output_length[part])
    return Work(rows, work.name, b"", None)


def _forget(served: Served) -> None:
    """What became of a request does not matter to who watches slots."""


def play_for_statistics(
    config: SimulateConfig,
    work: Work,
    name: PolicyName,
    costs: Costs,
    replicas: int | None = None,
) -> tuple[Tally, list[Totals]]:
    """As `play`, in memory that does not grow with what was served."""
    goodput = config.output.goodput
    tally = Tally(Slo.of(goodput) if goodput else None)
    totals = play(config, work, name, costs[name][0], tally.add, replicas=replicas)
    return tally, totals


def _known(config: SimulateConfig, work: Work, name: PolicyName) -> Known:
    ids = work.trace.hash_ids
    if ids is None or not config.policies.prefix_cache or name is PolicyName.STATIC:
        return lambda shot: 0
    cache = PrefixCache(config.policies.kv_blocks * config.policies.block_size)
    return lambda shot: cache.take(ids[shot.seq])


def _play_for_records(
    config: SimulateConfig, work: Work, name: PolicyName, costs: Costs, journal: Journal
) -> list[Totals]:
    timelines = [Timeline() for _ in range(config.fleet.replicas)]
    at_end = name is PolicyName.STATIC and config.policies.build(name).releases_at_end

    def keep(served: Served) -> None:
        journal.append(record_of(served, name, timelines[served.replica], at_end=at_end))

    try:
        return play(config, work, name, costs[name][0], keep, timelines=timelines)
    finally:
        journal.close()


def record_of(
    served: Served, target: str, timeline: Timeline, *, at_end: bool = False
) -> RequestRecord:
    """What a client would have seen; with `at_end`, all tokens when the batch ended."""
    times_s = tuple(timeline.tokens_s(served.spans).tolist())
    if at_end:
        times_s = (served.end_s,) * len(times_s)
    shot: Shot = served.shot
    return RequestRecord(
        seq=shot.seq,
        target=target,
        session=shot.session,
        parent=shot.parent,
        gang=shot.gang,
        worker=served.replica,
        due_s=served.arrived_s,
        start_s=served.arrived_s,
        sent_s=served.arrived_s,
        first_byte_s=times_s[0],
        first_token_s=times_s[0],
        chunk_s=times_s,
        chunk_tokens=(1,) * len(times_s),
        last_token_s=times_s[-1],
        end_s=served.end_s,
        prompt_tokens_asked=shot.prompt_tokens,
        prompt_tokens_served=shot.prompt_tokens,
        output_tokens_asked=shot.output_tokens,
        output_tokens_served=len(times_s),
        token_source=TokenSource.CONTINUOUS_USAGE,
        outcome=Outcome.OK,
        finish_reason="length",
    )


def work_done(replicas: Sequence[Totals]) -> dict[str, Any]:
    """The sums over replicas, and what they come to per iteration."""
    sums = {
        key: sum(getattr(one, key) for one in replicas)
        for key in asdict(replicas[0])
        if key != "end_s"
    }
    iterations = sums["iterations"]
    computed = sums["prefill_tokens"] + sums["decode_rows"]
    wasted = sums["wasted_prefill_tokens"] + sums["wasted_rows"]
    end_s = max(one.end_s for one in replicas)
    return sums | {
        "replicas": len(replicas),
        "end_s": end_s,
        "busy_share": sums["busy_s"] / (end_s * len(replicas)) if end_s else None,
        "tokens_per_iteration": sums["output_tokens"] / iterations if iterations else None,
        "wasted_row_share": _share(sums["wasted_rows"], sums["decode_rows"]),
        "padding_share": _share(sums["wasted_prefill_tokens"], sums["prefill_tokens"]),
        "wasted_share": _share(wasted, computed),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _header(
    config: SimulateConfig,
    work: Work,
    costs: Costs,
    command: Sequence[str],
    path: Path,
    started: datetime,
) -> RunHeader:
    shown = config.model_dump(mode="json")
    shown["output"] |= {"label": None, "metadata": {}}
    shown["costs"] = {
        name: "iterations" if told is None else told.model_dump()
        for name, (_, told) in costs.items()
    }
    return RunHeader(
        run_id=path.name,
        kind=KIND,
        label=config.output.label,
        metadata=config.output.metadata,
        started_at=started.isoformat(timespec="milliseconds"),
        command=tuple(command),
        config=shown,
        seed=config.generate.seed,
        trace_name=work.name,
        trace_sha256=sha256_of(work.data),
        requests=len(work.trace),
        targets=tuple(_targets(costs)),
        transport="simulated",
        versions={"loadgen": __version__, "python": platform.python_version()},
        machine=describe_machine(),
    )


def _targets(costs: Costs) -> Iterator[TargetInfo]:
    for name, (_, told) in costs.items():
        yield TargetInfo(
            name=name,
            base_url=f"simulated:{name}",
            endpoint="none",
            model="iterations" if told is None else told.name,
            features=(),
            server="loadgen's simulator",
        )


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of replicas, and what share of requests was good with it."""

    replicas: int
    good_share: float


def find_replicas(
    config: SimulateConfig, name: PolicyName, tell: Callable[[Tried], None]
) -> tuple[int | None, list[Tried]]:
    """The fewest replicas with which enough requests are good, and all that were tried.

    Doubles until it is enough, then halves the gap: more replicas are taken to be no worse. None
    where even a replica for each request, or 10,000, is not enough; at once, with nothing tried,
    where too few are good though each is alone on an idle server. `tell` gets each as it is tried.
    """
    work, costs = load_work(_without_records(config)), read_costs(config)
    most = min(10_000, len(work.trace))
    tried: list[Tried] = []

    def is_enough(replicas: int) -> bool:
        tally, _ = play_for_statistics(config, work, name, costs, replicas)
        tried.append(Tried(replicas, tally.good_share or 0.0))
        tell(tried[-1])
        return tried[-1].good_share >= config.fleet.good_share

    if _share_alone(config, work, name, costs) < config.fleet.good_share:
        return None, tried

    short, enough = 0, 1
    while not is_enough(enough):
        if enough == most:
            return None, tried
        short, enough = enough, min(2 * enough, most)
    while enough - short > 1:
        middle = (short + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            short = middle
    return enough, tried


def _share_alone(config: SimulateConfig, work: Work, name: PolicyName, costs: Costs) -> float:
    """The share that is good of requests of which each has a server to itself: no number of
    replicas has a larger one. 1 where a prefix cache may do better still."""
    if config.policies.prefix_cache and work.trace.hash_ids is not None:
        return 1.0
    alone = config.model_copy(
        update={
            "policies": config.policies.model_copy(update={"max_wait": 0.0}),
            "load": ArrivalConfig(closed_loop=True, max_concurrency=1),
        }
    )
    tally, _ = play_for_statistics(alone, replace(work, sessions=None), name, costs, 1)
    return tally.good_share or 0.0


def _without_records(config: SimulateConfig) -> SimulateConfig:
    output = config.output.model_copy(update={"records": False})
    return config.model_copy(update={"output": output})
