"""Command-line flags made from configuration models, and their errors told in the flags' words.

`num_prompts` becomes `--num-prompts`; its description the help; its bounds stay pydantic's. It
knows argparse and pydantic, and nothing of what an option means. A flag that was not given is
not in the result, so a model can tell what was said from what is default.
"""

from __future__ import annotations

import argparse
import difflib
import re
import typing
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import UnionType
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from loadgen.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


_MAY_BE_SECRET: Final = {"header", "extra_body", "base_url", "api_key_env", "targets"}
_MOST_SHOWN: Final = 100


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line, as ConfigError."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but a word that is no flag is an error of the command it was given to."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"no such flag or value: {word}{hint}")
        return known, unknown


def add_flags(
    parser: argparse.ArgumentParser,
    title: str,
    model: type[BaseModel],
    without: Collection[str] = (),
) -> None:
    """Give `parser` one flag for each field of `model`, in a group of that title."""
    group = parser.add_argument_group(title)
    for name, field in model.model_fields.items():
        if name in without:
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        aliases = typing.cast("list[str]", extra.get("aliases", []))
        kind = _plain_type(field.annotation)
        options: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": (field.description or "").replace("%", "%%") + _default_text(field),
        }
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = extra.get("metavar") or _metavar(kind)
        if kind is dict and extra.get("metavar") != "JSON":
            options |= {"nargs": "+", "action": "extend"}
        group.add_argument(flag_of(name), *aliases, **options)


def take(model: type[BaseModel], arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `model` that the command line gave."""
    given = vars(arguments)
    return {name: given[name] for name in model.model_fields if name in given}


def validate(model: type[Model], values: Mapping[str, Any]) -> Model:
    """`model` of these values; raises ConfigError, which names the first wrong flag.

    What was given is repeated only where it cannot hold a secret.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    names = [part for part in first["loc"] if isinstance(part, str)]
    context = first.get("ctx", {})
    if first["type"] == "conflict":
        others = " and ".join(map(flag_of, context["others"]))
        text = re.sub(r"\b(?:input|output)_(?:min|max)\b", lambda m: flag_of(m[0]), context["text"])
        raise ConfigError(f"{flag_of(context['field'])}: {text} {others}".rstrip())
    if first["type"] == "extra_forbidden":
        raise ConfigError(f"{'.'.join(names)}: no such key")
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    got = first["input"]
    is_shown = isinstance(got, str | int | float) and not _MAY_BE_SECRET.intersection(names)
    said = f", got {got!r}" if is_shown and len(str(got)) <= _MOST_SHOWN else ""
    field = next((name for name in reversed(names) if name in _flags_of(model)), None)
    where = f"{flag_of(field)}: " if field else ""
    raise ConfigError(f"{where}{message}{said}")


def _flags_of(model: type[BaseModel]) -> set[str]:
    """Names of a model's fields, and of those of the models in it."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        inner = _plain_type(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names |= _flags_of(inner)
        else:
            names.add(name)
    return names


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _plain_type(annotation: Any) -> Any:
    """The type behind Optional and Annotated: int, dict, an enum, ..."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _plain_type(typing.get_args(annotation)[0])
    if origin in (typing.Union, UnionType):
        inner = [part for part in typing.get_args(annotation) if part is not type(None)]
        return _plain_type(inner[0])
    if origin is typing.Literal:
        return annotation
    return origin or annotation


def _metavar(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "{" + ",".join(kind) + "}"
    if typing.get_origin(kind) is typing.Literal:
        return "{" + ",".join(typing.get_args(kind)) + "}"
    return {int: "N", float: "X", dict: "JSON"}.get(kind, getattr(kind, "__name__", "X").upper())


def _default_text(field: FieldInfo) -> str:
    default = field.default
    if field.default_factory is not None or default is None or default is False or default == ():
        return ""
    if isinstance(default, tuple):
        default = ",".join(p if isinstance(p, str) else f"{p:g}" for p in default)
    if default is True:
        default = "yes"
    return f" (default: {default})"
