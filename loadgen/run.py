"""One run, from its configuration to its run directory.

The straight line: a plan (`plan.py`) -> header on disk -> each target's turn, in worker processes.
Targets take turns on the same trace, with the same bytes. This is the parent's side; `worker.py`
and `turn.py` are the other. It knows no flags.
"""

from __future__ import annotations

import asyncio
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from loadgen import __version__
from loadgen.ceiling import load_stored
from loadgen.client.http import library_name
from loadgen.clock import monotonic
from loadgen.config import RunConfig
from loadgen.errors import RunDirectoryError
from loadgen.exporter import Exporter, LiveRun
from loadgen.journal import EventLog, begin_run, new_run_path
from loadgen.live import LiveCounters
from loadgen.machine import describe_machine
from loadgen.plan import Plan, Workload, plan
from loadgen.progress import Progress
from loadgen.record import RunHeader
from loadgen.schedule import Shard, block_rows, turns_of
from loadgen.secrets import clean_command, clean_config, struck_pairs
from loadgen.trace.trace import sha256_of
from loadgen.worker import Assignment, Begin
from loadgen.workers import WorkerLostError, Workers, wait_for_all

_WATCH_EVERY_S: Final = 0.1
_FEWEST_FOR_A_SHARE: Final = 20


@dataclass(frozen=True, slots=True)
class Finished:
    """Where the results are, and whether the user stopped the run before its end."""

    path: Path
    was_interrupted: bool
    live: LiveRun


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
    planned = await plan(config, workload)
    started = datetime.now(UTC)
    kind = "compare" if len(config.targets) > 1 else "run"
    path = config.output.run_dir or new_run_path(config.output.result_dir, kind, started)
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
            await wait_for_all(
                pool.get_ready(turn) for pool, turn in zip(pools, turns, strict=True)
            )
        except WorkerLostError as error:
            self._stop(str(error))
            return
        with self._progress.watch(names, live, requests * len(turns)):
            watch = asyncio.create_task(self._watch_hard_stops(live, monotonic()))
            try:
                await wait_for_all(
                    self._take_turn(turn, pool) for pool, turn in zip(pools, turns, strict=True)
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
            await pool.take_turn(on_go, self._log.worker_done, self._stop)
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
        for pool in self._pools:  # before anything that may fail
            pool.drain()
        self._progress.say(reason)
        try:
            self._log.stopped(reason)
        except RunDirectoryError as error:
            self._progress.say(str(error))

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
            for pool in self._pools:
                pool.cut()
            self._progress.say("stopping now")
            return
        self.was_interrupted = True
        self._stop("interrupted")
        self._progress.say("sending nothing more; Ctrl-C again cuts off what is in flight")


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


def _header(
    planned: Plan, kind: str, command: Sequence[str], path: Path, started: datetime
) -> RunHeader:
    config, workload, label = planned.config, planned.workload, planned.config.output.label
    shown = clean_config(config.model_dump(mode="json"), planned.redactor)
    return RunHeader(
        run_id=path.name,
        kind=kind,
        label=None if label is None else planned.redactor.strike(label),
        metadata=struck_pairs(config.output.metadata, planned.redactor),
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
