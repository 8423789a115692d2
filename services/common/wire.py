"""Between messages of the contract and what the services work with. Pure, and the same on both sides."""

import numpy as np
from numpy.typing import NDArray

from services.common.batch_queue import Priority
from services.common.errors import EmptyInput, InvalidJob, OcrError
from services.common.images import ImageLimits, check_size, decode_image
from services.common.pb import ocr_pb2 as pb

CHANNELS = 3


def pixels_of(image: pb.Image, limits: ImageLimits) -> NDArray[np.uint8]:
    """The pixels of an image of either form, uint8 `(height, width, 3)`, blue green red.

    Raises an InputError: no or wrong bytes, or a size outside of the limits. Blocks while it decodes.
    """
    match image.WhichOneof("form"):
        case "encoded":
            return decode_image(image.encoded, limits)
        case "raw":
            return _raw_pixels(image.raw, limits)
        case _:
            raise EmptyInput("the image has neither `encoded` nor `raw`; send one of them")


def _raw_pixels(raw: pb.RawImage, limits: ImageLimits) -> NDArray[np.uint8]:
    data = raw.data  # each look at it copies all bytes
    if not data:
        raise EmptyInput(f"the raw image of {raw.width}x{raw.height} pixels has no bytes")
    expected = raw.height * raw.width * CHANNELS
    if len(data) != expected:
        raise InvalidJob(
            f"the raw image has {len(data)} bytes, but {raw.width}x{raw.height} pixels of {CHANNELS}"
            f" bytes are {expected}; send height * width * {CHANNELS} bytes without padding"
        )
    check_size(raw.width, raw.height, limits)
    return np.frombuffer(data, dtype=np.uint8).reshape(raw.height, raw.width, CHANNELS)


def put_pixels(image: pb.Image, pixels: NDArray[np.uint8]) -> None:
    """Fill a message with pixels, uint8 `(height, width, 3)`, blue green red.

    In its place in the request: a message that is put into another is copied with all its bytes.
    """
    raw = image.raw
    raw.height, raw.width = pixels.shape[:2]
    raw.data = pixels.tobytes()


def raw_image(pixels: NDArray[np.uint8]) -> pb.Image:
    """A message of pixels, uint8 `(height, width, 3)`, blue green red."""
    image = pb.Image()
    put_pixels(image, pixels)
    return image


def priority_of(priority: int, default: Priority = Priority.ONLINE) -> Priority:
    """The class of service that a request asks for; `default` when it does not say. Raises InvalidJob."""
    if priority == pb.PRIORITY_UNSPECIFIED:
        return default
    try:
        return Priority(priority)
    except ValueError:
        raise InvalidJob(f"priority {priority} is unknown; send ONLINE (1) or BULK (2)") from None


def error_message(error: OcrError) -> pb.Error:
    """The error as it stands in an answer."""
    return pb.Error(code=error.code, message=str(error))
