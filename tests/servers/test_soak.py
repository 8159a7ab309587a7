"""The static server under siege: twice its capacity, and clients that hang up.

Ten minutes by hand with `scripts/test --long`; `LOADGEN_SOAK_S` says otherwise. Prints its figures
as JSON lines. What it is held to: memory that does not grow, no request that is stuck, counters
that add up on both sides, and in the end a model's process killed under the same load.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Start, Static, model_pid, wait_until

from servers.static.metrics import FINISHED_REASONS, REFUSED_STATUSES

DURATION_S = float(os.environ.get("LOADGEN_SOAK_S", "600"))
BATCH_SIZE = 8
MAX_QUEUE = 32
LEAVING_SHARE = 0.2
KILL_LOAD_S = 20.0
# Growth that a curve may show over the soak by its fitted slope: what allocators keep, no leak.
GROWTH_LIMIT = 0.03
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Tally:
    """What the clients saw."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0


class Siege:
    """Draws requests from a seed and sends them."""

    def __init__(self, client: httpx.AsyncClient, seed: int, capacity: float = 1.0) -> None:
        """`capacity` is what the server can serve, in requests/s; it may be put right meanwhile."""
        self._client = client
        self._draw = random.Random(seed)
        self.capacity = capacity
        self.tally = Tally()
        self.seen: list[tuple[int, float]] = []

    async def at_once(self, count: int) -> None:
        """Send `count` requests of clients that stay, and learn the capacity from them."""
        start_s = time.monotonic()
        await asyncio.gather(*[self._one(None) for _ in range(count)])
        self.capacity = count / (time.monotonic() - start_s)

    async def follow(self, static: Static) -> None:
        """Learn the capacity anew every ten seconds, from the rows of the batches: a machine is not
        always equally fast.
        """
        while True:
            rows = await asyncio.to_thread(static.metric, "static_batch_rows_sum")
            self.seen.append((self.tally.sent, rows))
            if len(self.seen) > 1:
                self.capacity = max(1.0, (rows - self.seen[-2][1]) / 10)
            await asyncio.sleep(10)

    def load_factor(self) -> float:
        """Requests sent over rows that entered a batch, the first ten seconds left out."""
        (sent_first, rows_first), (sent, rows) = self.seen[1], self.seen[-1]
        return (sent - sent_first) / (rows - rows_first)

    async def open_loop(self, duration_s: float) -> None:
        """Send at twice the capacity whatever comes back, until each request has ended."""
        due_s, end_s = time.monotonic(), time.monotonic() + duration_s
        async with asyncio.TaskGroup() as shots:
            while (due_s := due_s + self._draw.expovariate(2 * self.capacity)) < end_s:
                await asyncio.sleep(due_s - time.monotonic())
                leaves = self._draw.random() < LEAVING_SHARE
                # As long as a full queue takes: most who would leave do, waiting or being served.
                longest_stay_s = MAX_QUEUE / self.capacity
                stay_s = self._draw.uniform(0, longest_stay_s) if leaves else None
                shots.create_task(self._one(stay_s))

    async def _one(self, stay_s: float | None) -> None:
        draw = self._draw
        chat, stream = draw.random() < 0.5, draw.random() < 0.7
        body: dict[str, Any] = {"max_tokens": draw.randint(4, 100), "ignore_eos": True}
        if chat:
            body["messages"] = [{"role": "user", "content": "word " * draw.randint(1, 60)}]
        else:
            body["prompt"] = [draw.randint(3, 300) for _ in range(draw.randint(1, 120))]
        if draw.random() < 0.5:
            body["temperature"] = 0
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        sent = asyncio.Event()

        async def trace(event: str, info: Any) -> None:
            if event == "http11.send_request_body.complete":
                sent.set()

        path = "/v1/chat/completions" if chat else "/v1/completions"
        request = self._client.build_request(
            "POST", path, json=body, extensions={"trace": trace, "timeout": {"read": 120.0}}
        )
        call = asyncio.create_task(self._answer(request, body["max_tokens"]))
        # A request counts once all of it was sent: from then on the server must account for it.
        await asyncio.wait_for(sent.wait(), 30)
        self.tally.sent += 1
        done, _ = await asyncio.wait({call}, timeout=stay_s)
        if done:
            self.tally.outcomes[call.result()] += 1
        else:
            call.cancel()
            await asyncio.wait({call})
            self.tally.outcomes["left"] += 1

    async def _answer(self, request: httpx.Request, asked_tokens: int) -> str:
        response = await self._client.send(request, stream=True)
        try:
            text = (await response.aread()).decode()
        finally:
            await response.aclose()
        if response.status_code != 200:
            return str(response.status_code)
        if response.headers["content-type"] == "application/json":
            answer = json.loads(text)
        else:
            *events, done, rest = text.split("\n\n")
            if (done, rest) != ("data: [DONE]", ""):
                return "torn"
            answer = json.loads(events[-1].removeprefix("data: "))
        if "error" in answer:
            return "error-event"
        tokens = answer["usage"]["completion_tokens"]
        self.tally.tokens += tokens
        return "ok" if tokens == asked_tokens else "short"


class Memory:
    """The resident memory of the server's two processes, sampled."""

    def __init__(self, static: Static) -> None:
        self._pids = {"server": static.process.pid, "model": model_pid(static)}
        self.samples_bytes: dict[str, list[int]] = {name: [] for name in self._pids}
        self.moments_s: list[float] = []

    async def watch(self) -> None:
        """Sample each second until cancelled."""
        while True:
            self.moments_s.append(time.monotonic())
            for name, pid in self._pids.items():
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.samples_bytes[name].append(pages * PAGE_BYTES)
            await asyncio.sleep(1)

    def growth(self, name: str) -> tuple[float, float]:
        """(share by which the fitted line rises after the first third, MiB at its end)."""
        first = len(self.moments_s) // 3
        xs, ys = self.moments_s[first:], self.samples_bytes[name][first:]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
            (x - mean_x) ** 2 for x in xs
        )
        return slope * (xs[-1] - xs[0]) / mean_y, ys[-1] / 2**20


class Counts:
    """What the server counted since this was made."""

    def __init__(self, static: Static) -> None:
        self._static = static
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        metric = self._static.metric
        counts = {
            reason: metric("static_request_finished_total", finished_reason=reason)
            for reason in FINISHED_REASONS
        }
        for status in REFUSED_STATUSES:
            counts[str(status)] = metric("static_request_refused_total", status=str(status))
        for name in (
            "request_generation_tokens_count",
            "request_generation_tokens_sum",
            "generation_tokens_total",
            "row_steps_total",
            "wasted_row_steps_total",
            "batch_rows_sum",
            "request_prompt_tokens_count",
            "e2e_request_latency_seconds_count",
        ):
            counts[name] = metric(f"static_{name}")
        return counts

    def _idle(self) -> bool:
        gauges = ("num_requests_waiting", "num_requests_running", "batch_slots_held")
        return all(self._static.metric(f"static_{name}") == 0 for name in gauges)

    def since(self) -> dict[str, int]:
        """Increments, once nothing waits and nothing runs."""
        wait_until(self._idle, "nothing waits and nothing runs", 60)
        return {name: int(now - self._before[name]) for name, now in self._now().items()}


def adds_up(counts: dict[str, int], tally: Tally) -> None:
    """Both sides' counters agree, with themselves and with each other."""
    finished = sum(counts[reason] for reason in FINISHED_REASONS)
    refused = sum(counts[str(status)] for status in REFUSED_STATUSES)
    assert finished + refused == tally.sent == sum(tally.outcomes.values())
    assert counts["request_generation_tokens_count"] == finished
    # Who left before the batch has no row; who left a running one has.
    assert finished - counts["abort"] <= counts["batch_rows_sum"] <= finished
    assert counts["request_prompt_tokens_count"] == counts["batch_rows_sum"]
    assert counts["stop"] + counts["length"] == counts["e2e_request_latency_seconds_count"]
    assert counts["generation_tokens_total"] == counts["request_generation_tokens_sum"]
    useful = counts["row_steps_total"] - counts["wasted_row_steps_total"]
    assert useful == counts["generation_tokens_total"]
    # A client that leaves late may miss an answer that the server has given.
    left = tally.outcomes["left"]
    assert tally.outcomes["ok"] <= counts["length"] <= tally.outcomes["ok"] + left
    assert tally.outcomes["429"] <= counts["429"] <= tally.outcomes["429"] + left
    assert 0 < counts["abort"] <= left


def open_files(pid: int) -> int:
    """Descriptors that a process holds: connections among them."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def besieger(static: Static) -> httpx.AsyncClient:
    """As many connections as there are requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncClient(base_url=static.process.base_url, timeout=120, limits=limits)


async def besiege(static: Static, memory: Memory) -> Siege:
    async with besieger(static) as client:
        siege = Siege(client, 1)
        await siege.at_once(MAX_QUEUE)
        await siege.at_once(MAX_QUEUE)
        beside = [asyncio.create_task(work) for work in (memory.watch(), siege.follow(static))]
        await siege.open_loop(DURATION_S)
        for task in beside:
            task.cancel()
        return siege


async def besiege_and_kill(static: Static, capacity: float) -> Tally:
    async with besieger(static) as client:
        siege = Siege(client, 2, capacity)
        load = asyncio.create_task(siege.open_loop(KILL_LOAD_S))
        await asyncio.sleep(KILL_LOAD_S / 4)
        os.kill(model_pid(static), signal.SIGKILL)
        await load
        return siege.tally


@pytest.mark.long
def test_the_server_under_siege(start: Start) -> None:
    """At twice its capacity, with clients that hang up, memory stays flat, no request is stuck and
    all counters add up; a model's process killed under that load costs its batch alone.
    """
    static = start("--max-queue", str(MAX_QUEUE), batch_size=BATCH_SIZE)
    files_before = open_files(static.process.pid)
    memory, counts = Memory(static), Counts(static)
    siege = asyncio.run(besiege(static, memory))
    tally, since = siege.tally, counts.since()
    growth = {name: memory.growth(name) for name in memory.samples_bytes}
    figures = {
        "seconds": DURATION_S,
        "capacity_per_s": round(siege.capacity, 2),
        "load_factor": round(siege.load_factor(), 3),
        "sent": tally.sent,
        "clients": dict(tally.outcomes),
        "server": since,
        "growth_share": {name: round(share, 4) for name, (share, _) in growth.items()},
        "rss_mib": {name: round(mib, 1) for name, (_, mib) in growth.items()},
        "files": [files_before, open_files(static.process.pid)],
    }
    print(json.dumps(figures))
    assert set(tally.outcomes) == {"ok", "429", "left"}
    assert since["error"] == 0
    adds_up(since, tally)
    assert siege.load_factor() > 1.7, "the load was not twice the capacity"
    for name, (share, _) in growth.items():
        assert share < GROWTH_LIMIT, (name, share)
    wait_until(lambda: open_files(static.process.pid) <= files_before + 1, "connections close")
    assert static.metric("static_model_restarts_total") == 0

    counts = Counts(static)
    tally = asyncio.run(besiege_and_kill(static, siege.capacity))
    since = counts.since()
    print(json.dumps({"killed": dict(tally.outcomes), "server": since}))
    adds_up(since, tally)
    assert set(tally.outcomes) <= {"ok", "429", "left", "500", "error-event"}
    assert 0 < since["error"] <= BATCH_SIZE
    assert static.metric("static_model_restarts_total") == 1
    assert static.completion(prompt=[5], max_tokens=3).status_code == 200
