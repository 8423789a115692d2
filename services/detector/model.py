"""The detector's model: pages in, probability maps out, in batches."""

from functools import partial

from services.common.engines.base import Head
from services.common.model_service import ModelPlan, ServedModel, batch_limits, batch_shapes
from services.detector.postprocess import BoxRules
from services.detector.preprocess import CANVAS_VERSION, canvas, closed_shapes
from services.detector.settings import DetectorSettings


def box_rules(settings: DetectorSettings) -> BoxRules:
    """The rules of box extraction that the operator chose."""
    return BoxRules(
        threshold=settings.threshold,
        box_threshold=settings.box_threshold,
        unclip_ratio=settings.unclip_ratio,
        max_candidates=settings.max_candidates,
    )


def serve_model(plan: ModelPlan, settings: DetectorSettings) -> ServedModel:
    """The model behind its batch queue, not started yet."""
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
    return ServedModel("detector", info, hosts, partial(canvas, max_side=settings.max_side), limits)
