"""A file in another's format as a trace: read a block at a time, filtered, joined, sorted.

Rows are sorted stably by time, the smallest time is subtracted, and nothing is de-duplicated. Each
row that is left out or changed is counted. What is held in memory is the columns of the rows that
stay (24 bytes a row, and their block ids and texts where the file has some). It knows no command
line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import ConfigError, TraceError
from loadgen.trace.arrivals import Arrivals
from loadgen.trace.blocks import BlockIds
from loadgen.trace.csv_rows import Columns, parse_stamp_ns, read_csv
from loadgen.trace.formats import FORMATS, REFUSED_KEYS, Format, Kind, TimeUnit
from loadgen.trace.import_config import BrokenRowsAre, ImportConfig, ZeroRows
from loadgen.trace.json_rows import JsonOptions, can_regroup, read_jsonl
from loadgen.trace.parquet_rows import read_parquet
from loadgen.trace.reading import BLOCK_BYTES
from loadgen.trace.rows import BrokenRow, BrokenRows, Rows
from loadgen.trace.sharegpt import read_sharegpt
from loadgen.trace.trace import Trace, ordered

CountTokens = Callable[[str], int]
Window = tuple[float, float]


@dataclass(slots=True)
class Counts:
    """What became of the file's rows."""

    read: int = 0
    kept: int = 0
    broken_dropped: int = 0
    outside_dropped: int = 0
    zero_dropped: int = 0
    zero_clamped: int = 0
    oversized_dropped: int = 0
    oversized_clamped: int = 0
    block_ids_fitted: int = 0
    """Rows whose block ids were cut or added to, so that they cover the prompt."""

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Source:
    """A file, what it is, and what is to become of it."""

    name: str
    path: Path
    config: ImportConfig
    count_tokens: CountTokens | None = None
    block_bytes: int = BLOCK_BYTES

    @property
    def form(self) -> Format:
        """The format, with what the user says of it otherwise. Raises ConfigError."""
        form, config = FORMATS[self.name], self.config
        block_tokens = config.block_tokens or form.block_tokens
        if not can_regroup(block_tokens):
            raise ConfigError(f"--block-tokens: must divide 512, got {block_tokens}")
        if form.kind is Kind.SHAREGPT:
            for flag in ("time_column", "input_column", "output_column", "time_unit"):
                if getattr(config, flag) is not None:
                    raise ConfigError(f"--{flag.replace('_', '-')}: sharegpt has no columns")
        return replace(
            form,
            time=config.time_column or form.time,
            input=config.input_column or form.input,
            output=config.output_column or form.output,
            unit=config.time_unit or form.unit,
            block_tokens=block_tokens,
        )

    def rows(self, broken: BrokenRows) -> Iterator[Rows]:
        """All rows of the file that can be read."""
        form, config = self.form, self.config
        columns = Columns(form.time, form.input, form.output, form.unit)
        if form.kind is Kind.CSV:
            return read_csv(self.path, columns, broken, self.block_bytes)
        if form.kind is Kind.PARQUET:
            return read_parquet(self.path, columns, broken)
        if form.kind is Kind.SHAREGPT:
            if self.count_tokens is None:
                raise ConfigError("--tokenizer: is needed, since sharegpt holds text, not lengths")
            return read_sharegpt(self.path, self.count_tokens, broken, self.block_bytes)
        options = JsonOptions(
            form,
            REFUSED_KEYS.get(self.name, ()),
            self.count_tokens,
            config.output_len,
            config.text,
        )
        return read_jsonl(self.path, options, broken, self.block_bytes)


def import_trace(source: Source) -> tuple[Trace, Counts]:
    """The trace in a foreign file, and what became of its rows.

    Raises TraceError with file, line and column for what cannot be used, ConfigError for options
    that do not fit the format.
    """
    config, counts = source.config, Counts()
    window = _window(source)
    broken = BrokenRows(str(source.path), config.broken is BrokenRowsAre.DROP)
    parts: list[Rows] = []
    for rows in source.rows(broken):
        last = None if config.limit is None else _last_line(rows, window, source, counts.kept)
        if last is not None:
            rows = rows.where(rows.line <= last)
        try:
            kept = _policies(rows, window, source, counts)
        except _Refused as refused:
            broken.settle(refused.line)  # a broken row that stands before it is told first
            raise
        broken.settle(last)
        counts.kept += len(kept)
        if len(kept):
            parts.append(kept)
        if counts.kept == config.limit:
            break
    counts.broken_dropped = broken.count
    counts.read += broken.count
    if not parts:
        told = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in asdict(counts).items() if n)
        raise TraceError(f"{source.path}: no row is left ({told or 'it holds none'})")
    return _joined(parts, source, counts), counts


class _Refused(TraceError):
    """A row that a policy refuses; the message tells its line too."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _last_line(rows: Rows, window: Window | None, source: Source, kept: int) -> int | None:
    """The line of the row that reaches the limit; None where these rows do not reach it."""
    assert source.config.limit is not None
    drops = {"zero": ZeroRows.DROP, "oversized": ZeroRows.DROP}
    changes = {
        name: drop
        for name, drop in drops.items()
        if getattr(source.config, name) is ZeroRows.ERROR  # told once it is known to be needed
    }
    lenient = replace(source, config=source.config.model_copy(update=changes))
    left = _policies(rows, window, lenient, Counts())
    missing = source.config.limit - kept
    return int(left.line[missing - 1]) if len(left) >= missing else None


def _policies(rows: Rows, window: Window | None, source: Source, counts: Counts) -> Rows:
    """The rows that stay, changed where the policies say so."""
    config, name = source.config, source.path
    counts.read += len(rows)
    if window is not None:
        inside = rows.where((rows.time >= window[0]) & (rows.time < window[1]))
        counts.outside_dropped += len(rows) - len(inside)
        rows = inside
    is_zero = (rows.input_length == 0) | (rows.output_length == 0)
    if is_zero.any():
        if config.zero is ZeroRows.ERROR:
            line = int(rows.line[is_zero][0])
            raise _Refused(
                line,
                f"{name}:{line}: {_zero_column(rows, is_zero, source)}: 0 tokens; leave such rows "
                "out (--zero drop) or take them as 1 (--zero clamp)",
            )
        if config.zero is ZeroRows.DROP:
            counts.zero_dropped += int(is_zero.sum())
            rows = rows.where(~is_zero)
        else:
            counts.zero_clamped += int(is_zero.sum())
            rows = _with_lengths(
                rows, np.maximum(rows.input_length, 1), np.maximum(rows.output_length, 1)
            )
    most = config.max_context
    if most is None:
        return rows
    is_over = rows.input_length + rows.output_length > most
    if not is_over.any():
        return rows
    if config.oversized is ZeroRows.ERROR:
        row = int(np.flatnonzero(is_over)[0])
        total = int(rows.input_length[row] + rows.output_length[row])
        line = int(rows.line[row])
        raise _Refused(
            line,
            f"{name}:{line}: {total} tokens are over --max-context {most}; leave "
            "such rows out (--oversized drop) or shorten them (--oversized clamp)",
        )
    if config.oversized is ZeroRows.DROP:
        counts.oversized_dropped += int(is_over.sum())
        return rows.where(~is_over)
    counts.oversized_clamped += int(is_over.sum())
    inputs = np.minimum(rows.input_length, most - 1)
    return _with_lengths(rows, inputs, np.minimum(rows.output_length, most - inputs))


def _with_lengths(rows: Rows, inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> Rows:
    return replace(rows, input_length=inputs, output_length=outputs)


def _zero_column(rows: Rows, is_zero: NDArray[np.bool_], source: Source) -> str:
    is_input = rows.input_length[is_zero][0] == 0
    form = source.form
    return (form.input if is_input else form.output) or ("prompt" if is_input else "answer")


def _window(source: Source) -> Window | None:
    """From and to in the file's own time. Seconds are counted from the earliest row, which a pass
    over the file finds, since rows need not be sorted.
    """
    config, form = source.config, source.form
    if config.from_time is None and config.to_time is None:
        return None
    if form.kind is Kind.SHAREGPT:
        raise ConfigError("--from and --to: sharegpt has no times")
    is_stamp = form.unit is TimeUnit.ISO
    bounds = []
    origin: float | None = None
    for flag, text, default in (
        ("--from", config.from_time, -math.inf),
        ("--to", config.to_time, math.inf),
    ):
        if text is None:
            bounds.append(default)
            continue
        seconds = _seconds(text)
        if seconds is not None:
            origin = _earliest(source) if origin is None else origin
            bounds.append(origin + seconds * (1e9 if is_stamp else 1000.0))
            continue
        try:
            stamp_ns = parse_stamp_ns(text, flag)
        except BrokenRow:
            stamp_ns = None
        if stamp_ns is None or not is_stamp:
            such = " or a date and time" if is_stamp else ""
            raise ConfigError(f"{flag}: must be seconds after the earliest row{such}, got {text!r}")
        bounds.append(stamp_ns)
    if bounds[0] >= bounds[1]:
        raise ConfigError("--from: must lie before --to")
    return bounds[0], bounds[1]


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _earliest(source: Source) -> float:
    """The smallest time of the file, as a Python number, whole where times are."""
    smallest = [
        rows.time.min().item()
        for rows in source.rows(BrokenRows(str(source.path), are_dropped=True))
        if len(rows)
    ]
    if not smallest:
        raise TraceError(f"{source.path}: holds no row that can be read")
    return min(smallest)  # type: ignore[no-any-return]


def _joined(parts: list[Rows], source: Source, counts: Counts) -> Trace:
    config = source.config
    times: NDArray[Any] = np.concatenate([rows.time for rows in parts])
    times_ms = times - times.min()
    if source.form.unit is TimeUnit.ISO:
        times_ms = times_ms / 1e6  # whole ns: exact, where a float since 1970 would not be
    inputs = np.concatenate([rows.input_length for rows in parts])
    ids = _joined_ids(parts)
    if ids is not None:
        ids, counts.block_ids_fitted = ids.fitted(inputs)
    payload = None
    if any(rows.payload is not None for rows in parts):
        payload = [own for rows in parts for own in rows.payload or [{}] * len(rows)]
    outputs = np.concatenate([rows.output_length for rows in parts])
    trace = ordered(times_ms.astype(np.float64), inputs, outputs, ids, payload)
    rng = np.random.default_rng(config.seed)
    if config.request_rate is not None:
        arrivals = Arrivals(config.request_rate, config.arrival, config.arrival_cv)
        return replace(trace, timestamp_ms=arrivals.draw_ms(len(trace), rng))
    if config.dither is not None:
        trace = _dithered(trace, config.dither * 1000.0, rng)
    if config.speedup != 1.0:
        trace = replace(trace, timestamp_ms=trace.timestamp_ms / config.speedup)
    return trace


def _joined_ids(parts: list[Rows]) -> BlockIds | None:
    if all(rows.hash_ids is None for rows in parts):
        return None
    none = [BlockIds.of([()] * len(rows)) if rows.hash_ids is None else None for rows in parts]
    return BlockIds.joined(
        [rows.hash_ids or empty for rows, empty in zip(parts, none, strict=True)]  # type: ignore[misc]
    )


def _dithered(trace: Trace, tick_ms: float, rng: np.random.Generator) -> Trace:
    """Each row moved within its tick; those of one tick are sorted, so its rows keep order."""
    moves_ms = rng.uniform(0.0, tick_ms, len(trace))
    moves_ms = moves_ms[np.lexsort((moves_ms, trace.timestamp_ms))]
    return ordered(
        trace.timestamp_ms + moves_ms,
        trace.input_length,
        trace.output_length,
        None if trace.hash_ids is None else BlockIds.of(trace.hash_ids),
        trace.payload,
    )
