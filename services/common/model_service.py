"""A model behind a batch queue: the furniture that detector and recognizer share.

    callers ─▶ Batcher ─▶ PredictorPool ─▶ the next free host ─▶ its predictor process

A service brings three things of its own: which canvas an image is laid on, which canvases there are, and
which settings shape the output. It reads the arrays that come back by itself, in a thread, so that
the predictor goes on with the next batch meanwhile.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from services.common.batch_contract import Completed, Request, RunOutput
from services.common.batch_queue import BatchLimits, Priority
from services.common.batcher import Batcher
from services.common.engines import simulated
from services.common.engines.base import (
    EngineSpec,
    GpuOptions,
    Head,
    Shape,
    SimulatedCost,
    choose,
    installed_version,
    usable_cores,
)
from services.common.errors import OcrError, ShuttingDown, Unavailable
from services.common.models import ModelFiles, Role, resolve
from services.common.pb import ocr_pb2 as pb
from services.common.predictor import Batch, PredictorHost, PredictorResult
from services.common.settings import BatchSettings, EngineSettings
from services.common.telemetry import METRICS, BatchTelemetry, Rider, observe, recorded_span
from services.common.threads import Threads

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Image = NDArray[np.uint8]
"""What a model looks at, a page or a line: (height, width, 3), blue green red."""
Canvas = Callable[[int, int], tuple[int, int]]
"""Height and width that an image of this height and width is padded to. Pure: the same in any company."""
Arrays = tuple[NDArray[Any], ...]
"""What the model gave for one item."""
Answer = Completed[Arrays] | OcrError


class Host(Protocol):
    """What the pool needs of a `PredictorHost`."""

    @property
    def ready(self) -> bool: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def engine_name(self) -> str: ...  # noqa: D102
    @property
    def engine_version(self) -> str: ...  # noqa: D102
    async def start(self) -> None: ...  # noqa: D102
    async def run(self, batch: Batch) -> PredictorResult: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102


_LOOK_AGAIN_S = 0.2
"""Hosts do not tell when they have restarted, or got stuck."""


class PredictorPool:
    """Several hosts of the same model as one runner of batches; a batch goes to the next free host."""

    def __init__(self, hosts: Sequence[Host], canvas: Canvas) -> None:
        self.hosts = tuple(hosts)
        self._canvas = canvas
        self._free = list(self.hosts)
        self._returned = asyncio.Event()

    async def prepare(self, items: Sequence[Image]) -> Batch:
        """The images of a batch with their canvas. Nothing is copied until they run, and then once."""
        height, width = items[0].shape[:2]
        return Batch(items, self._canvas(height, width))

    async def run(self, prepared: Batch) -> RunOutput[Arrays]:
        """The arrays of each item, or its error. Raises Unavailable when no host can work any more."""
        host = await self._take()
        try:
            result = await host.run(prepared)
        finally:
            self._free.append(host)
            self._returned.set()
        return RunOutput(result.items, result.model_ms, result.cpu_ms)

    async def _take(self) -> Host:
        while (host := self._next()) is None:
            self._returned.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._returned.wait(), _LOOK_AGAIN_S)
        self._free.remove(host)
        return host

    def _next(self) -> Host | None:
        """A ready host, else none as long as one works: it is back sooner than another has restarted.

        Without any, one that restarts, whose batch waits for it; one that has failed only when all have.
        """
        usable = [host for host in self._free if host.state != "failed"]
        if ready := next((host for host in usable if host.ready), None):
            return ready
        if any(host.ready for host in self.hosts):
            return None
        if usable:
            return usable[0]
        all_failed = all(host.state == "failed" for host in self.hosts)
        return self._free[0] if all_failed and self._free else None

    async def close(self) -> None:
        """End the predictor processes."""
        await asyncio.gather(*(host.close() for host in self.hosts))


class ServedModel:
    """A model from start to end: loads and warms up, answers batches, tells its state, drains, closes."""

    def __init__(
        self,
        stage: str,
        info: pb.ModelInfo,
        hosts: Sequence[Host],
        canvas: Canvas,
        limits: BatchLimits,
    ) -> None:
        self.stage = stage
        self.info = info
        self._canvas = canvas
        self._pool = PredictorPool(hosts, canvas)
        self._batcher: Batcher[Image, Arrays] = Batcher(
            limits, self._pool, concurrency=len(hosts), observer=BatchTelemetry(stage)
        )
        self._threads = Threads(stage, usable_cores() + 1)
        self._state = "starting"

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The predictors, as many as batches run at a time."""
        return self._pool.hosts

    async def start(self) -> None:
        """Load the model in every predictor and warm it up.

        Raises SetupError (the operator's to put right) or Unavailable (a predictor crashed or hung).
        """
        started = time.monotonic()
        await asyncio.gather(*(host.start() for host in self.hosts))
        # An engine of one's own has told its name and version only now.
        self.info.engine, self.info.engine_version = self.hosts[0].engine_name, self.hosts[0].engine_version
        self._batcher.start()
        self._state = "serving"
        self._observe()
        fields = {"model": self.info.model_set, "engine": self.info.engine, "s": time.monotonic() - started}
        log.info("the model is warm", extra={"fields": fields})

    def _observe(self) -> None:
        stage = {"stage": self.stage}
        observe("ocr.queue.depth", "{item}", "Items that wait.", lambda: [(self.depth, stage)])
        observe("ocr.in_flight", "{item}", "Items in batches.", lambda: [(self.in_flight, stage)])
        observe("ocr.ready", "1", "1 when ready.", lambda: [(float(self.not_ready() is None), stage)])

    def not_ready(self) -> str | None:
        """Why it cannot serve now, in words; None when it can."""
        if self._state != "serving":
            return self._state
        if any(host.ready for host in self.hosts):
            return None
        return "no predictor is ready: " + ", ".join(host.state for host in self.hosts)

    @property
    def depth(self) -> int:
        """Items that wait, those of a prepared batch included."""
        return self._batcher.depth

    @property
    def in_flight(self) -> int:
        """Items in batches that run."""
        return self._batcher.in_flight

    def check_open(self, items: int, priority: Priority) -> None:
        """Refuse a call of so many items before an image is decoded, if the queue would refuse it anyway.

        Raises Unavailable before the start has ended, ShuttingDown after the end has begun, Overloaded when
        the places of its class are taken, InvalidJob when they can never suffice.
        """
        if self._state == "starting":
            raise Unavailable(f"the {self.stage} is still starting; try again in a while")
        if self._state == "draining":
            raise ShuttingDown(f"the {self.stage} is draining; try another replica")
        self._batcher.check_room(items, priority)

    async def submit_all(
        self, images: Sequence[Image], *, priority: Priority, deadline: float | None
    ) -> list[Answer]:
        """The arrays or the error of each image, in order; all are admitted or none, as in `check_open`.

        While a predictor restarts, work is accepted and waits.
        """
        self.check_open(0, priority)
        span = recorded_span()
        requests = [self._request(image, span) for image in images]
        return await self._batcher.submit_all(requests, priority=priority, deadline=deadline)

    def _request(self, image: Image, span: SpanContext | None) -> Request[Image]:
        height, width, _ = image.shape
        canvas = self._canvas(height, width)
        return Request(image, canvas, canvas[0] * canvas[1], Rider(span, height * width))

    async def in_thread(
        self, work: Callable[Parameters, Returned], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Returned:
        """Do work that takes milliseconds of CPU without blocking the event loop."""
        return await self._threads.run(work, *args, **kwargs)

    async def drain(self) -> None:
        """Refuse new work and finish what was accepted."""
        self._state = "draining"
        await self._batcher.drain()

    async def close(self) -> None:
        """End the predictor processes; whatever still waits is answered with ShuttingDown."""
        await self._batcher.close()
        await self._pool.close()
        self._threads.close()


@dataclass(frozen=True)
class ModelPlan:
    """Which model runs on what, settled before anything is loaded."""

    engine: str
    devices: tuple[str, ...]
    files: ModelFiles
    settings: EngineSettings

    def hosts(self, head: Head, shapes: tuple[Shape, ...]) -> list[PredictorHost]:
        """One host for each predictor on each device, all warmed up on `shapes`."""
        settings, cores = self.settings, usable_cores()
        devices = [
            device
            for device in self.devices
            for _ in range(settings.predictors or default_predictors(device, cores))
        ]
        threads = settings.threads or max(1, cores // len(devices))
        return [
            PredictorHost(
                self._spec(head, shapes, device, threads=threads),
                run_timeout_s=settings.run_timeout_s,
                start_timeout_s=settings.start_timeout_s,
                on_restart=self._count_restart,
            )
            for device in devices
        ]

    def _count_restart(self) -> None:
        METRICS.restarts.add(1, {"stage": _STAGES[self.files.role]})

    def _spec(self, head: Head, shapes: tuple[Shape, ...], device: str, *, threads: int) -> EngineSpec:
        settings = self.settings
        return EngineSpec(
            engine=self.engine,
            model=self.files,
            head=head,
            device=device,
            threads=threads,
            shapes=shapes,
            gpu=GpuOptions(
                memory_pool_mb=settings.gpu_memory_mb,
                fp16=settings.gpu_fp16,
                tensorrt=settings.gpu_tensorrt,
                tensorrt_cache=settings.gpu_tensorrt_cache,
            ),
            simulated=SimulatedCost(
                fixed_ms=settings.simulated_fixed_ms, ms_per_megapixel=settings.simulated_ms_per_megapixel
            ),
        )

    def info(self, shaped_by: Mapping[str, object], *, max_side: int = 0) -> pb.ModelInfo:
        """What answers say of the model; `shaped_by` are the service's settings that shape the output."""
        settings = self.settings
        how = {"devices": ",".join(self.devices), **_reading(self.files)}
        if settings.gpu_fp16 or settings.gpu_tensorrt:
            how |= {"fp16": str(settings.gpu_fp16).lower(), "tensorrt": str(settings.gpu_tensorrt).lower()}
        return pb.ModelInfo(
            model_set=self.files.model_set,
            weights_sha256=self.files.sha256,
            engine=self.engine,
            engine_version=installed_version(self.engine) or "",
            settings={**how, **{name: str(value) for name, value in shaped_by.items()}},
            max_side=max_side,
        )


_STAGES: Mapping[Role, str] = {"det": "detector", "rec": "recognizer"}


def _reading(files: ModelFiles) -> dict[str, str]:
    """What a model's own files say besides its weights, and the output depends on."""
    described = {"mean": " ".join(map(str, files.mean)), "std": " ".join(map(str, files.std))}
    if files.charset:
        described["charset_sha256"] = hashlib.sha256("\n".join(files.charset).encode()).hexdigest()
    return described


MOST_PREDICTORS = 4
"""On a CPU unless told otherwise: each has a copy of the model, warm in every shape."""


def default_predictors(device: str, cores: int) -> int:
    """Predictors on one device. Batches side by side waste less of a CPU than threads within one batch."""
    return min(cores, MOST_PREDICTORS) if device == "cpu" else 1


def plan(settings: EngineSettings, role: Role) -> ModelPlan:
    """Choose engine and model. Raises SetupError: no engine, model missing or damaged."""
    choice = choose(settings.engine, settings.devices, settings.models)
    if choice.models is None:
        files = simulated.model_files(role)
    else:
        files = resolve(choice.models, role, cache=settings.models_dir)
    return ModelPlan(choice.engine, choice.devices, files, settings)


def batch_limits(settings: BatchSettings) -> BatchLimits:
    """The limits of the queue. Batches have 1, 2, 4 … items or the most allowed: few sizes to warm up."""
    most = settings.max_batch_size
    powers = tuple(1 << bit for bit in range(most.bit_length()) if 1 << bit < most)
    return BatchLimits(
        max_batch_size=most,
        max_queue_delay_ms=settings.max_queue_delay_ms,
        max_batch_pixels=settings.max_batch_pixels,
        capacity=settings.queue_capacity,
        bulk_max_age_ms=settings.bulk_max_age_ms,
        allowed_batch_sizes=(*powers, most),
    )


def batch_shapes(items: Iterable[tuple[int, int]], limits: BatchLimits) -> tuple[Shape, ...]:
    """Every shape that a batch of items `(height, width)` can have: the closed set to warm up."""
    return tuple(
        (size, height, width, 3)
        for height, width in items
        for size in limits.allowed_batch_sizes
        if size <= limits.full_size(height * width)
    )


def stage_timing(answers: Iterable[Answer], *, process_ms: float, total_ms: float) -> pb.StageTiming:
    """Where the time of one call went; items that failed or expired carried no batch."""
    done = [answer for answer in answers if not isinstance(answer, OcrError)]
    batches = {answer.batch_id: answer for answer in done}.values()
    return pb.StageTiming(
        queue_ms=max((answer.queue_ms for answer in done), default=0.0),
        model_ms=sum(batch.model_ms for batch in batches),
        process_ms=process_ms,
        total_ms=total_ms,
        batches=len(batches),
        mean_batch_size=sum(batch.batch_size for batch in batches) / max(len(batches), 1),
    )


class Stopwatch:
    """Milliseconds of a call, and of the parts of it that are `process_ms`."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.process_ms = 0.0

    def __enter__(self) -> None:
        """Start to count a part."""
        self._part = time.monotonic()

    def __exit__(self, *_: object) -> None:
        """End the part."""
        self.process_ms += (time.monotonic() - self._part) * 1000

    def timing(self, answers: Iterable[Answer]) -> pb.StageTiming:
        """Where the time went, from the start to now."""
        total_ms = (time.monotonic() - self._started) * 1000
        return stage_timing(answers, process_ms=self.process_ms, total_ms=total_ms)
