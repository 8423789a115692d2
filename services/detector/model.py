"""The detector's model: pages in, probability maps out, in batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.common.engines.base import Head
from services.common.model_service import ModelPlan, ServedModel, batch_limits, batch_shapes
from services.common.normalise import stack, table
from services.detector.postprocess import BoxRules
from services.detector.preprocess import CANVAS_VERSION, canvas, closed_shapes
from services.detector.settings import DetectorSettings

Page = NDArray[np.uint8]
"""A page at the size it is searched, `(height, width, 3)`, blue green red."""


def box_rules(settings: DetectorSettings) -> BoxRules:
    """The rules of box extraction that the operator chose."""
    return BoxRules(
        threshold=settings.threshold,
        box_threshold=settings.box_threshold,
        unclip_ratio=settings.unclip_ratio,
        max_candidates=settings.max_candidates,
    )


def serve_model(plan: ModelPlan, settings: DetectorSettings) -> ServedModel[Page]:
    """The model behind its batch queue, not started yet."""
    normalised = table(plan.files.mean, plan.files.std)

    def stack_pages(pages: Sequence[Page]) -> NDArray[np.float32]:
        height, width = pages[0].shape[:2]
        return stack(pages, canvas(height, width, settings.max_side), normalised)

    limits = batch_limits(settings)
    shaped_by = {
        "max_side": settings.max_side,
        "canvas": CANVAS_VERSION,
        "threshold": settings.threshold,
        "box_threshold": settings.box_threshold,
        "unclip_ratio": settings.unclip_ratio,
        "max_candidates": settings.max_candidates,
    }
    hosts = plan.hosts(Head.RAW, batch_shapes(closed_shapes(settings.max_side), limits))
    info = plan.info(shaped_by, max_side=settings.max_side)
    return ServedModel("detector", info, hosts, stack_pages, limits)
