"""What all configuration models share: strictness, contradictions, and types with bounds.

It knows pydantic, and no option.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Unknown keys are refused, nothing changes after validation, and all of it can be kept as
    JSON: whole numbers that others can read, paths and texts of UTF-8."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        for name, value in self:
            if (problem := _why_not_kept(value)) is not None:
                raise conflict(name, problem)
        return self


def _why_not_kept(value: Any) -> str | None:
    """What keeps a value out of a file of JSON, inside mappings and lists too; a model has said."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"must lie between -{MOST:,} and {MOST:,}"
    if isinstance(value, str | Path) and not is_text(str(value)):
        return "must be UTF-8, without NUL"
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return next((problem for part in parts if (problem := _why_not_kept(part))), None)


def is_text(text: str) -> bool:
    """Whether files and other programs can hold it."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def conflict(field: str, text: str, others: Iterable[str] = ()) -> PydanticCustomError:
    """Fields that do not go together; `flags.py` tells them by their flags."""
    return PydanticCustomError(
        "conflict", "{text}", {"field": field, "text": text, "others": sorted(others)}
    )


def _rate(value: float) -> float:
    if not (SLOWEST <= value <= FASTEST or value == math.inf):  # NaN is neither
        raise ValueError(f"must lie between {SLOWEST:g} and {FASTEST:g} a second, or be inf")
    return value


def _told(value: float) -> float | str:
    return "inf" if value == math.inf else value


MOST: Final = 2**53
"""Beyond it a reader of JSON may see another number."""
SLOWEST: Final = 1e-6
FASTEST: Final = 1e9
Rate = Annotated[float, AllowInfNan(True), AfterValidator(_rate), PlainSerializer(_told)]
"""Arrivals a second; JSON has no infinity, so it is told as a word."""
Spread = Annotated[float, Field(gt=0, le=1000)]
"""A coefficient of variation: beyond this a drawn sample says nothing of its law."""
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
