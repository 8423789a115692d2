"""The gRPC face of the recognizer: lines in, their text out."""

from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from services.common.errors import DeadlineExceeded, InputError, OcrError
from services.common.images import ImageLimits
from services.common.model_service import Answer, Image, ServedModel, Stopwatch
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.rpc import deadline_of
from services.common.wire import error_message, pixels_of, priority_of
from services.recognizer.decode import ReadLine, Steps, decode_all, valid_steps
from services.recognizer.preprocess import MIN_SIDE, padded_width, resize
from services.recognizer.settings import RecognizerSettings

Charset = Sequence[str]


class RecognizerService(ocr_pb2_grpc.RecognizerServicer):
    """`ocr.v1.Recognizer`. Errors leave as OcrError; the server turns them into statuses.

    A line that cannot be read, or that kills its predictor, has its own error in the answer. An error
    that another try can mend, or a deadline, is one of the whole call: then no line is answered by halves.
    """

    names: Sequence[str] = ("ocr.v1.Recognizer",)

    def __init__(self, model: ServedModel, charset: Charset, settings: RecognizerSettings) -> None:
        self._model = model
        self._charset = charset
        self._ladder = settings.width_ladder
        self._limits = ImageLimits(
            max_bytes=settings.max_image_mb * 2**20,
            max_pixels=settings.max_image_pixels,
            min_side=MIN_SIDE,
        )
        self.start = model.start
        self.not_ready = model.not_ready
        self.drain = model.drain
        self.close = model.close

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        ocr_pb2_grpc.add_RecognizerServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Recognize(
        self, request: pb.RecognizeLinesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RecognizeLinesResponse:
        """The text of each line, in order."""
        watch = Stopwatch()
        priority = priority_of(request.priority)
        self._model.check_open(len(request.lines), priority)
        with watch:
            lines = await self._model.in_thread(self._read, request.lines)
        images = [line for line in lines if not isinstance(line, OcrError)]
        answers = await self._model.submit_all(images, priority=priority, deadline=deadline_of(context))
        _raise_if_passing(answers)
        with watch:
            # Here and not in a thread: it is Python from end to end, which a thread would only take turns in.
            texts = self._texts(lines, answers)
        return pb.RecognizeLinesResponse(lines=texts, model=self._model.info, timing=watch.timing(answers))

    async def Describe(
        self, _request: pb.DescribeRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ModelInfo:
        """The model that answers."""
        return self._model.info

    def _read(self, images: Iterable[pb.Image]) -> list[Image | InputError]:
        return [self._read_line(image) for image in images]

    def _read_line(self, image: pb.Image) -> Image | InputError:
        try:
            return resize(pixels_of(image, self._limits), self._ladder)
        except InputError as error:
            return error

    def _texts(
        self, lines: Sequence[Image | InputError], answers: Sequence[Answer]
    ) -> list[pb.RecognizedLine]:
        """One for each line: the lines that could not be read took no place in `answers`."""
        rest = iter(answers)
        outcomes = [line if isinstance(line, OcrError) else self._steps(line, next(rest)) for line in lines]
        read = iter(decode_all([found for found in outcomes if isinstance(found, Steps)], self._charset))
        return [_message(next(read) if isinstance(found, Steps) else found) for found in outcomes]

    def _steps(self, line: Image, answer: Answer) -> Steps | OcrError:
        if isinstance(answer, OcrError):
            return answer
        classes, probabilities = answer.output
        content = line.shape[1]
        valid = valid_steps(content, padded_width(content, self._ladder), len(classes))
        return Steps(classes, probabilities, valid)


def _message(outcome: ReadLine | OcrError) -> pb.RecognizedLine:
    if isinstance(outcome, OcrError):
        return pb.RecognizedLine(error=error_message(outcome))
    return pb.RecognizedLine(text=outcome.text, confidence=outcome.confidence)


def _raise_if_passing(answers: Iterable[Answer]) -> None:
    for answer in answers:
        if isinstance(answer, OcrError) and (answer.retryable or isinstance(answer, DeadlineExceeded)):
            raise answer
