"""From a line of text to what the recognizer's model reads: 48 pixels high, padded to a rung of the ladder.

The models of PP-OCR attend over the whole width, so padding changes what they read, and a line padded
to the width of its longest neighbour reads differently in different company. Here the padded width is
a pure function of the line's own proportions: the next rung of a fixed ladder. Batches form only among
equal widths, so the same line gives the same text alone and in any batch.

A line wider than the last rung is squeezed to it; its text gets less reliable. The mask, the number of
columns that hold the line, cuts the decoding and weighs the confidence. It cannot stop the model from
looking at the padding.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.common.line_size import HEIGHT, columns, resized

__all__ = ["HEIGHT", "MIN_SIDE", "WIDTH_LADDER", "content_width", "padded_width", "resize"]

WIDTH_LADDER = (
    *(128, 144, 176, 208, 240, 272, 320, 368, 416, 480, 544, 624, 704, 800, 912),
    *(1024, 1152, 1296, 1456, 1632, 1840, 2064, 2320, 2608, 2928, 3200),
)
"""Padded widths in pixels, each some 12 % more than the one before, rounded up to 16.

Finer steps save few pixels and spread the lines over more batches, coarser ones waste more; lines of a few
characters read worse with less than some 128. Measured by `loadgen/studies/ladders.py`.
"""

MIN_SIDE = 2
"""Pixels; nothing shorter can hold a character."""


def content_width(height: int, width: int, ladder: Sequence[int] = WIDTH_LADDER) -> int:
    """Columns of a line `(height, width)` once it is 48 rows high, never more than the last rung."""
    return min(columns(height, width), ladder[-1])


def padded_width(content: int, ladder: Sequence[int] = WIDTH_LADDER) -> int:
    """The lowest rung of a rising ladder that holds this many columns; the last one for a wider line."""
    return ladder[min(bisect_left(ladder, content), len(ladder) - 1)]


def resize(line: NDArray[np.uint8], ladder: Sequence[int] = WIDTH_LADDER) -> NDArray[np.uint8]:
    """A line, uint8 `(height, width, 3)`, at 48 rows and its own proportions, no wider than the last rung."""
    height, width = line.shape[:2]
    return resized(line, content_width(height, width, ladder))
