"""Small documents of many sizes, cut out of the user's pages. The choice is pure, and the same for a seed."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

Page = NDArray[np.uint8]

JPEG_QUALITY = 90


class UnreadablePage(ValueError):
    """A file among the user's pages is no image that OpenCV can read."""


@dataclass(frozen=True)
class Sizes:
    """What cuttings may measure, in pixels.

    Sides are drawn evenly on a logarithmic scale from `least` to `most`, no longer than the page. `area`
    bounds all but every `any_area_each`-th, so the whole load is small and still has large ones; 0: all.
    """

    least: int
    most: int
    area: int
    any_area_each: int = 0


@dataclass(frozen=True)
class Cut:
    """A rectangle of page number `page`, pixels."""

    page: int
    left: int
    top: int
    width: int
    height: int


def cuts(pages: Sequence[tuple[int, int]], sizes: Sizes, seed: int) -> Iterator[Cut]:
    """Rectangles without end out of pages `(height, width)`."""
    draw = random.Random(seed)
    for number in iter(lambda: draw.randrange(10**9), None):
        page = draw.randrange(len(pages))
        free = sizes.any_area_each > 0 and number % sizes.any_area_each == 0
        height, width = pages[page]
        wide = _side(draw, sizes, width)
        high = _side(draw, sizes, height if free else min(height, max(sizes.least, sizes.area // wide)))
        yield Cut(page, draw.randint(0, width - wide), draw.randint(0, height - high), wide, high)


def _side(draw: random.Random, sizes: Sizes, longest: int) -> int:
    least, most = min(sizes.least, longest), min(sizes.most, longest)
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


def read_page(path: Path) -> Page:
    """The pixels of a page, uint8 `(height, width, 3)`, blue green red. Raises `UnreadablePage`."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise UnreadablePage(f"{path} is no image that can be read; take it out of the folder")
    return np.asarray(image, np.uint8)


def encoded(pages: Sequence[Page], cut: Cut) -> bytes:
    """The cutting as JPEG."""
    part = pages[cut.page][cut.top : cut.top + cut.height, cut.left : cut.left + cut.width]
    done, data = cv2.imencode(".jpg", part, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, f"{cut} could not be encoded"
    return data.tobytes()
