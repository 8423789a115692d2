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
    """The line within `quad`, of shape (4, 2), cut out of a page of shape (height, width, 3), both BGR.

    Corners outside the page count as on its edge. Raises `ImageTooSmall` when nothing is left between them.
    """
    corners = clipped(quad, page.shape[1], page.shape[0])
    width, height = _sides(corners)
    if width < 1 or height < 1:
        raise ImageTooSmall(f"a region of {width} x {height} pixels holds no text: {corners.tolist()}")
    box = _whole_pixels(corners)
    line = _warped(page, corners, width, height) if box is None else page[box[1] : box[3], box[0] : box[2]]
    return np.ascontiguousarray(np.rot90(line) if line.shape[0] >= TALL * line.shape[1] else line)


def clipped(quad: Points, width: int, height: int) -> Points:
    """The corners moved onto a page of that size in pixels; NaN and infinity too."""
    finite = np.nan_to_num(np.asarray(quad, np.float32).reshape(4, 2), nan=0.0, posinf=1e9, neginf=-1e9)
    return np.clip(finite, 0, np.array([width, height], np.float32))


def _sides(corners: Points) -> tuple[int, int]:
    """Width and height in whole pixels: of each pair of opposite sides the longer one."""
    top, right, bottom, left = (np.roll(corners, -1, axis=0) - corners).astype(np.float64)
    width = max(np.hypot(*top), np.hypot(*bottom))
    height = max(np.hypot(*right), np.hypot(*left))
    return int(width), int(height)


def _whole_pixels(corners: Points) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom when the corners are those of an upright rectangle, else None."""
    box = np.rint([*corners[0], *corners[2]])
    left, top, right, bottom = (int(v) for v in box)
    upright = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    if right <= left or bottom <= top or np.abs(corners - upright).max() > STRAIGHT:
        return None
    return left, top, right, bottom


def _warped(page: Bgr, corners: Points, width: int, height: int) -> Bgr:
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    to_line = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(
        page, to_line, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(line, np.uint8)
