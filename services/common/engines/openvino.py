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

from services.common.engines.base import (
    Batch,
    EngineSpec,
    EngineUnavailable,
    Head,
    Outputs,
    check_batch,
    check_classes,
    import_library,
    model_of,
)
from services.common.models import ModelFiles, default_cache


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
        compiled = core.compile_model(graph, "CPU", _settings(spec))
        self._request = compiled.create_infer_request()
        self._outputs = len(compiled.outputs)

    def run(self, batch: Batch) -> Outputs:
        """See `Engine.run`."""
        check_batch(batch)
        self._request.infer([batch], share_inputs=True)
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
    """The graph with the choice of the best class as last step: 18,710 numbers a step stay inside."""
    ops = library.opset13
    probabilities = graph.get_results()[0].input_value(0)
    classes = probabilities.get_partial_shape()[2]
    if classes.is_static:
        check_classes(classes.get_length(), model)
    best = ops.topk(
        probabilities, ops.constant(1, dtype="int32"), 2, "max", "value", index_element_type="i32"
    )
    axis = ops.constant([2], dtype="int32")
    return library.Model(
        [ops.squeeze(best.output(1), axis), ops.squeeze(best.output(0), axis)], graph.get_parameters(), "ctc"
    )


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
