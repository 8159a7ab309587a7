"""What a server's iterations took, read from the records of a run.

A batching server gives all sequences of an iteration their tokens at one moment, so chunks that
come together mark where an iteration ended; which requests they belong to says what it computed.
Under static batching whole batches are read, ended rows and padding included. An iteration begins
when the one before ended, or, on an idle server, some time after its request was sent; what began
at no time that is known is left out. It fits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadgen.record import RequestRecord
from loadgen.sim.config import PolicyConfig, PolicyName
from loadgen.sim.static import Release

FEATURES: Final = ("iterations", "prefill_tokens", "decode_rows", "kv_tokens", "idle_starts")
"""What each cost is multiplied with: fixed, prefill, decode, KV, and the way to an idle server."""

_SHORT: Final = 5
"""Percentile of the gaps between a request's chunks: a short iteration, for this server."""
_TOGETHER: Final = 0.4
"""Of a short iteration: chunks nearer than this are of the same one, unless of the same request."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Iterations in a row, seen as one: how long they took, and what they computed in all."""

    seconds: float
    work: tuple[int, int, int, int, int]
    """As FEATURES."""

    @property
    def starts_idle(self) -> bool:
        """Whether it is counted from when its request was sent, to a server that did nothing."""
        return bool(self.work[4])


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
    moments = moments_of(whole, _TOGETHER * _short_iteration_s(whole))
    return list(_static(moments, config) if is_static else _continuous(moments, config))


def _short_iteration_s(records: list[RequestRecord]) -> float:
    """About what a short iteration takes."""
    gaps_s = [gap for record in records for gap in record.icl_s()]
    return float(np.percentile(gaps_s, _SHORT)) if gaps_s else 0.0


def moments_of(records: list[RequestRecord], together_s: float) -> list[Moment]:
    """Ends of iterations, in order of time: chunks nearer than `together_s`, one of a request."""
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
    seen: set[int] = set()
    for at_s, before, record in events:
        if at_s - last_s > together_s or id(record) in seen:
            moments.append(Moment(at_s, [], []))
            seen = set()
        last_s = at_s
        seen.add(id(record))
        moments[-1].at_s = at_s
        if before:
            moments[-1].later.append((record, before))
        else:
            moments[-1].first.append(record)
    return moments


def _prompt(record: RequestRecord) -> int:
    return record.prompt_tokens_served or record.prompt_tokens_asked


def _continuous(moments: list[Moment], config: PolicyConfig) -> Iterator[Observed]:
    """Iterations that began when the one before ended, or with one request on an idle server."""
    going: set[int] = set()
    before: Moment | None = None
    for now in moments:
        rows, prefill = len(now.later), sum(map(_prompt, now.first))
        kv_tokens = sum(_prompt(record) + made for record, made in now.later)
        is_one = rows + len(now.first) <= config.batch_size  # or else two iterations, seen as one
        if is_one and prefill + rows <= config.token_budget:  # or else chunks were computed before
            if before is not None and going:
                yield Observed(now.at_s - before.at_s, (1, prefill, rows, kv_tokens, 0))
            elif len(now.first) == 1 and not rows:
                sent_s = now.first[0].start_s
                if before is None or sent_s > before.at_s:
                    yield Observed(now.at_s - sent_s, (1, prefill, 0, 0, 1))
        for record in (*now.first, *(record for record, _ in now.later)):
            if record.last_token_s is not None and record.last_token_s > now.at_s:
                going.add(id(record))
            else:
                going.discard(id(record))
        before = now


def _static(moments: list[Moment], config: PolicyConfig) -> Iterator[Observed]:
    """A batch's prefill, where it began when the batch before ended, and its decoding."""
    rows = context = 0
    last_s = -np.inf
    for moment in moments:
        if moment.first:
            batch = moment.first
            rows, context = len(batch), max(map(_prompt, batch))
            ready_s = _ready_s(batch, config)
            is_idle = ready_s > last_s
            work = (1, rows * context, 0, 0, int(is_idle))
            yield Observed(moment.at_s - max(ready_s, last_s), work)
        elif rows:
            context += 1
            yield Observed(moment.at_s - last_s, (1, 0, rows, rows * context, 0))
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
        ready_s = _ready_s(batch, config)
        kv_tokens = rows * (steps * context + steps * (steps + 1) // 2)
        work = (steps + 1, rows * context, rows * steps, kv_tokens, int(ready_s > last_s))
        yield Observed(moment.at_s - max(ready_s, last_s), work)
        last_s = moment.at_s


def _ready_s(batch: list[RequestRecord], config: PolicyConfig) -> float:
    """When an idle server would have begun the batch."""
    came_s = sorted(record.start_s for record in batch)
    if len(batch) >= config.batch_size:
        return min(came_s[0] + config.max_wait / 1000, came_s[-1])
    return came_s[0] + config.max_wait / 1000
