"""How large a page is when the detector looks at it. Pure; shared by the detector and its callers.

A caller that shrinks a page itself (to send fewer bytes) and one that sends the whole page get the
same quads, because shrinking is idempotent: what was shrunk once is not touched again.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

GRID = 32
"""The detector halves its input five times, so it sees sides in multiples of this."""


def resized_size(height: int, width: int, max_side: int) -> tuple[int, int]:
    """Size in pixels `(height, width)` at which a page of this size is searched.

    The longer side is at most `max_side` (a multiple of 32), the proportions are kept to the nearest
    multiple of 32 on each side, and no side is shorter than 32. A page that fits is not enlarged,
    apart from that rounding.
    """
    ratio = min(1.0, max_side / max(height, width))
    return _on_grid(height * ratio), _on_grid(width * ratio)


def _on_grid(side: float) -> int:
    return max(GRID, int(side / GRID + 0.5) * GRID)


def shrink(image: NDArray[np.uint8], max_side: int) -> NDArray[np.uint8]:
    """The page, uint8 `(height, width, 3)`, at its `resized_size`; the same array if it has it already."""
    height, width = resized_size(image.shape[0], image.shape[1], max_side)
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)
