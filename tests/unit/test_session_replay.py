"""Replay of sessions on a real event loop, with a toy in place of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from loadgen.clock import monotonic
from loadgen.replay import AHEAD, Limits, Stop
from loadgen.schedule import Shot
from loadgen.session_replay import SessionReplay

Run = Callable[[Any], None]
LATE_S = 0.25


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run_loop(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def session(due_s: float, *turns: tuple[int, float]) -> Shot:
    """A first turn at `due_s`; of each turn its number, and the think time before it."""
    follow_up: Shot | None = None
    for (seq, think_s), before in reversed(list(zip(turns, [None, *turns], strict=False))):
        parent = None if before is None else before[0]
        follow_up = Shot(
            seq, think_s if before else due_s, 1, 1, parent=parent, follow_up=follow_up
        )
    assert follow_up is not None
    return follow_up


@dataclass
class Seen:
    origin_s: float = 0.0
    prepared: list[int] = field(default_factory=list)
    fired: list[int] = field(default_factory=list)
    due_s: dict[int, float] = field(default_factory=dict)
    at_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    announced: int = 0
    in_flight: int = 0
    widest: int = 0


async def replayed(
    shots: Iterable[Shot],
    answer: Callable[[Shot], Awaitable[None]] | None = None,
    *,
    limits: Limits | None = None,
    stop: Stop | None = None,
) -> Seen:
    seen = Seen()

    def prepare(shot: Shot) -> str:
        seen.prepared.append(shot.seq)
        return f"request {shot.seq}"

    async def fire(shot: Shot, request: str, due_s: float) -> float:
        assert request == f"request {shot.seq}"
        seen.fired.append(shot.seq)
        seen.due_s[shot.seq] = due_s - seen.origin_s
        seen.at_s[shot.seq] = monotonic() - seen.origin_s
        seen.in_flight += 1
        seen.widest = max(seen.widest, seen.in_flight)
        try:
            if answer is not None:
                await answer(shot)
        except asyncio.CancelledError:
            seen.cancelled.append(shot.seq)
        finally:
            seen.in_flight -= 1
        end_s = monotonic()
        seen.end_s[shot.seq] = end_s - seen.origin_s
        return end_s

    def announce() -> None:
        seen.announced += 1

    def drop(shot: Shot, due_s: float) -> None:
        seen.dropped.append(shot.seq)

    replay = SessionReplay(prepare, fire, drop, stop=stop or Stop(), limits=limits or Limits())
    replay.build_ahead(shots)
    seen.origin_s = monotonic()
    await replay.run(seen.origin_s, announce)
    return seen


async def for_5_ms(_: Shot) -> None:
    await asyncio.sleep(0.005)


def test_a_turn_is_due_a_think_time_after_its_parents_end(run_loop: Run) -> None:
    """Turn after turn, exactly, and is sent soon after; other rows keep their own times."""
    shots = [session(0.0, (0, 0), (2, 0.02), (3, 0.0)), session(0.03, (1, 0))]

    async def main() -> None:
        seen = await replayed(shots, for_5_ms)
        assert sorted(seen.fired) == [0, 1, 2, 3]
        assert seen.announced == 4
        assert seen.due_s[0] == pytest.approx(0.0)
        assert seen.due_s[1] == pytest.approx(0.03)
        assert seen.due_s[2] == pytest.approx(seen.end_s[0] + 0.02, abs=1e-9)
        assert seen.due_s[3] == pytest.approx(seen.end_s[2], abs=1e-9)
        for seq, at_s in seen.at_s.items():
            assert seen.due_s[seq] <= at_s < seen.due_s[seq] + LATE_S

    run_loop(main())


def test_an_open_loop_goes_on_while_turns_wait(run_loop: Run) -> None:
    """First turns are sent on time though no answer comes; the turn that waits comes last."""

    async def main() -> None:
        release = asyncio.Event()

        async def answer(shot: Shot) -> None:
            if shot.seq == 0:
                await release.wait()
            elif shot.seq == 4:
                release.set()

        shots = [session(0.0, (0, 0), (9, 0.001)), *(session(0.002 * n, (n, 0)) for n in (1, 4))]
        seen = await replayed(shots, answer)
        assert seen.fired == [0, 1, 4, 9]

    run_loop(main())


def test_a_turn_that_is_due_first_goes_first(run_loop: Run) -> None:
    """A later turn of one session does not wait for the first turns of sessions to come."""

    async def main() -> None:
        seen = await replayed([session(0.0, (0, 0), (2, 0.001)), session(0.08, (1, 0))])
        assert seen.fired == [0, 2, 1]
        assert seen.at_s[2] < 0.08

    run_loop(main())


def test_many_sessions(run_loop: Run) -> None:
    """Three hundred sessions of four turns: each turn once, each after its parent's end."""
    shots = [session(0.0001 * n, *((4 * n + k, 0.001 * k) for k in range(4))) for n in range(300)]

    async def main() -> None:
        seen = await replayed(shots, for_5_ms)
        assert sorted(seen.fired) == list(range(1200))
        assert sorted(seen.prepared) == list(range(1200))
        for seq in range(1200):
            if seq % 4:
                assert seen.due_s[seq] >= seen.end_s[seq - 1]

    run_loop(main())


def test_a_cap_counts_all_turns(run_loop: Run) -> None:
    """Under a cap no more are in flight, later turns included, and all are sent in the end."""
    shots = [session(0.0, (2 * n, 0), (2 * n + 1, 0.0)) for n in range(10)]

    async def main() -> None:
        seen = await replayed(shots, for_5_ms, limits=Limits(places=3))
        assert sorted(seen.fired) == list(range(20))
        assert seen.widest == 3

    run_loop(main())


def test_turns_are_built_while_their_parents_are_answered(run_loop: Run) -> None:
    """A turn's request is ready before its parent's answer has ended, where there is time."""

    async def main() -> None:
        ready: list[int] = []

        async def answer(shot: Shot) -> None:
            await asyncio.sleep(0.02)
            ready.append(len(seen_prepared))

        seen_prepared: list[int] = []
        shots = [session(0.0, (0, 0), (1, 0.0))]
        replay: SessionReplay[str]

        async def fire(shot: Shot, _: str, due_s: float) -> float:
            await answer(shot)
            return monotonic()

        def prepare(shot: Shot) -> str:
            seen_prepared.append(shot.seq)
            return ""

        replay = SessionReplay(prepare, fire, lambda *_: None, stop=Stop(), limits=Limits())
        replay.build_ahead(shots)
        await replay.run(monotonic(), lambda: None)
        assert ready == [2, 2]

    run_loop(main())


def test_a_stop_drops_turns_that_were_due(run_loop: Run) -> None:
    """After a drain no turn is sent: those due under a cap are told, those not yet due are not."""

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            if shot.seq == 0:
                return
            await asyncio.sleep(0.03)
            stop.drain()

        shots = [
            session(0.0, (0, 0), (10, 0.001)),
            session(0.0, (1, 0), (11, 0.0)),
            session(0.0, (2, 0), (12, 0.0)),
            session(60.0, (3, 0)),
        ]
        seen = await replayed(shots, answer, limits=Limits(places=1), stop=stop)
        assert seen.fired == [0, 1]
        assert sorted(seen.dropped) == [2, 10]

    run_loop(main())


def test_a_cut_ends_turns_in_flight(run_loop: Run) -> None:
    """After a cut what is in flight is cancelled and what follows it is not sent."""

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            if shot.seq == 2:
                stop.cut()
            if shot.seq:
                await asyncio.sleep(60)

        shots = [session(0.0, (0, 0), (1, 0.0), (9, 0.0)), session(0.01, (2, 0))]
        seen = await asyncio.wait_for(replayed(shots, answer, stop=stop), 10)
        assert seen.fired == [0, 1, 2]
        assert sorted(seen.cancelled) == [1, 2]

    run_loop(main())


def test_a_stop_before_the_start_sends_nothing(run_loop: Run) -> None:
    """A replay that begins after the stop ends at once, and drops nothing that was not due."""

    async def main() -> None:
        stop = Stop()
        stop.drain()
        seen = await replayed([session(1.0, (0, 0), (1, 0.0))], stop=stop)
        assert seen.fired == seen.dropped == []

    run_loop(main())


def test_a_failure_of_ours_ends_the_replay(run_loop: Run) -> None:
    """Where keeping a record fails, no turn follows and the failure is raised."""

    async def main() -> None:
        fired = []

        async def answer(shot: Shot) -> None:
            fired.append(shot.seq)
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await asyncio.wait_for(
                replayed([session(0.0, (0, 0), (1, 0.0)), session(60.0, (2, 0))], answer), 10
            )
        assert fired == [0]

    run_loop(main())


def test_turns_are_built_though_the_queue_is_full(run_loop: Run) -> None:
    """With as many first turns built as may be, later turns are still built ahead."""
    later = (session(60.0, (n, 0)) for n in range(2, AHEAD + 100))

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            await asyncio.sleep(0.01)
            if shot.seq == 1:
                stop.drain()

        seen = await replayed([session(0.0, (0, 0), (1, 0.0)), *later], answer, stop=stop)
        assert seen.fired == [0, 1]
        assert seen.dropped == []
        assert len(seen.prepared) <= AHEAD + 2

    run_loop(main())


def test_no_shots_are_no_wait(run_loop: Run) -> None:
    """An empty shard ends at once."""

    async def main() -> None:
        assert (await replayed([])).fired == []

    run_loop(main())
