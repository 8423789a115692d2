"""Lines of text on their own: cut out of a page as the product cuts them, and read by the recognizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.rpc import channel
from services.common.wire import raw_image
from services.gateway.crops import crop

MAX_MESSAGE_MB = 64
TIMEOUT_S = 120.0
POINT_DIGITS = 7
"""Of coordinates, as in results that come through Kafka."""

Image = NDArray[np.uint8]
Place = tuple[str, ...]
"""Where a line lies: its document, then its coordinates; or the name of the file it is alone in."""


@dataclass(frozen=True)
class Read:
    """What was read of a line."""

    text: str
    confidence: float


@dataclass(frozen=True)
class Agreement:
    """How far readings of the same lines agree. `flips` are the lines whose text was another."""

    compared: int = 0
    flips: tuple[Place, ...] = ()
    missing: int = 0
    most: float = 0.0
    """The largest difference of confidence among lines of equal text."""

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.compared + other.compared,
            self.flips + other.flips,
            self.missing + other.missing,
            max(self.most, other.most),
        )


def agreement(reference: Mapping[Place, Read], readings: Iterable[tuple[Place, Read]]) -> Agreement:
    """Compare readings with the reference; a line that the reference does not have is missing there."""
    pairs = [(place, reference.get(place), read) for place, read in readings]
    known = [(place, one, other) for place, one, other in pairs if one is not None]
    flips = tuple(place for place, one, other in known if one.text != other.text)
    apart = [abs(one.confidence - other.confidence) for _, one, other in known if one.text == other.text]
    return Agreement(len(known), flips, len(pairs) - len(known), max(apart, default=0.0))


def place_of(document: str, points: Iterable[tuple[float, float]]) -> Place:
    """The place of a line on a page."""
    return (document, *(f"{value:.{POINT_DIGITS}g}" for point in points for value in point))


def lines_of(document: str, result: pb.Result) -> list[tuple[Place, Read]]:
    """The lines of a result."""
    return [
        (place_of(document, ((p.x, p.y) for p in line.points)), Read(line.text, line.confidence))
        for line in result.lines
    ]


def cut_out(document: str, page: Image, result: pb.Result) -> list[tuple[Place, Image]]:
    """The picture of each line of a result, as the gateway cut it."""
    return [
        (
            place_of(document, ((p.x, p.y) for p in line.points)),
            crop(page, np.array([(p.x, p.y) for p in line.points], np.float32)),
        )
        for line in result.lines
    ]


class RecognizerDoor:
    """The recognizer at `target`, used by `async with`."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def __aenter__(self) -> "RecognizerDoor":
        self._channel = channel(self._target, max_message_mb=MAX_MESSAGE_MB)
        self._stub: Any = ocr_pb2_grpc.RecognizerStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def read(self, images: Sequence[Image], priority: int = pb.ONLINE) -> list[Read]:
        """The text of lines that are sent in one call, in their order. Raises `grpc.aio.AioRpcError`."""
        request = pb.RecognizeLinesRequest(
            lines=[raw_image(image) for image in images], priority=pb.Priority.Name(priority)
        )
        answer = await self._stub.Recognize(request, timeout=TIMEOUT_S)
        return [Read(line.text, line.confidence) for line in answer.lines]
