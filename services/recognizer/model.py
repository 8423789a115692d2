"""The recognizer's model: lines in, classes and probabilities of their time steps out, in batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.common.engines.base import Head
from services.common.model_service import ModelPlan, ServedModel, batch_limits, batch_shapes
from services.common.normalise import stack, table
from services.recognizer.preprocess import HEIGHT, padded_width
from services.recognizer.settings import RecognizerSettings

TextLine = NDArray[np.uint8]
"""A line at 48 rows and its own proportions, `(48, width, 3)`, blue green red."""


def serve_model(plan: ModelPlan, settings: RecognizerSettings) -> ServedModel[TextLine]:
    """The model behind its batch queue, not started yet."""
    ladder = settings.width_ladder
    normalised = table(plan.files.mean, plan.files.std)

    def stack_lines(lines: Sequence[TextLine]) -> NDArray[np.float32]:
        return stack(lines, (HEIGHT, padded_width(lines[0].shape[1], ladder)), normalised)

    limits = batch_limits(settings)
    hosts = plan.hosts(Head.CTC, batch_shapes(((HEIGHT, width) for width in ladder), limits))
    info = plan.info({"width_ladder": " ".join(map(str, ladder)), "padding": "zeros"})
    return ServedModel("recognizer", info, hosts, stack_lines, limits)
