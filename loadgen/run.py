"""One run, from its configuration to its run directory.

The straight line: trace -> agreement with the targets -> header on disk -> each target's turn
(schedule -> replay -> client -> record -> journal) -> results. Targets take turns on the same
trace, with the same bytes. It knows no flags and prints nothing but progress.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen import __version__
from loadgen.client import openai
from loadgen.client.client import Client, Labels, Prepared
from loadgen.client.http import library_name
from loadgen.client.negotiate import Agreement, negotiate
from loadgen.clock import monotonic
from loadgen.config import RunConfig
from loadgen.errors import TraceError
from loadgen.journal import Journal, begin_run, new_run_path
from loadgen.live import LiveCounters
from loadgen.machine import describe_machine
from loadgen.progress import Progress
from loadgen.prompts import CountTokens, PromptMaker, load_tokenizer
from loadgen.record import Outcome, RequestRecord, RunHeader
from loadgen.replay import Replay, Stop
from loadgen.schedule import Shot, open_loop, warmups
from loadgen.secrets import Redactor, clean_command, clean_url
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.generate import generate
from loadgen.trace.trace import sha256_of


@dataclass(frozen=True, slots=True)
class Finished:
    """Where the results are, and whether the run was stopped before its end."""

    path: Path
    was_stopped: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent: the trace, its name and its file's bytes."""

    trace: Trace
    name: str
    data: bytes


async def run(config: RunConfig, command: Sequence[str], progress: Progress) -> Finished:
    """Do the whole run; raises LoadgenError where it cannot begin.

    Ctrl-C (or SIGTERM) once sends nothing more and waits for the answers; twice cuts them off.
    """
    workload = _workload(config)
    count_tokens = None
    if config.request.tokenizer is not None:
        count_tokens = load_tokenizer(config.request.tokenizer)
    live = LiveCounters()
    stop = Stop()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(target, config.request, live))
            for target in config.targets
        ]
        progress.say("asking the target what it takes")
        agreement = await negotiate(clients, config.request, config.load)
        _check_context(workload, agreement)
        started = datetime.now(UTC)
        kind = "compare" if len(clients) > 1 else "run"
        path = new_run_path(config.output.result_dir, kind, started)
        header = _header(config, command, workload, agreement, path, started, clients[0].redactor)
        begin_run(path, header, workload.data)
        stack.enter_context(_signals_stop(stop, progress))
        epoch_s = monotonic()
        journal = Journal(path)
        stack.callback(journal.close)
        stack.enter_context(_garbage_left_alone())
        prompts = PromptMaker(config.load.prompt_seed, count_tokens)
        for client, options in zip(clients, agreement.options, strict=True):
            if stop.is_draining:
                break
            turn = Turn(
                client=client,
                options=options,
                labels=Labels(client.target.name, epoch_s),
                length_is_held=agreement.length_is_held,
                count_tokens=None
                if openai.Feature.STREAM_USAGE in options.features
                else count_tokens,
                prompts=prompts,
                workload=workload,
                journal=journal,
            )
            await turn.take(config, live, stop, progress)
    return Finished(path, stop.is_draining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One target's turn: its warm-up, then the whole trace."""

    client: Client
    options: openai.BodyOptions
    labels: Labels
    length_is_held: bool
    count_tokens: CountTokens | None
    prompts: PromptMaker
    workload: Workload
    journal: Journal

    async def take(
        self, config: RunConfig, live: LiveCounters, stop: Stop, progress: Progress
    ) -> None:
        """Warm up one by one, then replay the trace."""
        name = self.labels.target
        progress.say(f"{name}: warming up")
        warm = warmups(self.workload.trace, config.load.num_warmups)
        await self._replay(warm, stop, lambda: None, max_concurrency=1)
        live.restart()
        shots = open_loop(self.workload.trace)

        def count_due() -> None:
            live.due += 1

        with progress.watch(name, live, len(shots)):
            await self._replay(shots, stop, count_due, config.load.max_concurrency)

    async def _replay(
        self, shots: Sequence[Shot], stop: Stop, on_due: Any, max_concurrency: int | None
    ) -> None:
        replay = Replay(
            self._prepare, self._fire, self._drop, stop=stop, max_concurrency=max_concurrency
        )
        await replay.run(shots, on_due)

    def _prepare(self, shot: Shot) -> Prepared:
        payload = self.workload.trace.payload
        own = payload[shot.seq] if payload is not None else {}
        prompt = own.get("messages") or own.get("prompt")
        if prompt is None:
            prompt = self.prompts.text(shot.seq, shot.prompt_tokens)
        body = openai.build_body(self.options, prompt, shot.output_tokens)
        return self.client.prepare(self.options.endpoint, body)

    async def _fire(self, shot: Shot, request: Prepared, due_s: float) -> None:
        record = await self.client.send(
            shot,
            request,
            self.labels,
            due_s,
            length_is_held=self.length_is_held,
            count_tokens=self.count_tokens,
        )
        self.journal.append(record)

    def _drop(self, shot: Shot, due_s: float) -> None:
        now_s = monotonic() - self.labels.epoch_s
        self.journal.append(
            RequestRecord(
                seq=shot.seq,
                target=self.labels.target,
                phase=shot.phase,
                due_s=round(due_s - self.labels.epoch_s, 6),
                start_s=now_s,
                end_s=now_s,
                prompt_tokens_asked=shot.prompt_tokens,
                output_tokens_asked=shot.output_tokens,
                outcome=Outcome.DROPPED,
                error="due, but the run was stopped before it was sent",
            )
        )


def _workload(config: RunConfig) -> Workload:
    if config.trace is not None:
        trace, data = read_trace(config.trace)
        return Workload(trace, config.trace.name, data)
    trace = generate(config.generate)
    return Workload(trace, "generated", trace_bytes(trace))


def _check_context(workload: Workload, agreement: Agreement) -> None:
    """Requests that cannot fit the model are an error now, not failures later."""
    totals = workload.trace.input_length + workload.trace.output_length
    for target in agreement.targets:
        if target.max_model_len is None:
            continue
        too_long = int((totals > target.max_model_len).sum())
        if too_long:
            raise TraceError(
                f"{workload.name}: {too_long} request(s) need up to {int(totals.max())} tokens, "
                f"but {target.name} serves at most {target.max_model_len}; shorten the trace "
                "(--input-max, --output-max)"
            )


def _header(
    config: RunConfig,
    command: Sequence[str],
    workload: Workload,
    agreement: Agreement,
    path: Path,
    started: datetime,
    redactor: Redactor,
) -> RunHeader:
    shown = config.model_dump(mode="json")
    for target in shown["targets"]:
        target["base_url"] = clean_url(target["base_url"])
    shown["request"]["header"] = dict.fromkeys(shown["request"]["header"], "***")
    if shown["request"]["extra_body"]:
        shown["request"]["extra_body"] = dict.fromkeys(shown["request"]["extra_body"], "***")
    return RunHeader(
        run_id=path.name,
        kind="compare" if len(agreement.targets) > 1 else "run",
        label=config.output.label,
        metadata=config.output.metadata,
        started_at=started.isoformat(timespec="milliseconds"),
        command=clean_command(command, redactor),
        config=shown,
        seed=config.load.prompt_seed,
        trace_name=workload.name,
        trace_sha256=sha256_of(workload.data),
        requests=len(workload.trace),
        targets=agreement.targets,
        transport=config.request.transport,
        versions={
            "loadgen": __version__,
            "python": platform.python_version(),
            "http": library_name(),
        },
        machine=describe_machine(),
    )


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


@contextmanager
def _signals_stop(stop: Stop, progress: Progress) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run instead of the process, for as long as the context lasts."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_draining:
            progress.say("stopping now")
            stop.cut()
        else:
            progress.say("sending nothing more, waiting for answers; Ctrl-C again stops now")
            stop.drain()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
