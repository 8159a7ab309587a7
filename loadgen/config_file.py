"""`--config FILE`: a run's configuration from a YAML or JSON file, under the flags of the same run.

The file has the keys of `RunConfig`, section by section: trace, generate, targets, request, load,
compare, output. A flag that is given wins over the file's key. It knows models, and no run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import yaml
from pydantic import BaseModel

from loadgen.config import (
    CompareConfig,
    GeneratorConfig,
    LoadConfig,
    OutputConfig,
    RequestConfig,
    RunConfig,
    TargetConfig,
)
from loadgen.errors import ConfigError
from loadgen.flags import validate

SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "generate": GeneratorConfig,
    "request": RequestConfig,
    "load": LoadConfig,
    "compare": CompareConfig,
    "output": OutputConfig,
}
_STANDARD_INPUT: Final = Path("-")
_MOST_BYTES: Final = 1 << 20


class _UniqueKeys(yaml.SafeLoader):
    """YAML's own loader takes the last of two equal keys; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key} stands twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> dict[str, Any]:
    """The file's sections, each checked by its own model; raises ConfigError with the place.

    `-` is standard input. JSON is YAML, so the file's name does not matter.
    """
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
    return check_sections(_parsed(data, name), name)


def _parsed(data: bytes, name: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return yaml.load(data, Loader=_UniqueKeys)
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise ConfigError(f"--config: {name}{line}: neither YAML nor JSON: {problem}") from None


def check_sections(content: Any, name: str) -> dict[str, Any]:
    """`content` as sections of a run's configuration; raises ConfigError, which begins with `name`.

    What is left out is left to flags and defaults.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{name}: must hold keys such as targets, generate, load")
    known = RunConfig.model_fields.keys()
    for key in content:
        if key not in known:
            raise ConfigError(f"{name}: {key}: no such key; there are {', '.join(known)}")
    for key, model in SECTIONS.items():
        if key in content:
            _check(content[key], model, f"{name}: {key}")
    targets = content.get("targets", [])
    if not isinstance(targets, list):
        raise ConfigError(f"{name}: targets: must be a list of name and base_url")
    for number, target in enumerate(targets):
        _check(target, TargetConfig, f"{name}: targets[{number}]")
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
