"""A worker's process, with the test in its parent's place."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadgen.clock import monotonic
from loadgen.config import RunConfig
from loadgen.link import Link
from loadgen.plan import plan
from loadgen.schedule import Shard
from loadgen.worker import Assignment, Begin, Done, Go, Progressed, Ready

pytestmark = pytest.mark.slow

REQUESTS, RATE = 60, 20.0
LEAST_BUFFER = 4096


async def assignment(url: str, run_path: Path) -> Assignment:
    """A run of REQUESTS of 4 tokens, RATE a second, by one worker without a warm-up."""
    config = RunConfig.model_validate(
        {
            "targets": [{"name": "target", "base_url": url}],
            "generate": {
                "num_prompts": REQUESTS,
                "request_rate": RATE,
                "arrival": "constant",
                "output_len": 4,
            },
            "load": {"workers": 1, "num_warmups": 0},
        }
    )
    planned = await plan(config)
    return Assignment(
        config=config,
        options=planned.agreement.options,
        length_is_held=planned.agreement.length_is_held,
        recipe=planned.sizing.recipe,
        trace=planned.workload.trace,
        run_path=run_path,
        worker=0,
        shard=Shard(0, 1),
        epoch_s=monotonic(),
    )


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A worker's process and our end; what it sends is soon more than the socket takes."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LEAST_BUFFER)
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.worker", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        ours.close()


def test_a_parent_that_does_not_read(quick: str, tmp_path: Path) -> None:
    """Totals that the parent does not take are left out, not what matters: when it reads again it
    gets the newest, and at the end all of them; the records are all there."""

    async def test(ours: socket.socket) -> list[Progressed | Done]:
        link = Link(ours)
        link.send(await assignment(quick, tmp_path))
        link.send(Begin(0))
        assert isinstance(await link.receive(), Ready)
        link.send(Go(monotonic() + 0.02))
        await asyncio.sleep(0.5 * REQUESTS / RATE)
        answers: list[Progressed | Done] = []
        while not answers or isinstance(answers[-1], Progressed):
            answers.append(await link.receive())
        link.close()
        return answers

    with started() as (process, ours):
        *progress, done = asyncio.run(asyncio.wait_for(test(ours), 30))
        assert process.wait(5) == 0
    assert isinstance(done, Done)
    totals = [answer.live.done for answer in progress]
    assert totals == sorted(totals)
    assert totals[0] < 0.4 * REQUESTS < totals[-1], "old ones first, then what is so now"
    assert len(totals) < 10, "of 12 in all some were left out"
    assert done.live.done == REQUESTS
    records = [json.loads(line) for line in (tmp_path / "records-0.jsonl").read_text().splitlines()]
    assert sorted(record["seq"] for record in records) == list(range(REQUESTS))


@pytest.mark.parametrize("when", ["not assigned", "assigned", "ready", "in its turn"])
def test_a_parent_that_hangs_up(quick: str, tmp_path: Path, when: str) -> None:
    """Wherever the parent ends, the worker does too, and at once."""

    async def test(ours: socket.socket) -> None:
        link = Link(ours)
        if when != "not assigned":
            link.send(await assignment(quick, tmp_path))
        if when in ("ready", "in its turn"):
            link.send(Begin(0))
            assert isinstance(await link.receive(), Ready)
        if when == "in its turn":
            link.send(Go(monotonic()))
            assert isinstance(await link.receive(), Progressed)
        link.close()

    with started() as (process, ours):
        asyncio.run(asyncio.wait_for(test(ours), 30))
        assert process.wait(5) == 0
