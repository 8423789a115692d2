"""A predictor that obeys the test, and a real server around a service, in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import cv2
import grpc
import numpy as np

from services.common.errors import OcrError, PredictorFailed
from services.common.predictor import Batch, PredictorResult
from services.common.rpc import ERROR_CODE_KEY, CallInterceptor, channel


def laid(batch: Batch) -> tuple[Any, Any]:
    """Pixels and sizes as an engine gets them; the padding is noise, as it may be."""
    shape = (len(batch), *batch.canvas, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    sizes = np.array([image.shape[:2] for image in batch.images], np.int32)
    for place, image in zip(pixels, batch.images, strict=True):
        place[: image.shape[0], : image.shape[1]] = image
    return pixels, sizes


def doubled(pixels: Any, sizes: Any) -> tuple[Any, ...]:
    """Of each item twice its first value."""
    return (pixels[:, 0, 0, 0] * 2.0,)


class FakeHost:
    """Answers pixels and sizes by `answer`; waits before it does while `gate` is closed.

    An image for which `kills` is true gets PredictorFailed; with `error` set every run raises it.
    """

    def __init__(self, answer: Callable[[Any, Any], tuple[Any, ...]] = doubled) -> None:
        self.answer = answer
        self.state = "ready"
        self.engine_name, self.engine_version = "fake", "1.2"
        self.batches: list[Batch] = []
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.kills: Callable[[Any], bool] = lambda image: False
        self.error: OcrError | None = None
        self.closed = False

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    async def start(self) -> None:
        self.state = "ready"

    async def run(self, batch: Batch) -> PredictorResult:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        self.entered.set()
        await self.gate.wait()
        outputs = self.answer(*laid(batch))
        items = [tuple(output[index] for output in outputs) for index in range(len(batch))]
        answers = [
            PredictorFailed("it died") if self.kills(image) else out
            for image, out in zip(batch.images, items, strict=True)
        ]
        return PredictorResult(answers, 3.0)

    async def close(self) -> None:
        self.closed = True


@contextlib.asynccontextmanager
async def serving(service: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a started service behind a server on a free loopback port."""
    server = grpc.aio.server(interceptors=[CallInterceptor()])
    service.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await service.start()
        async with channel(f"127.0.0.1:{port}", max_message_mb=64) as opened:
            yield opened
    finally:
        await server.stop(None)
        await service.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def failure(call: Any) -> tuple[str, str | None, str]:
    """Status, error code and words with which a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        code = dict(error.trailing_metadata() or ()).get(ERROR_CODE_KEY)
        return error.code().name, code, error.details() or ""
    raise AssertionError("the call did not fail")


def drawn(text: str, height: int = 60, width: int | None = None) -> Any:
    """Black text on white, uint8 (height, width, 3)."""
    (across, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 1.0, 2)
    image = np.full((height, width or across + 20, 3), 255, np.uint8)
    cv2.putText(image, text, (10, int(height * 0.7)), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (0, 0, 0), 2)
    return image


def png(image: Any) -> bytes:
    encoded: bytes = cv2.imencode(".png", image)[1].tobytes()
    return encoded
