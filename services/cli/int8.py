"""8-bit integers in place of floats, by NNCF's quantization after training. The only file that imports NNCF.

Belongs into a process that ends, as `ocrctl models quantize` does: NNCF and its friends are large.

* Weights use half of their range (`OverflowFix.ENABLE`). Processors without VNNI add products in 16 bits and
  clip what does not fit, so that with the full range one and the same file reads worse there.
* Ranges of activations span all that calibration met. NNCF's own mean over the inputs would clip what only
  some lines reach.
* The recognizer is told to be a transformer: the default scheme ruins its attention.
* Its attention and its channel gates stay floats: they are few of its products, and sensitive.
* So do the ten other layers whose 8-bit weights, each alone, change the recognizer's output on calibration
  lines the most: of the stem, and those that close a block. They cost an eighth of its time; docs/int8.md.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.common.engines.base import import_library
from services.common.errors import SetupError
from services.common.models import ModelFiles, Role

_ATTENTION = (*(f"MatMul.{index}" for index in range(12)), "Conv.54", "Conv.55")
_GATES = tuple(f"Conv.{index}" for index in (6, 7, 20, 21, 28, 29, 36, 37, 47, 48))
_SENSITIVE = tuple(f"Conv.{index}" for index in (1, 2, 4, 18, 26, 34, 42, 45, 50, 53))
_KEPT_OF_RECOGNIZER = (*_ATTENTION, *_GATES, *_SENSITIVE)
"""Layers of PP-OCRv6 small, whose file is pinned; NNCF fails where one of them is missing."""


class QuantizerMissing(SetupError):
    """NNCF is not installed, or cannot be loaded."""


def load() -> tuple[Any, Any]:
    """NNCF and OpenVINO, kept from telling their makers that they are used. Raises `QuantizerMissing`.

    Both send events to an analytics service unless their telemetry package is missing; None in the place of a
    module makes it so.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    openvino = import_library("openvino", "openvino")
    try:
        import nncf
    except ImportError as error:
        raise QuantizerMissing(
            f"quantization needs NNCF ({error}); install it: pip install 'ocr-serving[quantize]'"
        ) from error
    return nncf, openvino


def quantize(source: ModelFiles, inputs: Sequence[Any], target: Path) -> None:
    """Write `source` in 8 bits, calibrated on `inputs`, to `target` (.xml; the weights beside it as .bin)."""
    nncf, openvino = load()
    logging.getLogger("nncf").setLevel(logging.WARNING)
    graph = openvino.Core().read_model(source.model)
    smaller = nncf.quantize(
        graph, nncf.Dataset(inputs), subset_size=len(inputs), **_scheme(nncf, source.role)
    )
    openvino.save_model(smaller, target, compress_to_fp16=False)


def _scheme(nncf: Any, role: Role) -> dict[str, Any]:
    """What NNCF is told about a model of this role."""
    ranges = nncf.quantization.range_estimator.RangeEstimatorParametersSet.MINMAX
    advanced = nncf.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.ENABLE, activations_range_estimator_params=ranges
    )
    if role == "det":
        return {"preset": nncf.QuantizationPreset.MIXED, "advanced_parameters": advanced}
    return {
        "model_type": nncf.ModelType.TRANSFORMER,
        "advanced_parameters": advanced,
        "ignored_scope": nncf.IgnoredScope(names=sorted(_KEPT_OF_RECOGNIZER)),
    }
