"""What `run`, `compare`, `sweep` and `capacity` have in common: flags, and what is made of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadgen.config import (
    CompareConfig,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    RunConfig,
    TargetConfig,
)
from loadgen.config_file import trace_and_laws, under_flags
from loadgen.errors import ConfigError
from loadgen.exporter import Exporter
from loadgen.flags import Model, take, validate
from loadgen.progress import Progress


@contextmanager
def exporting(output: OutputConfig, progress: Progress) -> Iterator[Exporter]:
    """An exporter, served where the configuration asks for it."""
    exporter = Exporter()
    if output.metrics_port is not None:
        url = exporter.serve(output.metrics_host, output.metrics_port)
        progress.say(f"metrics: {url}")
    try:
        yield exporter
    finally:
        exporter.close()


def linger(exporter: Exporter, progress: Progress) -> None:
    """Keep the metrics up until they were scraped once more, or Ctrl-C."""
    progress.say("waiting until the metrics are scraped once more; Ctrl-C ends it")
    try:
        if not exporter.linger():
            progress.say("nobody scraped the metrics")
    except KeyboardInterrupt:
        pass


def api_key_of(arguments: argparse.Namespace) -> str | None:
    """What --api-key or --api-key-file gives; raises ConfigError."""
    if arguments.api_key is not None and arguments.api_key_file is not None:
        raise ConfigError("--api-key: leave it out, or --api-key-file")
    flag = "--api-key"
    key: str | None = arguments.api_key
    if arguments.api_key_file is not None:
        flag = "--api-key-file"
        try:
            key = arguments.api_key_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise ConfigError(f"{flag}: {arguments.api_key_file}: {reason}") from None
    if key == "":
        raise ConfigError(f"{flag}: is empty; leave it out where no key is needed")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{flag}: must be printable ASCII, on one line")
    return key


def add_api_key_flags(command: argparse.ArgumentParser) -> None:
    """Give `command` the two flags that bring a key itself."""
    command.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key; others on this machine can read a command line: prefer --api-key-env",
    )
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file that holds the API key alone"
    )


def add_config_flag(command: argparse.ArgumentParser) -> None:
    """Give `command` the flag that `config_file.read_config` reads."""
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration as YAML or JSON (- is standard input); flags win over it",
    )


def keep_api_key(arguments: argparse.Namespace, request: RequestConfig) -> None:
    """Put a key that was given into the environment, where alone it is from here on."""
    if (api_key := api_key_of(arguments)) is not None:
        os.environ[request.api_key_env] = api_key


def targets_of_file(
    arguments: argparse.Namespace, content: Mapping[str, Any]
) -> list[TargetConfig]:
    """The targets of a configuration file; a flag that is given wins over what they have of their
    own, as over all else."""
    given = {*take(RequestConfig, arguments)}
    if arguments.api_key is not None or arguments.api_key_file is not None:
        given.add("api_key_env")
    return [
        validate(TargetConfig, {key: said for key, said in target.items() if key not in given})
        for target in content.get("targets", ())
    ]


def run_config(
    arguments: argparse.Namespace, targets: list[TargetConfig], content: Mapping[str, Any]
) -> RunConfig:
    """The run that the flags of `run` or `compare` ask for, laid over a configuration file's
    content, which is {} where there is no file; raises ConfigError."""
    trace, drawn = trace_and_laws(arguments.trace, take(GeneratorConfig, arguments), content)

    def section(name: str, model: type[Model]) -> Model:
        return validate(model, under_flags(content, name, take(model, arguments)))

    request = section("request", RequestConfig)
    keep_api_key(arguments, request)
    return validate(
        RunConfig,
        {
            "trace": trace,
            "generate": validate(GeneratorConfig, drawn),
            "targets": targets,
            "request": request,
            "load": section("load", LoadConfig),
            "compare": section("compare", CompareConfig),
            "output": section("output", OutputConfig),
        },
    )
