"""From a page to what the detector's model reads: resized, normalised, padded to a canvas.

Every new input shape costs an engine memory and time, so pages are padded to a small, closed set of
canvas shapes, all of which are warmed up before the service says ready. The canvas is a pure function
of the page's own size, so a page gives the same quads whatever else is in its batch.

Padding goes right and below, with zeros after normalisation (the mean colour of the training set);
the padded part of the probability map is thrown away.
"""

from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from services.common.page_size import GRID

CANVAS_VERSION = "1"
"""Changes whenever `canvas` answers differently for some page, since that may move a quad by a pixel."""

# Three sizes of page. Pages as large as allowed are the common load, so their short side is cut finely
# to save pixels; small pages are cheap anyway, so few shapes do for them.
_LONG_SIDES = ((1 / 3, 1 / 6), (2 / 3, 1 / 6), (1, 1 / 10))


def _up(side: float) -> int:
    return int(np.ceil(side / GRID - 1e-9)) * GRID


@lru_cache
def _ladder(max_side: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """`(long side, its short sides)`, rising."""
    rungs = {}
    for long_part, step_part in _LONG_SIDES:
        long_side, step = _up(max_side * long_part), _up(max_side * step_part)
        rungs[long_side] = (*range(step, long_side, step), long_side)
    return tuple(rungs.items())


def canvas(height: int, width: int, max_side: int) -> tuple[int, int]:
    """The smallest canvas `(height, width)` that holds a page resized to this size, in pixels.

    Raises ValueError if a side is longer than `max_side`: such a page was not resized.
    """
    long_side, short_side = max(height, width), min(height, width)
    if long_side > max_side:
        raise ValueError(f"{width}x{height} does not fit a canvas of {max_side}")
    long_rung, short_rungs = next(row for row in _ladder(max_side) if row[0] >= long_side)
    short_rung = next(rung for rung in short_rungs if rung >= short_side)
    return (long_rung, short_rung) if height >= width else (short_rung, long_rung)


def closed_shapes(max_side: int) -> tuple[tuple[int, int], ...]:
    """Every canvas `(height, width)` that `canvas` can answer for this `max_side`, for warm-up."""
    upright = [(long_side, short) for long_side, shorts in _ladder(max_side) for short in shorts]
    return tuple(dict.fromkeys(shape for h, w in upright for shape in ((h, w), (w, h))))


@lru_cache
def normalisation_table(mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """What each of the 256 values of each channel becomes: float32 `(3, 256)`, `(value / 255 - mean) / std`.

    `mean` and `std` go to the channels in the order in which they lie in the image. PaddleOCR feeds blue
    green red and names the constants of ImageNet in red green blue order; the models were trained so.
    """
    value = np.arange(256, dtype=np.float64) / 255
    rows = [(value - m) / s for m, s in zip(mean, std, strict=True)]
    return np.asarray(rows, dtype=np.float32)


def fill(target: NDArray[np.float32], image: NDArray[np.uint8], table: NDArray[np.float32]) -> None:
    """Write an image `(height, width, 3)` normalised into the top left of `target` `(3, rows, columns)`.

    A table lookup is exact and several times faster than arithmetic on floats. The rest stays as it is.
    """
    height, width = image.shape[:2]
    for channel in range(3):
        target[channel, :height, :width] = cv2.LUT(cv2.extractChannel(image, channel), table[channel])


def stack(
    images: Sequence[NDArray[np.uint8]], shape: tuple[int, int], table: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The pages, each resized and no larger than `shape`, as one zero-padded batch `(n, 3, *shape)`."""
    batch = np.zeros((len(images), 3, *shape), dtype=np.float32)
    for target, image in zip(batch, images, strict=True):
        fill(target, image, table)
    return batch
