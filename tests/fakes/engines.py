"""Engines that misbehave when a pixel says so; loaded in real predictor processes by their dotted path.

A batch is marked by the first value of an item; an unmarked item is answered by the mean of its place.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from services.common.engines.base import EngineSpec, EngineUnavailable, Outputs, Pixels, Sizes

DIE, EXIT, HANG, RAISE, LARGE = 101, 102, 103, 104, 105


class MarkedEngine:
    name = "marked"
    version = "7"

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        marks = pixels[:, 0, 0, 0]
        if DIE in marks:
            os.kill(os.getpid(), signal.SIGKILL)
        if EXIT in marks:
            os._exit(3)
        if HANG in marks:
            signal.pause()
        if RAISE in marks:
            raise RuntimeError("marked to raise")
        means = pixels.mean(axis=(1, 2, 3), dtype=np.float32)
        if LARGE in marks:
            return means, np.repeat(means[:, None], 1_000_000, axis=1)
        return (means,)


class SlowEngine(MarkedEngine):
    """Takes the GIL of its process for a while, as Paddle does."""

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass
        return super().run(pixels, sizes)


def marked(spec: EngineSpec) -> MarkedEngine:
    return MarkedEngine(spec)


def slow(spec: EngineSpec) -> SlowEngine:
    return SlowEngine(spec)


class CountingEngine(MarkedEngine):
    """Leaves a character for each run in the file named by the environment."""

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        with Path(os.environ["COUNTING_ENGINE_FILE"]).open("a") as file:
            file.write("x")
        return super().run(pixels, sizes)


def counting(spec: EngineSpec) -> CountingEngine:
    return CountingEngine(spec)


def crashing(spec: EngineSpec) -> MarkedEngine:
    """Starts once for each token in the folder named by the environment, then never again."""
    tokens = list(Path(os.environ["CRASHING_ENGINE_TOKENS"]).iterdir())
    if not tokens:
        os._exit(5)
    tokens[0].unlink()
    return MarkedEngine(spec)


def not_here(spec: EngineSpec) -> MarkedEngine:
    raise EngineUnavailable("install the thing")


def never_ready(spec: EngineSpec) -> MarkedEngine:
    signal.pause()
    return MarkedEngine(spec)


class TellingEngine(MarkedEngine):
    """Answers with what it was given."""

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        return pixels.copy(), sizes.copy()


def telling(spec: EngineSpec) -> TellingEngine:
    return TellingEngine(spec)
