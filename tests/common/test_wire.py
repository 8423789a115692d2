"""Images and errors keep their meaning on the wire; what cannot be an image is refused by name."""

import cv2
import numpy as np
import pytest

from services.common.batch_queue import Priority
from services.common.errors import (
    BY_CODE,
    EmptyInput,
    ImageTooLarge,
    ImageTooSmall,
    InvalidJob,
    UnsupportedFormat,
)
from services.common.images import ImageLimits
from services.common.pb import ocr_pb2 as pb
from services.common.wire import error_message, pixels_of, priority_of, raw_image

LIMITS = ImageLimits(max_pixels=10_000)


def raw(height, width, size):
    return pb.Image(raw=pb.RawImage(height=height, width=width, data=b"\x07" * size))


def test_raw_pixels_arrive_as_they_were_sent():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pixels_of(raw_image(pixels), LIMITS), pixels)


def test_raw_pixels_of_a_slice_arrive_as_they_were_sent():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)[::2, ::2]
    np.testing.assert_array_equal(pixels_of(raw_image(pixels), LIMITS), pixels)


def test_an_encoded_image_is_decoded():
    pixels = np.full((20, 30, 3), (10, 20, 30), np.uint8)
    encoded = cv2.imencode(".png", pixels)[1].tobytes()
    np.testing.assert_array_equal(pixels_of(pb.Image(encoded=encoded), LIMITS), pixels)


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (pb.Image(), EmptyInput),
        (pb.Image(encoded=b""), EmptyInput),
        (pb.Image(encoded=b"no image at all"), UnsupportedFormat),
        (raw(0, 0, 0), EmptyInput),
        (raw(10, 10, 0), EmptyInput),
        (raw(10, 10, 299), InvalidJob),
        (raw(10, 10, 301), InvalidJob),
        (raw(0, 10, 30), InvalidJob),
        (raw(2**31, 2**31, 300), InvalidJob),
        (raw(1, 100, 300), ImageTooSmall),
        (raw(200, 200, 120_000), ImageTooLarge),
    ],
)
def test_what_is_no_image_is_refused(image, error):
    with pytest.raises(error):
        pixels_of(image, LIMITS)


@pytest.mark.parametrize(
    ("asked", "given"), [(0, Priority.ONLINE), (pb.ONLINE, Priority.ONLINE), (pb.BULK, Priority.BULK)]
)
def test_priority_of_a_request(asked, given):
    assert priority_of(asked) is given


def test_an_unknown_priority_is_refused():
    with pytest.raises(InvalidJob, match="priority 7"):
        priority_of(7)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_has_its_code_in_the_contract(code):
    message = error_message(BY_CODE[code]("the reason"))
    assert pb.ErrorCode.Name(message.code) == code
    assert message.message == "the reason"
