"""`loadgen serve`: its flags, its start. The web framework is loaded when the command runs."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
from pathlib import Path
from typing import Any, Final

from loadgen.errors import ConfigError
from loadgen.flags import add_flags, take, validate
from loadgen.service.refusal import Refusal
from loadgen.service.settings import START_VARIABLE, ServeConfig, Settings, settings_of
from loadgen.service.spec import Spec, read_spec
from loadgen.yaml_file import parse

_EXTRA: Final = "loadgen serve needs fastapi and uvicorn: pip install '.[service]' in a checkout"
_SHUTDOWN_S: Final = 3
_MOST_CONNECTIONS: Final = 256


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; runs that go on then are left to themselves."""
    settings = settings_of(validate(ServeConfig, take(ServeConfig, arguments)))
    first = _runs_to_start(settings)
    try:
        web = importlib.import_module("loadgen.service.app")
        connection = importlib.import_module("loadgen.service.connection")
        uvicorn = importlib.import_module("uvicorn")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{_EXTRA} ({error.name} is missing)") from None
    logging.basicConfig(level=logging.WARNING, format="loadgen: %(message)s")
    app = web.create_app(settings, starting=first)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.flags.host,
            port=settings.flags.port,
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            timeout_keep_alive=30,
            limit_concurrency=_MOST_CONNECTIONS,
            http=connection.Connection,
            ws="none",
        )
    )
    return int(web.serve(server, settings))


def _runs_to_start(settings: Settings) -> list[Spec]:
    """What --start FILE says, or the variable in its place; raises ConfigError."""
    path: Path | None = settings.flags.start
    name = START_VARIABLE if path is None else f"--start: {path}"
    try:
        data = os.environb.get(START_VARIABLE.encode(), b"") if path is None else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
    return runs_in(parse(data, name) or [], name, settings)


def runs_in(content: Any, name: str, settings: Settings) -> list[Spec]:
    """A list of runs, each checked; raises ConfigError, which begins with `name`."""
    if not isinstance(content, list):
        raise ConfigError(f"{name}: must be a list of runs")
    specs = []
    for number, run in enumerate(content):
        try:
            specs.append(read_spec(run, settings, os.environ))
        except Refusal as error:
            raise ConfigError(f"{name}: run {number}: {error}") from None
    return specs


def add_serve(commands: Any) -> None:
    """Give the command line `loadgen serve`."""
    command = commands.add_parser(
        "serve",
        help="start, watch, stop and compare runs from a page or an API",
        description="Serve a page and an API that start runs, one at a time, watch, stop and "
        "compare them. On loopback by default; on any other address it needs a token in "
        "LOADGEN_API_TOKEN. LOADGEN_ALLOWED_TARGETS lists what may be asked. docs/service.md has "
        "the API.",
        epilog="example: loadgen serve --port 8765",
    )
    add_flags(command, "service", ServeConfig)
    command.set_defaults(call=serve)
