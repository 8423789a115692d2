"""The order in which a person reads the regions of a page: rows from the top, each from the left. Pure.

Regions share a row when they overlap by half the height of the lower one, seen along the slope of the page.
The slope is the median of the long regions' own, so a scan that lies two degrees askew does not mix its rows.
A row is grown from left to right against the last region added, not against the first: on a bent page the
ends of a row may lie a line's height apart although each neighbour is level with the next.

Not done: columns. A form with two columns is read across, as receipts and slips want it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Points = np.ndarray[Any, np.dtype[np.float32]]

MAX_SLOPE = 0.2
"""Beyond about 11 degrees it is no skewed scan but text that is meant to stand so."""

MIN_OVERLAP = 0.5
"""Of the lower of two heights. Less joins neighbouring rows, more tears rows of mixed sizes."""

_LONG = 2.0
"""Widths per height from which a region's slope tells that of the page."""


def reading_order(quads: Points) -> list[int]:
    """Indices of `quads`, of shape (n, 4, 2) in pixels with y down, in the order of reading."""
    if len(quads) == 0:
        return []
    level = _levelled(np.asarray(quads, np.float64))
    rows = _rows(level)
    return [index for row in sorted(rows, key=lambda row: _middle(row, level)) for index in row]


def page_slope(quads: Points) -> float:
    """Pixels down for each pixel to the right: the median over long regions, 0 when none tells."""
    edge = quads[:, 1] - quads[:, 0] + quads[:, 2] - quads[:, 3]
    side = quads[:, 3] - quads[:, 0] + quads[:, 2] - quads[:, 1]
    long = (edge[:, 0] > 0) & (np.hypot(edge[:, 0], edge[:, 1]) >= _LONG * np.hypot(side[:, 0], side[:, 1]))
    if not long.any():
        return 0.0
    slopes = edge[long, 1] / edge[long, 0]
    slope = float(np.median(slopes))
    return slope if abs(slope) <= MAX_SLOPE else 0.0


def _levelled(quads: Any) -> list[list[float]]:
    """Boxes (left, top, right, bottom) of the regions on the page turned level."""
    x, y = quads[..., 0], quads[..., 1] - page_slope(quads) * quads[..., 0]
    middle = y.mean(axis=1)
    half = np.maximum((y[:, 2] + y[:, 3] - y[:, 0] - y[:, 1]) / 4, 0.5)
    boxes: list[list[float]] = np.stack(
        [x.min(axis=1), middle - half, x.max(axis=1), middle + half], axis=1
    ).tolist()
    return boxes


def _rows(level: Sequence[Sequence[float]]) -> list[list[int]]:
    """Regions from left to right, each put into the row whose end it overlaps most, or into a new one."""
    rows: list[list[int]] = []
    ends: list[tuple[float, float]] = []
    for index in sorted(range(len(level)), key=lambda index: (level[index][0], level[index][1])):
        _, top, _, bottom = level[index]
        best = _best(ends, top, bottom)
        if best is None:
            rows.append([index])
            ends.append((top, bottom))
        else:
            rows[best].append(index)
            ends[best] = top, bottom
    return rows


def _best(ends: Sequence[tuple[float, float]], top: float, bottom: float) -> int | None:
    """The row, by top and bottom of its end, that has enough and most in common with a region; or none.

    In common is the share of the lower one's height. Written out, since it runs for every region and row.
    """
    best, most = None, 0.0
    for row, (row_top, row_bottom) in enumerate(ends):
        if row_top < bottom and top < row_bottom:  # most rows have nothing in common
            common = min(bottom, row_bottom) - max(top, row_top)
            share = common / min(bottom - top, row_bottom - row_top)
            if share >= MIN_OVERLAP and share > most:
                best, most = row, share
    return best


def _middle(row: Sequence[int], level: Sequence[Sequence[float]]) -> float:
    return sum((level[index][1] + level[index][3]) / 2 for index in row) / len(row)
