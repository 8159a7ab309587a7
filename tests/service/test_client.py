"""`run --service` against services and proxies that answer badly for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from loadgen import service_client
from loadgen.errors import ConfigError, LoadgenError
from loadgen.progress import Progress
from loadgen.service_client import drive, service_at
from tests.service.conftest import web_server

RUN = "20260101T000000Z-run-0000"
COURSE = b'event: course\ndata: {"points": []}\n\n'
STATE = b'event: state\ndata: {"state": "running"}\n\n'
END = b'event: end\ndata: {"state": "finished"}\n\n'
DETAIL = {"state": "finished", "exit_code": 0, "error": None, "summary": None}

Answer = tuple[int, bytes]


@contextmanager
def answering(events: Sequence[Answer]) -> Iterator[str]:
    """The URL of a service that answers so for events in turn, the last one for ever."""
    left = iter(events[:-1])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(202, json.dumps({"id": RUN}).encode())

        def do_GET(self) -> None:
            if self.path.endswith("/events"):
                self._answer(*next(left, events[-1]))
            else:
                self._answer(200, json.dumps(DETAIL).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with web_server(Handler) as url:
        yield url


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "_AGAIN_S", 0.0)


def test_a_service_that_is_busy_for_a_while_is_asked_again() -> None:
    """Answers of a proxy or of a full service, and streams that break off, are waited out."""
    busy = [(status, b"busy") for status in (429, 502, 503, 504)]
    with answering([*busy, (200, COURSE), (200, COURSE + STATE), (200, COURSE + END)]) as url:
        assert drive(service_at(url, {}), {}, Progress(quiet=True)).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((503, b"busy"), "503"),
        ((200, COURSE), "its events end before the run does"),
        ((404, b"gone"), "404"),
    ],
    ids=["busy", "nothing", "refused"],
)
def test_the_run_is_named_where_the_client_gives_up(answer: Answer, said: str) -> None:
    """What ends the client names the run, which goes on; no number of tries is endless."""
    with answering([answer]) as url, pytest.raises(LoadgenError, match=said) as raised:
        drive(service_at(url, {}), {}, Progress(quiet=True))
    assert str(raised.value).endswith(f"; the run is {RUN}, which needs no client")


def test_there_is_a_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that end at once are not asked for again at once."""
    paused_s: list[float] = []
    monkeypatch.setattr(service_client, "_AGAIN_S", 1.0)
    monkeypatch.setattr("time.sleep", paused_s.append)
    with answering([(200, COURSE + STATE), (503, b""), (200, END)]) as url:
        drive(service_at(url, {}), {}, Progress(quiet=True))
    assert paused_s == [1.0, 1.0]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_another_web_server_is_told(body: bytes) -> None:
    """What answers 200 to everything, as pages for browsers do, is no loadgen service."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with web_server(Handler) as url, pytest.raises(LoadgenError, match="not a loadgen service"):
        drive(service_at(url, {}), {}, Progress(quiet=True))


@pytest.mark.parametrize("url", ["http://127.0.0.1:notaport", "http://[::1", "http://h:99999"])
def test_an_odd_url_is_told(url: str) -> None:
    """No traceback, but what a URL looks like."""
    with pytest.raises(ConfigError, match="--service: needs a URL such as"):
        service_at(url, {})
