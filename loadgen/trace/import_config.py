"""What may be said of a file in another's format that becomes a trace.

A strict, frozen model like those of `loadgen.config`; each field is a flag and a line of the docs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from loadgen.strict import Rate, Spread, Strict, Tokens, conflict
from loadgen.trace.config import ArrivalLaw
from loadgen.trace.formats import TimeUnit


class ZeroRows(StrEnum):
    """What becomes of a row that asks for no tokens, or answers with none."""

    DROP = "drop"
    CLAMP = "clamp"
    ERROR = "error"


class BrokenRowsAre(StrEnum):
    """What becomes of a row that cannot be read."""

    DROP = "drop"
    ERROR = "error"


class ImportConfig(Strict):
    """How a file in another's format becomes a trace."""

    time_column: str | None = Field(
        None,
        description="name of the column or key of the time, where it is not the format's",
        json_schema_extra={"metavar": "NAME"},
    )
    input_column: str | None = Field(
        None,
        description="name of the column or key of the prompt's tokens",
        json_schema_extra={"metavar": "NAME"},
    )
    output_column: str | None = Field(
        None,
        description="name of the column or key of the output's tokens",
        json_schema_extra={"metavar": "NAME"},
    )
    time_unit: TimeUnit | None = Field(
        None, description="unit of the time, where it is not the format's; iso: a date and time"
    )
    block_tokens: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None, description="tokens of a block of hash_ids, where it is not the format's; divides 512"
    )
    from_time: str | None = Field(
        None,
        description="leave out rows before this: seconds after the earliest row, or a date and "
        "time",
        json_schema_extra={"aliases": ["--from"], "metavar": "WHEN"},
    )
    to_time: str | None = Field(
        None,
        description="leave out rows at or after this: seconds after the earliest row, or a date "
        "and time",
        json_schema_extra={"aliases": ["--to"], "metavar": "WHEN"},
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        None, description="keep the first so many rows of the file, and read no further"
    )
    speedup: Annotated[float, Field(gt=0, le=1e9)] = Field(
        1.0, description="replay so many times as fast: times are divided by it"
    )
    dither: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="spread rows evenly over the tick that the file's times are rounded to, in "
        "seconds (3 for Mooncake); rows of one tick keep their order",
    )
    request_rate: Rate | None = Field(
        None, description="draw new arrivals at this rate, as for a file without times"
    )
    arrival: ArrivalLaw = Field(ArrivalLaw.LOGNORMAL, description="law of the drawn arrivals")
    arrival_cv: Spread = Field(1.5, description="CV of the gaps of drawn arrivals")
    seed: int = Field(42, ge=0, lt=2**32, description="seed of --dither and of drawn arrivals")
    max_context: Annotated[int, Field(ge=2)] | None = Field(
        None, description="most tokens of a prompt and its output together"
    )
    zero: ZeroRows = Field(
        ZeroRows.DROP,
        description="rows with no prompt or no output tokens (failures, mostly): leave out, take "
        "as 1 token, or stop",
    )
    oversized: ZeroRows = Field(
        ZeroRows.DROP,
        description="rows over --max-context: leave out, shorten the output and then the prompt, "
        "or stop",
    )
    broken: BrokenRowsAre = Field(
        BrokenRowsAre.ERROR, description="rows that cannot be read: leave out, or stop"
    )
    tokenizer: Path | None = Field(
        None, description="tokenizer.json, or a directory that holds one, to count text by"
    )
    output_len: Tokens | None = Field(
        None,
        description="output tokens of rows that do not say",
        json_schema_extra={"aliases": ["--osl"]},
    )
    text: bool = Field(
        True, description="keep the prompts of a file that has some; without, lengths only"
    )

    @model_validator(mode="after")
    def _agree(self) -> ImportConfig:
        drawn = {"arrival", "arrival_cv"} & self.model_fields_set
        if self.request_rate is None and drawn:
            raise conflict(min(drawn), "shapes drawn arrivals: give", ["request_rate"])
        if self.request_rate is not None and {"speedup", "dither"} & self.model_fields_set:
            others = {"speedup", "dither"} & self.model_fields_set
            raise conflict("request_rate", "takes the place of the file's times; leave out", others)
        if "oversized" in self.model_fields_set and self.max_context is None:
            raise conflict("oversized", "needs a limit: give", ["max_context"])
        return self
