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

from services.common.engines.base import Batch, EngineSpec, Head, Outputs, SimulatedCost, check_batch
from services.common.models import BLANK, ModelFiles, Role

CHARSET: tuple[str, ...] = (BLANK, *(chr(code) for code in range(33, 127)), " ")
"""Printable ASCII, in the order of a PP-OCR dictionary."""

STRIDE = 8
"""Columns of a line that make a step, as in PP-OCR."""

_INK = -0.1
"""Normalised values below it are ink: paper is positive and padding is 0 under either normalisation."""

_GAP = 31
"""Pixels that ink grows sideways, so that the letters of a line join."""


def model_files(role: Role) -> ModelFiles:
    """What stands for the model in results: no files, and the hash of the rule that makes the answers."""
    rule = f"simulated {role} ink<{_INK} gap={_GAP} stride={STRIDE}"
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

    def run(self, batch: Batch) -> Outputs:
        """See `Engine.run`."""
        check_batch(batch)
        outputs = self._answer(batch)
        time.sleep(seconds(self._cost, batch))
        return outputs


create = SimulatedEngine


def seconds(cost: SimulatedCost, batch: Batch) -> float:
    """What running this batch takes."""
    items, _, height, width = batch.shape
    milliseconds: float = cost.fixed_ms + cost.ms_per_megapixel * items * height * width / 1e6
    return milliseconds / 1e3


def probability_map(batch: Batch) -> tuple[NDArray[np.float32]]:
    """Where lines are, (N, 1, H, W) in 0..1: ink, grown sideways until letters join."""
    ink = (batch.mean(axis=1) < _INK).astype(np.uint8)
    kernel = np.ones((3, _GAP), np.uint8)
    return (np.stack([cv2.dilate(page, kernel) for page in ink])[:, None].astype(np.float32),)


def classes(batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """A class for each block of columns, (N, T), and its probability, 0.9; T is width / 8.

    The class follows from the block's sum, in whole numbers so that no order of summing can change it; it is
    blank where nothing is dark, so for paper and for padding.
    """
    items, channels, height, width = batch.shape
    steps = max(width // STRIDE, 1)
    blocks = batch[..., : steps * STRIDE].reshape(items, channels, height, steps, -1)
    total = np.rint(blocks * 128).astype(np.int64).sum(axis=(1, 2, 4))
    inked = (blocks < _INK).any(axis=(1, 2, 4))
    index = 1 + total % (len(CHARSET) - 2)
    return np.where(inked, index, 0).astype(np.int32), np.full((items, steps), 0.9, np.float32)
