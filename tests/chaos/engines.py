"""Engines of the product that die of certain documents; loaded in real predictor processes by their path.

A page with a magenta corner ends the detector's process, a line of magenta ink the recognizer's, each time.
"""

import os
import signal

import cv2
import numpy as np

from services.common.engines import openvino as openvino_engine
from services.common.engines import simulated as simulated_engine
from services.common.engines.base import Engine, EngineSpec, Head, Outputs, Pixels, Sizes

DEADLY = (255, 0, 255)
"""Blue, green, red."""
CORNER = 32
"""Pixels of the sides of the corner that kills; a quarter of it is looked at, as pages are resized."""
_LEAST, _MOST = np.array((195, 0, 195), np.uint8), np.array((255, 60, 255), np.uint8)
"""What counts as that colour, once a line has been resized."""
_INK_SHARE = 0.02


class Deadly:
    """Another engine, until it meets a document that kills."""

    def __init__(self, spec: EngineSpec, inner: Engine) -> None:
        self._inner = inner
        self._kills = corner_kills if spec.head is Head.RAW else ink_kills

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def version(self) -> str:
        return self._inner.version

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        items = (item[:height, :width] for item, (height, width) in zip(pixels, sizes.tolist(), strict=True))
        if any(self._kills(item) for item in items):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.run(pixels, sizes)


def corner_kills(page: Pixels) -> bool:
    """Whether the corner at the top left is magenta."""
    return _share(page[: CORNER // 4, : CORNER // 4]) > 0.9


def ink_kills(line: Pixels) -> bool:
    """Whether there are magenta strokes."""
    return _share(line) > _INK_SHARE


def _share(pixels: Pixels) -> float:
    return cv2.countNonZero(cv2.inRange(pixels, _LEAST, _MOST)) / (pixels.shape[0] * pixels.shape[1])


def simulated(spec: EngineSpec) -> Deadly:
    return Deadly(spec, simulated_engine.create(spec))


def openvino(spec: EngineSpec) -> Deadly:
    return Deadly(spec, openvino_engine.create(spec))
