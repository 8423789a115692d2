"""OpenVINO: the default on CPUs. Reads ONNX and `.pdmodel` as they are; PIR is converted once by paddle2onnx.

Everything that could make its digits differ from Paddle's is off: no bf16 where the CPU has it, no INT8.
One engine is one stream: more work at once means more predictor processes.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from services.common.engines.base import (
    EngineSpec,
    EngineUnavailable,
    Head,
    Outputs,
    Pixels,
    Sizes,
    check_batch,
    check_classes,
    import_library,
    model_of,
)
from services.common.models import ModelFiles, default_cache
from services.common.normalise import table


class OpenVinoEngine:
    """A compiled model with one inference request."""

    name = "openvino"

    def __init__(self, spec: EngineSpec) -> None:
        model = model_of(spec)
        if spec.device != "cpu":
            raise EngineUnavailable(
                f"engine openvino runs on cpu only, not on {spec.device!r}; use engine paddle"
            )
        self._library = _import_openvino()
        self.version: str = self._library.__version__.split("-")[0]
        core = self._library.Core()
        graph = core.read_model(_readable(model))
        if spec.head is Head.CTC:
            graph = _with_ctc_head(self._library, graph, model)
        graph = _with_pixels(self._library, graph, model)
        compiled = core.compile_model(graph, "CPU", _settings(spec))
        self._request = compiled.create_infer_request()
        self._outputs = len(compiled.outputs)

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        """See `Engine.run`."""
        check_batch(pixels, sizes)
        self._request.infer([pixels, sizes], share_inputs=True)
        return tuple(self._request.get_output_tensor(index).data for index in range(self._outputs))


create = OpenVinoEngine


def _import_openvino() -> Any:
    """The library, kept from telling its maker that it was imported.

    OpenVINO sends an event to an analytics service at import unless its telemetry package is missing; None
    in the place of a module makes it so.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return import_library("openvino", "openvino")


def _settings(spec: EngineSpec) -> dict[str, object]:
    """Compile options: one stream, exact digits.

    Pinning is off because every process would pin to the same first cores; the scheduler spreads them.
    """
    return {
        "INFERENCE_NUM_THREADS": spec.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }


def _with_ctc_head(library: Any, graph: Any, model: ModelFiles) -> Any:
    """The graph with the choice of the best class as last step: 18,710 numbers a step stay inside.

    In two rounds, since the search that also tells the place is four times as slow as the one for the value
    alone: the best of each group of classes, then the best group, then the best within it.
    """
    ops = library.opset13
    probabilities = graph.get_results()[0].input_value(0)
    classes = probabilities.get_partial_shape()[2].get_length()
    check_classes(classes, model)
    groups = _groups(classes)
    size = classes // groups
    grouped = ops.reshape(probabilities, ops.constant([0, 0, groups, size]), special_zero=True)
    group, _ = _best(ops, ops.reduce_max(grouped, ops.constant([3])), 2)
    within = ops.gather(grouped, group, ops.constant(2), batch_dims=2)
    place, best = _best(ops, within, 2)
    index = ops.add(ops.multiply(group, ops.constant(np.int32(size))), place)
    return library.Model([index, best], graph.get_parameters(), "ctc")


def _best(ops: Any, values: Any, axis: int) -> tuple[Any, Any]:
    """Place, int32, and value of the largest along the last axis, which goes."""
    best = ops.topk(values, ops.constant(np.int32(1)), axis, "max", "value", index_element_type="i32")
    last = ops.constant([axis])
    return ops.squeeze(best.output(1), last), ops.squeeze(best.output(0), last)


def _groups(classes: int) -> int:
    """Into how many equal groups to part the classes: the divisor nearest to 10, 1 for a prime number."""
    return min((d for d in range(1, 101) if classes % d == 0), key=lambda d: abs(d - 10))


def _with_pixels(library: Any, graph: Any, model: ModelFiles) -> Any:
    """The graph with the way from pixels and sizes to its input as first step.

    Each value is looked up in the table that the other engines use, so the numbers are the same; what is
    outside of an item's size looks up the entry behind the table, a zero.
    """
    ops = library.opset13
    pixels = ops.parameter([-1, -1, -1, 3], dtype=np.uint8, name="pixels")
    sizes = ops.parameter([-1, 2], dtype=np.int32, name="sizes")
    values = table(model.mean, model.std)
    channel = np.arange(3, dtype=np.int32).reshape(1, 3, 1, 1) * values.shape[1]
    by_channel = ops.transpose(pixels, ops.constant([0, 3, 1, 2]))
    place = ops.add(ops.convert(by_channel, "i32"), ops.constant(channel))
    place = ops.select(_own(library, pixels, sizes), place, ops.constant(np.int32(values.size)))
    batch = ops.gather(ops.constant(np.append(values, np.float32(0))), place, ops.constant(0))
    [source] = graph.get_parameters()
    for reader in source.output(0).get_target_inputs():
        reader.replace_source_output(batch.output(0))
    return library.Model(graph.get_results(), [pixels, sizes], "pixels")


def _own(library: Any, pixels: Any, sizes: Any) -> Any:
    """Which pixels are an item's own, not padding: (N, 1, height, width)."""
    ops = library.opset13
    shape = ops.shape_of(pixels, output_type="i32")

    def along(axis: int, others: list[int]) -> Any:
        extent = ops.gather(shape, ops.constant(axis), ops.constant(0))
        index = ops.range(ops.constant(0), extent, ops.constant(1), output_type="i32")
        size = ops.gather(sizes, ops.constant([axis - 1]), ops.constant(1))
        return ops.unsqueeze(ops.less(ops.unsqueeze(index, ops.constant(0)), size), ops.constant(others))

    return ops.logical_and(along(1, [1, 3]), along(2, [1, 2]))


# ---------------------------------------------------------------- PIR, by way of ONNX


def _readable(model: ModelFiles) -> Path:
    """A file that OpenVINO can read: the model itself or, for PIR, its conversion."""
    return _converted(model) if model.format == "pir" else model.model


def _converted(model: ModelFiles) -> Path:
    """The ONNX twin of a PIR model, made on first use. Its name carries the hash of what it was made from."""
    target = _folder_for(model) / f"{model.role}-{_source_hash(model)[:16]}.onnx"
    if not target.is_file():
        _convert(model, target)
    return target


def _folder_for(model: ModelFiles) -> Path:
    """Beside the model, or in the cache where that folder is not ours to write to."""
    beside = model.model.parent
    folder = beside if os.access(beside, os.W_OK) else default_cache() / "converted"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _source_hash(model: ModelFiles) -> str:
    return hashlib.sha256(model.model.read_bytes() + model.sha256.encode()).hexdigest()


_CONVERSION = (
    "import sys, paddle2onnx\n"
    "graph, weights, target = sys.argv[1:]\n"
    # Its optimizers install further packages by themselves; OpenVINO optimizes anyway.
    "paddle2onnx.export(graph, weights, target, opset_version=14, optimize_tool='none')\n"
)


def _convert(model: ModelFiles, target: Path) -> None:
    """Convert in a process of its own, which needs paddle, and in a folder aside.

    The result is moved into place, so that nobody ever reads half a file.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as scratch:
        fresh = Path(scratch) / target.name
        command = [sys.executable, "-P", "-c", _CONVERSION, str(model.model), str(model.params), str(fresh)]
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if run.returncode or not fresh.is_file():
            raise EngineUnavailable(_why_not_converted(model, run.stderr))
        fresh.replace(target)


def _why_not_converted(model: ModelFiles, output: str) -> str:
    reason = (output.strip().splitlines() or ["no reason given"])[-1]
    return (
        f"engine openvino reads {model.model} only once it is converted to ONNX, and that failed: {reason};"
        " conversion needs pip install 'ocr-serving[convert]';"
        " or use engine paddle, or a set in another format: ppocr-v6-small"
    )
