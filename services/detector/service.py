"""The gRPC face of the detector: one image in, quads around its lines of text out."""

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from services.common.errors import InvalidJob, OcrError
from services.common.images import LARGEST_MAX_PIXELS, ImageLimits
from services.common.model_service import Image, ServedModel, Stopwatch
from services.common.page_size import shrink
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.rpc import deadline_of
from services.common.wire import pixels_of, priority_of
from services.detector.model import box_rules
from services.detector.postprocess import FoundLine, find_lines
from services.detector.settings import DetectorSettings

Size = tuple[int, int]
"""Height and width in pixels."""


class DetectorService(ocr_pb2_grpc.DetectorServicer):
    """`ocr.v1.Detector`. Errors leave as OcrError; the server turns them into statuses."""

    names: Sequence[str] = ("ocr.v1.Detector",)

    def __init__(self, model: ServedModel, settings: DetectorSettings) -> None:
        self._model = model
        self._max_side = settings.max_side
        self._rules = box_rules(settings)
        self._limits = ImageLimits(
            max_bytes=settings.max_image_mb * 2**20, max_pixels=settings.max_image_pixels
        )
        self.start = model.start
        self.not_ready = model.not_ready
        self.drain = model.drain
        self.close = model.close

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        ocr_pb2_grpc.add_DetectorServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Detect(
        self, request: pb.DetectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DetectResponse:
        """Quads around the lines of text in one image."""
        watch = Stopwatch()
        priority = priority_of(request.priority)
        self._model.check_open(1, priority)
        named = _named_size(request)
        with watch:
            page, own_size = await self._model.in_thread(self._read, request.image)
        [answer] = await self._model.submit_all([page], priority=priority, deadline=deadline_of(context))
        if isinstance(answer, OcrError):
            raise answer
        with watch:
            found = await self._model.in_thread(self._find, answer.output[0], page, named or own_size)
        return pb.DetectResponse(lines=found, model=self._model.info, timing=watch.timing([answer]))

    async def Describe(
        self, _request: pb.DescribeRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ModelInfo:
        """The model that answers."""
        return self._model.info

    def _read(self, image: pb.Image) -> tuple[Image, Size]:
        """The page at the size it is searched, and the size it came in."""
        pixels = pixels_of(image, self._limits)
        return shrink(pixels, self._max_side), (pixels.shape[0], pixels.shape[1])

    def _find(self, output: NDArray[np.float32], page: Image, source: Size) -> list[pb.DetectedLine]:
        height, width = page.shape[:2]
        return [_message(line) for line in find_lines(output[0, :height, :width], source, self._rules)]


def _named_size(request: pb.DetectRequest) -> Size | None:
    """The size of the page that the image was shrunk from, if the request names one."""
    size = (request.source_height, request.source_width)
    if 0 in size and any(size):
        raise InvalidJob(
            f"source_width is {size[1]} and source_height {size[0]}; send both for a page that was shrunk,"
            " or neither"
        )
    if size[0] * size[1] > LARGEST_MAX_PIXELS:  # no page that any gateway can be told to take is larger
        raise InvalidJob(
            f"source_width {size[1]} times source_height {size[0]} exceeds {LARGEST_MAX_PIXELS} pixels;"
            " send the size of the page that was shrunk"
        )
    return size if all(size) else None


def _message(line: FoundLine) -> pb.DetectedLine:
    message = pb.DetectedLine(score=line.score)
    points = message.quad.points
    for x, y in line.points.tolist():
        points.add(x=x, y=y)  # in its place: a message that is put into another is copied
    return message
