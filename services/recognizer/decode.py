"""From the recognizer's steps to text: greedy decoding of CTC (connectionist temporal classification).

The model names one class for each time step, about one step for eight columns. Class 0, the blank, is
"nothing new here"; the same class in neighbouring steps is one character. A step's probability is that
of its class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

BLANK = 0


@dataclass(frozen=True)
class ReadLine:
    """The text of one line and the mean probability of its characters, 0 for an empty text."""

    text: str
    confidence: float


def valid_steps(content: int, padded: int, steps: int) -> int:
    """How many of a line's time steps look at its own columns: `content` of the `padded` ones."""
    return min(steps, ceil(content * steps / padded))


@dataclass(frozen=True)
class Steps:
    """What the model said of one line: classes int32 and their probabilities float32, both `(time steps,)`.

    Steps from `valid` on look at padding and are ignored; None takes all.
    """

    classes: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    valid: int | None = None


def decode(
    classes: NDArray[np.int32],
    probabilities: NDArray[np.float32],
    charset: Sequence[str],
    steps: int | None = None,
) -> ReadLine:
    """The text of one line; as `decode_all` for lines that come one at a time."""
    [line] = decode_all([Steps(classes, probabilities, steps)], charset)
    return line


def decode_all(lines: Sequence[Steps], charset: Sequence[str]) -> list[ReadLine]:
    """The text of each line. `charset[0]` is the blank.

    All lines of a page are searched as one array, since for an array of forty numbers the calls cost more
    than the work. A character that began before `valid` counts.
    """
    if not lines:
        return []
    classes = np.concatenate([line.classes[: line.valid] for line in lines])
    probabilities = np.concatenate([line.probabilities[: line.valid] for line in lines])
    ends = np.cumsum([len(line.classes[: line.valid]) for line in lines])
    kept = _characters(classes, ends)
    bounds = np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], ends))].tolist()
    indices, certain = classes[kept].tolist(), probabilities[kept].tolist()
    return [_line(indices[begin:end], certain[begin:end], charset) for begin, end in pairwise(bounds)]


def _characters(classes: NDArray[np.int32], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which steps begin a character: no blank, and another class than the step before in the same line."""
    begins = np.ones(len(classes), dtype=bool)
    begins[1:] = classes[1:] != classes[:-1]
    begins[ends[:-1][ends[:-1] < len(classes)]] = True
    return np.asarray(begins & (classes != BLANK))


def _line(indices: list[int], certain: list[float], charset: Sequence[str]) -> ReadLine:
    if not indices:
        return ReadLine("", 0.0)
    return ReadLine("".join([charset[index] for index in indices]), sum(certain) / len(certain))
