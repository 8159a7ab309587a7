"""A lost worker in the verdict: a reason of its own, whether or not records are missing."""

from __future__ import annotations

import asyncio

import pytest
from made_records import made_header, made_record

from loadgen.record import RequestRecord, WorkerHealth
from loadgen.stats import summarise
from loadgen.verdict import LOST, Grade, Verdict, judge
from loadgen.workers import wait_for_all

REASON = f"worker 1 {LOST}; its finished records are kept"
N = 200
PERCENTILES = (50.0, 99.0)


def sound(n: int = N) -> list[RequestRecord]:
    return [
        made_record(seq, due=float(seq), chunks=tuple(seq + 1 + k * 0.1 for k in range(4)))
        for seq in range(n)
    ]


def fared(worker: int, block: int = 0, cpu_s: float = 1.0) -> WorkerHealth:
    return WorkerHealth(
        worker=worker, target="a", block=block, repeat=0, cpu_s=cpu_s, wall_s=10.0,
        loop_lag_p99_s=0.0, loop_lag_max_s=0.0, chunks=1,
    )  # fmt: skip


def judged(
    *health: WorkerHealth, stopped: str | None, records: int = N, blocks: int = 1
) -> Verdict:
    config = {
        "load": {},
        "compare": {"blocks": blocks},
        "output": {"metric_percentiles": list(PERCENTILES)},
    }
    header = made_header(requests=N, workers=2, config=config)
    summary = summarise(sound(records), PERCENTILES)
    return judge(header, {"a": summary}, PERCENTILES, health=health, stopped=stopped)


def rules(verdict: Verdict) -> dict[str, Grade]:
    return {reason.rule: reason.grade for reason in verdict.reasons}


def test_a_lost_worker_is_told_though_all_records_are_there() -> None:
    """With every record there, the verdict is SUSPECT and says which worker was lost."""
    (reason,) = judged(fared(0), stopped=REASON).reasons
    assert (reason.rule, reason.grade) == ("worker_lost", Grade.SUSPECT)
    assert REASON in reason.text


def test_a_lost_worker_beside_missing_records() -> None:
    """Where records are missing both are reasons, and the others' health is weighed still."""
    found = rules(judged(fared(0, cpu_s=9.9), stopped=REASON, records=150))
    assert found["worker_lost"] is Grade.SUSPECT
    assert found["unfinished"] is Grade.SUSPECT
    assert found["worker_cpu"] is Grade.INVALID


@pytest.mark.parametrize(
    ("ended", "blocks", "is_told"),
    [
        ([fared(0), fared(1)], 1, False),
        ([fared(0), fared(1), fared(0, 1)], 2, True),
        ([], 1, True),
    ],
    ids=["another target's turn", "a later block", "the only ones"],
)
def test_a_loss_is_of_the_target_whose_turn_it_was(
    ended: list[WorkerHealth], blocks: int, is_told: bool
) -> None:
    """A target all of whose turns were ended by all workers is not blamed for another's."""
    assert ("worker_lost" in rules(judged(*ended, stopped=REASON, blocks=blocks))) is is_told


@pytest.mark.parametrize("stopped", [None, "interrupted", "--max-duration 3: the time is up"])
def test_other_ends_are_no_loss(stopped: str | None) -> None:
    """A run that ended, or was stopped otherwise, has lost no worker."""
    assert "worker_lost" not in rules(judged(fared(0), stopped=stopped))


def test_the_first_error_ends_the_other_waits() -> None:
    """It is raised itself, at once, and nobody waits on in the background."""
    ended = []

    async def wait(name: str, forever: bool) -> None:
        try:
            if forever:
                await asyncio.Event().wait()
            raise ValueError(name)
        finally:
            ended.append(name)

    async def test() -> None:
        with pytest.raises(ValueError, match="second"):
            await wait_for_all([wait("first", True), wait("second", False)])
        assert sorted(ended) == ["first", "second"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(test())
