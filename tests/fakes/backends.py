"""A detector and a recognizer that are simple enough to know their answers beforehand.

The detector finds dark rectangles on white paper; the recognizer "reads" the size of each line, such as
`120x20`. Both can be made to fail, to wait, and tell what they were asked. They come as plain objects for
the pipeline and, around these, as gRPC servicers on a real server.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import cv2
import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from PIL import Image, ImageDraw

from services.common import rpc
from services.common.errors import OcrError
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc

MODEL = pb.ModelInfo(model_set="fake", engine="none", max_side=320)
Box = tuple[int, int, int, int]


def paper(*boxes: Box, size: tuple[int, int] = (320, 192)) -> Image.Image:
    """White paper of (width, height) with dark boxes (left, top, right, bottom)."""
    page = Image.new("RGB", size, "white")
    for left, top, right, bottom in boxes:
        ImageDraw.Draw(page).rectangle((left, top, right - 1, bottom - 1), fill="black")
    return page


def saved(*pages: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    first, *rest = [page.copy() for page in pages]  # Pillow leaves settings of an encoder on what it saved
    if rest:
        more |= {"save_all": True, "append_images": rest}
    file = io.BytesIO()
    first.save(file, kind, **more)
    return file.getvalue()


def pixels(image: pb.Image) -> np.ndarray:
    raw = image.raw
    return np.frombuffer(raw.data, np.uint8).reshape(raw.height, raw.width, 3)


class _Fake:
    """What both have in common: calls are counted, can wait for `gate` and can fail."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.errors: list[Exception] = []
        """Raised by the next calls, one each."""
        self.gate: Callable[[Any], Awaitable[None]] | None = None
        """Awaited by every call."""
        self.at_work = self.most_at_work = self.cancelled = 0
        self.arrived = asyncio.Event()

    @contextlib.asynccontextmanager
    async def _asked(self, request: Any) -> AsyncIterator[None]:
        self.requests.append(request)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.arrived.set()
        try:
            if self.errors:
                raise self.errors.pop(0)
            if self.gate is not None:
                await self.gate(request)
            yield
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1


class FakeDetector(_Fake):
    def __init__(self, *, extra: list[pb.DetectedLine] | None = None) -> None:
        super().__init__()
        self.extra = extra or []
        self.described = 0

    async def max_side(self, *, deadline: float | None) -> int:
        self.described += 1
        return MODEL.max_side

    async def detect(self, request: pb.DetectRequest, *, deadline: float | None) -> pb.DetectResponse:
        async with self._asked(request):
            seen = pixels(request.image)
            scale = np.array([request.source_width / seen.shape[1], request.source_height / seen.shape[0]])
            dark = (seen.max(axis=2) < 128).astype(np.uint8)
            _, _, stats, _ = cv2.connectedComponentsWithStats(dark)
            lines = [_line(left, top, w, h, scale) for left, top, w, h, _ in stats[:0:-1]]
            timing = pb.StageTiming(model_ms=3, total_ms=0.5, batches=1, mean_batch_size=2)
            return pb.DetectResponse(lines=[*lines, *self.extra], model=MODEL, timing=timing)


def _line(left: int, top: int, width: int, height: int, scale: np.ndarray) -> pb.DetectedLine:
    corners = [(left, top), (left + width, top), (left + width, top + height), (left, top + height)]
    points = [pb.Point(x=float(x), y=float(y)) for x, y in np.array(corners) * scale]
    return pb.DetectedLine(quad=pb.Quad(points=points), score=0.9)


class FakeRecognizer(_Fake):
    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, pb.RecognizedLine] = {}
        """By the text that would be read: what is answered instead."""

    async def recognize(
        self, request: pb.RecognizeLinesRequest, *, deadline: float | None
    ) -> pb.RecognizeLinesResponse:
        async with self._asked(request):
            texts = [f"{line.raw.width}x{line.raw.height}" for line in request.lines]
            lines = [self.answers.get(t, pb.RecognizedLine(text=t, confidence=0.9)) for t in texts]
            timing = pb.StageTiming(model_ms=5, total_ms=0.5, batches=2, mean_batch_size=4)
            return pb.RecognizeLinesResponse(lines=lines, model=MODEL, timing=timing)


class Backends:
    """Both fakes behind one real gRPC server on loopback, with health."""

    def __init__(self) -> None:
        self.detector, self.recognizer = FakeDetector(), FakeRecognizer()
        self.health = health.aio.HealthServicer()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; after a `stop` on the same port again."""
        self._server = grpc.aio.server(interceptors=[rpc.CallInterceptor()])
        ocr_pb2_grpc.add_DetectorServicer_to_server(_DetectorServicer(self.detector), self._server)
        ocr_pb2_grpc.add_RecognizerServicer_to_server(_RecognizerServicer(self.recognizer), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        await self.serving(True)
        self.port = self._server.add_insecure_port(self.target)
        await self._server.start()

    async def serving(self, yes: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.health.set("", status.SERVING if yes else status.NOT_SERVING)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


class _DetectorServicer(ocr_pb2_grpc.DetectorServicer):
    def __init__(self, fake: FakeDetector) -> None:
        self._fake = fake

    async def Detect(self, request: pb.DetectRequest, context: rpc.Context) -> pb.DetectResponse:
        return await self._fake.detect(request, deadline=rpc.deadline_of(context))

    async def Describe(self, request: pb.DescribeRequest, context: rpc.Context) -> pb.ModelInfo:
        self._fake.described += 1
        return MODEL


class _RecognizerServicer(ocr_pb2_grpc.RecognizerServicer):
    def __init__(self, fake: FakeRecognizer) -> None:
        self._fake = fake

    async def Recognize(
        self, request: pb.RecognizeLinesRequest, context: rpc.Context
    ) -> pb.RecognizeLinesResponse:
        return await self._fake.recognize(request, deadline=rpc.deadline_of(context))


def code(error: BaseException) -> str:
    """The error code of an `OcrError`, or of a failed call by its trailing metadata."""
    if isinstance(error, grpc.aio.AioRpcError):
        return dict(error.trailing_metadata() or ()).get(rpc.ERROR_CODE_KEY, error.code().name)
    assert isinstance(error, OcrError)
    return error.code
