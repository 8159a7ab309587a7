"""JSON Schemas of `summary.json` and `comparison.json`, made from the types that are written.

Draft 2020-12. They describe exactly what this version writes, under its `schema_version`; a later
minor version may add keys, which readers had better ignore.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from loadgen.compare import COUNTS
from loadgen.paired import Comparison
from loadgen.record import SCHEMA_VERSION, WorkerHealth
from loadgen.stats import LATENCIES, Distribution, Summary
from loadgen.verdict import Grade, Reason

NAMES: Final = ("summary", "comparison")
_PLAIN: Final = {int: "integer", float: "number", str: "string", bool: "boolean"}
_NUMBER: Final = {"type": ["number", "null"]}
_PERCENTILE: Final = r"^p[0-9]+(\.[0-9]+)?$"


def schema_of(name: str) -> dict[str, Any]:
    """The schema of one of NAMES."""
    content = _summary() if name == "summary" else _comparison()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"loadgen {name}.json",
    } | content


def _summary() -> dict[str, Any]:
    return _object(
        schema_version={"const": SCHEMA_VERSION},
        run_id={"type": "string"},
        kind={"enum": ["run", "compare", "simulate"]},
        label={"type": ["string", "null"]},
        time_unit={"enum": ["seconds", "iterations"]},
        verdict=_schema(Grade),
        reasons=_schema(tuple[Reason, ...]),
        torn_lines={"type": "integer", "minimum": 0},
        stopped={"type": ["string", "null"]},
        workers=_schema(tuple[WorkerHealth, ...]),
        targets=_mapping(_schema(Summary)),
    )


def _comparison() -> dict[str, Any]:
    latency = {
        "type": ["object", "null"],
        "properties": {"mean": _NUMBER},
        "required": ["mean"],
        "patternProperties": {_PERCENTILE: _NUMBER},
        "additionalProperties": False,
    }
    goodput = _object(good=_NUMBER, requests_per_s=_NUMBER, share=_NUMBER)
    figures = _object(
        **dict.fromkeys(COUNTS, _NUMBER), **dict.fromkeys(LATENCIES, latency), goodput=goodput
    )
    return _object(
        schema_version={"const": SCHEMA_VERSION},
        baseline={"type": "string"},
        targets=_mapping(figures),
        ratio=figures,
        ratios=_mapping(figures),
        paired=_mapping(_schema(Comparison)),
        split={"anyOf": [{"type": "null"}, _split()]},
        verdict=_schema(Grade),
        reasons=_schema(tuple[Reason, ...]),
    )


def _split() -> dict[str, Any]:
    """What `GainSplit.as_json` gives."""
    factors = ("engine", "policy", "total")
    interval = {"type": ["array", "null"], "items": {"type": "number"}}
    return _object(
        gangs={"type": "string"},
        **{factor: {"type": "number"} for factor in factors},
        intervals=_object(**dict.fromkeys(factors, interval)),
        blocks={"type": "integer"},
    )


def _schema(kind: Any) -> dict[str, Any]:
    """Of a type that results are made of."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is Distribution:
        return _distribution()
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(member) for member in kind]}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return _object(**{field.name: _schema(hints[field.name]) for field in fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0])}
    if origin is dict:
        return _mapping(_schema(inner[1])) | {"propertyNames": _schema(inner[0])}
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"}, *(_schema(k) for k in inner if k is not type(None))]}
    raise TypeError(f"{kind}: results hold no such type")


def _distribution() -> dict[str, Any]:
    shown = _object(
        mean={"type": "number"},
        n={"type": "integer", "minimum": 1},
        std={"type": "number"},
        min={"type": "number"},
        max={"type": "number"},
    )
    return shown | {"patternProperties": {_PERCENTILE: {"type": "number"}}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _mapping(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}
