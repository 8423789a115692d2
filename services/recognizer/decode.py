"""From the recognizer's steps to text: greedy decoding of CTC (connectionist temporal classification).

The model names one class for each time step, about one step for eight columns. Class 0, the blank, is
"nothing new here"; the same class in neighbouring steps is one character. A step's probability is that
of its class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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


def decode(
    classes: NDArray[np.int32],
    probabilities: NDArray[np.float32],
    charset: Sequence[str],
    steps: int | None = None,
) -> ReadLine:
    """The text of one line from its classes and their probabilities, both `(time steps,)`.

    `charset[0]` is the blank. Steps from `steps` on are ignored; a character that began before counts.
    """
    classes, probabilities = classes[:steps], probabilities[:steps]
    kept = classes != BLANK
    kept[1:] &= classes[1:] != classes[:-1]
    if not kept.any():
        return ReadLine("", 0.0)
    text = "".join(charset[index] for index in classes[kept])
    return ReadLine(text, float(probabilities[kept].mean(dtype=np.float64)))
