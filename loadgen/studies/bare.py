"""The models without any serving around them, for the designs that the product is compared with.

Everything that is not a question of design is the product's own: resizing, box extraction, cutting, decoding.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.studies.rivals import Line
from services.common.engines.base import EngineSpec, Head, choose, create_engine
from services.common.models import ModelFiles, Role, resolve
from services.common.page_size import shrink
from services.detector.postprocess import BoxRules, find_lines
from services.gateway.crops import crop
from services.recognizer.decode import decode
from services.recognizer.preprocess import HEIGHT, resize


class BareFinder:
    """The detector's model, pages one by one, no side longer than `max_side`: a `rivals.Finder`."""

    def __init__(self, max_side: int, threads: int) -> None:
        self._max_side = max_side
        self._engine = create_engine(_spec("det", Head.RAW, threads))
        self._rules = BoxRules()

    def __call__(self, page: NDArray[np.uint8]) -> list[Line]:
        """The lines of a page, each at 48 rows."""
        seen = shrink(page, self._max_side)
        [found] = self._engine.run(seen[None], _sizes([seen]))
        lines = find_lines(np.ascontiguousarray(found[0, 0]), (page.shape[0], page.shape[1]), self._rules)
        return [resize(crop(page, line.points)) for line in lines]


class BareReader:
    """The recognizer's model, lines in batches of any width: a `rivals.Reader`."""

    def __init__(self, threads: int) -> None:
        spec = _spec("rec", Head.CTC, threads)
        assert spec.model is not None
        self._charset = spec.model.charset
        self._engine = create_engine(spec)

    def __call__(self, lines: Sequence[Line], width: int) -> list[str]:
        """The text of lines, padded to `width`."""
        classes, probabilities = self._engine.run(*laid(lines, width))
        return [decode(*of_line, self._charset).text for of_line in zip(classes, probabilities, strict=True)]


def laid(lines: Sequence[Line], width: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Lines as an engine takes them, padded to `width`: their pixels, and the size of each."""
    pixels = np.zeros((len(lines), HEIGHT, width, 3), np.uint8)
    for row, line in zip(pixels, lines, strict=True):
        row[:, : line.shape[1]] = line
    return pixels, _sizes(lines)


def _spec(role: Role, head: Head, threads: int) -> EngineSpec:
    """The engine and the models that the product would choose on a CPU; no shape is warmed up."""
    choice = choose("auto", ("cpu",), "auto")
    assert choice.models is not None
    model: ModelFiles = resolve(choice.models, role)
    return EngineSpec(engine=choice.engine, model=model, head=head, threads=threads)


def _sizes(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.int32]:
    """Rows and columns of each that are its own."""
    return np.array([image.shape[:2] for image in images], np.int32)
