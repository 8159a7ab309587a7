"""What goes wrong around a batch: full queues, failing batches, dying processes, and the guard."""

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Start, Static, engine_config, model_pid, wait_until

from servers.local import REPOSITORY, ServerError, free_port, start_static
from servers.static.batcher import Batcher
from servers.static.errors import ApiError
from servers.static.job import Job, Piece
from servers.static.metrics import Metrics
from servers.static.model_process import ModelProcess, State
from servers.static.wire import Row

ENDLESS = {"prompt": [5], "max_tokens": 2000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def narrow(start: Start) -> Static:
    """A server with one row a batch, room for two to wait, small bodies, and a key."""
    os.environ["STATIC_API_KEY"] = "canary-key"
    try:
        static = start("--max-queue", "2", "--max-body-bytes", "2000", batch_size=1)
    finally:
        del os.environ["STATIC_API_KEY"]
    static.client.headers["authorization"] = "Bearer canary-key"
    return static


@contextmanager
def streaming(static: Static, body: dict[str, Any]) -> Iterator[Iterator[bytes]]:
    """A stream whose first chunk has come."""
    with static.client.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.iter_raw()
        assert response.status_code == 200, next(chunks)
        next(chunks)
        yield chunks


def test_a_full_queue_refuses_and_a_hang_up_frees_a_place(narrow: Static) -> None:
    """Beyond --max-queue a request gets 429 with Retry-After; those who leave make room."""
    waiting = "static_num_requests_waiting"

    async def leave_while_waiting() -> httpx.Response:
        headers = {"authorization": "Bearer canary-key"}
        url = narrow.process.base_url
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            path = "/v1/completions"
            queued = [asyncio.create_task(client.post(path, json=ENDLESS)) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: narrow.metric(waiting) == 2, "both wait")
            refused = await client.post(path, json=ENDLESS)
            for task in queued:
                task.cancel()
            await asyncio.gather(*queued, return_exceptions=True)
            return refused

    with streaming(narrow, ENDLESS):
        refused = asyncio.run(leave_while_waiting())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, 429)
        assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: narrow.metric(waiting) == 0, "those who left are out of the queue")
    assert narrow.metric("static_request_refused_total", status="429") == 1


@pytest.mark.parametrize("value", [None, "Bearer wrong", "Basic canary-key", "canary-key"], ids=str)
def test_a_wrong_key_is_refused(narrow: Static, value: str | None) -> None:
    """Without the right bearer token the API answers 401; health and metrics do not ask."""
    headers = {"authorization": value} if value else {}
    with httpx.Client(base_url=narrow.process.base_url, headers=headers) as client:
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, 401)
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 200


def test_the_key_is_in_no_log(narrow: Static) -> None:
    """Neither the key nor a prompt reaches the log or the metrics."""
    prompt = "a prompt that nobody may see"
    assert narrow.completion(prompt=prompt, max_tokens=2).status_code == 200
    said = narrow.process.log_path.read_text() + narrow.client.get("/metrics").text
    assert "canary-key" not in said
    assert "nobody" not in said


def test_a_large_body_is_refused(narrow: Static) -> None:
    """A body over the limit gets 413, whether its length is stated or only found out."""
    large = b'{"prompt": "' + b"a" * 3000 + b'"}'
    headers = {"content-type": "application/json"}
    for content in (large, iter([large[:1500], large[1500:]])):
        refused = narrow.client.post("/v1/completions", content=content, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, 413)
    assert narrow.completion(prompt="a", max_tokens=1).status_code == 200


def test_the_models_process_is_replaced(start: Start) -> None:
    """Killed in mid-stream, the model's process fails that batch alone and is started again."""
    static = start(batch_size=2)
    with streaming(static, ENDLESS) as chunks:
        os.kill(model_pid(static), signal.SIGKILL)
        rest = b"".join(chunks).decode()
    assert '"error":{"message":"the batch failed: the model\'s process ended"' in rest
    assert rest.endswith("data: [DONE]\n\n")
    health = static.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "restarting")
    # Accepted while the model restarts, answered once it has.
    assert static.completion(prompt=[5], max_tokens=3).status_code == 200
    assert static.client.get("/health").json() == {"status": "ready", "restarts": 1}
    assert static.metric("static_model_restarts_total") == 1
    assert static.metric("static_request_finished_total", finished_reason="error") == 1


def test_sigterm_drains(start: Start) -> None:
    """After SIGTERM a running stream is served to its end, then the server leaves with code 0."""
    static = start(batch_size=1)
    with streaming(static, {**ENDLESS, "max_tokens": 200}) as chunks:
        os.kill(static.process.pid, signal.SIGTERM)
        rest = b"".join(chunks).decode()
    assert rest.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in rest
    wait_until(lambda: static.process.exit_code() is not None, "the server ends")
    assert static.process.exit_code() == 0


EARLY_STOP = """
import signal, sys
import uvicorn
from servers.static.__main__ import main
run = uvicorn.Server.run
def run_after_a_signal(server):
    signal.raise_signal(signal.SIGTERM)
    run(server)
uvicorn.Server.run = run_after_a_signal
sys.exit(main())
"""


def test_sigterm_before_uvicorn_listens_for_it_is_not_lost(small_model: Path) -> None:
    """A SIGTERM that comes just before uvicorn sets its own handlers ends the server, code 0."""
    arguments = ["--model", str(small_model), "--batch-size", "1", "--port", str(free_port())]
    with subprocess.Popen([sys.executable, "-c", EARLY_STOP, *arguments], cwd=REPOSITORY) as server:
        try:
            assert server.wait(120) == 0
        finally:
            server.kill()


def test_no_child_outlives_a_killed_parent(start: Start) -> None:
    """When the server is killed by signal 9 in mid-batch, the model's process ends too."""
    static = start(batch_size=1)
    child = model_pid(static)
    with streaming(static, ENDLESS) as chunks:
        os.kill(static.process.pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(chunks)
    wait_until(lambda: not running(child), "the model's process ends")


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


STARTER = """
import sys
from pathlib import Path
from servers.local import start_static
server = start_static(sys.argv[1], Path(sys.argv[2]))
print(server.pid, flush=True)
server.wait_ready(120)
print("ready", flush=True)
sys.stdin.read()
"""


def test_no_server_outlives_a_killed_starter(small_model: Path, tmp_path: Path) -> None:
    """When the process that started a server is killed by signal 9, the server ends by itself."""
    arguments = [sys.executable, "-c", STARTER, str(small_model), str(tmp_path / "log")]
    with subprocess.Popen(
        arguments, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
        assert starter.stdout.readline() == "ready\n"
        starter.kill()
    wait_until(lambda: not running(server), "the server ends")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            ["--model", "/nonexistent/model"], "cannot load /nonexistent/model", id="model"
        ),
        pytest.param(["--max-model-len", "9999"], "over the model's context of 2048", id="context"),
        pytest.param(["--device", "cuda"], "the model cannot be loaded", id="device"),
        pytest.param(["--batch-size", "0"], "must be at least 1", id="flag"),
    ],
)
def test_what_cannot_start_says_why(
    small_model: Path, tmp_path: Path, change: list[str], said: str
) -> None:
    """A server that cannot start ends with code 2 and one line, which the starter is told."""
    with (
        start_static(small_model, tmp_path / "log", arguments=change) as process,
        pytest.raises(ServerError, match="exit code 2") as caught,
    ):
        process.wait_ready(60)
    assert said in str(caught.value)
    assert "Traceback" not in process.log_tail(1000)


async def answer(job: Job) -> Piece | ApiError:
    """The last thing a job's client is told."""
    while True:
        piece = await job.pieces.get()
        if isinstance(piece, ApiError) or piece.finish_reason is not None:
            return piece


class Parts:
    """A batcher and its model's process without HTTP, in batches of 2."""

    def __init__(self, small_model: Path) -> None:
        config = engine_config(small_model)
        self.metrics = Metrics(batch_size=2, max_queue=8)
        self.model = ModelProcess(config, lambda state: None)
        self.batcher = Batcher(
            self.model,
            self.metrics,
            time.monotonic,
            batch_size=2,
            max_wait_s=0.0,
            max_queue=8,
            hold_until_end=False,
        )

    async def start(self) -> list[asyncio.Task[None]]:
        """Both loops, once the model can run."""
        tasks = [
            asyncio.create_task(self.model.supervise()),
            asyncio.create_task(self.batcher.run()),
        ]
        await self.model.wait_ready()
        return tasks

    def value(self, name: str) -> float:
        """The value of a metric without labels."""
        found = self.metrics.registry.get_sample_value(name)
        assert found is not None
        return found


def three_tokens(token_id: int) -> Job:
    row = Row(prompt_ids=(token_id,), max_tokens=3, ignore_eos=True)
    return Job(row, lambda ids: "x" * len(ids), (2,), time.monotonic())


async def fail_one_batch(small_model: Path) -> tuple[list[Piece | ApiError], Piece | ApiError, int]:
    parts = Parts(small_model)
    model, batcher = parts.model, parts.batcher
    tasks = await parts.start()
    # A token beyond the vocabulary, which the HTTP side would have refused, makes `generate` raise.
    pair = [three_tokens(5), three_tokens(10**6)]
    for each in pair:
        batcher.submit(each)
    failed = [await answer(each) for each in pair]
    after = three_tokens(5)
    batcher.submit(after)
    survived = await answer(after)
    await model.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert model.state is State.STOPPED
    return failed, survived, model.restarts


def test_an_exception_fails_its_batch_alone(small_model: Path) -> None:
    """An exception in a batch is a 500 to its requests; the same process runs the next."""
    failed, survived, restarts = asyncio.run(fail_one_batch(small_model))
    assert [error.status for error in failed if isinstance(error, ApiError)] == [500, 500]
    assert isinstance(survived, Piece)
    assert restarts == 0


async def leave_between_queue_and_batch(parts: Parts) -> None:
    tasks = await parts.start()
    gone, stays = three_tokens(5), three_tokens(6)
    parts.batcher.submit(gone)
    while parts.value("static_num_requests_waiting"):
        await asyncio.sleep(0)
    assert parts.value("static_batch_rows_count") == 0
    parts.batcher.abandon(gone)
    parts.batcher.submit(stays)
    assert isinstance(await answer(stays), Piece)
    await parts.model.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


def test_who_left_before_the_batch_has_no_row(small_model: Path) -> None:
    """A client that leaves after its batch was formed and before it started gets no row."""
    parts = Parts(small_model)
    asyncio.run(leave_between_queue_and_batch(parts))
    assert parts.value("static_batch_rows_count") == parts.value("static_batch_rows_sum") == 1


async def stop_as_a_batch_forms(parts: Parts) -> list[dict[str, Any]]:
    """What the event loop had to complain of."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    tasks = await parts.start()
    for _ in range(20):  # turns of the event loop, until the batcher waits for a job
        await asyncio.sleep(0)
    job = three_tokens(5)
    parts.batcher.submit(job)
    await parts.model.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    refused = await answer(job)
    assert isinstance(refused, ApiError)
    assert refused.status == 503
    gc.collect()
    return said


def test_a_stop_as_a_batch_forms_is_quiet(small_model: Path) -> None:
    """A model that stops in the moment in which a batch forms refuses it, and leaves no noise."""
    assert asyncio.run(stop_as_a_batch_forms(Parts(small_model))) == []


@contextmanager
def no_new_descriptors() -> Iterator[None]:
    """In this block no file or socket can be opened; those that are open stay so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def lose_the_model(parts: Parts) -> Job:
    """Kill the model's process; a job that waits for the next one."""
    assert parts.model.pid is not None
    os.kill(parts.model.pid, signal.SIGKILL)
    while parts.model.state is State.READY:
        await asyncio.sleep(0)
    job = three_tokens(5)
    parts.batcher.submit(job)
    return job


async def restart_never(parts: Parts) -> Piece | ApiError:
    tasks = await parts.start()
    with no_new_descriptors():
        job = await lose_the_model(parts)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
    return await answer(job)


def test_a_process_that_cannot_be_started_is_given_up(
    small_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system refuses a new process three times, the model is dead and who waits is told
    why.
    """
    parts = Parts(small_model)
    refused = asyncio.run(restart_never(parts))
    assert parts.model.state is State.DEAD
    assert isinstance(refused, ApiError)
    assert refused.status == 503
    said = "the model's process cannot be started: [Errno 24] Too many open files"
    assert said in str(refused)
    assert [record.getMessage() for record in caplog.records if record.name == "static"] == [
        said
    ] * 3


async def restart_late(parts: Parts, caplog: pytest.LogCaptureFixture) -> Piece | ApiError:
    tasks = await parts.start()
    with no_new_descriptors():
        job = await lose_the_model(parts)
        while not caplog.records and not tasks[0].done():
            await asyncio.sleep(0.01)
    last = await asyncio.wait_for(answer(job), 120)
    await parts.model.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    return last


def test_a_start_that_fails_is_tried_again(
    small_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a start that the system refused, the next one serves those who waited."""
    parts = Parts(small_model)
    assert isinstance(asyncio.run(restart_late(parts, caplog)), Piece)
    assert parts.model.restarts == 2
