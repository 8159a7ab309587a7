"""The knee of a curve."""

from __future__ import annotations

import pytest

from loadgen.knee import Knee, knee_of


def test_the_knee_of_a_closed_loop_is_where_it_saturates() -> None:
    """By the asymptotic bounds of a closed network (throughput min(n, N) / S, latency
    max(1, n / N) S) power is greatest at n = N."""
    widths = [1, 2, 4, 8, 16, 32]
    throughput = [min(n, 8) / 0.1 for n in widths]
    latency = [max(1.0, n / 8) * 0.1 for n in widths]
    assert knee_of(widths, throughput, latency) == Knee(3, True)


def test_the_knee_of_mm1_is_at_half_the_load() -> None:
    """Power of an M/M/1 queue, load (1 - load), is greatest at a load of one half: Kleinrock's
    rule."""
    loads = [0.1, 0.3, 0.5, 0.7, 0.9]
    assert knee_of(loads, loads, [1 / (1 - load) for load in loads]) == Knee(2, True)


def test_more_points_beyond_saturation_do_not_move_it() -> None:
    """The knee depends on no range of the axes."""
    throughput, latency = [10.0, 19.0, 20.0], [1.0, 1.2, 4.0]
    before = knee_of([1, 2, 3], throughput, latency)
    assert before == knee_of([1, 2, 3, 4, 5], [*throughput, 20.0, 20.0], [*latency, 50.0, 500.0])


@pytest.mark.parametrize(
    ("throughput", "latency", "index"), [([1.0, 2.0], [1.0, 1.0], 1), ([2.0, 2.1], [1.0, 9.0], 0)]
)
def test_a_knee_at_an_end_is_told(
    throughput: list[float], latency: list[float], index: int
) -> None:
    """Where power is greatest at an end, the knee may lie beyond."""
    assert knee_of([1, 2], throughput, latency) == Knee(index, False)


def test_points_without_figures_have_no_knee() -> None:
    """What cannot be computed is none, and what lacks a figure is passed over."""
    assert knee_of([], [], []) is None
    assert knee_of([1, 2], [None, 1.0], [1.0, None]) is None
    assert knee_of([1, 2, 3], [None, 5.0, 5.0], [1.0, 1.0, 2.0]) == Knee(1, True)


@pytest.mark.parametrize(
    ("loads", "throughput", "is_inside"),
    [
        ([1.0, 2.0, 4.0, 4.0], [10.0, 20.0, 40.0, 39.0], False),
        ([1.0, 1.0, 2.0], [10.0, 20.0, 1.0], False),
        ([1.0, 2.0, 2.0, 4.0], [1.0, 20.0, 19.0, 1.0], True),
    ],
    ids=["the highest load twice", "the lowest twice", "the knee twice"],
)
def test_a_load_that_was_looked_at_twice_is_one_end(
    loads: list[float], throughput: list[float], is_inside: bool
) -> None:
    """Whether the knee lies inside is told by loads, and not by how often one was measured."""
    knee = knee_of(loads, throughput, [1.0] * len(loads))
    assert knee is not None
    assert knee.is_inside is is_inside
