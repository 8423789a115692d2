"""Small documents of many sizes, cut out of the user's pages. The choice is pure, and the same for a seed."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from loadgen.corpus import Document
from loadgen.errors import NoDocuments

Page = NDArray[np.uint8]

JPEG_QUALITY = 90
SHARP, TEXT_SHARE = 40, 0.02
"""A step of grey between neighbours, and how many of them text makes at least."""
TRIES = 40
"""Cuttings that are looked at for each that is wanted."""


@dataclass(frozen=True)
class Sizes:
    """What cuttings may measure, in pixels.

    Sides are drawn evenly on a logarithmic scale from the least to the most, no longer than the page. `area`
    bounds all but every `any_area_each`-th, so the whole load is small and still has large ones; 0: all.
    """

    widths: tuple[int, int]
    heights: tuple[int, int]
    area: int
    any_area_each: int = 0


SLIPS = Sizes(widths=(100, 450), heights=(100, 450), area=45_000)
"""Slips of a few lines: enough of them pass in half a minute for a percentile."""

BANDS = Sizes(widths=(320, 480), heights=(200, 480), area=150_000)
"""Pieces of some ten lines of many widths, and enough of them in half a minute."""


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
        wide = _side(draw, sizes.widths, width)
        high = _side(
            draw, sizes.heights, height if free else min(height, max(sizes.heights[0], sizes.area // wide))
        )
        yield Cut(page, draw.randint(0, width - wide), draw.randint(0, height - high), wide, high)


def _side(draw: random.Random, allowed: tuple[int, int], longest: int) -> int:
    least, most = (min(side, longest) for side in allowed)
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


def page_of(document: Document) -> Page:
    """The pixels of a page, uint8 `(height, width, 3)`, blue green red. Raises NoDocuments."""
    image = cv2.imdecode(np.frombuffer(document.content, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise NoDocuments(f"{document.path} is no image that can be read; take it out of the folder")
    return np.asarray(image, np.uint8)


def cuttings(documents: Sequence[Document], sizes: Sizes, seed: int, count: int) -> list[Document]:
    """So many small documents with text on them, cut out of large ones, each with a name of its own.

    Raises NoDocuments: the pages are next to empty.
    """
    pages = [page_of(document) for document in documents]
    tried = islice(cuts([(page.shape[0], page.shape[1]) for page in pages], sizes, seed), TRIES * count)
    chosen = list(
        islice((part for part in (part_of(pages, cut) for cut in tried) if bears_text(part)), count)
    )
    if len(chosen) < count:
        raise NoDocuments(f"only {len(chosen)} of {TRIES * count} cuttings bear text; take fuller pages")
    return [Document(Path(f"cut-{number}.jpg"), encoded(part)) for number, part in enumerate(chosen)]


def part_of(pages: Sequence[Page], cut: Cut) -> Page:
    """The pixels of a cutting."""
    return pages[cut.page][cut.top : cut.top + cut.height, cut.left : cut.left + cut.width]


def bears_text(part: Page) -> bool:
    """Whether as many neighbours in a row differ sharply as they do where there is text."""
    steps = np.abs(np.diff(part[:, :, 1].astype(np.int16), axis=1))
    return bool((steps > SHARP).mean() >= TEXT_SHARE)


def encoded(part: Page) -> bytes:
    """The pixels as JPEG."""
    done, data = cv2.imencode(".jpg", part, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, f"{part.shape} could not be encoded"
    return data.tobytes()
