"""Everything of a run that is settled before it begins, and that can fail before it does.

The trace is read or drawn, checked against how it is to be sent, and the targets are asked what
they take and how they count prompts. It writes nothing; `run.py` does what is planned here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.client.client import Client, redactor_of
from loadgen.client.negotiate import Agreement, negotiate
from loadgen.client.sizing import MadeWith, Sizing, size_prompts
from loadgen.config import LoadConfig, Pace, RequestConfig, RunConfig
from loadgen.errors import ConfigError, TraceError
from loadgen.limits import check_limits, most_in_flight, raise_file_limit
from loadgen.live import LiveCounters
from loadgen.prompts import Recipe, find_tokenizer, load_tokenizer
from loadgen.schedule import block_rows, padded
from loadgen.script import sent_sampling
from loadgen.secrets import Redactor, clean_url
from loadgen.trace import Trace, read_trace, trace_bytes
from loadgen.trace.generate import generate
from loadgen.trace.sessions import Sessions, sessions_of
from loadgen.trace.trace import MAY_END, sha256_of

EVENTS_PER_WORKER: Final = 25_000
"""Events a second that one worker is given by default: half of what one was measured to hold."""


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
    _tokenizer(config.request, *(config.request.to(t).model for t in config.targets))
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
