"""The size at which a page is searched: bounded, on the grid, and shrinking twice is shrinking once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.page_size import GRID, resized_size, shrink

SIDES = st.integers(1, 20_000)
MAX_SIDES = st.integers(10, 60).map(lambda n: n * GRID)


@pytest.mark.parametrize(
    ("height", "width", "expected", "why"),
    [
        (960, 960, (960, 960), "fits exactly"),
        (1920, 960, (960, 480), "longer side brought to the limit"),
        (4961, 7016, (672, 960), "an A4 scan of 600 dots an inch"),
        (575, 980, (576, 960), "the shorter side goes to the nearest multiple of 32"),
        (100, 300, (96, 288), "a page that fits is only rounded"),
        (10, 40, (32, 32), "nothing is shorter than 32"),
        (1, 20_000, (32, 960), "however thin it is"),
    ],
)
def test_size_of_known_pages(height, width, expected, why):
    assert resized_size(height, width, 960) == expected, why


@given(SIDES, SIDES, MAX_SIDES)
def test_sides_are_on_the_grid_and_within_the_limit(height, width, max_side):
    for side in resized_size(height, width, max_side):
        assert side % GRID == 0
        assert GRID <= side <= max_side


@given(SIDES, SIDES, MAX_SIDES)
def test_resizing_twice_is_resizing_once(height, width, max_side):
    once = resized_size(height, width, max_side)
    assert resized_size(*once, max_side) == once


@given(SIDES, SIDES, MAX_SIDES)
def test_a_turned_page_has_the_turned_size(height, width, max_side):
    assert resized_size(width, height, max_side) == resized_size(height, width, max_side)[::-1]


@given(st.integers(1, 300), st.integers(1, 300))
def test_shrinking_twice_gives_the_same_pixels(height, width):
    image = np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    once = shrink(image, 160)
    assert once.shape == (*resized_size(height, width, 160), 3)
    assert shrink(once, 160) is once
