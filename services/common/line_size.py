"""How tall a line of text is when the recognizer looks at it. Pure; shared by the recognizer and its callers.

A caller that shrinks its lines (to send fewer bytes) and one that sends them as they are get the same text,
because resizing is idempotent: what has the height already is not touched again. That holds for lines which
are no wider than the recognizer's widest; a wider one is squeezed there.
"""

from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT = 48
"""Rows of every line; the models of PP-OCR are built for it."""


def columns(height: int, width: int) -> int:
    """Width in pixels of a line `(height, width)` once it is 48 rows high."""
    return max(1, ceil(HEIGHT * width / height))


def resized(line: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """A line, uint8 `(height, width, 3)`, at 48 rows and `width` columns; the same array if it has them."""
    if line.shape[:2] == (HEIGHT, width):
        return line
    return np.asarray(cv2.resize(line, (width, HEIGHT), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)


def shrink(line: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A line, uint8 `(height, width, 3)`, no taller than 48 rows; one that is not taller stays as it is."""
    height, width = line.shape[:2]
    return line if height <= HEIGHT else resized(line, columns(height, width))
