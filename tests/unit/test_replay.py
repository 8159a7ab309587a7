"""Replay on a real event loop, with a toy in place of a request; times are a few milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from loadgen.alarm import Alarm
from loadgen.clock import monotonic
from loadgen.config import Pace
from loadgen.replay import AHEAD, Limits, Replay, Stop
from loadgen.schedule import Shot

Run = Callable[[Any], None]
LATE_S = 0.25
"""How late a loaded machine may be before a test calls it wrong."""


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run_loop(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def shots_at(*due_s: float) -> list[Shot]:
    return [Shot(seq, due, 1, 1) for seq, due in enumerate(due_s)]


@dataclass
class Seen:
    """What a replay did."""

    origin_s: float = 0.0
    prepared: list[int] = field(default_factory=list)
    fired: list[int] = field(default_factory=list)
    due_s: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    dropped: list[tuple[int, float]] = field(default_factory=list)
    announced: int = 0
    in_flight: int = 0
    widest: int = 0
    most_ahead: int = 0


async def replayed(
    shots: Iterable[Shot],
    answer: Callable[[Shot], Awaitable[None]] | None = None,
    *,
    limits: Limits | None = None,
    stop: Stop | None = None,
    late_s: float = 0.0,
) -> Seen:
    """Replay `shots`; each answer takes what `answer` takes. The origin lies `late_s` back."""
    seen = Seen()

    def prepare(shot: Shot) -> str:
        seen.prepared.append(shot.seq)
        seen.most_ahead = max(seen.most_ahead, len(seen.prepared) - len(seen.fired))
        return f"request {shot.seq}"

    async def fire(shot: Shot, request: str, due_s: float) -> float:
        assert request == f"request {shot.seq}"
        seen.fired.append(shot.seq)
        seen.due_s.append(due_s - seen.origin_s)
        seen.at_s.append(monotonic() - seen.origin_s)
        seen.in_flight += 1
        seen.widest = max(seen.widest, seen.in_flight)
        try:
            if answer is not None:
                await answer(shot)
        except asyncio.CancelledError:
            seen.cancelled.append(shot.seq)
        else:
            seen.ended.append(shot.seq)
        finally:
            seen.in_flight -= 1
        return monotonic()

    def announce() -> None:
        seen.announced += 1

    replay = Replay(
        prepare,
        fire,
        lambda shot, due_s: seen.dropped.append((shot.seq, due_s - seen.origin_s)),
        stop=stop or Stop(),
        limits=limits or Limits(),
    )
    replay.build_ahead(shots)
    seen.origin_s = monotonic() - late_s
    await replay.run(seen.origin_s, announce)
    return seen


def test_all_are_fired_once_in_order_and_on_time(run_loop: Run) -> None:
    """Every shot is fired once, not before its due time and soon after it."""
    due = [n * 0.004 for n in range(20)]

    async def main() -> None:
        seen = await replayed(shots_at(*due))
        assert seen.fired == seen.prepared == list(range(20))
        assert seen.due_s == pytest.approx(due)
        assert seen.announced == 20
        assert seen.dropped == []
        for at_s, due_s in zip(seen.at_s, due, strict=True):
            assert due_s <= at_s < due_s + LATE_S

    run_loop(main())


def test_the_last_answer_is_waited_for(run_loop: Run) -> None:
    """The replay ends when the last answer has, not when the last shot is sent."""

    async def slowly(_: Shot) -> None:
        await asyncio.sleep(0.02)

    async def main() -> None:
        assert (await replayed(shots_at(0.0, 0.001), slowly)).ended == [0, 1]

    run_loop(main())


def test_a_late_start_is_never_re_anchored(run_loop: Run) -> None:
    """50 ms late, overdue shots go at once, under their own due times; later ones keep theirs."""

    async def main() -> None:
        seen = await replayed(shots_at(0.0, 0.02, 0.04, 0.08), late_s=0.05)
        assert seen.fired == [0, 1, 2, 3]
        assert seen.due_s == pytest.approx([0.0, 0.02, 0.04, 0.08])
        assert min(seen.at_s) >= 0.05
        assert max(seen.at_s[:3]) < 0.05 + LATE_S
        assert 0.08 <= seen.at_s[3] < 0.08 + LATE_S

    run_loop(main())


def test_a_slow_answer_holds_nothing_up(run_loop: Run) -> None:
    """An open loop sends on time, whatever became of the shots before."""

    async def main() -> None:
        release = asyncio.Event()

        async def answer(shot: Shot) -> None:
            if shot.seq < 3:
                await release.wait()
            else:
                release.set()

        seen = await replayed(shots_at(0.0, 0.002, 0.004, 0.006), answer)
        assert seen.fired == [0, 1, 2, 3]
        assert seen.widest == 4
        assert seen.ended[0] == 3

    run_loop(main())


@pytest.mark.parametrize("places", [1, 3])
def test_a_cap_is_kept_and_used(places: int, run_loop: Run) -> None:
    """Under a cap no more are in flight, and as many are; due times stay the trace's."""

    async def main() -> None:
        async def answer(_: Shot) -> None:
            await asyncio.sleep(0.001)

        seen = await replayed(shots_at(*[0.0] * 12), answer, limits=Limits(places=places))
        assert seen.fired == list(range(12))
        assert seen.widest == places
        assert seen.due_s == [pytest.approx(0.0, abs=1e-6)] * 12

    run_loop(main())


def test_a_closed_loop_is_due_when_a_place_is_free(run_loop: Run) -> None:
    """The width is kept, and a shot's due time is the moment of its place: its lag is our own."""

    async def main() -> None:
        async def answer(_: Shot) -> None:
            await asyncio.sleep(0.003)

        limits = Limits(Pace.CLOSED, 2)
        seen = await replayed(shots_at(*[0.0] * 8), answer, limits=limits)
        assert seen.fired == list(range(8))
        assert seen.widest == 2
        early_s = 0.001  # uvloop's timers count whole milliseconds
        assert seen.due_s[2] >= 0.003 - early_s
        assert seen.due_s[7] >= 3 * (0.003 - early_s)
        for due_s, at_s in zip(seen.due_s, seen.at_s, strict=True):
            assert due_s <= at_s < due_s + LATE_S

    run_loop(main())


def test_a_closed_loop_ramps_up(run_loop: Run) -> None:
    """With a ramp, the n-th place opens n / width of the ramp after the start."""

    async def main() -> None:
        release = asyncio.Event()

        async def answer(shot: Shot) -> None:
            if shot.seq == 3:
                release.set()
            await release.wait()

        limits = Limits(Pace.CLOSED, 4, 0.04)
        seen = await replayed(shots_at(*[0.0] * 4), answer, limits=limits)
        for place, at_s in enumerate(seen.at_s):
            assert 0.01 * place <= at_s < 0.01 * place + LATE_S

    run_loop(main())


def test_a_gang_waits_for_its_longest_member(run_loop: Run) -> None:
    """No member of a gang is sent before the whole gang before it has ended; all go at once."""
    made = [Shot(seq, 0.0, 1, 1, gang=seq // 3) for seq in range(8)]

    async def main() -> None:
        running: set[int] = set()

        async def answer(shot: Shot) -> None:
            assert running <= {shot.gang}
            running.add(shot.gang or 0)
            await asyncio.sleep(0.005 if shot.seq % 3 == 1 else 0.001)
            if not [s for s in seen_in_flight() if s // 3 == shot.gang and s != shot.seq]:
                running.discard(shot.gang or 0)
            done.add(shot.seq)

        done: set[int] = set()
        started: list[int] = []

        def seen_in_flight() -> list[int]:
            return [s for s in started if s not in done]

        async def watched(shot: Shot) -> None:
            for other in seen_in_flight():
                assert other // 3 == shot.gang
            started.append(shot.seq)
            await answer(shot)

        seen = await replayed(made, watched, limits=Limits(Pace.GANG))
        assert seen.fired == list(range(8))
        assert seen.widest == 3
        assert len(set(seen.due_s)) == 3, "all of a gang are due at one moment"

    run_loop(main())


def test_draining_sends_nothing_more_and_waits(run_loop: Run) -> None:
    """After drain no shot is sent, those in flight end, and what is not due is not dropped."""

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            if shot.seq == 1:
                stop.drain()
            await asyncio.sleep(0.01)

        seen = await replayed(shots_at(0.0, 0.001, 60.0), answer, stop=stop)
        assert seen.fired == seen.ended == [0, 1]
        assert seen.dropped == []
        assert seen.announced == 2

    run_loop(main())


@pytest.mark.parametrize(
    "limits",
    [Limits(places=1), Limits(Pace.CLOSED, 1), Limits(Pace.GANG)],
    ids=["cap", "closed", "gang"],
)
def test_an_answer_that_drains_as_it_ends_is_the_last(limits: Limits, run_loop: Run) -> None:
    """A place that becomes free in the moment of the stop is not used any more."""
    made = [Shot(seq, 0.0, 1, 1, gang=seq) for seq in range(4)]

    async def main() -> None:
        stop = Stop()

        async def answer(_: Shot) -> None:
            await asyncio.sleep(0)
            stop.drain()

        assert (await replayed(made, answer, limits=limits, stop=stop)).fired == [0]

    run_loop(main())


def test_overdue_shots_under_a_cap_are_dropped_with_a_word(run_loop: Run) -> None:
    """Shots that were due and waited under the cap are told to `drop`; later ones are not."""

    async def main() -> None:
        stop = Stop()

        async def answer(_: Shot) -> None:
            await asyncio.sleep(0.005)
            stop.drain()

        shots = shots_at(0.0, 0.0, 0.001, 60.0)
        seen = await replayed(shots, answer, limits=Limits(places=1), stop=stop)
        assert seen.fired == [0]
        assert [seq for seq, _ in seen.dropped] == [1, 2]
        assert [due_s for _, due_s in seen.dropped] == pytest.approx([0.0, 0.001])

    run_loop(main())


def test_every_due_shot_is_fired_or_dropped_beyond_what_was_built(run_loop: Run) -> None:
    """Shots that had not even been built are dropped with a word as well."""
    n = AHEAD + 50

    async def main() -> None:
        stop = Stop()

        async def answer(_: Shot) -> None:
            stop.drain()
            await asyncio.sleep(0)

        seen = await replayed(shots_at(*[0.0] * n), answer, limits=Limits(places=1), stop=stop)
        assert seen.fired + [seq for seq, _ in seen.dropped] == list(range(n))

    run_loop(main())


def test_cutting_ends_what_is_in_flight(run_loop: Run) -> None:
    """After cut nothing is sent and everything in flight is cancelled, at once."""

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            if shot.seq == 2:
                stop.cut()
            await asyncio.sleep(60)

        seen = await asyncio.wait_for(
            replayed(shots_at(0, 0.001, 0.002, 60), answer, stop=stop), 10
        )
        assert seen.fired == [0, 1, 2]
        assert sorted(seen.cancelled) == [0, 1, 2]
        assert seen.ended == []

    run_loop(main())


def test_a_cut_loses_no_shot_that_was_sent(run_loop: Run) -> None:
    """A shot that had been taken up but not begun is cancelled with a record, not lost."""

    async def main() -> None:
        stop = Stop()

        async def answer(shot: Shot) -> None:
            if shot.seq == 0:
                stop.cut()
            await asyncio.sleep(60)

        seen = await asyncio.wait_for(replayed(shots_at(*[0.0] * 5), answer, stop=stop), 10)
        left = [seq for seq, _ in seen.dropped]
        assert sorted(seen.cancelled + left) == list(range(5))

    run_loop(main())


def test_a_stop_before_the_start_sends_nothing(run_loop: Run) -> None:
    """A replay that begins after the stop ends at once."""

    async def main() -> None:
        stop = Stop()
        stop.drain()
        assert (await replayed(shots_at(0.0, 60.0), stop=stop)).fired == []

    run_loop(main())


def test_building_ahead_is_bounded(run_loop: Run) -> None:
    """While nothing is due, no more than AHEAD requests are built, however long the trace."""

    async def main() -> None:
        stop = Stop()
        asyncio.get_running_loop().call_later(0.03, stop.drain)
        shots = (Shot(seq, 60.0, 1, 1) for seq in range(10 * AHEAD))
        seen = await replayed(shots, stop=stop)
        assert len(seen.prepared) == AHEAD
        assert seen.fired == []

    run_loop(main())


def test_a_burst_is_not_built_whole_before_its_first_request_is_sent(run_loop: Run) -> None:
    """Overdue shots are sent as they are built: at any moment at most about AHEAD wait, built."""

    async def main() -> None:
        seen = await replayed(shots_at(*[0.0] * (3 * AHEAD)))
        assert seen.fired == list(range(3 * AHEAD))
        assert seen.most_ahead <= AHEAD + 64

    run_loop(main())


def test_requests_are_built_ahead_of_their_time(run_loop: Run) -> None:
    """While the loop waits for the next due time it builds the requests behind the first ones."""
    n = AHEAD + 20
    due = [0.0] * (n - 1) + [0.05]

    async def main() -> None:
        seen = await replayed(shots_at(*due))
        assert seen.fired == seen.prepared == list(range(n))

    run_loop(main())


def test_a_failure_of_ours_ends_the_replay(run_loop: Run) -> None:
    """Where keeping a record fails, nothing more is sent and the failure is raised."""

    async def main() -> None:
        fired = []

        async def answer(shot: Shot) -> None:
            fired.append(shot.seq)
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await replayed(shots_at(0.0, 60.0), answer)
        assert fired == [0]

    run_loop(main())


def test_no_shots_are_no_wait(run_loop: Run) -> None:
    """An empty shard ends at once."""

    async def main() -> None:
        assert (await replayed([])).fired == []

    run_loop(main())


def test_an_alarm_is_never_early(run_loop: Run) -> None:
    """The alarm comes at its time or a little later, time after time."""

    async def main() -> None:
        alarm = Alarm()
        try:
            for step in (0.0, 0.0004, 0.003, 0.0101):
                at_s = monotonic() + step
                while monotonic() < at_s:
                    await alarm.until(at_s)
                assert monotonic() < at_s + LATE_S
            await alarm.until(monotonic() - 1)
        finally:
            alarm.close()

    run_loop(main())


def test_an_alarm_can_be_rung(run_loop: Run) -> None:
    """Ringing wakes the waiter long before its time."""

    async def main() -> None:
        alarm = Alarm()
        try:
            asyncio.get_running_loop().call_later(0.01, alarm.ring)
            await asyncio.wait_for(alarm.until(monotonic() + 60), 10)
        finally:
            alarm.close()

    run_loop(main())
