"""8-bit integers in place of floats, by NNCF's quantization after training. The only file that imports NNCF.

Belongs into a process that ends, as `ocrctl models quantize` does: NNCF and its friends are large.

* Weights use half of their range (`OverflowFix.ENABLE`). Processors without VNNI add products in 16 bits and
  clip what does not fit, so that with the full range one and the same file reads worse there.
* Ranges of activations span all that calibration met. NNCF's own mean over the inputs would clip what only
  some lines reach.
* The recognizer is told to be a transformer: the default scheme ruins its attention.
* The recognizer's attention and both models' channel gates stay floats: they are few of the products, and
  sensitive.
* So do the ten other layers of the recognizer whose 8-bit weights, each alone, change its output on
  calibration lines the most, and of the detector the stem, the large kernels of its neck, and its head.
  See docs/int8.md.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.common.engines.base import import_library
from services.common.errors import SetupError
from services.common.models import ModelFiles, Role


def _convolutions(*numbers: int) -> tuple[str, ...]:
    return tuple(f"Conv.{number}" for number in numbers)


_ATTENTION = (*(f"MatMul.{index}" for index in range(12)), *_convolutions(54, 55))
_KEPT: dict[Role, tuple[str, ...]] = {
    "det": (
        *_convolutions(6, 7, 17, 18, 28, 29, 36, 37, 47, 48),  # gates of the backbone
        *_convolutions(55, 56, 58, 59, 61, 62, 64, 65, 68, 69, 72, 73, 76, 77, 80, 81),  # gates of the neck
        *_convolutions(0, 1, 2, 3, 4),  # stem
        *_convolutions(66, 67, 70, 71, 74, 75, 78, 79),  # large kernels of the neck, and what follows them
        *_convolutions(82),
        "ConvTranspose.0",
        "ConvTranspose.2",  # head
    ),
    "rec": (
        *_ATTENTION,
        *_convolutions(6, 7, 20, 21, 28, 29, 36, 37, 47, 48),  # gates
        *_convolutions(1, 2, 4, 18, 26, 34, 42, 45, 50, 53),  # most sensitive to 8-bit weights
    ),
}
"""Layers of PP-OCRv6 small that stay floats. Its files are pinned; NNCF fails where one is missing."""


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
    common = {"advanced_parameters": advanced, "ignored_scope": nncf.IgnoredScope(names=list(_KEPT[role]))}
    if role == "det":
        return {"preset": nncf.QuantizationPreset.MIXED, **common}
    return {"model_type": nncf.ModelType.TRANSFORMER, **common}
