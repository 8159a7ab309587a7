"""The HTTP routes of `loadgen serve`. Each reads its request, calls a function, writes the answer.

Errors leave as `{"error": {"message": ...}}`. What is served, and to whom, is `guard.py`'s; what a
run is, `runs.py`'s and `queue.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import orjson
import uvicorn
import uvloop
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from loadgen import __version__
from loadgen.clock import monotonic
from loadgen.errors import ConfigError, LoadgenError
from loadgen.journal import HEADER
from loadgen.locks import hold
from loadgen.service import described
from loadgen.service.events import Watchers
from loadgen.service.guard import (
    COOKIE,
    MAX_BODY_BYTES,
    REPORT_POLICY,
    Guard,
    error_body,
    is_authorised,
    is_token,
    session_of,
)
from loadgen.service.metrics import ServiceMetrics, join, newest
from loadgen.service.process import environment_of_child
from loadgen.service.queue import Queue
from loadgen.service.refusal import Refusal
from loadgen.service.results import Results
from loadgen.service.runs import RUN_ID, State, detail, matching
from loadgen.service.settings import Settings
from loadgen.service.spec import KINDS, Spec, read_spec
from loadgen.service.targets import check_targets
from loadgen.verdict import Grade

_TICK_S: Final = 0.2
_AGAIN_S: Final = 5.0
"""After a tick that failed, which would fail again at once."""
_DEAD_S: Final = 60.0
"""A queue that has not ticked for so long starts no run any more."""
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_PAGE: Final = {
    file.name: (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
    for file in (resources.files("loadgen.service") / "page").iterdir()
    if file.name.rpartition(".")[2] in _TYPES
}
"""The page's files by name, with their types; nothing else is served, whatever a name says."""
_RUNS_AT_ONCE: Final = 200
_PIECE_BYTES: Final = 1 << 16
_log: Final = logging.getLogger(__name__)


class Service:
    """The parts that routes share."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self.settings = settings
        self.environment = environment
        self.queue = Queue(settings, environment)
        self.results = Results(
            self.queue.traces, environment_of_child(environment, settings.allowed_text)
        )
        self.metrics = ServiceMetrics()
        self.watchers = Watchers(self.queue.folder)

    def directory(self, run_id: str) -> Path:
        path = self.queue.folder.directory(run_id)
        if path is None:
            raise Refusal(404, "no such run")
        return path

    def detail(self, run_id: str) -> dict[str, Any]:
        path, row = self.directory(run_id), self.queue.folder.row(run_id)
        if row is None:
            raise Refusal(404, "no such run")
        return detail(path, row)

    async def keep_ticking(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.queue.tick)
            except Exception:  # noqa: BLE001 - the line must go on when it can; /health tells
                _log.exception("the queue")
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(_TICK_S)


def create_app(
    settings: Settings,
    environment: Mapping[str, str] = os.environ,
    starting: Sequence[Spec] = (),
) -> FastAPI:
    """The application. Runs begin when it starts: those that wait, and those of `starting` that
    neither wait nor run already."""
    service = Service(settings, environment)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.queue.recover)
        for spec in starting:
            try:
                service.queue.ensure(spec)
            except LoadgenError as error:  # a full disk, say: what is there can be looked at still
                _log.error("a run to start: %s", error)
        ticking = asyncio.create_task(service.keep_ticking())
        yield
        service.watchers.close()
        ticking.cancel()

    app = FastAPI(
        title="loadgen",
        version=__version__,
        description="Runs started, watched, stopped and compared.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=described.ERRORS,
    )
    app.state.service = service
    app.add_middleware(Guard, settings=settings, on_answer=service.metrics.answered)
    _add_errors(app)
    _add_runs(app, service)
    _add_results(app, service)
    _add_traces(app, service)
    _add_page(app, service)
    return app


def serve(server: uvicorn.Server, settings: Settings) -> int:
    """Serve until a signal ends it, and say where; returns the exit code."""
    host, port = settings.flags.host, settings.flags.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: so a client that does not read its events is soon seen not to.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)
    try:
        listening.bind((host, port))
        listening.listen()  # who reads the address may connect at once
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--port {port}: cannot serve on {host}: {reason}") from None
    shown = f"[{host}]" if ":" in host else host
    with listening, _alone(settings.runs):
        print(f"http://{shown}:{listening.getsockname()[1]}", flush=True)
        with suppress(KeyboardInterrupt):  # the server ends well first, and then raises it again
            uvloop.run(server.serve(sockets=[listening]))
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One service for a folder: two would start its runs twice. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".service.lock").open("wb")
    except OSError as error:
        raise ConfigError(f"--result-dir {folder}: cannot hold runs: {error.strerror}") from None
    with lock:
        try:
            hold(lock.fileno())
        except BlockingIOError:
            raise ConfigError(f"--result-dir {folder}: another service has it already") from None
        yield


def _add_runs(app: FastAPI, service: Service) -> None:
    queue = service.queue

    @app.post(
        "/api/runs", status_code=202, responses=described.STARTED, openapi_extra=described.RUN
    )
    async def start_run(request: Request, dry_run: bool = False) -> Response:
        """Put a run in line. With `dry_run`, say what it would send, and send nothing."""
        spec = read_spec(await json_of(request), service.settings, service.environment)
        await check_targets(spec.targets, service.settings.allowed)
        if dry_run:
            return answer(await service.results.described(spec))
        run_id = await asyncio.to_thread(queue.add, spec)
        place = {"id": run_id, "state": str(State.QUEUED), "url": f"/api/runs/{run_id}"}
        return answer(place, 202, {"Location": f"/api/runs/{run_id}"})

    @app.get("/api/runs", responses=described.LIST)
    async def list_runs(
        state: Annotated[State | None, Query()] = None,
        kind: Annotated[str | None, Query(max_length=40)] = None,
        label: Annotated[str | None, Query(max_length=200)] = None,
        target: Annotated[str | None, Query(max_length=63)] = None,
        verdict: Annotated[Grade | None, Query()] = None,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=_RUNS_AT_ONCE)] = 50,
    ) -> Response:
        """Runs of the folder, the newest first, whoever started them."""
        rows = await asyncio.to_thread(queue.folder.rows)
        wanted = {
            "state": state,
            "kind": kind,
            "label": label,
            "target": target,
            "verdict": verdict,
        }
        found = matching(rows, wanted)
        part = found[offset : offset + limit]
        return answer(
            {
                "runs": [row.as_json() for row in part],
                "total": len(found),
                "offset": offset,
                "limit": limit,
                "waiting": queue.waiting,
                "running": [row.id for row in rows if row.is_ours and row.state is State.RUNNING],
            }
        )

    @app.get("/api/runs/compare", responses=described.COMPARED)
    async def compare_runs(
        a: Annotated[str, Query(max_length=128)], b: Annotated[str, Query(max_length=128)]
    ) -> Response:
        """Two runs that have ended, side by side; ratios are b / a."""
        paths = service.directory(a), service.directory(b)
        return answer(await service.results.compared(*paths))

    @app.get("/api/runs/{run_id}", responses=described.DETAIL)
    async def get_run(run_id: str) -> Response:
        """State, progress, what was asked for, summary and verdict of one run."""
        return answer(await asyncio.to_thread(service.detail, run_id))

    @app.patch("/api/runs/{run_id}", responses=described.DETAIL, openapi_extra=described.KEEP)
    async def keep_run(run_id: str, request: Request) -> Response:
        """Keep a run from being pruned, or release it."""
        body = await json_of(request)
        if (
            not isinstance(body, dict)
            or set(body) != {"keep"}
            or not isinstance(body["keep"], bool)
        ):
            raise Refusal(422, "the body must be {keep: true} or {keep: false}")
        await asyncio.to_thread(lambda: queue.keep(run_id, keep=body["keep"]))
        return answer(await asyncio.to_thread(service.detail, run_id))

    @app.delete("/api/runs/{run_id}", status_code=202, responses=described.STOPPED)
    async def stop_run(run_id: str) -> Response:
        """Once: send nothing more and wait for the answers. Again: cut them off."""
        state = await asyncio.to_thread(queue.stop, run_id)
        return answer({"id": run_id, "state": str(state)}, 202)

    @app.get("/api/runs/{run_id}/events", responses=described.EVENTS)
    async def watch_run(run_id: str) -> Response:
        """Server-sent events: `course`, `live` four times a second, `state`, `end`."""
        service.directory(run_id)
        return service.watchers.watch(run_id)


def _add_results(app: FastAPI, service: Service) -> None:
    results = service.results

    @app.get("/api/runs/{run_id}/report", responses=described.REPORT)
    async def get_report(
        run_id: str, format: Annotated[str, Query(pattern="^(html|text)$")] = "html"
    ) -> Response:
        """The report; of a run that was killed it is made now."""
        path = service.directory(run_id)
        if format == "text":
            return Response(await results.text(path), media_type="text/plain")
        file = await results.file(path, "report.html")
        policy = {"content-security-policy": REPORT_POLICY}
        return FileResponse(file, media_type="text/html", headers=policy)

    @app.get("/api/runs/{run_id}/{point}/report.html", responses=described.POINT)
    async def get_point(run_id: str, point: str) -> Response:
        """The report of one point of a sweep or a search, where its report links to it."""
        path = service.directory(run_id) / point
        if not RUN_ID.fullmatch(point) or path.is_symlink() or not (path / HEADER).is_file():
            raise Refusal(404, "no such point")
        if not (path / "report.html").is_file():
            raise Refusal(409, "the point has no report: it did not end")
        policy = {"content-security-policy": REPORT_POLICY}
        return FileResponse(path / "report.html", media_type="text/html", headers=policy)

    @app.get("/api/runs/{run_id}/records", responses=described.RECORDS)
    async def get_records(
        run_id: str, format: Annotated[str, Query(pattern="^(parquet|csv)$")] = "parquet"
    ) -> Response:
        """One row a request, warm-up included."""
        path = service.directory(run_id)
        if format == "csv":
            return download(await results.exported(path, "csv", None), f"{run_id}.csv", "text/csv")
        file = await results.file(path, "records.parquet")
        return FileResponse(
            file, media_type="application/vnd.apache.parquet", filename=f"{run_id}.parquet"
        )

    @app.get("/api/runs/{run_id}/export/vllm", responses=described.VLLM)
    async def export_vllm(
        run_id: str, target: Annotated[str | None, Query(max_length=63)] = None
    ) -> Response:
        """One target's records as `vllm bench serve --save-detailed` would write them."""
        file = await results.exported(service.directory(run_id), "vllm", target)
        return download(file, f"{run_id}-vllm.json", "application/json")


def _add_traces(app: FastAPI, service: Service) -> None:
    queue = service.queue

    @app.post(
        "/api/traces", status_code=201, responses=described.TRACE, openapi_extra=described.ROWS
    )
    async def upload_trace(request: Request) -> Response:
        """Keep a trace; its id is the SHA-256 of its bytes."""
        environment = environment_of_child(service.environment, service.settings.allowed_text)
        told = await queue.traces.add(
            request.stream(), environment, service.results.turn, queue.traces_in_use
        )
        return answer(told, 201)

    @app.get("/api/traces", responses=described.TRACES)
    async def list_traces() -> Response:
        """The traces that are kept, the latest used first."""
        return answer({"traces": await asyncio.to_thread(queue.traces.listed)})


def _add_page(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.get("/health", responses=described.HEALTH)
    async def health() -> Response:
        """That the service answers, and its queue goes on."""
        if monotonic() - service.queue.ticked_at_s > _DEAD_S:
            raise Refusal(503, "the queue stands still; the service's log says why")
        return answer({"status": "ok"})

    @app.get("/metrics", responses=described.METRICS)
    async def metrics() -> Response:
        """The newest runs' metrics and the service's own, for Prometheus."""

        def text() -> bytes:
            rows = service.queue.folder.rows()
            own = service.metrics.text(rows, service.watchers.count)
            return join(service.queue.folder.path, newest(rows)) + own

        return Response(
            await asyncio.to_thread(text), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    @app.get("/api/settings", responses=described.SETTINGS)
    async def get_settings() -> Response:
        """What the page needs to know of the service."""
        return answer(
            {
                "version": __version__,
                "kinds": list(KINDS),
                "grafana_url": settings.grafana_url,
                "max_requests": settings.flags.max_requests,
                "max_trace_mib": settings.flags.max_trace_mib,
                "allowed_targets": None if settings.allowed.is_any else settings.allowed_text,
            }
        )

    @app.post(
        "/api/login", status_code=204, responses=described.LOGIN, openapi_extra=described.TOKEN
    )
    async def login(request: Request) -> Response:
        """Give the page a cookie in exchange for the token."""
        body = await json_of(request)
        offered = body.get("token") if isinstance(body, dict) else None
        token = settings.token
        if token is not None and not (isinstance(offered, str) and is_token(offered, token)):
            raise Refusal(401, "that is not the token")
        response = Response(status_code=204)
        if token is not None:
            response.set_cookie(COOKIE, session_of(token), httponly=True, samesite="lax")
        return response

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        is_in = is_authorised(request.headers, settings.token)
        return static("index.html" if is_in else "login.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return static(name)


def static(name: str) -> Response:
    """A file of the page, by its bare name."""
    if name not in _PAGE:
        raise Refusal(404, "no such file")
    content, kind = _PAGE[name]
    return Response(
        content,
        headers={"content-type": f"{kind}; charset=utf-8", "cache-control": "no-cache"},
    )


def answer(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(content), status, dict(headers or {}), "application/json")


def download(file: BinaryIO, name: str, kind: str) -> Response:
    """The whole of an open file, piece by piece; it is closed with the answer."""
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "content-length": str(os.fstat(file.fileno()).st_size),
    }
    pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
    return StreamingResponse(pieces, headers=headers, media_type=kind)


async def json_of(request: Request) -> Any:
    """The body's JSON; raises Refusal."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, f"the body is over the limit of {MAX_BODY_BYTES} bytes")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None


def _add_errors(app: FastAPI) -> None:
    def told(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        return Response(error_body(text), status, dict(headers or {}), "application/json")

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return told(error.status, str(error), error.headers)

    @app.exception_handler(LoadgenError)
    async def unusable(request: Request, error: LoadgenError) -> Response:
        return told(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return told(422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return told(error.status_code, str(error.detail), error.headers)
