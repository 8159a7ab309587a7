"""A run done by a service: `loadgen run --service URL` and `compare --service URL`.

It sends what the command line said and nothing of this machine: no path, no variable, no key that
was not given for it. Then it follows the run's events, and its exit code is the run's. The API is
that of `docs/service.md`; the standard library's HTTP client does for it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from loadgen.errors import ConfigError, LoadgenError, TargetNotReady
from loadgen.progress import Progress
from loadgen.trace.trace import read_trace

TOKEN_VARIABLE: Final = "LOADGEN_API_TOKEN"
_TIMEOUT_S: Final = 60.0
_REPORT_S: Final = 330.0
_STOP_S: Final = 5.0
_EVENTS_S: Final = 30.0
"""Silence after which the events are asked for again; the service breaks it every 10 s."""
_SAY_EVERY_S: Final = 5.0
_TRIES: Final = 30
"""In a row that tell nothing of the run."""
_AGAIN_S: Final = 1.0
_NOT_READY: Final = (429, 502, 503, 504)
"""Of a service, or of a proxy before it, that may take the same a little later."""


class _Conflict(LoadgenError):
    """409: what is asked of the run does not go with its state."""


@dataclass(slots=True)
class Service:
    """A service at `url`; raises LoadgenError where it refuses, or does not answer."""

    url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # of an odd port or address
            is_whole = False
        if not is_whole:
            raise ConfigError("--service: needs a URL such as http://127.0.0.1:8765")
        if parts.path.rstrip("/") or parts.query or parts.username:
            raise ConfigError("--service: a URL without path, query and user")

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = _TIMEOUT_S,
    ) -> bytes:
        """The answer's body."""
        with self._connection(timeout_s) as connection:
            response = self._send(connection, method, path, body, content_type)
            return response.read()

    def ask_json(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, Any]:
        """The answer's JSON object; raises LoadgenError where it is none."""
        try:
            told = orjson.loads(self.ask(method, path, body, timeout_s=timeout_s))
        except orjson.JSONDecodeError:
            told = None
        if not isinstance(told, dict):
            raise LoadgenError(f"--service {self.url}: not a loadgen service")
        return told

    def events(self, run_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, content) of each event, until the service ends them."""
        with self._connection(_EVENTS_S) as connection:
            response = self._send(connection, "GET", f"/api/runs/{run_id}/events", None, "")
            name = ""
            for line in response:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, orjson.loads(line[6:])

    @contextmanager
    def _connection(self, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise TargetNotReady(f"--service {self.url}: does not answer ({reason})") from None
        finally:
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
    ) -> http.client.HTTPResponse:
        headers = {} if body is None else {"Content-Type": content_type}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        with suppress(BrokenPipeError):  # it refused before it had read all, and says why
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        if response.status >= 300:
            kind = LoadgenError
            if response.status in _NOT_READY:
                kind = TargetNotReady
            elif response.status == http.HTTPStatus.CONFLICT:
                kind = _Conflict
            raise kind(f"--service: {response.status}: {_message(response.read())}")
        return response


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "not a loadgen service"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run at a service ended."""

    run_id: str
    exit_code: int
    detail: dict[str, Any]
    text: str
    """The table, as the command would have printed it."""


def service_at(url: str, environment: Mapping[str, str] = os.environ) -> Service:
    """With the token of this environment."""
    return Service(url.rstrip("/"), environment.get(TOKEN_VARIABLE))


def describe(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """What the run would send."""
    return service.ask_json("POST", "/api/runs?dry_run=true", orjson.dumps(body), _REPORT_S)


def upload(service: Service, path: Path) -> str:
    """The id of a trace, which is sent where the service does not have it."""
    _, data = read_trace(path)
    trace_id = hashlib.sha256(data).hexdigest()
    known = service.ask_json("GET", "/api/traces").get("traces", ())
    if trace_id not in {trace["id"] for trace in known}:
        service.ask("POST", "/api/traces", data, "application/jsonl", _REPORT_S)
    return trace_id


def drive(service: Service, body: dict[str, Any], progress: Progress) -> Outcome:
    """Start a run, follow it to its end, and fetch its result.

    Ctrl-C stops it: once drains, twice cuts off. Where the service does not take that, the next
    Ctrl-C ends the client alone. Raises LoadgenError where it could not be done, and
    KeyboardInterrupt where the client was ended.
    """
    run_id = service.ask_json("POST", "/api/runs", orjson.dumps(body)).get("id")
    if run_id is None:
        raise LoadgenError(f"--service {service.url}: not a loadgen service")
    progress.say(f"{service.url}: {run_id} is in line")
    try:
        with _ctrl_c_stops(service, run_id, progress):
            _follow(service, run_id, progress)
        detail = service.ask_json("GET", f"/api/runs/{run_id}")
    except LoadgenError as error:
        raise LoadgenError(f"{error}; the run is {run_id}, which needs no client") from None
    state, code = detail["state"], detail["exit_code"]
    if state == "interrupted" or (code in (None, 1, 2) and state != "stopped"):
        reason = detail["error"] or "its process was killed"
        raise LoadgenError(f"{run_id} at {service.url}: {state}: {reason}")
    text = ""
    if detail["summary"]:
        told = service.ask("GET", f"/api/runs/{run_id}/report?format=text", timeout_s=_REPORT_S)
        text = told.decode()
    return Outcome(run_id, 130 if code is None else int(code), detail, text)


def _follow(service: Service, run_id: str, progress: Progress) -> None:
    """Until the run has ended; a service that is away or busy meanwhile is waited for."""
    said_at_s, tries = 0.0, 0
    problem = "its events end before the run does"
    while tries < _TRIES:
        tries += 1
        try:
            for name, content in service.events(run_id):
                if name == "end":
                    return
                if name != "course":  # which is told to whoever asks, whatever the run does
                    tries = 0
                now_s = time.monotonic()
                if name == "live" and now_s - said_at_s >= _SAY_EVERY_S:
                    said_at_s = now_s
                    for line in _lines(content):
                        progress.say(line)
        except TargetNotReady as error:
            problem = str(error)
        time.sleep(_AGAIN_S)
    raise TargetNotReady(f"--service {service.url}: gave no news in {_TRIES} tries ({problem})")


def _lines(live: Mapping[str, Any]) -> Iterator[str]:
    for name, target in live.get("targets", {}).items():
        if target["active"]:
            rate = target["tokens_per_s"] or 0
            yield (
                f"{name}: due {target['due']}  in flight {target['in_flight']}  "
                f"done {target['done']}  failed {target['failed']}  {rate:,.0f} tokens/s"
            )


@contextmanager
def _ctrl_c_stops(service: Service, run_id: str, progress: Progress) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        try:
            with suppress(_Conflict):  # it has just ended
                service.ask("DELETE", f"/api/runs/{run_id}", timeout_s=_STOP_S)
        except LoadgenError as error:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            progress.say(f"not stopped: {error}; Ctrl-C again ends this client, and not {run_id}")
        else:
            signal.signal(signal.SIGINT, stop)  # a Ctrl-C before it may have failed meanwhile
            progress.say("stopping; Ctrl-C again cuts off what is in flight")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except KeyboardInterrupt:
        progress.say(f"{service.url}: {run_id} goes on; it needs no client")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
