"""One worker's part in one target's turn: shots become requests, and requests records on disk.

It ties prompts, bodies, client and journal together for `replay.py`, which knows none of them. It
does not know when anything is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadgen.client.client import Client, Labels, Prepared
from loadgen.client.negotiate import HOLDS_LENGTH
from loadgen.client.openai import BodyOptions, Feature, build_body
from loadgen.clock import monotonic
from loadgen.config import Pace
from loadgen.journal import Journal
from loadgen.live import LiveCounters
from loadgen.prompts import TextTokenizer
from loadgen.record import Outcome, RequestRecord
from loadgen.replay import Limits, Replay, Stop
from loadgen.schedule import Shot, warmups
from loadgen.script import Script
from loadgen.session_replay import SessionReplay
from loadgen.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Everything that a target's turn needs; one is made for each turn."""

    client: Client
    options: BodyOptions
    labels: Labels
    length_is_held: bool
    trace: Trace
    script: Script
    has_sessions: bool
    count_tokens: TextTokenizer | None
    """For servers that do not tell their token counts."""
    journal: Journal
    live: LiveCounters
    stop: Stop

    def replay(self, limits: Limits) -> Replay[Prepared]:
        """A replay of this turn; it has no shots yet."""
        kind = SessionReplay if self.has_sessions and limits.pace is Pace.OPEN else Replay
        return kind(self._prepare, self._fire, self._drop, stop=self.stop, limits=limits)

    async def warm_up(self, count: int) -> None:
        """Send the first `count` rows one after another; they are recorded as warm-up."""
        replay = self.replay(Limits(Pace.CLOSED, 1))
        replay.build_ahead(warmups(self.trace, count))
        await replay.run(monotonic(), lambda: None)

    def _prepare(self, shot: Shot) -> Prepared:
        options = self.options
        if self.script.may_end(shot.seq):
            options = replace(options, features=options.features - HOLDS_LENGTH)
        body = build_body(
            options,
            self.script.prompt(shot.seq),
            shot.output_tokens,
            self.script.sampling(shot.seq),
        )
        return self.client.prepare(options.endpoint, body)

    async def _fire(self, shot: Shot, request: Prepared, due_s: float) -> float:
        count = self.count_tokens
        tells_usage = Feature.STREAM_USAGE in self.options.features
        record = await self.client.send(
            shot,
            request,
            self.labels,
            due_s,
            length_is_held=self.length_is_held and not self.script.may_end(shot.seq),
            count_tokens=None if tells_usage or count is None else count.of_answer,
        )
        self.journal.append(record)
        return record.end_s + self.labels.epoch_s

    def _drop(self, shot: Shot, due_s: float) -> None:
        labels = self.labels
        now_s = round(monotonic() - labels.epoch_s, 6)
        record = RequestRecord(
            seq=shot.seq,
            target=labels.target,
            phase=shot.phase,
            session=shot.session,
            parent=shot.parent,
            gang=shot.gang,
            block=labels.block,
            repeat=labels.repeat,
            worker=labels.worker,
            due_s=round(due_s - labels.epoch_s, 6),
            start_s=now_s,
            end_s=now_s,
            prompt_tokens_asked=shot.prompt_tokens,
            output_tokens_asked=shot.output_tokens,
            output_tokens_wanted=shot.wanted_tokens,
            outcome=Outcome.DROPPED,
            error="due, but the run was stopped before it was sent",
        )
        self.live.ended(record)
        self.journal.append(record)
