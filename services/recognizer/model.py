"""The recognizer's model: lines in, classes and probabilities of their time steps out, in batches."""

from services.common.engines.base import Head
from services.common.model_service import ModelPlan, ServedModel, batch_limits, batch_shapes
from services.recognizer.preprocess import HEIGHT, padded_width
from services.recognizer.settings import RecognizerSettings


def serve_model(plan: ModelPlan, settings: RecognizerSettings) -> ServedModel:
    """The model behind its batch queue, not started yet."""
    ladder = settings.width_ladder

    def canvas(_height: int, width: int) -> tuple[int, int]:
        return HEIGHT, padded_width(width, ladder)

    limits = batch_limits(settings)
    hosts = plan.hosts(Head.CTC, batch_shapes(((HEIGHT, width) for width in ladder), limits))
    info = plan.info({"width_ladder": " ".join(map(str, ladder)), "padding": "zeros"})
    return ServedModel("recognizer", info, hosts, canvas, limits)
