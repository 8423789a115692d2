"""A line has one height for the recognizer, and whoever brings it to that height first changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.line_size import HEIGHT, columns, resized, shrink


def line(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(48, 160, 160), (32, 100, 150), (10, 67, 322), (100, 2, 1), (9000, 2, 1)],
)
def test_columns_of_known_lines(height, width, expected):
    assert columns(height, width) == expected


@given(st.integers(1, 120), st.integers(1, 300))
def test_a_line_that_its_caller_shrank_becomes_what_the_whole_line_would(height, width):
    whole = line(height, width)
    target = columns(height, width)
    assert np.array_equal(resized(shrink(whole), target), resized(whole, target))


@given(st.integers(1, HEIGHT), st.integers(1, 300))
def test_a_line_that_is_not_too_tall_is_sent_as_it_is(height, width):
    whole = line(height, width)
    assert shrink(whole) is whole


@given(st.integers(HEIGHT + 1, 200), st.integers(1, 300))
def test_a_tall_line_is_sent_with_the_rows_that_are_looked_at(height, width):
    assert shrink(line(height, width)).shape == (HEIGHT, columns(height, width), 3)
