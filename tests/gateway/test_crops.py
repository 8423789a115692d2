"""Lines are cut out upright; no quad, however wild, does worse than an `ImageTooSmall`."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import ImageTooSmall
from services.gateway.crops import clipped, crop, crops

PAGE = np.random.default_rng(0).integers(0, 255, (120, 200, 3), dtype=np.uint8)


def quad(*corners: tuple[float, float]) -> np.ndarray:
    return np.array(corners, np.float32)


def warp(page: np.ndarray, corners: np.ndarray, width: int, height: int) -> np.ndarray:
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(corners, target)
    return cv2.warpPerspective(
        page, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )


def test_an_upright_rectangle_is_cut_pixel_for_pixel() -> None:
    corners = quad((10, 20), (110, 20), (110, 50), (10, 50))
    assert np.array_equal(crop(PAGE, corners), PAGE[20:50, 10:110])
    assert np.array_equal(crop(PAGE, corners), warp(PAGE, corners, 100, 30))


def test_corners_less_than_half_a_pixel_off_are_cut_too() -> None:
    corners = quad((10.3, 19.8), (110.2, 20.1), (109.9, 50.4), (9.8, 50))
    assert np.array_equal(crop(PAGE, corners), PAGE[20:50, 10:110])


def test_a_skewed_region_is_straightened() -> None:
    corners = quad((20, 20), (118, 40), (112, 70), (14, 50))
    assert np.array_equal(crop(PAGE, corners), warp(PAGE, corners, 100, 30))


def test_a_tall_region_is_turned_to_the_left() -> None:
    corners = quad((10, 10), (30, 10), (30, 40), (10, 40))
    assert np.array_equal(crop(PAGE, corners), np.rot90(PAGE[10:40, 10:30]))


def test_a_region_a_little_higher_than_wide_is_left_as_it_is() -> None:
    assert crop(PAGE, quad((10, 10), (30, 10), (30, 39), (10, 39))).shape == (29, 20, 3)


def test_a_region_that_runs_off_the_page_is_cut_at_its_edge() -> None:
    assert np.array_equal(crop(PAGE, quad((-50, -9), (100, -9), (100, 40), (-50, 40))), PAGE[:40, :100])


@pytest.mark.parametrize(
    "corners",
    [
        quad((10, 10), (10, 10), (10, 10), (10, 10)),
        quad((10, 10), (90, 10), (90, 10), (10, 10)),
        quad((300, 10), (400, 10), (400, 30), (300, 30)),
        quad((float("nan"),) * 2, (float("nan"),) * 2, (float("nan"),) * 2, (float("nan"),) * 2),
    ],
    ids=["a point", "no height", "off the page", "not numbers"],
)
def test_a_region_without_area_is_refused(corners: np.ndarray) -> None:
    with pytest.raises(ImageTooSmall):
        crop(PAGE, corners)


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=8, max_size=8))
def test_any_eight_numbers_give_a_line_or_an_image_too_small(numbers: list[float]) -> None:
    try:
        line = crop(PAGE, np.array(numbers, np.float32).reshape(4, 2))
    except ImageTooSmall:
        return
    assert line.dtype == np.uint8
    assert line.ndim == 3
    assert min(line.shape) >= 1
    assert max(line.shape) <= 240  # the page's diagonal


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_clipped_corners_lie_on_the_page(numbers: list[float]) -> None:
    corners = clipped(np.array(numbers, np.float32).reshape(4, 2), 200, 120)
    assert (corners >= 0).all()
    assert (corners <= [200, 120]).all()


def test_many_regions_are_cut_as_each_alone_and_none_stands_for_no_area() -> None:
    quads = np.stack(
        [
            quad((10, 20), (110, 20), (110, 50), (10, 50)),
            quad((10, 10), (90, 10), (90, 10), (10, 10)),
            quad((20, 20), (118, 40), (112, 70), (14, 50)),
            quad((10, 10), (30, 10), (30, 40), (10, 40)),
        ]
    )
    lines = crops(PAGE, quads)
    assert lines[1] is None
    for line, corners in zip([lines[0], lines[2], lines[3]], quads[[0, 2, 3]], strict=True):
        assert line is not None
        assert np.array_equal(line, crop(PAGE, corners))


def test_a_page_without_regions_has_no_lines() -> None:
    assert crops(PAGE, np.zeros((0, 4, 2), np.float32)) == []
