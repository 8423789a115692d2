"""Quads come back from maps that were drawn from them; the sum for growing equals a geometric oracle."""

import cv2
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from services.detector.postprocess import BoxRules, clockwise, find_lines, mean_inside

RULES = BoxRules()


def drawn(*rectangles, size=(320, 320), value=0.9):
    """A map with rotated rectangles ((cx, cy), (w, h), angle) filled with `value`."""
    probability = np.zeros(size, np.float32)
    for rectangle in rectangles:
        cv2.fillPoly(probability, [np.rint(cv2.boxPoints(rectangle)).astype(np.int32)], value)
    return probability


def grown_slowly(corners, distance):
    """Oracle: dense points on circles of radius `distance` along the edge, and the rectangle around them."""
    steps = np.linspace(0, 1, 50)[:, None]
    edge = np.concatenate(
        [a + steps * (b - a) for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True)]
    )
    angles = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    circle = np.stack((np.cos(angles), np.sin(angles)), axis=1) * distance
    cloud = (edge[:, None] + circle[None]).reshape(-1, 2).astype(np.float32)
    return cv2.boxPoints(cv2.minAreaRect(cloud))


def test_an_empty_map_has_no_lines():
    assert find_lines(np.zeros((64, 96), np.float32), (640, 960), RULES) == []


def test_an_upright_box_is_grown_and_scaled_to_the_page():
    probability = np.zeros((100, 200), np.float32)
    probability[40:51, 50:151] = (
        0.8  # pixels 50..150 and 40..50, a rectangle of 100 by 10 between their middles
    )
    (line,) = find_lines(probability, (200, 600), RULES)
    distance = 100 * 10 * 1.5 / (2 * (100 + 10))
    left, right = (50.5 - distance) * 3, (150.5 + distance) * 3
    top, bottom = (40.5 - distance) * 2, (50.5 + distance) * 2
    expected = [[left, top], [right, top], [right, bottom], [left, bottom]]
    np.testing.assert_allclose(line.points, expected, atol=1e-3)
    assert line.score == pytest.approx(0.8, abs=1e-6)
    assert line.points.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(st.floats(60, 200), st.floats(8, 40), st.floats(-44, 44))
def test_growing_equals_offsetting_with_round_corners(width, height, angle):
    assume(width > 1.5 * height)
    probability = drawn(((160, 160), (width, height), angle))
    (line,) = find_lines(probability, probability.shape, RULES)
    (contour,), _ = cv2.findContours(
        (probability > 0.3).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE
    )
    rectangle = cv2.minAreaRect(contour)
    w, h = rectangle[1]
    oracle = grown_slowly(cv2.boxPoints(rectangle), w * h * 1.5 / (2 * (w + h))) + 0.5
    assert worst_distance(line.points, oracle) < 0.5


def worst_distance(points, others):
    return max(np.linalg.norm(others - point, axis=1).min() for point in points)


@settings(max_examples=60, deadline=None)
@given(st.floats(80, 200), st.floats(10, 30), st.floats(-60, 60))
def test_corners_run_clockwise_from_the_start_of_a_slanted_line(width, height, angle):
    assume(width > 4 * height)
    (line,) = find_lines(drawn(((160, 160), (width, height), angle)), (320, 320), RULES)
    along, down = line.points[1] - line.points[0], line.points[3] - line.points[0]
    assert along[0] * down[1] - along[1] * down[0] > 0
    assert np.linalg.norm(along) > np.linalg.norm(down)
    direction = np.degrees(np.arctan2(along[1], along[0]))
    assert direction == pytest.approx(angle, abs=4)


def test_each_region_is_found_once():
    boxes = [((80, y), (100, 12), 0) for y in (40, 90, 140, 190)]
    lines = find_lines(drawn(*boxes), (320, 320), RULES)
    assert sorted(round(float(line.points[:, 1].mean())) for line in lines) == pytest.approx(
        [40, 90, 140, 190], abs=1
    )


@pytest.mark.parametrize(
    ("rectangle", "value", "why"),
    [
        (((100, 100), (80, 12), 0), 0.5, "fainter than the box threshold"),
        (((100, 100), (80, 12), 0), 0.2, "below the threshold of the map"),
        (((100, 100), (80, 1), 0), 0.9, "flatter than three pixels"),
        (((100, 100), (2, 2), 0), 0.9, "a speck"),
    ],
)
def test_what_is_no_text_is_left_out(rectangle, value, why):
    assert find_lines(drawn(rectangle, value=value), (320, 320), RULES) == [], why


def test_a_region_of_three_pixels_or_less_on_the_page_is_left_out():
    probability = drawn(((100, 100), (80, 12), 0))
    assert len(find_lines(probability, (320, 320), RULES)) == 1
    assert find_lines(probability, (32, 320), RULES) == []


def test_points_stay_on_the_page():
    probability = np.zeros((64, 64), np.float32)
    probability[0:20, 0:64] = 0.9
    (line,) = find_lines(probability, (128, 256), RULES)
    assert line.points.min() >= 0
    assert line.points[:, 0].max() <= 256
    assert line.points[:, 1].max() <= 128


def test_no_more_candidates_than_allowed():
    boxes = [((80, y), (100, 10), 0) for y in range(20, 300, 40)]
    assert len(find_lines(drawn(*boxes), (320, 320), BoxRules(max_candidates=3))) == 3


@given(st.floats(10, 40), st.floats(10, 40), st.floats(-90, 90), st.floats(30, 34), st.floats(30, 34))
@example(30, 12, 0, 32, 32)
@example(30, 12, 90, 32, 32)
@example(30, 12, 45, 32, 32)
def test_the_mean_inside_equals_a_pixel_by_pixel_mean(width, height, angle, x, y):
    probability = np.random.default_rng(3).random((64, 64)).astype(np.float32)
    corners = cv2.boxPoints(((x, y), (width, height), angle))
    inside = np.zeros((64, 64), np.uint8)
    cv2.fillPoly(inside, [np.rint(corners).astype(np.int32)], 1)
    slow = float(probability[inside.astype(bool)].mean())
    assert mean_inside(probability, corners) == pytest.approx(slow, abs=1e-5)


@given(st.floats(3, 90), st.floats(3, 90), st.floats(-90, 90), st.floats(0, 63), st.floats(0, 63))
def test_the_mean_counts_only_what_lies_on_the_map(width, height, angle, x, y):
    corners = cv2.boxPoints(((x, y), (width, height), angle))
    assert mean_inside(np.full((64, 64), 0.75, np.float32), corners) == pytest.approx(0.75)


@pytest.mark.parametrize("start", range(4))
def test_the_order_does_not_depend_on_the_order_of_the_corners(start):
    corners = np.asarray([[10, 10], [50, 20], [45, 40], [5, 30]], np.float32)
    np.testing.assert_array_equal(clockwise(np.roll(corners, start, axis=0)), corners)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_corners_of_many_quads_are_put_in_order_as_those_of_each(seed, count):
    quads = np.random.default_rng(seed).uniform(0, 100, (count, 4, 2)).astype(np.float32)
    np.testing.assert_array_equal(clockwise(quads), np.stack([clockwise(quad) for quad in quads]))
