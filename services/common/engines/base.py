"""What an engine is: arrays in, arrays out, one model, one thread.

An engine runs inside the predictor process (`predictor.py`), which loads it by `create_engine`. The three
that come along are chosen by name; any other is named by the path of its factory, `package.module:factory`,
a callable that takes an `EngineSpec` and returns an `Engine`. That is the whole extension point.

The contract, kept by one set of tests over all engines:

* `run` takes pixels as they come, uint8 (N, H, W, 3), and the size of each item within; it returns one or
  more arrays whose first axis is N. Normalising is the engine's, which knows the cheapest place for it.
* What lies outside of an item's size is padding, whatever its bytes: the model sees exact zeros there, after
  normalisation.
* Any shape works; those in `EngineSpec.shapes` are met once before the service is ready and are fast.
* The answer for an item depends on that item alone, up to 1e-5, among batches of equal height and width.
* Pixels and sizes belong to the caller, and are good until `run` returns.
* Returned arrays may be overwritten by the next `run`: copy what has to last.
* Anything raised by `run` is the failure of that batch; the engine stays usable.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.common.errors import SetupError
from services.common.models import MODEL_SETS, ModelFiles, default_set

Pixels = NDArray[np.uint8]
"""(N, height, width, 3), channels last: blue, green, red."""
Sizes = NDArray[np.int32]
"""(N, 2): height and width of each item, at the top left of its place; the rest is padding."""
Outputs = tuple[NDArray[Any], ...]
Shape = tuple[int, int, int, int]
"""(N, height, width, 3), the shape of the pixels of a batch."""


class EngineUnavailable(SetupError):
    """The engine cannot run the model here: not installed, no such device, or a format it cannot read."""


class Head(StrEnum):
    """What of the model's output leaves the engine.

    RAW: the array as the model gives it: a detector's probability map (N, 1, H, W), a recognizer's
    probabilities (N, T, classes).
    CTC: of each step of a recognizer the most probable class, int32 (N, T), and its probability, float32
    (N, T). That is all a greedy decoder needs, and a thousandth of the bytes.
    """

    RAW = "raw"
    CTC = "ctc"


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """How Paddle uses a GPU; the defaults are those of the settings.

    `memory_pool_mb` is reserved at start and grows when it must.

    `fp16` halves memory and is faster on tensor cores, at other digits. `tensorrt` compiles the graph for
    the shapes of the closed set, at start; `tensorrt_cache` keeps what was compiled for the next start.
    """

    memory_pool_mb: int = 2000
    fp16: bool = False
    tensorrt: bool = False
    tensorrt_cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class SimulatedCost:
    """What a batch costs on the simulated engine: `fixed_ms + ms_per_megapixel * megapixels` of the batch.

    The defaults are those of the settings.
    """

    fixed_ms: float = 5.0
    ms_per_megapixel: float = 50.0


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """All that a predictor process has to know. Travels by pickle.

    `engine` is a name or `package.module:factory`. `model` is None only for engines without one.
    `device` is `cpu` or `gpu:N`. `threads` 0 leaves the number to the engine. `shapes` is the closed set.
    """

    engine: str
    model: ModelFiles | None
    head: Head
    device: str = "cpu"
    threads: int = 0
    shapes: tuple[Shape, ...] = ()
    gpu: GpuOptions = field(default_factory=GpuOptions)
    simulated: SimulatedCost = field(default_factory=SimulatedCost)


class Engine(Protocol):
    """A loaded model. `name` and `version` go into every result."""

    @property
    def name(self) -> str:
        """The engine's name, as it stands in results."""

    @property
    def version(self) -> str:
        """The version of the library that does the work."""

    def run(self, pixels: Pixels, sizes: Sizes) -> Outputs:
        """Run one batch; see the contract above. Raises `ValueError` for a wrong type or shape."""


# ---------------------------------------------------------------- choose and create

ENGINES: dict[str, str] = {
    "paddle": "services.common.engines.paddle:create",
    "openvino": "services.common.engines.openvino:create",
    "simulated": "services.common.engines.simulated:create",
}
"""Engines by name, and the factory of each."""

_GPU = Path("/dev/nvidia0")

_DISTRIBUTIONS = {"paddle": ("paddlepaddle-gpu", "paddlepaddle"), "openvino": ("openvino",)}


def create_engine(spec: EngineSpec) -> Engine:
    """Load the engine and the model. Slow, and heavy on imports: called in the predictor process only.

    Raises `EngineUnavailable`.
    """
    path = ENGINES.get(spec.engine, spec.engine)
    module, _, factory = path.partition(":")
    if not factory:
        raise EngineUnavailable(
            f"no engine is called {spec.engine!r};"
            f" there are auto, {', '.join(ENGINES)} and package.module:factory"
        )
    try:
        create: Callable[[EngineSpec], Engine] = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise EngineUnavailable(f"engine {spec.engine!r} cannot be loaded: {error}") from error
    return create(spec)


@dataclass(frozen=True)
class Choice:
    """What `auto` in the settings came to mean on this machine. `models` is None if the engine needs none."""

    engine: str
    devices: tuple[str, ...]
    models: str | None


def choose(engine: str, devices: Sequence[str], models: str) -> Choice:
    """Settle engine, devices and model set, the same for the services and for `ocrctl`, which fetches.

    Device `auto` is a GPU only where the engine is paddle or to be chosen. Raises `EngineUnavailable`.
    """
    may_use_gpu = engine in ("auto", "paddle")
    settled = tuple(
        choose_device() if device == "auto" and may_use_gpu else "cpu" if device == "auto" else device
        for device in devices
    )
    chosen = choose_engine(engine, settled)
    if chosen == "simulated":
        return Choice(chosen, settled, None)
    return Choice(chosen, settled, default_set(chosen) if models == "auto" else models)


def choose_engine(name: str, devices: Sequence[str]) -> str:
    """What engine `auto` means here: with a GPU paddle, else openvino where installed, else paddle.

    Any other name is given back as it is. Imports no engine. Raises `EngineUnavailable` if there is none.
    """
    if name != "auto":
        return name
    if any(device != "cpu" for device in devices):
        return "paddle"
    for engine in ("openvino", "paddle"):
        if installed_version(engine):
            return engine
    raise EngineUnavailable("no engine is installed; install one: pip install 'ocr-serving[openvino]'")


def choose_device() -> str:
    """What device `auto` means here: `gpu:0` if there is one and Paddle was installed for it, else `cpu`."""
    return "gpu:0" if _version("paddlepaddle-gpu") and _GPU.exists() else "cpu"


def installed_version(engine: str) -> str | None:
    """The version of the library behind an engine, None if it is not installed. Imports nothing."""
    if engine == "simulated":
        return "1"
    return next((found for name in _DISTRIBUTIONS.get(engine, ()) if (found := _version(name))), None)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------- for those who write an engine


def import_library(module: str, engine: str) -> Any:
    """The library of an engine, as `Any`: none of them has types. Raises `EngineUnavailable`.

    Warnings at import are dropped: they speak to those who build the library (Paddle: no ccache found).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise EngineUnavailable(
            f"engine {engine} cannot be loaded ({error}); install it: pip install 'ocr-serving[{engine}]'"
        ) from error


def model_of(spec: EngineSpec) -> ModelFiles:
    """The model of a spec whose engine cannot do without one. Raises `EngineUnavailable`."""
    if spec.model is None:
        raise EngineUnavailable(f"engine {spec.engine} needs a model; give one of {', '.join(MODEL_SETS)}")
    return spec.model


def sets_for(engine: str) -> str:
    """The named sets that an engine can run, for messages."""
    return ", ".join(name for name, found in MODEL_SETS.items() if engine in found.engines)


def check_batch(pixels: Pixels, sizes: Sizes) -> None:
    """Refuse what is not uint8 (N, H, W, 3), not empty, with int32 (N, 2) sizes. Raises `ValueError`."""
    if pixels.dtype != np.uint8 or sizes.dtype != np.int32:
        raise ValueError(f"a batch is uint8 with int32 sizes, this one is {pixels.dtype} with {sizes.dtype}")
    if pixels.ndim != 4 or pixels.shape[3] != 3 or 0 in pixels.shape:
        raise ValueError(f"a batch is (N, height, width, 3) and not empty, this one is {pixels.shape}")
    if sizes.shape != (len(pixels), 2):
        raise ValueError(f"{len(pixels)} items need sizes ({len(pixels)}, 2), these are {sizes.shape}")


def check_classes(classes: int, model: ModelFiles) -> None:
    """Refuse a dictionary that does not belong to the model: every later text would be wrong.

    The space at the end of a charset may be a class that the model does not have. Raises `EngineUnavailable`.
    """
    known = len(model.charset)
    if classes not in (known, known - 1):
        raise EngineUnavailable(
            f"{model.model} tells {classes} classes apart, its dictionary has {known}:"
            " it belongs to another model"
        )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
