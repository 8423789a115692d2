"""The padded width is a pure, rising function of the line's proportions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.recognizer.preprocess import HEIGHT, WIDTH_LADDER, content_width, padded_width, resize

SIDES = st.integers(2, 6000)


def line(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("height", "width", "content", "padded"),
    [
        (48, 160, 160, 176),
        (48, 176, 176, 176),
        (48, 177, 177, 208),
        (32, 100, 150, 176),
        (10, 67, 322, 368),
        (48, 3200, 3200, 3200),
        (48, 9000, 3200, 3200),
        (100, 2, 1, 128),
    ],
)
def test_widths_of_known_lines(height, width, content, padded):
    assert content_width(height, width) == content
    assert padded_width(content) == padded


@given(SIDES, SIDES)
def test_the_padded_width_is_a_rung_that_holds_the_line(height, width):
    content = content_width(height, width)
    assert 1 <= content <= padded_width(content)
    assert padded_width(content) in WIDTH_LADDER


@given(SIDES, SIDES, SIDES)
def test_a_wider_line_has_no_narrower_rung(height, width, other):
    narrow, wide = sorted((width, other))
    assert padded_width(content_width(height, narrow)) <= padded_width(content_width(height, wide))


@given(st.integers(2, 90), st.integers(2, 400))
def test_resizing_keeps_proportions_and_is_done_once(height, width):
    once = resize(line(height, width))
    assert once.shape == (HEIGHT, content_width(height, width), 3)
    assert resize(once) is once


def test_a_line_wider_than_the_ladder_is_squeezed_to_it():
    assert resize(line(10, 900), (160, 320)).shape == (HEIGHT, 320, 3)
