"""An engine without a model: it takes as long as it is told, and answers from the pixels.

Two uses: to ask what an installation would carry with a device of a given speed, and to test everything
around an engine. So its answers are a plain function of each item's own pixels: a page with dark strokes on
light paper yields lines, and a crop yields text that differs from that of other crops.
"""

import hashlib
import time
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from services.common.engines.base import (
    EngineSpec,
    Head,
    Outputs,
    Pixels,
    SimulatedCost,
    Sizes,
    check_batch,
)
from services.common.models import BLANK, ModelFiles, Role

CHARSET: tuple[str, ...] = (BLANK, *(chr(code) for code in range(33, 127)), " ")
"""Printable ASCII, in the order of a PP-OCR dictionary."""

STRIDE = 8
"""Columns of a line that make a step, as in PP-OCR."""

_INK = 115
"""Values below it are ink."""

_GAP = 31
"""Pixels that ink grows sideways, so that the letters of a line join."""

_CELL = 4
"""Pixels of the sides of the squares that the detector's map is made of."""

_ROWS = 4
"""Of so many rows of a line one is looked at: an engine that stands for a fast one must cost little."""


def model_files(role: Role) -> ModelFiles:
    """What stands for the model in results: no files, and the hash of the rule that makes the answers."""
    rule = f"simulated {role} ink<{_INK} gap={_GAP} cell={_CELL} stride={STRIDE} rows={_ROWS}"
    return ModelFiles(
        model_set="simulated",
        role=role,
        format="onnx",
        model=Path("simulated"),
        params=None,
        sha256=hashlib.sha256(rule.encode()).hexdigest(),
        charset=CHARSET if role == "rec" else (),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


class SimulatedEngine:
    """Sleeps for the cost of a batch, then answers by the rule of its role.

    RAW of a 48-pixel-high batch would be a recognizer's probabilities with a model; here RAW is always the
    detector's map and CTC always the recognizer's classes.
    """

    name = "simulated"
    version = "1"

    def __init__(self, spec: EngineSpec) -> None:
        self._cost = spec.simulated
        self._answer = probability_map if spec.head is Head.RAW else classes

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        """See `Engine.run`."""
        check_batch(pixels, sizes)
        outputs = self._answer(pixels, sizes)
        time.sleep(seconds(self._cost, pixels))
        return outputs


create = SimulatedEngine


def seconds(cost: SimulatedCost, pixels: Pixels) -> float:
    """What running this batch takes."""
    items, height, width, _ = pixels.shape
    milliseconds: float = cost.fixed_ms + cost.ms_per_megapixel * items * height * width / 1e6
    return milliseconds / 1e3


def probability_map(pixels: Pixels, sizes: Sizes) -> tuple[NDArray[np.float32]]:
    """Where lines are, (N, 1, H, W) in 0..1: ink, grown sideways until letters join."""
    found = np.zeros((len(pixels), 1, *pixels.shape[1:3]), np.float32)
    kernel = np.ones((_CELL - 1, _GAP), np.uint8)
    for page, (height, width), answer in zip(pixels, sizes.tolist(), found, strict=True):
        darkest_near = cv2.erode(cv2.extractChannel(page[:height, :width], 1), kernel)
        # In cells, so that most boxes are upright, as those of a real detector are.
        cells = cv2.compare(darkest_near[_CELL // 2 :: _CELL, _CELL // 2 :: _CELL], _INK, cv2.CMP_LT)
        size = (width, height)
        answer[0, :height, :width] = cv2.resize(cells, size, interpolation=cv2.INTER_NEAREST) > 0
    return (found,)


def classes(pixels: Pixels, sizes: Sizes) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """A class for each block of columns, (N, T), and its probability, 0.9; T is width / 8.

    The class follows from the sum of the darkness of some of the block's own values, and is blank where none
    of them is dark, so for paper and for padding.
    """
    steps = max(pixels.shape[2] // STRIDE, 1)
    darkness = 255 - pixels[:, ::_ROWS, : steps * STRIDE, 1]
    rows = np.arange(0, pixels.shape[1], _ROWS) < sizes[:, :1]
    columns = np.arange(steps * STRIDE) < sizes[:, 1:]
    darkness *= rows[:, :, None] & columns[:, None]
    blocks = darkness.reshape(*darkness.shape[:2], steps, -1)
    total = blocks.sum(axis=(1, 3), dtype=np.int64)
    inked = blocks.max(axis=(1, 3)) > 255 - _INK
    index = 1 + total % (len(CHARSET) - 2)
    return np.where(inked, index, 0).astype(np.int32), np.full(index.shape, 0.9, np.float32)
