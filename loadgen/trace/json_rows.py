"""Rows of a JSONL file: Mooncake's keys and their relatives, with lengths or with text.

Text without a length is counted by a tokenizer, if one was given. Sessions are refused: they cannot
be replayed yet. It knows the formats by their table alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from loadgen.trace.blocks import HASH_BLOCK_TOKENS, BlockIds, Regrouping
from loadgen.trace.csv_rows import checked_tokens, parse_stamp_ns
from loadgen.trace.formats import MS_IN, Format, TimeUnit
from loadgen.trace.reading import BLOCK_BYTES, line_blocks
from loadgen.trace.rows import BrokenRow, BrokenRows, Rows

CountTokens = Callable[[str], int]
_NO_TEXT: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """What a user may say of a JSONL file, beside its format."""

    form: Format
    refused: Sequence[str] = ()
    """Keys that mean more than can be replayed."""
    count_tokens: CountTokens | None = None
    output_tokens: int | None = None
    """For rows without an output length."""
    keeps_text: bool = True


def read_jsonl(
    path: Path, options: JsonOptions, broken: BrokenRows, block_bytes: int = BLOCK_BYTES
) -> Iterator[Rows]:
    """The file's rows; `hash_ids` as ids of 512-token blocks."""
    reader = _Reader(options)
    for first_line, block in line_blocks(path, block_bytes):
        for line, raw in enumerate(block.split(b"\n"), first_line):
            if raw.strip():
                try:
                    reader.add(line, raw)
                except BrokenRow as problem:
                    broken.take(line, str(problem))
        yield reader.taken()


class _Reader:
    """Collects rows; knows across blocks whether rows have times, and which ids stand for what."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._regroup = Regrouping(options.form.block_tokens)
        self._has_times: bool | None = None
        self._start()

    def _start(self) -> None:
        kind = "q" if self._options.form.unit is TimeUnit.ISO else "d"
        self._line = array("q")
        self._time: array[Any] = array(kind)
        self._input, self._output = array("q"), array("q")
        self._ids: list[tuple[int, ...]] = []
        self._payload: list[Mapping[str, Any]] = []

    def taken(self) -> Rows:
        """The rows since the last call."""
        is_stamp = self._options.form.unit is TimeUnit.ISO
        rows = Rows(
            np.array(self._line, dtype=np.int64),
            np.array(self._time, dtype=np.int64 if is_stamp else np.float64),
            np.array(self._input, dtype=np.int64),
            np.array(self._output, dtype=np.int64),
            BlockIds.of(self._ids) if any(self._ids) else None,
            self._payload if any(self._payload) else None,
        )
        self._start()
        return rows

    def add(self, line: int, raw: bytes) -> None:
        """One line; raises BrokenRow."""
        try:
            row = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise BrokenRow(f"not JSON ({error})") from None
        if not isinstance(row, dict):
            raise BrokenRow("not a JSON object")
        for key in self._options.refused:
            if row.get(key) is not None:
                raise BrokenRow(f"{key}: cannot be imported")
        text = self._text(row)
        time = self._time_of(row)
        inputs = self._input_of(row, text)
        outputs = self._output_of(row)
        ids = self._ids_of(row)
        self._line.append(line)
        self._time.append(time)
        self._input.append(inputs)
        self._output.append(outputs)
        self._ids.append(ids)
        key = "prompt" if isinstance(text, str) else "messages"
        keeps = self._options.keeps_text and text is not None
        self._payload.append({key: text} if keeps else _NO_TEXT)

    def _text(self, row: dict[str, Any]) -> str | list[Any] | None:
        for key in self._options.form.texts:
            text = row.get(key)
            if text is None:
                continue
            if key == "messages":
                if not isinstance(text, list) or not all(isinstance(m, dict) for m in text):
                    raise BrokenRow("messages: a list of chat messages is needed")
                return text
            if not isinstance(text, str):
                raise BrokenRow(f"{key}: text is needed")
            return text
        return None

    def _time_of(self, row: dict[str, Any]) -> float | int:
        form = self._options.form
        time = row.get(form.time)
        if form.may_be_untimed:
            if self._has_times is None:
                self._has_times = time is not None
            if self._has_times != (time is not None):
                had = "have one" if self._has_times else "have none"
                raise BrokenRow(f"{form.time}: all rows need one or none, and those before {had}")
            if time is None:
                return 0
        if form.unit is TimeUnit.ISO:
            if not isinstance(time, str):
                hint = "" if time is None else "; --time-unit?"
                raise BrokenRow(f"{form.time}: a date and time is needed, got {_shown(time)}{hint}")
            return parse_stamp_ns(time, form.time)
        if isinstance(time, bool) or not isinstance(time, int | float):
            hint = "; --time-unit?" if isinstance(time, str) else ""
            raise BrokenRow(
                f"{form.time}: a number ({form.unit}) is needed, got {_shown(time)}{hint}"
            )
        time_ms = float(time) * MS_IN[form.unit]
        if not math.isfinite(time_ms):
            raise BrokenRow(f"{form.time}: a finite number is needed")
        return time_ms

    def _input_of(self, row: dict[str, Any], text: str | list[Any] | None) -> int:
        form = self._options.form
        if row.get(form.input) is not None:
            return _tokens(row[form.input], form.input)
        if text is None:
            raise BrokenRow(f"{form.input}: a number of tokens is needed, got null")
        if self._options.count_tokens is None:
            raise BrokenRow(f"{form.input}: the text has no length; count it by --tokenizer")
        if isinstance(text, str):
            return self._options.count_tokens(text)
        parts = (str(message.get("content") or "") for message in text)
        return self._options.count_tokens("\n".join(parts))

    def _output_of(self, row: dict[str, Any]) -> int:
        form = self._options.form
        for key in (form.output, *form.other_outputs):
            if row.get(key) is not None:
                return _tokens(row[key], key)
        if self._options.output_tokens is None:
            raise BrokenRow(f"{form.output}: a number of tokens is needed; or give --output-len")
        return self._options.output_tokens

    def _ids_of(self, row: dict[str, Any]) -> tuple[int, ...]:
        ids = row.get("hash_ids")
        if ids is None:
            return ()
        is_good = isinstance(ids, list) and all(
            type(block) is int and -(2**63) <= block < 2**63 for block in ids
        )
        if not is_good:
            raise BrokenRow("hash_ids: a list of whole numbers below 2^63 is needed")
        return self._regroup(ids)


def _tokens(value: Any, column: str) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value or math.isinf(value) or value != int(value):
        raise BrokenRow(f"{column}: a whole number of tokens is needed, got {_shown(value)}")
    return checked_tokens(int(value), column)


def _shown(value: Any) -> str:
    return repr(value)[:60]


def can_regroup(block_tokens: int) -> bool:
    """Whether ids of blocks of that size can be put together to blocks of 512."""
    return HASH_BLOCK_TOKENS % block_tokens == 0
