"""Pages drawn for tests: black text on white, known in number and place."""

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
