"""From the detector's probability map to quads: the box extraction of DB (differentiable binarization).

The model is trained on text regions shrunk towards their middle line, so that neighbours stay apart in
the map. Each blob above `threshold` is one region; the rotated rectangle around it is grown again by
`area * unclip_ratio / perimeter`, which is about the distance it was shrunk by.

Growing a polygon in general needs a polygon library. Here the polygon is always a rectangle, and the
smallest rectangle around a rectangle grown with round corners is that rectangle with each side moved
out, so a sum is enough.

A pixel of the map covers a square, and its index names the middle of that square, half a pixel from
the edges that coordinates are counted from; `_to_source` adds that half.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BoxRules:
    """What counts as a text region. Probabilities 0 to 1, lengths in pixels of the map."""

    threshold: float = 0.3
    box_threshold: float = 0.6
    unclip_ratio: float = 1.5
    max_candidates: int = 1000
    min_side: float = 3.0


@dataclass(frozen=True)
class FoundLine:
    """One text region: corners float32 `(4, 2)` as x, y, clockwise from the top left; mean probability."""

    points: Floats
    score: float


def find_lines(probability: Floats, source: tuple[int, int], rules: BoxRules) -> list[FoundLine]:
    """The text regions of a map `(height, width)` without its padding, in pixels of a page `(height, width)`.

    Regions that are too small, too faint or shorter than `min_side` on the page are left out.
    """
    found = [
        region
        for contour in _contours(probability, rules)
        if (region := _region(contour, probability, rules))
    ]
    if not found:
        return []
    scale = np.asarray((source[1] / probability.shape[1], source[0] / probability.shape[0]), dtype=np.float32)
    points = _to_source(clockwise(np.stack([corners for corners, _ in found])), scale, source)
    long_enough = (_least_sides(points) > rules.min_side).tolist()
    return [
        FoundLine(quad, score)
        for quad, (_, score), long in zip(points, found, long_enough, strict=True)
        if long
    ]


def _contours(probability: Floats, rules: BoxRules) -> list[NDArray[np.int32]]:
    mask = cv2.compare(probability, rules.threshold, cv2.CMP_GT)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return [np.asarray(contour, dtype=np.int32) for contour in contours[: rules.max_candidates]]


def _region(contour: NDArray[np.int32], probability: Floats, rules: BoxRules) -> tuple[Floats, float] | None:
    """Corners `(4, 2)` of the grown rectangle around a contour, in any order, and its score."""
    centre, (width, height), angle = cv2.minAreaRect(contour)
    if min(width, height) < rules.min_side:
        return None
    score = mean_inside(probability, _corners(centre, (width, height), angle))
    if score < rules.box_threshold:
        return None
    distance = width * height * rules.unclip_ratio / (2 * (width + height))
    grown = (width + 2 * distance, height + 2 * distance)
    # Two more than before growing, as PaddleOCR has it: a region that grew by less is a speck.
    if min(grown) < rules.min_side + 2:
        return None
    return _corners(centre, grown, angle), score


def _corners(centre: Sequence[float], sides: tuple[float, float], angle: float) -> Floats:
    return np.asarray(cv2.boxPoints((centre, sides, angle)), dtype=np.float32)


def mean_inside(probability: Floats, corners: Floats) -> float:
    """Mean of the map over the pixels of a quad `(4, 2)`; the part outside of the map does not count."""
    pixels = np.rint(corners).astype(np.int32)
    xs, ys = pixels.T.tolist()
    bottom_edge, right_edge = probability.shape[0] - 1, probability.shape[1] - 1
    left, right = min(max(min(xs), 0), right_edge), min(max(*xs, 0), right_edge)
    top, bottom = min(max(min(ys), 0), bottom_edge), min(max(*ys, 0), bottom_edge)
    around = probability[top : bottom + 1, left : right + 1]
    if _upright(xs, ys):
        return float(cv2.mean(around)[0])
    mask = np.zeros(around.shape, dtype=np.uint8)
    cv2.fillPoly(mask, [pixels], (1,), offset=(-left, -top))
    return float(cv2.mean(around, mask)[0])


def _upright(xs: Sequence[int], ys: Sequence[int]) -> bool:
    """Whether four corners, one after the other, have level and plumb sides: most do, in whole pixels."""
    first_level = ys[0] == ys[1] and ys[2] == ys[3] and xs[1] == xs[2] and xs[3] == xs[0]
    return first_level or (xs[0] == xs[1] and xs[2] == xs[3] and ys[1] == ys[2] and ys[3] == ys[0])


def clockwise(corners: Floats) -> Floats:
    """Corners `(…, 4, 2)` clockwise from the top left: of the two leftmost the upper one comes first.

    Going by left and right first keeps a slanted line readable from left to right up to steep angles.
    """
    by_x = _sorted(corners, 0)
    left, right = _sorted(by_x[..., :2, :], 1), _sorted(by_x[..., 2:, :], 1)
    return np.stack((left[..., 0, :], right[..., 0, :], right[..., 1, :], left[..., 1, :]), axis=-2)


def _sorted(points: Floats, axis: int) -> Floats:
    """Points `(…, n, 2)` by rising x (axis 0) or y (axis 1); those that are level keep their order."""
    order = np.argsort(points[..., axis], axis=-1, kind="stable")
    return np.take_along_axis(points, order[..., None], axis=-2)


def _to_source(points: Floats, scale: Floats, source: tuple[int, int]) -> Floats:
    moved = (points + np.float32(0.5)) * scale
    edge = np.asarray((source[1], source[0]), dtype=np.float32)
    return np.asarray(np.clip(moved, 0, edge), dtype=np.float32)


def _least_sides(points: Floats) -> Floats:
    """The shortest side of each quad `(n, 4, 2)`."""
    sides = points - np.roll(points, 1, axis=-2)
    return np.asarray(np.hypot(sides[..., 0], sides[..., 1]).min(axis=-1), dtype=np.float32)
