"""Which canvas a page is padded to before the detector's model reads it.

Every new input shape costs an engine memory and time, so pages are padded to a small, closed set of
canvas shapes, all of which are warmed up before the service says ready. The canvas is a pure function
of the page's own size, so a page gives the same quads whatever else is in its batch.

The padded part of the probability map is thrown away.
"""

from functools import lru_cache
from math import ceil

from services.common.page_size import GRID

CANVAS_VERSION = "2"
"""Changes whenever `canvas` answers differently for some page, since that may move a quad by a pixel."""

# Parts of max_side: the long sides there are, and for each the step of its short sides. Pages as large as
# allowed are the common load, so at the default size each has a canvas of its own, without any padding; small
# pages are cheap anyway, so a few shapes do for them and the start is sooner.
_LONG_SIDES = ((1 / 3, 1 / 3), (2 / 3, 1 / 3), (1, 1 / 30))


def _up(side: float) -> int:
    return ceil(side / GRID - 1e-9) * GRID


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
