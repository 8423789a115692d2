"""Paddle Inference: the reference. GPU with optional FP16 and TensorRT, CPU with oneDNN.

What is configured is decided by `plan`, a pure function from a spec to calls on `paddle.inference.Config`,
so that the GPU half can be tested where there is no GPU. TensorRT compiles `.pdmodel` while loading; a PIR
model is converted before (`plan_conversion`). `run` holds the GIL for the whole batch, which is
one reason why engines live in a process of their own; and a predictor belongs to one thread.
"""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from services.common.engines.base import (
    EngineSpec,
    EngineUnavailable,
    Head,
    Outputs,
    Pixels,
    Shape,
    Sizes,
    check_batch,
    check_classes,
    import_library,
    model_of,
    sets_for,
    usable_cores,
)
from services.common.models import ModelFiles
from services.common.normalise import stack, table

_WORKSPACE_BYTES = 1 << 30
"""Memory that TensorRT may use while it compiles."""

_LEAST_SUBGRAPH = 3
"""Operators: smaller pieces of the graph stay with Paddle, to save the passing back and forth."""

_SPARE_SHAPES = 8
"""Room in oneDNN's cache for shapes outside the closed set. Unlimited, the cache grows for ever."""


@dataclass(frozen=True)
class Call:
    """One call on `paddle.inference.Config`; an optional one is left out on builds that lack it."""

    method: str
    arguments: tuple[object, ...] = ()
    optional: bool = False


def plan(spec: EngineSpec, model: ModelFiles, input_name: str) -> tuple[Call, ...]:
    """The configuration of a predictor, in order. Precisions stand as text: `half`, `float32`.

    Raises `EngineUnavailable` for a device that does not exist as a word, or TensorRT without shapes.
    """
    device, index = parse_device(spec.device)
    chosen = _on_cpu(spec) if device == "cpu" else _on_gpu(spec, index, model, input_name)
    return (
        *chosen,
        # Models of both formats run on the new executor; the older one knows neither switch.
        Call("enable_new_ir", (model.format == "pir",), optional=True),
        Call("enable_new_executor", (), optional=True),
        Call("switch_ir_optim", (True,)),
        Call("enable_memory_optim"),
        Call("disable_glog_info"),
    )


def parse_device(device: str) -> tuple[str, int]:
    """`cpu` -> ("cpu", 0), `gpu:1` -> ("gpu", 1), `gpu` -> ("gpu", 0). Raises `EngineUnavailable`."""
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return "cpu", 0
    if kind == "gpu" and (index or "0").isdecimal():
        return "gpu", int(index or 0)
    raise EngineUnavailable(f"no device is called {device!r}; write cpu or gpu:N")


def _on_cpu(spec: EngineSpec) -> tuple[Call, ...]:
    return (
        Call("disable_gpu"),
        Call("set_cpu_math_library_num_threads", (spec.threads or usable_cores(),)),
        Call("enable_mkldnn"),
        Call("set_mkldnn_cache_capacity", (len(spec.shapes) + _SPARE_SHAPES,)),
    )


def _on_gpu(spec: EngineSpec, index: int, model: ModelFiles, input_name: str) -> tuple[Call, ...]:
    precision = "half" if spec.gpu.fp16 else "float32"
    use = Call("enable_use_gpu", (spec.gpu.memory_pool_mb, index, precision))
    if spec.gpu.tensorrt and model.format == "paddle":
        return use, *_with_tensorrt(spec, input_name, precision)
    return (use,)


def _with_tensorrt(spec: EngineSpec, input_name: str, precision: str) -> tuple[Call, ...]:
    least, usual, most = shape_range(spec.shapes)
    gpu = spec.gpu
    keep = gpu.tensorrt_cache is not None
    engine = Call(
        "enable_tensorrt_engine",
        # workspace in bytes, largest batch, smallest subgraph, precision, keep what was compiled, calibrate
        (_WORKSPACE_BYTES, most[0], _LEAST_SUBGRAPH, precision, keep, False),
    )
    ranges = Call(
        "set_trt_dynamic_shape_info",
        ({input_name: list(least)}, {input_name: list(most)}, {input_name: list(usual)}),
    )
    cache = (Call("set_optim_cache_dir", (str(gpu.tensorrt_cache),)),) if keep else ()
    return (*cache, engine, ranges)


@dataclass(frozen=True)
class TensorRtConversion:
    """How a PIR model becomes one with TensorRT engines inside, ahead of loading: shapes and precision."""

    least: Shape
    usual: Shape
    most: Shape
    precision: str
    workspace_bytes: int
    name: str


def plan_conversion(spec: EngineSpec, model: ModelFiles) -> TensorRtConversion | None:
    """What to convert with `paddle.tensorrt` before loading: PIR models with TensorRT, nothing else.

    The name tells conversions apart: one that was kept serves the same weights, shapes and precision only.
    """
    if not (spec.gpu.tensorrt and model.format == "pir" and parse_device(spec.device)[0] == "gpu"):
        return None
    least, usual, most = shape_range(spec.shapes)
    precision = "FP16" if spec.gpu.fp16 else "FP32"
    shapes = hashlib.sha256(repr((least, usual, most)).encode()).hexdigest()
    name = f"{model.role}-{model.sha256[:16]}-{shapes[:8]}-{precision.lower()}"
    return TensorRtConversion(least, usual, most, precision, _WORKSPACE_BYTES, name)


def shape_range(shapes: tuple[Shape, ...]) -> tuple[Shape, Shape, Shape]:
    """Least, usual and most of each axis over the closed set: what TensorRT compiles for, (N, 3, H, W).

    Usual is the middle shape by size among those with the largest batch, which is what full batches have.
    Raises `EngineUnavailable` for an empty set.
    """
    if not shapes:
        raise EngineUnavailable("TensorRT needs the closed set of shapes, and this service gave none")
    read = [(items, channels, height, width) for items, height, width, channels in shapes]
    most_items = max(shape[0] for shape in read)
    full = sorted((shape for shape in read if shape[0] == most_items), key=lambda shape: shape[2] * shape[3])
    return _fold(min, read), full[len(full) // 2], _fold(max, read)


def _fold(choose: Any, shapes: Sequence[Shape]) -> Shape:
    items, channels, height, width = (choose(axis) for axis in zip(*shapes, strict=True))
    return items, channels, height, width


class PaddleEngine:
    """A Paddle predictor with its one input and its outputs."""

    name = "paddle"

    def __init__(self, spec: EngineSpec) -> None:
        self._model = model_of(spec)
        if self._model.format not in ("paddle", "pir"):
            raise EngineUnavailable(
                f"engine paddle cannot read {self._model.model}, which is {self._model.format};"
                f" give it one of {sets_for('paddle')}, or use engine openvino"
            )
        paddle = import_library("paddle", "paddle")
        inference = import_library("paddle.inference", "paddle")
        _refuse_missing_gpu(spec, paddle)
        self.version: str = paddle.__version__
        self._ctc = spec.head is Head.CTC
        self._table = table(self._model.mean, self._model.std)
        with tempfile.TemporaryDirectory(prefix="ocr-tensorrt-") as scratch:
            model = _prepared(spec, self._model, Path(scratch))
            self._predictor = inference.create_predictor(_configured(spec, model, inference))
        self._input = self._predictor.get_input_handle(self._predictor.get_input_names()[0])

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        """See `Engine.run`. Normalises here, on the CPU: a graph of Paddle cannot be added to."""
        check_batch(pixels, sizes)
        own = [image[:height, :width] for image, (height, width) in zip(pixels, sizes.tolist(), strict=True)]
        batch = stack(own, pixels.shape[1:3], self._table)
        self._input.reshape(list(batch.shape))
        self._input.copy_from_cpu(batch)
        self._predictor.run()
        names = self._predictor.get_output_names()
        outputs = tuple(self._predictor.get_output_handle(name).copy_to_cpu() for name in names)
        return best_classes(outputs[0], self._model) if self._ctc else outputs


create = PaddleEngine


def best_classes(probabilities: np.ndarray[Any, np.dtype[np.float32]], model: ModelFiles) -> Outputs:
    """The CTC head, (N, T, classes) -> index (N, T) and probability (N, T), for engines that lack it."""
    check_classes(probabilities.shape[2], model)
    index = probabilities.argmax(axis=2)
    best = np.take_along_axis(probabilities, index[..., None], axis=2)[..., 0]
    return index.astype(np.int32), best


def _refuse_missing_gpu(spec: EngineSpec, paddle: Any) -> None:
    kind, index = parse_device(spec.device)
    if kind == "cpu":
        return
    if not paddle.device.is_compiled_with_cuda():
        raise EngineUnavailable(
            f"device {spec.device} was asked for, but paddle {paddle.__version__} here is built for CPUs;"
            " install paddlepaddle-gpu from Paddle's own package index (see README), or use device cpu"
        )
    if index >= (count := paddle.device.cuda.device_count()):
        raise EngineUnavailable(f"device {spec.device} was asked for, but Paddle sees {count} GPUs")


def _prepared(spec: EngineSpec, model: ModelFiles, scratch: Path) -> ModelFiles:
    """The model as it is loaded; what is made for that only lies in `scratch`, unless there is a cache."""
    conversion = plan_conversion(spec, model)
    return _converted(conversion, model, spec.gpu.tensorrt_cache or scratch) if conversion else model


def _configured(spec: EngineSpec, model: ModelFiles, inference: Any) -> Any:
    config = inference.Config(str(model.model), str(model.params))
    precisions = {"half": inference.PrecisionType.Half, "float32": inference.PrecisionType.Float32}
    apply(plan(spec, model, _INPUT), config, precisions)
    return config


def _converted(conversion: TensorRtConversion, model: ModelFiles, folder: Path) -> ModelFiles:
    """The PIR model with TensorRT engines inside. Was not run where this was written, for want of a GPU."""
    target = folder / conversion.name
    if not target.with_suffix(".json").is_file():
        trt = import_library("paddle.tensorrt.export", "paddle")
        config = trt.TensorRTConfig(
            inputs=[
                trt.Input(
                    min_input_shape=conversion.least,
                    optim_input_shape=conversion.usual,
                    max_input_shape=conversion.most,
                )
            ]
        )
        config.precision_mode = getattr(trt.PrecisionMode, conversion.precision)
        config.workspace_size = conversion.workspace_bytes
        config.save_model_dir = str(target)
        trt.convert(str(model.model.with_suffix("")), config)
    return replace(model, model=target.with_suffix(".json"), params=target.with_suffix(".pdiparams"))


_INPUT = "x"
"""The input of every PP-OCR model. Asking the model would need a predictor, and that the configuration."""


def apply(calls: tuple[Call, ...], config: Any, precisions: Mapping[str, object]) -> None:
    """Carry out a plan. Optional calls that this build does not know are left out."""
    for call in calls:
        method = getattr(config, call.method, None)
        if method is None and call.optional:
            continue
        if method is None:
            raise EngineUnavailable(f"the installed paddle has no Config.{call.method}; 3.2.2 has")
        method(
            *(precisions.get(value, value) if isinstance(value, str) else value for value in call.arguments)
        )
