"""One run, from its configuration to its run directory.

The straight line: trace -> agreement with the targets -> header on disk -> each target's turn, in
worker processes -> results. Targets take turns on the same trace, with the same bytes. This is the
parent's side; `worker.py` and `turn.py` are the other. It knows no flags.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen import __version__
from loadgen.ceiling import load_stored
from loadgen.client.client import Client, redactor_of
from loadgen.client.http import library_name
from loadgen.client.negotiate import Agreement, negotiate
from loadgen.client.sizing import MadeWith, Sizing, size_prompts
from loadgen.clock import monotonic
from loadgen.config import LoadConfig, OutputConfig, Pace, RequestConfig, RunConfig
from loadgen.errors import ConfigError, RunDirectoryError, TraceError
from loadgen.exporter import Exporter, LiveRun
from loadgen.journal import HEADER, EventLog, begin_run, new_run_path
from loadgen.limits import check_limits, most_in_flight, raise_file_limit
from loadgen.live import LiveCounters
from loadgen.machine import describe_machine
from loadgen.progress import Progress
from loadgen.prompts import Recipe, find_tokenizer, load_tokenizer
from loadgen.record import RunHeader
from loadgen.schedule import Shard, block_rows, padded, turns_of
from loadgen.script import sent_sampling
from loadgen.secrets import Redactor, clean_command, clean_url
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.generate import generate
from loadgen.trace.sessions import Sessions, sessions_of
from loadgen.trace.trace import MAY_END, sha256_of
from loadgen.worker import Assignment, Begin
from loadgen.workers import WorkerLostError, Workers

EVENTS_PER_WORKER: Final = 25_000
"""Events a second that one worker is given by default: half of what one was measured to hold."""
_WATCH_EVERY_S: Final = 0.1
_FEWEST_FOR_A_SHARE: Final = 20


@dataclass(frozen=True, slots=True)
class Finished:
    """Where the results are, and whether the user stopped the run before its end."""

    path: Path
    was_interrupted: bool
    live: LiveRun


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent: the trace, its name and its file's bytes."""

    trace: Trace
    name: str
    data: bytes
    sessions: Sessions | None

    @staticmethod
    def of(trace: Trace, name: str, data: bytes | None = None) -> Workload:
        """`data`: the file's bytes, where it was read from one."""
        data = trace_bytes(trace) if data is None else data
        return Workload(trace, name, data, sessions_of(trace))

    @property
    def per_block(self) -> Sequence[int]:
        """What blocks are made of: requests, or sessions, each with the requests in it."""
        return [1] * len(self.trace) if self.sessions is None else self.sessions.turns.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do, settled before it does it."""

    config: RunConfig
    workload: Workload
    agreement: Agreement
    sizing: Sizing
    workers: int
    redactor: Redactor


def describe_load(config: RunConfig) -> dict[str, Any]:
    """What a run would send, without sending anything; raises LoadgenError."""
    workload = workload_of(config)
    _check_pace(config, workload)
    _tokenizer(config.request, config.request.model)
    trace = workload.trace
    targets = len(config.legs)
    turns = 1 if config.compare.together else targets
    return {
        "targets": {leg.target.name: clean_url(leg.target.base_url) for leg in config.legs},
        "trace": workload.name,
        "trace_sha256": sha256_of(workload.data),
        "pace": str(config.load.pace),
        "workers": _workers_for(config.load, trace),
        "requests": len(trace) * targets,
        "warm_up_requests": config.load.num_warmups * targets,
        "prompt_tokens": int(trace.input_length.sum()) * targets,
        "output_tokens": sum(
            int(_outputs_asked(trace, leg.load, config.compare.blocks).sum()) for leg in config.legs
        ),
        "duration_s": trace.duration_s * turns if config.load.pace is Pace.OPEN else None,
    }


async def plan(config: RunConfig, workload: Workload | None = None) -> Plan:
    """Settle everything that can fail before a run; raises LoadgenError, and writes nothing."""
    workload = workload or workload_of(config)
    _check_pace(config, workload)
    if config.compare.blocks > (most := len(workload.per_block)):
        what = "requests" if workload.sessions is None else "sessions, none of which is cut"
        raise ConfigError(
            f"--blocks: {config.compare.blocks} stretches of {most} {what}; each needs one at least"
        )
    if config.request.tokenizer is not None:
        load_tokenizer(config.request.tokenizer)  # a mistake is told before targets are asked
    workers = _workers_for(config.load, workload.trace)
    files = raise_file_limit()
    in_flight = most_in_flight(config.load, workload.trace)
    if in_flight is not None:
        check_limits(in_flight, workers, files=files)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(leg.target, config.request, LiveCounters()))
            for leg in config.legs
        ]
        has_messages = any("messages" in own for own in workload.trace.payload or ())
        agreement = await negotiate(
            clients,
            config.request,
            config.load,
            has_messages=has_messages,
            sampling=_sampling_of(workload.trace),
        )
        if config.compare.split_gain is not None and not agreement.length_is_held:
            raise ConfigError(
                "--split-gain: gangs are padded by holding outputs to a length, and one target or "
                "another takes neither ignore_eos nor min_tokens, or ends early all the same"
            )
        _check_context(workload, config, agreement)
        sizing = await _size_prompts(config, workload, clients, agreement)
    return Plan(
        config=config,
        workload=workload,
        agreement=agreement,
        sizing=sizing,
        workers=workers,
        redactor=redactor_of(config.targets, config.request),
    )


async def run(
    config: RunConfig,
    command: Sequence[str],
    progress: Progress,
    exporter: Exporter | None = None,
    workload: Workload | None = None,
) -> Finished:
    """Do the whole run; raises LoadgenError where it cannot begin. `exporter` shows it live.

    A `workload` that is given takes the place of the configuration's trace.

    Ctrl-C (or SIGTERM) once sends nothing more and waits for the answers; twice cuts them off.
    """
    task = asyncio.current_task()
    try:
        planned = await plan(config, workload)
    finally:
        # Ctrl-C meanwhile, which a request's client takes for its own: the plan, or why there is
        # none, says nothing then.
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
    started = datetime.now(UTC)
    kind = "compare" if len(config.targets) > 1 else "run"
    path = _run_path(config.output, kind, started)
    begin_run(path, _header(planned, kind, command, path, started), planned.workload.data)
    epoch_s = monotonic()
    live_run = (exporter or Exporter()).begin(
        path.name,
        _facts(planned, kind),
        [leg.target.name for leg in config.legs],
        started.timestamp(),
        len(planned.workload.trace) * len(config.legs),
    )
    try:
        async with AsyncExitStack() as stack:
            pools = [
                await stack.enter_async_context(Workers(assignments))
                for assignments in _assignments(planned, path, epoch_s)
            ]
            log = EventLog(path)
            stack.callback(log.close)
            log.run_began(epoch_s)
            conductor = Conductor(planned, pools, log, progress, live_run, epoch_s)
            with conductor.signals_stop():
                await conductor.take_all_turns()
    finally:
        live_run.ended()
    return Finished(path, conductor.was_interrupted, live_run)


def _run_path(output: OutputConfig, kind: str, started: datetime) -> Path:
    """The directory that --run-dir gives, or a fresh one; raises RunDirectoryError."""
    path = output.run_dir
    if path is None:
        return new_run_path(output.result_dir, kind, started)
    if (path / HEADER).exists():
        raise RunDirectoryError(f"--run-dir: {path} holds a run; give another directory")
    return path


def _assignments(planned: Plan, path: Path, epoch_s: float) -> Iterator[list[Assignment]]:
    """Of one pool of workers for all targets, or of one for each, where they run together."""
    config = planned.config
    for pool in range(len(config.targets) if config.compare.together else 1):
        yield [
            Assignment(
                config=config,
                options=planned.agreement.options,
                length_is_held=planned.agreement.length_is_held,
                recipe=planned.sizing.recipe,
                trace=planned.workload.trace,
                run_path=path,
                worker=pool * planned.workers + number,
                shard=Shard(number, planned.workers),
                epoch_s=epoch_s,
            )
            for number in range(planned.workers)
        ]


class Conductor:
    """Gives the targets their turns, and watches for whatever ends the run early."""

    def __init__(
        self,
        planned: Plan,
        pools: Sequence[Workers],
        log: EventLog,
        progress: Progress,
        live_run: LiveRun,
        epoch_s: float,
    ) -> None:
        self._plan = planned
        self._pools = pools
        self._log = log
        self._progress = progress
        self._live_run = live_run
        self._epoch_s = epoch_s
        self._is_stopped = False
        self._tokens_before = 0  # of the turns before this one
        self.was_interrupted = False

    async def take_all_turns(self) -> None:
        """All targets' turns, one after another or together, until the run is stopped."""
        order = self._plan.config.compare
        targets = len(self._plan.config.legs)
        together = turns_of(targets, order.blocks, together=order.together)
        for number, turns in enumerate(together):
            if number and not self._is_stopped:
                await self._rest(order.cool_down)
            if self._is_stopped:
                break
            await self._take_turns([Begin(*turn) for turn in turns])

    async def _rest(self, seconds: float) -> None:
        until_s = monotonic() + seconds
        while not self._is_stopped and (left_s := until_s - monotonic()) > 0:
            await asyncio.sleep(min(left_s, _WATCH_EVERY_S))

    async def _take_turns(self, turns: Sequence[Begin]) -> None:
        """Turns that begin at one moment: one, or one of each target."""
        pools = [self._pools[turn.target % len(self._pools)] for turn in turns]
        names = " and ".join(self._plan.config.legs[turn.target].target.name for turn in turns)
        if self._plan.config.load.num_warmups and turns[0].block == 0:
            self._progress.say(f"{names}: warming up")

        def live() -> LiveCounters:
            return LiveCounters.sum_of(pool.live() for pool in pools)

        per_block = self._plan.workload.per_block
        part = block_rows(len(per_block), turns[0].block, self._plan.config.compare.blocks)
        requests = sum(per_block[part.start : part.stop])
        try:
            await asyncio.gather(
                *(pool.get_ready(turn) for pool, turn in zip(pools, turns, strict=True))
            )
        except WorkerLostError as error:
            self._stop(str(error))
            return
        with self._progress.watch(names, live, requests * len(turns)):
            watch = asyncio.create_task(self._watch_hard_stops(live, monotonic()))
            try:
                await asyncio.gather(
                    *(self._take_turn(turn, pool) for pool, turn in zip(pools, turns, strict=True))
                )
            finally:
                watch.cancel()
        self._tokens_before += live().tokens

    async def _take_turn(self, turn: Begin, pool: Workers) -> None:
        name = self._plan.config.legs[turn.target].target.name

        def on_go(origin_s: float) -> None:
            self._log.turn_began(name, turn.block, turn.repeat, origin_s - self._epoch_s)
            self._live_run.turn_began(name, datetime.now(UTC).timestamp(), pool.live, pool.vitals)

        try:
            for health in await pool.take_turn(on_go):
                self._log.worker_done(health)
        except WorkerLostError as error:
            self._stop(str(error))
        finally:
            self._live_run.turn_ended(name)

    async def _watch_hard_stops(self, read: Callable[[], LiveCounters], began_s: float) -> None:
        load = self._plan.config.load
        while not self._is_stopped:
            await asyncio.sleep(_WATCH_EVERY_S)
            live = read()
            tokens = self._tokens_before + live.tokens
            if load.max_duration is not None and monotonic() - began_s > load.max_duration:
                self._stop(f"--max-duration {load.max_duration:g}: the time is up")
            elif (
                load.max_output_tokens_total is not None and tokens >= load.max_output_tokens_total
            ):
                self._stop(
                    f"--max-output-tokens-total {load.max_output_tokens_total}: {tokens} have come"
                )
            elif (
                load.max_error_share is not None
                and live.done >= _FEWEST_FOR_A_SHARE
                and live.failed > load.max_error_share * live.done
            ):
                limit = f"--max-error-share {load.max_error_share:g}"
                self._stop(f"{limit}: {live.failed} of {live.done} failed")

    def _stop(self, reason: str) -> None:
        self._is_stopped = True
        self._progress.say(reason)
        self._log.stopped(reason)
        for pool in self._pools:
            pool.drain()

    @contextmanager
    def signals_stop(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM stop the run instead of the process, while the context lasts."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                # Not the default: between the runs of a sweep, Ctrl-C is the event loop's again.
                signal.signal(number, handler)

    def _on_signal(self) -> None:
        if self.was_interrupted:
            self._progress.say("stopping now")
            for pool in self._pools:
                pool.cut()
            return
        self.was_interrupted = True
        self._stop("interrupted")
        self._progress.say("sending nothing more; Ctrl-C again cuts off what is in flight")


def workload_of(config: RunConfig) -> Workload:
    """The trace that the configuration names, or the one that it draws; raises TraceError."""
    if config.trace is not None:
        trace, data = read_trace(config.trace)
        return Workload.of(trace, config.trace.name, data)
    return Workload.of(generate(config.generate), "generated")


def _check_pace(config: RunConfig, workload: Workload) -> None:
    """Raises ConfigError where the trace cannot be sent so."""
    load = config.load
    if config.compare.split_gain is not None:
        _check_split(config, workload)
    if workload.sessions is not None and load.pace is not Pace.OPEN:
        flag = "--gang" if load.pace is Pace.GANG else "--closed-loop"
        raise ConfigError(
            f"{flag}: {workload.name} has sessions, whose turns wait for the ones before; "
            "replay it in an open loop, with or without --max-concurrency"
        )


def _check_split(config: RunConfig, workload: Workload) -> None:
    """A gain in throughput is one of capacity only where requests wait; raises ConfigError."""
    trace = workload.trace
    if workload.sessions is not None:
        raise ConfigError(
            f"--split-gain: {workload.name} has sessions, whose think times gangs leave out"
        )
    if any(MAY_END in (own.get("sampling") or {}) for own in trace.payload or ()):
        raise ConfigError(
            f"--split-gain: {workload.name} has answers that may end by themselves (ignore_eos "
            "false), which cannot be padded"
        )
    if config.load.pace is Pace.OPEN and trace.duration_s > 0:
        raise ConfigError(
            f"--split-gain: {workload.name} has arrival times, and gangs have none: let all wait, "
            "by --request-rate inf, or by --closed-loop with --max-concurrency"
        )


def _sampling_of(trace: Trace) -> dict[str, Any]:
    """One value of each sampling field that rows bring."""
    found: dict[str, Any] = {}
    for own in trace.payload or ():
        found |= sent_sampling(own.get("sampling") or {})
    return found


def _tokenizer(request: RequestConfig, *models: str | None) -> Recipe:
    """With the tokenizer that was named, or else the one that all models bring.

    Raises ConfigError where it cannot be read, or where there is none and there must be.
    """
    path = request.tokenizer
    if path is None and models:
        found = [None if model is None else find_tokenizer(model) for model in models]
        contents = {None if file is None else file.read_bytes() for file in found}
        path = found[0] if len(contents) == 1 else None
    if path is not None:
        load_tokenizer(path)
    elif request.token_ids:
        raise ConfigError(
            "--token-ids: needs a tokenizer: give --tokenizer FILE, or as --model a directory that "
            "holds a tokenizer.json"
        )
    return Recipe(tokenizer=path, as_ids=request.token_ids)


async def _size_prompts(
    config: RunConfig, workload: Workload, clients: Sequence[Client], agreement: Agreement
) -> Sizing:
    recipe = _tokenizer(config.request, *(target.model for target in agreement.targets))
    if all(own.keys() & {"prompt", "messages"} for own in workload.trace.payload or ({},)):
        return Sizing(recipe, MadeWith.TRACE, (None,) * len(clients))
    tokenizer = None if recipe.tokenizer is None else load_tokenizer(recipe.tokenizer)
    return await size_prompts(
        clients, agreement, recipe, tokenizer, has_turns=workload.sessions is not None
    )


def _facts(planned: Plan, kind: str) -> dict[str, str]:
    """What the live view says of a run."""
    models = {target.model: None for target in planned.agreement.targets}
    return {
        "kind": kind,
        "pace": str(planned.config.load.pace),
        "transport": str(planned.config.request.transport),
        "workers": str(planned.workers),
        "model": ", ".join(models),
        "trace_sha256": sha256_of(planned.workload.data),
        "version": __version__,
    }


def _outputs_asked(trace: Trace, load: LoadConfig, blocks: int) -> NDArray[np.int64]:
    """Output tokens that each row asks for, one a row; `load` may pad them."""
    if load.gang is None or not load.gang_pad:
        return trace.output_length
    parts = [block_rows(len(trace), block, blocks) for block in range(blocks)]
    return np.concatenate(
        [padded(trace.output_length[rows.start : rows.stop], load.gang) for rows in parts]
    )


def _check_context(workload: Workload, config: RunConfig, agreement: Agreement) -> None:
    """Requests that cannot fit the model are an error now, not failures later."""
    trace = workload.trace
    for target, leg in zip(agreement.targets, config.legs, strict=True):
        if target.max_model_len is None:
            continue
        totals = trace.input_length + _outputs_asked(trace, leg.load, config.compare.blocks)
        too_long = int((totals > target.max_model_len).sum())
        if too_long:
            raise TraceError(
                f"{workload.name}: {too_long} request(s) need up to {int(totals.max())} tokens, "
                f"but {target.name} serves at most {target.max_model_len}; shorten the trace "
                "(--input-max, --output-max)"
            )


def _workers_for(load: LoadConfig, trace: Trace) -> int:
    """As many as were asked for, or as the trace's own token rate needs; a gang has one."""
    if load.workers is not None:
        return load.workers
    if load.pace is not Pace.OPEN or trace.duration_s == 0:
        return 1
    events_per_s = float(trace.output_length.sum()) / trace.duration_s
    needed = math.ceil(events_per_s / EVENTS_PER_WORKER)
    return max(1, min(needed, len(os.sched_getaffinity(0)), load.max_concurrency or needed))


def _header(
    planned: Plan, kind: str, command: Sequence[str], path: Path, started: datetime
) -> RunHeader:
    config, workload = planned.config, planned.workload
    strike = planned.redactor.strike
    shown = config.model_dump(mode="json")
    for target in shown["targets"]:
        target["base_url"] = clean_url(target["base_url"])
    shown["request"]["header"] = dict.fromkeys(shown["request"]["header"], "***")
    if shown["request"]["extra_body"]:
        shown["request"]["extra_body"] = dict.fromkeys(shown["request"]["extra_body"], "***")
    return RunHeader(
        run_id=path.name,
        kind=kind,
        label=None if config.output.label is None else strike(config.output.label),
        metadata={strike(key): strike(value) for key, value in config.output.metadata.items()},
        started_at=started.isoformat(timespec="milliseconds"),
        command=clean_command(command, planned.redactor),
        config=shown | {"output": shown["output"] | {"label": None, "metadata": {}}},
        seed=config.load.prompt_seed,
        trace_name=workload.name,
        trace_sha256=sha256_of(workload.data),
        requests=len(workload.trace),
        targets=tuple(
            replace(target, fixed_prompt_tokens=fixed)
            for target, fixed in zip(
                planned.agreement.targets, planned.sizing.fixed_tokens, strict=True
            )
        ),
        workers=planned.workers,
        transport=config.request.transport,
        versions={
            "loadgen": __version__,
            "python": platform.python_version(),
            "http": library_name(),
        },
        machine=describe_machine(),
        self_check=load_stored(),
        prompts=planned.sizing.as_json(),
    )
