"""`--config FILE`: a command's configuration from a YAML or JSON file, under the flags of the same.

The file has a trace and the command's sections, each checked by its model: of a run, generate,
targets, request, load, compare, output. A flag that is given wins over the file's key. It knows
models, and no run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from loadgen.config import (
    CompareConfig,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    TargetConfig,
)
from loadgen.errors import ConfigError
from loadgen.flags import flag_of, validate
from loadgen.yaml_file import parse

Sections = Mapping[str, type[BaseModel]]
POINT_SECTIONS: Final[Sections] = {
    "generate": GeneratorConfig,
    "targets": TargetConfig,
    "request": RequestConfig,
    "load": LoadConfig,
    "output": OutputConfig,
}
"""Of one endpoint's runs."""
SECTIONS: Final[Sections] = {**POINT_SECTIONS, "compare": CompareConfig}
"""Of `run` and `compare`; `targets` is a list of its model."""
_STANDARD_INPUT: Final = Path("-")
_MOST_BYTES: Final = 1 << 20


def read_config(path: Path | None, sections: Sections = SECTIONS) -> dict[str, Any]:
    """The file's sections, each checked by its own model; raises ConfigError with the place.

    `-` is standard input, and no path no section. JSON is YAML, so the file's name does not matter.
    """
    if path is None:
        return {}
    name = "standard input" if path == _STANDARD_INPUT else str(path)
    try:
        if path == _STANDARD_INPUT:
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--config: {path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"--config: {name}: over {_MOST_BYTES:,} bytes; a trace has its own file")
    return check_sections(parse(data, f"--config: {name}"), name, sections)


def check_sections(content: Any, name: str, sections: Sections) -> dict[str, Any]:
    """`content` as sections of a configuration; raises ConfigError, which begins with `name`.

    What is left out is left to flags and defaults.
    """
    known = ("trace", *sections)
    if not isinstance(content, dict):
        raise ConfigError(f"{name}: must hold keys such as {', '.join(known)}")
    for key in content:
        if key not in known:
            raise ConfigError(f"{name}: {key}: no such key; there are {', '.join(known)}")
    for key, model in sections.items():
        if key not in content:
            continue
        if key != "targets":
            _check(content[key], model, f"{name}: {key}")
            continue
        if not isinstance(content[key], list):
            raise ConfigError(f"{name}: targets: must be a list of name and base_url")
        for number, target in enumerate(content[key]):
            _check(target, model, f"{name}: targets[{number}]")
    return content


def _check(values: Any, model: type[BaseModel], place: str) -> None:
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{place}: must hold keys and values")
    try:
        validate(model, values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def under_flags(
    content: Mapping[str, Any], section: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """A section's keys with those of the flags that were given laid over them."""
    return {**content.get(section, {}), **given}


def trace_and_laws(
    arguments_trace: Path | None, drawn: Mapping[str, Any], content: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """(the trace's file, or None; else the laws to draw one from), of flags over a file's content.

    Raises ConfigError where both are said.
    """
    if arguments_trace is not None:
        if drawn:
            flag = flag_of(next(iter(drawn)))
            raise ConfigError(
                f"{flag}: the trace is given by {arguments_trace}; leave one of them out"
            )
        return arguments_trace, {}
    if drawn or content.get("trace") is None:
        return None, under_flags(content, "generate", drawn)
    if content.get("generate"):
        raise ConfigError("--config: trace and generate: leave one of them out")
    return content["trace"], {}
