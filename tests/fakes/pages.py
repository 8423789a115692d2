"""Pages drawn for tests: black text on white, known in number and place."""

import struct
import zlib

import cv2
import numpy as np

LINE_STEP = 60


def page(lines: list[str], width: int = 640) -> np.ndarray:
    """A page of uint8 BGR with one line of text every `LINE_STEP` pixels."""
    image = np.full((LINE_STEP * (len(lines) + 1), width, 3), 255, np.uint8)
    for number, text in enumerate(lines, 1):
        place = (40, number * LINE_STEP)
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 1.0, (0, 0, 0), 2, cv2.LINE_AA)
    return image


def png(image: np.ndarray) -> bytes:
    """The page as a file."""
    return cv2.imencode(".png", image)[1].tobytes()


def png_header(width: int, height: int) -> bytes:
    """A PNG that declares a size and brings next to no pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 64))
        + chunk(b"IEND", b"")
    )
