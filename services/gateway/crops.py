"""Cuts the lines out of a page, upright. Pure.

A region is four corners, clockwise from the top left of the text; what comes out is the picture between
them, straightened. Tall regions are turned by 90 degrees to the left, as the recognizer was trained on.
"""

from typing import Any

import cv2
import numpy as np

from services.common.errors import ImageTooSmall

Bgr = np.ndarray[Any, np.dtype[np.uint8]]
Points = np.ndarray[Any, np.dtype[np.float32]]

TALL = 1.5
"""Height by width from which a region is taken for a vertical line; PaddleOCR's figure."""

STRAIGHT = 0.5
"""Pixels that the corners may lie off a rectangle of whole pixels and still be cut without interpolation.

A warp would move the picture by less than that; cutting costs nothing.
"""


def crop(page: Bgr, quad: Points) -> Bgr:
    """The line within one `quad`, of shape (4, 2), as `crops` cuts it.

    Raises `ImageTooSmall` when nothing is left between the corners.
    """
    [line] = crops(page, np.reshape(quad, (1, 4, 2)))
    if line is None:
        raise ImageTooSmall(f"a region without area holds no text: {np.asarray(quad).tolist()}")
    return line


def crops(page: Bgr, quads: Points) -> list[Bgr | None]:
    """The lines within `quads`, (n, 4, 2), cut out of a page of shape (height, width, 3), both BGR.

    Corners outside the page count as on its edge. None stands for a region with nothing between its corners.
    Lines that are cut without interpolation are views of the page.
    """
    corners = clipped(quads, page.shape[1], page.shape[0])
    boxes, upright = _whole_pixels(corners)
    sides = _sides(corners)
    return [
        _cut(page, quad, size, box if straight else None)
        for quad, size, box, straight in zip(
            corners, sides.tolist(), boxes.tolist(), upright.tolist(), strict=True
        )
    ]


def _cut(page: Bgr, corners: Points, size: list[int], box: list[int] | None) -> Bgr | None:
    width, height = size
    if width < 1 or height < 1:
        return None
    line = _warped(page, corners, width, height) if box is None else page[box[1] : box[3], box[0] : box[2]]
    return np.rot90(line) if line.shape[0] >= TALL * line.shape[1] else line


def clipped(quads: Points, width: int, height: int) -> Points:
    """Corners (…, 4, 2) moved onto a page of that size in pixels; NaN and infinity too."""
    finite = np.nan_to_num(np.asarray(quads, np.float32), nan=0.0, posinf=1e9, neginf=-1e9)
    return np.clip(finite, 0, np.array([width, height], np.float32))


def _sides(corners: Points) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Width and height, (n, 2), in whole pixels: of each pair of opposite sides the longer one."""
    edges = (np.roll(corners, -1, axis=1) - corners).astype(np.float64)
    top, right, bottom, left = np.hypot(edges[..., 0], edges[..., 1]).T
    return np.stack((np.maximum(top, bottom), np.maximum(right, left)), axis=1).astype(np.int64)


def _whole_pixels(corners: Points) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Left, top, right, bottom, (n, 4), and which regions are upright rectangles of these, (n)."""
    boxes = np.rint(corners[:, (0, 2)].reshape(-1, 4)).astype(np.int64)
    upright = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    close = np.abs(corners - upright).max(axis=(1, 2)) <= STRAIGHT
    return boxes, close & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def _warped(page: Bgr, corners: Points, width: int, height: int) -> Bgr:
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    to_line = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(
        page, to_line, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(line, np.uint8)
