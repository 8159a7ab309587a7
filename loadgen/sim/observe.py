"""What a server's iterations took, read from the records of a run.

A batching server gives all sequences of an iteration their tokens at one moment, so chunks that
come together mark where an iteration ended; which requests they belong to says what it computed.
Under static batching whole batches are read, ended rows and padding included. Iterations whose
beginning is not seen (an idle server's first) are left out. It fits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from loadgen.record import RequestRecord
from loadgen.sim.config import PolicyConfig, PolicyName
from loadgen.sim.static import Release

FEATURES: Final = ("iterations", "prefill_tokens", "decode_rows", "kv_tokens")
"""What each cost parameter is multiplied with, in the order of fixed, prefill, decode, KV."""

_TOGETHER: Final = 0.25
"""Of an iteration: chunks nearer than this are of the same one."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Iterations in a row, seen as one: how long they took, and what they computed in all."""

    seconds: float
    work: tuple[int, int, int, int]
    """As FEATURES."""


@dataclass(slots=True)
class Moment:
    """An iteration's end: who got a token, and who got the first one."""

    at_s: float
    first: list[RequestRecord]
    later: list[tuple[RequestRecord, int]]
    """(request, its tokens before this one)"""


def observe(records: Iterable[RequestRecord], config: PolicyConfig) -> list[Observed]:
    """Iterations of one turn of a target with this policy; records without chunks say nothing."""
    whole = [r for r in records if r.is_ok and r.chunk_s and r.output_tokens_served]
    if not whole:
        return []
    is_static = config.policy[0] is PolicyName.STATIC
    if is_static and config.release is Release.BATCH:
        return list(_batches(whole, config))
    moments = moments_of(whole, _TOGETHER * _iteration_s(whole))
    return list(_static(moments, config) if is_static else _continuous(moments, config))


def _iteration_s(records: list[RequestRecord]) -> float:
    """About what an iteration takes."""
    gaps_s = [gap for record in records for gap in record.icl_s()]
    return float(np.median(gaps_s)) if gaps_s else 0.0


def moments_of(records: list[RequestRecord], together_s: float) -> list[Moment]:
    """Ends of iterations, in order of time; chunks nearer than `together_s` are of one."""
    events: list[tuple[float, int, RequestRecord]] = []
    for record in records:
        before = 0
        counts = record.chunk_tokens or (1,) * len(record.chunk_s)
        for at_s, tokens in zip(record.chunk_s, counts, strict=True):
            events.append((at_s, before, record))
            before += tokens
    events.sort(key=lambda event: event[0])
    moments: list[Moment] = []
    last_s = -np.inf
    for at_s, before, record in events:
        if at_s - last_s > together_s:
            moments.append(Moment(at_s, [], []))
        last_s = at_s
        moments[-1].at_s = at_s
        if before:
            moments[-1].later.append((record, before))
        else:
            moments[-1].first.append(record)
    return moments


def _prompt(record: RequestRecord) -> int:
    return record.prompt_tokens_served or record.prompt_tokens_asked


def _continuous(moments: list[Moment], config: PolicyConfig) -> Iterator[Observed]:
    """Iterations that began when the one before ended: some sequence was under way."""
    going: set[int] = set()
    for before, now in pairwise(moments):
        for record in (*before.first, *(record for record, _ in before.later)):
            if record.last_token_s is not None and record.last_token_s > before.at_s:
                going.add(id(record))
            else:
                going.discard(id(record))
        if not going:
            continue
        prefill = sum(map(_prompt, now.first))
        rows = len(now.later)
        if rows + len(now.first) > config.batch_size:  # two iterations, seen as one
            continue
        if prefill + rows > config.token_budget:  # chunks of it were in earlier iterations
            continue
        kv_tokens = sum(_prompt(record) + made for record, made in now.later)
        yield Observed(now.at_s - before.at_s, (1, prefill, rows, kv_tokens))


def _static(moments: list[Moment], config: PolicyConfig) -> Iterator[Observed]:
    """A batch's prefill, where it began when the batch before ended, and its decoding."""
    rows = context = 0
    last_s = -np.inf
    for moment in moments:
        if moment.first:
            batch = moment.first
            rows, context = len(batch), max(map(_prompt, batch))
            if _ready_s(batch, config) < last_s:
                yield Observed(moment.at_s - last_s, (1, rows * context, 0, 0))
        elif rows:
            context += 1
            yield Observed(moment.at_s - last_s, (1, 0, rows, rows * context))
        last_s = moment.at_s


def _batches(records: list[RequestRecord], config: PolicyConfig) -> Iterator[Observed]:
    """Whole batches, where all answers come when their batch ends."""
    last_s = -np.inf
    token_s = float(np.median([r.e2e_s / r.output_tokens_asked for r in records]))
    whole = [replace(r, chunk_s=(r.end_s,), chunk_tokens=None) for r in records]
    for moment in moments_of(whole, _TOGETHER * token_s):
        batch = moment.first
        rows, context = len(batch), max(map(_prompt, batch))
        steps = max(record.output_tokens_asked for record in batch) - 1
        if _ready_s(batch, config) < last_s:
            kv_tokens = rows * (steps * context + steps * (steps + 1) // 2)
            work = (steps + 1, rows * context, rows * steps, kv_tokens)
            yield Observed(moment.at_s - last_s, work)
        last_s = moment.at_s


def _ready_s(batch: list[RequestRecord], config: PolicyConfig) -> float:
    """When an idle server would have begun the batch."""
    came_s = sorted(record.start_s for record in batch)
    if len(batch) >= config.batch_size:
        return min(came_s[0] + config.max_wait / 1000, came_s[-1])
    return came_s[0] + config.max_wait / 1000
