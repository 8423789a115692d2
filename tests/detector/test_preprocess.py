"""Canvases are a small closed set that holds every page, and waste little on large ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.page_size import GRID, resized_size
from services.detector.preprocess import canvas, closed_shapes

SIDES = st.integers(1, 20_000)
MAX_SIDES = st.integers(10, 60).map(lambda n: n * GRID)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (960, 960, (960, 960)),
        (960, 640, (960, 640)),
        (960, 641, (960, 672)),
        (32, 960, (32, 960)),
        (640, 640, (640, 640)),
        (672, 640, (960, 640)),
        (32, 32, (320, 320)),
        (430, 267, (640, 320)),
    ],
)
def test_canvas_of_known_sizes(height, width, expected):
    assert canvas(height, width, 960) == expected


@given(SIDES, SIDES, MAX_SIDES)
def test_every_page_has_a_canvas_of_the_closed_set_that_holds_it(height, width, max_side):
    resized = resized_size(height, width, max_side)
    shape = canvas(*resized, max_side)
    assert shape in closed_shapes(max_side)
    assert shape[0] >= resized[0]
    assert shape[1] >= resized[1]


@given(MAX_SIDES)
def test_the_closed_set_is_small_and_on_the_grid(max_side):
    shapes = closed_shapes(max_side)
    assert len(shapes) == len(set(shapes)) <= 63
    assert all(side % GRID == 0 and side <= max_side for shape in shapes for side in shape)


@given(MAX_SIDES)
def test_each_canvas_is_its_own_canvas(max_side):
    assert all(canvas(*shape, max_side) == shape for shape in closed_shapes(max_side) if shape[0] != shape[1])


def test_pages_as_large_as_allowed_waste_nothing():
    waste = [canvas(960, width, 960)[1] - width for width in range(GRID, 961, GRID)]
    assert max(waste) == 0


def test_a_page_that_was_not_resized_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        canvas(992, 320, 960)
