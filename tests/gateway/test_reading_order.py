"""Regions come out in the order in which a person reads them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.reading_order import page_slope, reading_order


def box(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def turned(quads: list[list[list[float]]], degrees: float) -> np.ndarray:
    a = math.radians(degrees)
    return np.array(quads) @ np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])


PAGES = {
    "nothing": [],
    "one region": [box(0, 0, 50, 10)],
    "a column": [box(0, y, 90, y + 20) for y in (0, 30, 60)],
    "a row, left to right": [box(x, 0, x + 80, 20) for x in (0, 100, 200)],
    "two rows of two": [box(0, 0, 90, 20), box(100, 2, 190, 22), box(0, 30, 90, 50), box(100, 28, 190, 48)],
    "large and small type in one row": [box(0, 0, 80, 40), box(100, 12, 180, 28), box(0, 50, 80, 70)],
    "a receipt: names left, prices far right": [
        *(box(0, 0, 120, 18), box(500, 3, 560, 19)),
        *(box(0, 24, 200, 42), box(510, 26, 560, 42)),
        *(box(0, 48, 90, 66), box(505, 50, 560, 66)),
    ],
    "a logo as high as three rows, then the rows": [
        *(box(0, 0, 60, 100), box(100, 0, 300, 20), box(100, 40, 300, 60), box(100, 80, 300, 100)),
    ],
    "a row that sinks by more than its height, by steps": [
        *(box(x, x * 0.1, x + 40, x * 0.1 + 20) for x in range(0, 300, 50)),
        box(0, 60, 20, 80),
    ],
}


@pytest.mark.parametrize("name", PAGES)
def test_regions_are_read_in_rows_from_the_left(name: str) -> None:
    """The pages are written in reading order; any other order of the same regions must lead back to it."""
    quads = np.array(PAGES[name], np.float32).reshape(-1, 4, 2)
    for seed in range(5):
        shuffle = np.random.default_rng(seed).permutation(len(quads))
        order = reading_order(quads[shuffle])
        if name.startswith("a logo"):  # beside a logo only the rows' own order is promised
            order = [i for i in order if shuffle[i] != 0]
            assert [int(shuffle[i]) for i in order] == [1, 2, 3]
        else:
            assert [int(shuffle[i]) for i in order] == list(range(len(quads)))


@pytest.mark.parametrize("degrees", [-6, -3, -1, 1, 3, 6])
def test_a_skewed_scan_keeps_its_rows(degrees: float) -> None:
    page = [box(x, y, x + 200, y + 20) for y in range(0, 200, 32) for x in (0, 300, 900)]
    assert reading_order(turned(page, degrees)) == list(range(len(page)))


def test_the_slope_is_that_of_the_long_regions() -> None:
    page = turned([box(0, y, 300, y + 20) for y in (0, 40, 80)], 4)
    stamp = turned([box(400, 0, 430, 30)], 30)
    assert page_slope(np.concatenate([page, stamp])) == pytest.approx(math.tan(math.radians(4)), abs=1e-6)


def test_steep_text_is_not_taken_for_skew() -> None:
    assert page_slope(turned([box(0, 0, 300, 20)], 45)) == 0.0


@given(st.lists(st.lists(st.floats(-1e4, 1e4), min_size=8, max_size=8), max_size=20))
def test_every_region_comes_out_once_whatever_its_corners(flat: list[list[float]]) -> None:
    quads = np.array(flat, np.float64).reshape(-1, 4, 2)
    assert sorted(reading_order(quads)) == list(range(len(flat)))


@given(st.permutations(range(12)))
def test_the_order_given_does_not_matter(shuffle: list[int]) -> None:
    page = np.array([box(x, y, x + 90, y + 20) for y in (0, 25, 50, 75) for x in (0, 100, 200)])
    assert [shuffle[i] for i in reading_order(page[shuffle])] == list(range(12))
