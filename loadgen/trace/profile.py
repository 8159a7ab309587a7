"""Rate profiles: how the mean rate of arrivals moves with time.

A profile knows its expected number of arrivals up to a time, and the time at which a number is
expected. Gaps of a unit-rate process that go through the latter have the profile's local rate (time
change; Daley and Vere-Jones, An Introduction to the Theory of Point Processes, 7.4). It does not
know what law the gaps have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import TraceError

Floats = NDArray[np.float64]

DAY_S: Final = 86_400.0
BIN_S: Final = 60.0
_ROUNDING: Final = 1e-12
"""Of a trace's duration: more than rounding adds to it, less than a rest that was recorded."""
_KNOTS: Final = 4096
_MOST_BINS: Final = 10_000_000
_NEWTON_STEPS: Final = 60


class Profile(Protocol):
    """A rate that depends on time; time 0 is the first arrival."""

    def expected(self, time_s: Floats) -> Floats:
        """Expected arrivals from 0 to each time."""

    def time_s(self, expected: Floats) -> Floats:
        """The times at which so many arrivals are expected; grows with `expected`."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """From one rate to another in a straight line, and on at the second."""

    first: float
    last: float
    duration_s: float

    def expected(self, time_s: Floats) -> Floats:
        rising_s = np.minimum(time_s, self.duration_s)
        slope = (self.last - self.first) / self.duration_s
        area = self.first * rising_s + slope * rising_s**2 / 2
        return np.asarray(area + self.last * np.maximum(time_s - self.duration_s, 0.0))

    def time_s(self, expected: Floats) -> Floats:
        slope = (self.last - self.first) / self.duration_s
        whole = (self.first + self.last) * self.duration_s / 2
        rising = np.minimum(expected, whole)
        root = np.sqrt(np.maximum(self.first**2 + 2 * slope * rising, 0.0))
        below = np.where(self.first + root > 0, self.first + root, 1.0)
        return np.asarray(2 * rising / below + np.maximum(expected - whole, 0.0) / self.last)


@dataclass(frozen=True, slots=True)
class Steps:
    """Constant rates one after another; then `tail` for ever, or from the start again."""

    duration_s: tuple[float, ...]
    rate: tuple[float, ...]
    tail: float | None = None

    def expected(self, time_s: Floats) -> Floats:
        ends_s, areas = self._ends()
        if self.tail is None:
            cycle, rest_s = np.divmod(time_s, ends_s[-1])
            return np.asarray(cycle * areas[-1] + np.interp(rest_s, ends_s, areas))
        beyond = self.tail * np.maximum(time_s - ends_s[-1], 0.0)
        return np.asarray(np.interp(time_s, ends_s, areas) + beyond)

    def time_s(self, expected: Floats) -> Floats:
        ends_s, areas = self._ends()
        if self.tail is None:
            cycle, rest = np.divmod(expected, areas[-1])
            return np.asarray(cycle * ends_s[-1] + self._within(rest, ends_s, areas))
        inside = self._within(np.minimum(expected, areas[-1]), ends_s, areas)
        beyond_s = ends_s[-1] + (expected - areas[-1]) / self.tail
        return np.where(expected < areas[-1], inside, beyond_s)

    def _ends(self) -> tuple[Floats, Floats]:
        lengths_s = np.array(self.duration_s)
        ends_s = np.concatenate(([0.0], np.cumsum(lengths_s)))
        return ends_s, np.concatenate(([0.0], np.cumsum(lengths_s * self.rate)))

    def _within(self, area: Floats, ends_s: Floats, areas: Floats) -> Floats:
        if areas[-1] == 0:  # nothing is expected before the tail
            return np.zeros_like(area)
        area = np.minimum(area, np.nextafter(areas[-1], 0.0))
        step = np.searchsorted(areas, area, side="right") - 1  # steps of rate 0 are never hit
        return np.asarray(ends_s[step] + (area - areas[step]) / np.array(self.rate)[step])


@dataclass(frozen=True, slots=True)
class Sine:
    """rate * (1 + amplitude * sin(2 pi (t + phase) / period))."""

    rate: float
    amplitude: float
    period_s: float
    phase_s: float = 0.0

    def expected(self, time_s: Floats) -> Floats:
        return np.asarray(self._area(time_s + self.phase_s) - self._area(np.array(self.phase_s)))

    def time_s(self, expected: Floats) -> Floats:
        """By Newton's method inside the cells of a table of one period."""
        area = expected + self._area(np.array(self.phase_s))
        cycle, rest = np.divmod(area, self.rate * self.period_s)
        knots_s = np.linspace(0.0, self.period_s, _KNOTS + 1)
        knot_areas = self._area(knots_s)
        cell = np.clip(np.searchsorted(knot_areas, rest, side="right") - 1, 0, _KNOTS - 1)
        low_s, high_s = knots_s[cell], knots_s[cell + 1]
        guess_s = np.interp(rest, knot_areas, knots_s)
        for _ in range(_NEWTON_STEPS):
            slope = np.maximum(self._rate(guess_s), 1e-12 * self.rate)
            better_s = np.clip(guess_s - (self._area(guess_s) - rest) / slope, low_s, high_s)
            is_done = np.max(np.abs(better_s - guess_s), initial=0.0) <= 1e-13 * self.period_s
            guess_s = better_s
            if is_done:
                break
        times_s = cycle * self.period_s + guess_s - self.phase_s
        return np.asarray(np.maximum.accumulate(times_s) if times_s.ndim else times_s)

    def _rate(self, time_s: Floats) -> Floats:
        turn = 2 * math.pi * time_s / self.period_s
        return np.asarray(self.rate * (1 + self.amplitude * np.sin(turn)))

    def _area(self, time_s: Floats) -> Floats:
        turn = 2 * math.pi / self.period_s
        wave = self.amplitude / turn * (1 - np.cos(turn * time_s))
        return np.asarray(self.rate * (time_s + wave))


@dataclass(frozen=True, slots=True)
class FromTrace:
    """The rate that a trace's own arrivals have in each bin; the generator reads the file."""

    path: Path
    bin_s: float = BIN_S


@dataclass(frozen=True, slots=True)
class DailySine:
    """A sine around whatever mean rate is asked."""

    amplitude: float
    period_s: float = DAY_S
    phase_s: float = 0.0


Spec = Ramp | Steps | DailySine | FromTrace | None
"""What a profile's words say; None: a constant rate."""

FORMS: Final = (
    "constant, ramp:FROM:TO:SECONDS, steps:RATE@SECONDS,... , sine:AMPLITUDE[:PERIOD[:PHASE]], "
    "or trace:FILE[:BIN]"
)


def parse_profile(text: str) -> Spec:
    """What the words of `--rate-profile` say; raises ValueError, which says what would do."""
    kind, _, rest = text.partition(":")
    parts = rest.split(":") if rest else []
    if kind == "constant" and not parts:
        return None
    if kind == "ramp" and len(parts) == 3:
        first, last, duration_s = map(_number, parts)
        if first < 0 or last <= 0 or duration_s <= 0:
            raise ValueError("ramp:FROM:TO:SECONDS needs FROM from 0, TO and SECONDS over 0")
        return Ramp(first, last, duration_s)
    if kind == "steps" and len(parts) == 1:
        return _steps(rest)
    if kind == "sine" and 1 <= len(parts) <= 3:
        sine = DailySine(*map(_number, parts))
        if not 0 <= sine.amplitude <= 1 or sine.period_s <= 0:
            raise ValueError("sine needs an amplitude from 0 to 1 and a period over 0")
        return sine
    if kind == "trace" and parts:
        return _from_trace(rest)
    raise ValueError(f"must be {FORMS}")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; it must be {FORMS}") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def _steps(text: str) -> Steps:
    pieces = [piece.split("@") for piece in text.split(",")]
    needs = "steps must be RATE@SECONDS,RATE@SECONDS,... and the last may be RATE alone, for ever"
    if any(len(piece) != 2 for piece in pieces[:-1]) or len(pieces[-1]) > 2 or len(pieces[0]) != 2:
        raise ValueError(needs)
    tail = _number(pieces.pop()[0]) if len(pieces[-1]) == 1 else None
    rates = tuple(_number(rate) for rate, _ in pieces)
    durations_s = tuple(_number(duration) for _, duration in pieces)
    if min(rates) < 0 or min(durations_s) <= 0 or (tail is not None and tail <= 0):
        raise ValueError("steps need rates from 0, seconds over 0 and a last rate over 0")
    if tail is None and max(rates) == 0:
        raise ValueError("steps need a rate over 0 somewhere")
    return Steps(durations_s, rates, tail)


def _from_trace(text: str) -> FromTrace:
    path, separator, last = text.rpartition(":")
    if separator:
        try:
            bin_s = float(last)
        except ValueError:
            return FromTrace(Path(text))
        if not (math.isfinite(bin_s) and bin_s > 0):
            raise ValueError("trace:FILE:BIN needs a bin over 0, in seconds")
        return FromTrace(Path(path), bin_s)
    return FromTrace(Path(text))


def profile_of(timestamp_ms: Floats, bin_s: float, rate: float | None) -> Steps:
    """The rates that arrivals have in bins of `bin_s`; scaled to a mean `rate` where one is given.
    Raises TraceError where those are too many.

    The last bin is cut at the last arrival, and after it the profile starts again. What is left of
    it by rounding alone is no bin: 2.1 s / 0.3 s is a little over 7, and it would have no length.
    """
    times_s = timestamp_ms / 1000.0
    duration_s = max(float(times_s[-1]), 1e-9)
    if duration_s / bin_s > _MOST_BINS:
        raise TraceError(
            f"--rate-profile: {duration_s:g} s in bins of {bin_s:g} s are over {_MOST_BINS:,}; "
            "take longer ones"
        )
    bins = max(1, math.ceil(duration_s / bin_s))
    if bins > 1 and duration_s - bin_s * (bins - 1) <= _ROUNDING * duration_s:
        bins -= 1
    index = np.minimum((times_s / bin_s).astype(np.int64), bins - 1)
    counts = np.bincount(index, minlength=bins).astype(np.float64)
    lengths_s = np.full(bins, min(bin_s, duration_s))
    if bins > 1:
        lengths_s[-1] = duration_s - bin_s * (bins - 1)
    scale = 1.0 if rate is None else rate * duration_s / counts.sum()
    return Steps(tuple(lengths_s.tolist()), tuple((scale * counts / lengths_s).tolist()))
