"""One worker: a process with an event loop of its own that replays its shard of the schedule.

It appends the records of its shard to its own file, and tells the parent how far it is. It draws
nothing and decides nothing: the parent says when a turn begins, so that all workers count from the
same moment, and when to stop. It knows nothing of other workers but how many there are.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import uvloop

from loadgen.client.client import Client, Labels, Prepared
from loadgen.client.openai import CHAT, BodyOptions
from loadgen.clock import monotonic
from loadgen.config import LoadConfig, Pace, RunConfig
from loadgen.errors import LoadgenError
from loadgen.journal import Journal
from loadgen.link import Link
from loadgen.live import LiveCounters, Vitals
from loadgen.prompts import PromptMaker, Recipe, load_tokenizer
from loadgen.record import WorkerHealth
from loadgen.replay import Limits, Replay, Stop
from loadgen.schedule import (
    Shard,
    Shot,
    block_rows,
    closed_loop,
    gangs,
    open_loop,
    open_sessions,
)
from loadgen.script import Script
from loadgen.slo import Slo
from loadgen.trace import Trace
from loadgen.trace.sessions import sessions_of
from loadgen.turn import Turn

IGNORED: Final = (signal.SIGINT, signal.SIGTERM)
REPORT_EVERY_S: Final = 0.25
LAG_SEEN_S: Final = 5.0
"""How long the worst lateness of the event loop is seen in the live view."""
_LAG_PROBE_S: Final = 0.02
_RECENT_PROBES: Final = round(LAG_SEEN_S / _LAG_PROBE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker is given when it starts."""

    config: RunConfig
    options: tuple[BodyOptions, ...]
    """One for each, in the order of `config.legs`."""
    length_is_held: bool
    recipe: Recipe
    trace: Trace
    run_path: Path
    worker: int
    """Its number among all workers of the run: the name of its file."""
    shard: Shard
    epoch_s: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Order: get ready for this target's turn, and answer Ready."""

    target: int
    """Its place in `RunConfig.legs`."""
    block: int = 0
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Go:
    """Order: due times count from `origin_s`, on the clock that all processes share."""

    origin_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Order: send nothing more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Order: end what is in flight."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer: warmed up, and the first requests are built."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Answer, four times a second: the turn's counters so far, and the worker's own state.

    Totals, and not what was added: while the parent does not read, they are left out, and the next
    one, or Done, makes up for them.
    """

    live: LiveCounters
    vitals: Vitals


@dataclass(frozen=True, slots=True)
class Done:
    """Answer: this worker's shard has ended, and its records are on disk."""

    live: LiveCounters
    health: WorkerHealth


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer: the worker cannot go on; `text` is one line for the user."""

    text: str


Order = Begin | Go | Drain | Cut
Answered = Ready | Progressed | Done | Failed


class Worker:
    """Takes orders from the parent over `link`."""

    def __init__(self, given: Assignment, link: Link) -> None:
        self._given = given
        self._link = link
        self._live = LiveCounters(Slo.of(given.config.output.goodput))
        self._stop = Stop()
        self._orders: asyncio.Queue[Begin | Go | None] = asyncio.Queue()
        self._journal = Journal(given.run_path, given.worker)
        recipe = given.recipe
        self._count_tokens = None if recipe.tokenizer is None else load_tokenizer(recipe.tokenizer)
        maker = PromptMaker(given.config.load.prompt_seed, self._count_tokens, recipe)
        self._sessions = sessions_of(given.trace)
        is_chat = given.options[0].endpoint == CHAT
        self._script = Script(given.trace, maker, self._sessions, is_chat=is_chat)

    async def serve(self) -> None:
        """Take turns until the parent hangs up; raises LoadgenError where it cannot go on."""
        taking = asyncio.create_task(self._take_orders())
        try:
            while isinstance(order := await self._orders.get(), Begin):
                await self._take_turn(order)
        finally:
            taking.cancel()
        self._journal.close()

    async def _take_orders(self) -> None:
        try:
            while True:
                order: Order = await self._link.receive()
                if isinstance(order, Drain):
                    self._stop.drain()
                elif isinstance(order, Cut):
                    self._stop.cut()
                else:
                    self._orders.put_nowait(order)
        except EOFError:  # the parent has ended, or was killed
            self._stop.cut()
            self._orders.put_nowait(None)

    async def _take_turn(self, order: Begin) -> None:
        given = self._given
        leg = given.config.legs[order.target]
        target = leg.target
        shard = given.shard
        async with Client(target, given.config.request, self._live) as client:
            turn = Turn(
                client=client,
                options=given.options[order.target],
                labels=Labels(target.name, given.epoch_s, order.block, order.repeat, given.worker),
                length_is_held=given.length_is_held,
                trace=given.trace,
                script=self._script,
                has_sessions=self._sessions is not None,
                count_tokens=self._count_tokens,
                journal=self._journal,
                live=self._live,
                stop=self._stop,
            )
            if shard.worker == 0 and order.block == 0:
                await turn.warm_up(leg.load.num_warmups)
            self._live.restart()
            replay = turn.replay(self._limits(leg.load))
            replay.build_ahead(self._shots(leg.load, order.block))
            # Before Ready: collecting takes some 50 ms, which the first request would wait.
            with _garbage_left_alone():
                self._link.send(Ready())
                go = await self._orders.get()
                if not isinstance(go, Go):
                    self._orders.put_nowait(go)  # `serve` waits for it too
                    return
                health = await self._measure(replay, go.origin_s, client, turn.labels)
        self._live.flush()
        self._link.send(Done(self._live, health))

    async def _measure(
        self, replay: Replay[Prepared], origin_s: float, client: Client, labels: Labels
    ) -> WorkerHealth:
        lags_s: list[float] = []
        beside = [
            asyncio.create_task(_probe_loop_lag(lags_s)),
            asyncio.create_task(self._report(client, lags_s)),
        ]
        cpu_s, started_s = time.process_time(), monotonic()
        try:
            await replay.run(origin_s, self._live.count_due)
        finally:
            for task in beside:
                task.cancel()
        p99_s, max_s = np.percentile(lags_s or [0.0], (99, 100))
        return WorkerHealth(
            worker=labels.worker,
            target=labels.target,
            block=labels.block,
            repeat=labels.repeat,
            cpu_s=round(time.process_time() - cpu_s, 6),
            wall_s=round(monotonic() - started_s, 6),
            loop_lag_p99_s=round(float(p99_s), 6),
            loop_lag_max_s=round(float(max_s), 6),
            chunks=self._live.chunks,
        )

    async def _report(self, client: Client, lags_s: list[float]) -> None:
        cpu_s, at_s = time.process_time(), monotonic()
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            if self._link.is_full:
                continue
            cpu_before_s, cpu_s = cpu_s, time.process_time()
            before_s, at_s = at_s, monotonic()
            vitals = Vitals(
                worker=self._given.worker,
                open_connections=client.open_connections,
                loop_lag_s=max(lags_s[-_RECENT_PROBES:], default=0.0),
                cpu_ratio=(cpu_s - cpu_before_s) / (at_s - before_s),
            )
            self._live.flush()
            self._link.send(Progressed(self._live, vitals))

    def _limits(self, load: LoadConfig) -> Limits:
        places = load.max_concurrency
        if places is not None:
            places = self._given.shard.share_of(places)
        return Limits(load.pace, places, load.ramp_up if load.pace is Pace.CLOSED else 0.0)

    def _shots(self, load: LoadConfig, block: int) -> Iterator[Shot]:
        trace, shard = self._given.trace, self._given.shard
        blocks = self._given.config.compare.blocks
        if (sessions := self._sessions) is not None:
            part = block_rows(len(sessions.firsts), block, blocks)
            return open_sessions(trace, sessions, shard, load.ramp_up, part)
        rows = block_rows(len(trace), block, blocks)
        if load.gang is not None:
            return gangs(trace, load.gang, pad=load.gang_pad, rows=rows)
        if load.pace is Pace.CLOSED:
            return closed_loop(trace, shard, rows)
        return open_loop(trace, shard, load.ramp_up, rows)


async def _probe_loop_lag(lags_s: list[float]) -> None:
    """How late the loop comes to what is due: what any timer or read of this worker may wait."""
    while True:
        due_s = monotonic() + _LAG_PROBE_S
        await asyncio.sleep(_LAG_PROBE_S)
        lags_s.append(max(0.0, monotonic() - due_s))


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """No garbage collection within the context: its pauses would be measured as latency.

    What the client makes is freed by reference counts; cycles stay until the end.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def _work(link: Link) -> None:
    """Take the assignment, then turns, until the parent hangs up."""
    try:
        await Worker(await link.receive(), link).serve()
    except LoadgenError as error:
        link.send(Failed(str(error)))
        await link.sent()


def main(end: socket.socket) -> None:
    """The process's own main function; `end` is its end of the link."""
    # A terminal sends Ctrl-C to all processes; the parent alone decides what it means.
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # see Workers: it started us so
    with suppress(EOFError):  # the parent ended before it gave an assignment
        uvloop.run(_work(Link(end)))


if __name__ == "__main__":
    # Pickle needs the classes of this module to be one and the same: use its importable self.
    from loadgen import worker

    worker.main(socket.socket(fileno=int(sys.argv[1])))
