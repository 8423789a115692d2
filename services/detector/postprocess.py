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


@dataclass(frozen=True)
class _Rectangle:
    """Centre, sides and angle in degrees, as OpenCV has them."""

    centre: tuple[float, float]
    sides: tuple[float, float]
    angle: float

    def corners(self) -> Floats:
        return np.asarray(cv2.boxPoints((self.centre, self.sides, self.angle)), dtype=np.float32)

    def grown(self, ratio: float) -> "_Rectangle":
        width, height = self.sides
        distance = width * height * ratio / (2 * (width + height))
        return _Rectangle(self.centre, (width + 2 * distance, height + 2 * distance), self.angle)


def find_lines(probability: Floats, source: tuple[int, int], rules: BoxRules) -> list[FoundLine]:
    """The text regions of a map `(height, width)` without its padding, in pixels of a page `(height, width)`.

    Regions that are too small, too faint or shorter than `min_side` on the page are left out.
    """
    found = [_region(contour, probability, rules) for contour in _contours(probability, rules)]
    scale = np.asarray((source[1] / probability.shape[1], source[0] / probability.shape[0]), dtype=np.float32)
    lines = [FoundLine(_to_source(line.points, scale, source), line.score) for line in found if line]
    return [line for line in lines if _least_side(line.points) > rules.min_side]


def _contours(probability: Floats, rules: BoxRules) -> list[NDArray[np.int32]]:
    mask = cv2.compare(probability, rules.threshold, cv2.CMP_GT)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return [np.asarray(contour, dtype=np.int32) for contour in contours[: rules.max_candidates]]


def _region(contour: NDArray[np.int32], probability: Floats, rules: BoxRules) -> FoundLine | None:
    (x, y), (width, height), angle = cv2.minAreaRect(contour)
    rectangle = _Rectangle((x, y), (width, height), angle)
    if min(rectangle.sides) < rules.min_side:
        return None
    score = mean_inside(probability, rectangle.corners())
    if score < rules.box_threshold:
        return None
    grown = rectangle.grown(rules.unclip_ratio)
    # Two more than before growing, as PaddleOCR has it: a region that grew by less is a speck.
    if min(grown.sides) < rules.min_side + 2:
        return None
    return FoundLine(clockwise(grown.corners()), score)


def mean_inside(probability: Floats, corners: Floats) -> float:
    """Mean of the map over the pixels of a quad `(4, 2)`; the part outside of the map does not count."""
    pixels = np.rint(corners).astype(np.int32)
    edge = (probability.shape[1] - 1, probability.shape[0] - 1)
    left, top = np.clip(pixels.min(axis=0), 0, edge)
    right, bottom = np.clip(pixels.max(axis=0), 0, edge)
    mask = np.zeros((bottom - top + 1, right - left + 1), dtype=np.uint8)
    cv2.fillPoly(mask, [pixels - (left, top)], (1,))
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def clockwise(corners: Floats) -> Floats:
    """Corners `(4, 2)` clockwise from the top left: of the two leftmost the upper one comes first.

    Going by left and right first keeps a slanted line readable from left to right up to steep angles.
    """
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    top_left, bottom_left = _downwards(by_x[:2])
    top_right, bottom_right = _downwards(by_x[2:])
    return np.stack((top_left, top_right, bottom_right, bottom_left))


def _downwards(points: Floats) -> Floats:
    return points[np.argsort(points[:, 1], kind="stable")]


def _to_source(points: Floats, scale: Floats, source: tuple[int, int]) -> Floats:
    moved = (points + np.float32(0.5)) * scale
    edge = np.asarray((source[1], source[0]), dtype=np.float32)
    return np.asarray(np.clip(moved, 0, edge), dtype=np.float32)


def _least_side(points: Floats) -> float:
    sides = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1)
    return float(sides.min())
