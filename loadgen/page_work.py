"""The work of a page in one plain loop: what the services do beside the models, without any service.

Decode, shrink, find boxes, cut, resize, turn classes into text, by the same functions as the services call.
What a page costs here it costs anywhere, so it is the least that the pipeline can come to on a given CPU.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from loadgen.corpus import Document
from services.common import line_size
from services.common.engines import simulated
from services.common.errors import OcrError
from services.common.images import ImageLimits, decode_document
from services.common.page_size import shrink
from services.detector.postprocess import BoxRules, find_lines
from services.gateway.crops import crops
from services.gateway.reading_order import reading_order
from services.recognizer.decode import Steps, decode_all, valid_steps
from services.recognizer.preprocess import padded_width, resize

KEPT_JPEG_SIDE, MAX_SIDE = 3000, 960
"""As the gateway and the detector have them."""

Image = NDArray[np.uint8]
T = TypeVar("T")


@dataclass(frozen=True)
class Page:
    """A page as decoded, its height and width as displayed, and as the detector looks at it."""

    image: Image
    displayed: tuple[int, int]
    seen: Image


def pages_of(content: bytes) -> list[Page]:
    """The pages of a document. Raises the OcrError of the first that cannot be read."""
    pages = []
    for decoded in decode_document(content, ImageLimits(kept_jpeg_side=KEPT_JPEG_SIDE)):
        if isinstance(decoded.image, OcrError):
            raise decoded.image
        image = decoded.image
        displayed = decoded.displayed or (image.shape[0], image.shape[1])
        pages.append(Page(image, displayed, shrink(image, MAX_SIDE)))
    return pages


def lines_of(page: Page, probability: NDArray[np.float32]) -> list[Image]:
    """The lines that a map (height, width) of the page shows, in reading order, 48 pixels high."""
    found = find_lines(probability, page.displayed, BoxRules())
    corners = np.array([line.points for line in found], np.float32).reshape(-1, 4, 2)
    (height, width), (displayed_height, displayed_width) = page.image.shape[:2], page.displayed
    scale = np.array((width / displayed_width, height / displayed_height), np.float32)
    cut = crops(page.image, corners[reading_order(corners)] * scale)
    return [resize(line_size.shrink(line)) for line in cut if line is not None]


def texts_of(lines: Sequence[Image], answers: Iterable[tuple[Any, Any]]) -> list[str]:
    """The text of each line, from the model's classes and probabilities `(steps,)` of it."""
    steps = []
    for line, (classes, probabilities) in zip(lines, answers, strict=True):
        width = line.shape[1]
        steps.append(Steps(classes, probabilities, valid_steps(width, padded_width(width), len(classes))))
    return [read.text for read in decode_all(steps, simulated.CHARSET)]


def read(document: Document, timed: Callable[..., Any]) -> list[str]:
    """All lines of a document. Everything but the simulated model goes through `timed(work, *arguments)`."""
    texts: list[str] = []
    for page in timed(pages_of, document.content):
        lines = timed(lines_of, page, _map(page.seen))
        texts += timed(texts_of, lines, [_classes(line) for line in lines])
    return texts


def sent(document: Document) -> list[int]:
    """Bytes of pixels that go to the detector and to the recognizer, one number for each message."""
    sizes: list[int] = []
    for page in pages_of(document.content):
        lines = lines_of(page, _map(page.seen))
        sizes += [page.seen.nbytes, *([sum(line.nbytes for line in lines)] if lines else [])]
    return sizes


def cpu_ms(documents: Sequence[Document]) -> float:
    """Milliseconds of CPU a document, on one thread."""
    spent = 0.0

    def timed(work: Callable[..., T], *arguments: Any) -> T:
        nonlocal spent
        began = time.thread_time()
        try:
            return work(*arguments)
        finally:
            spent += time.thread_time() - began

    cv2.setNumThreads(1)
    for document in documents:
        read(document, timed)
    return spent * 1e3 / len(documents)


def _map(seen: Image) -> NDArray[np.float32]:
    (found,) = simulated.probability_map(seen[None], np.array([seen.shape[:2]], np.int32))
    return np.asarray(found[0, 0])


def _classes(line: Image) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    height, width, _ = line.shape
    padded = np.zeros((1, height, padded_width(width), 3), np.uint8)
    padded[0, :, :width] = line
    classes, probabilities = simulated.classes(padded, np.array([[height, width]], np.int32))
    return classes[0], probabilities[0]
