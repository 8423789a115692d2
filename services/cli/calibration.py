"""The pages and lines that INT8 models are calibrated on: the same ones every time. Pure.

Calibration needs no labels, only inputs that drive the network as real ones do: ink of all weights on paper
of all shades, worn by scanners, lenses and JPEG, at the sizes and paddings of serving. Two shipped slips
bring Chinese text; the rest is drawn here with fonts that Pillow and OpenCV carry, from a fixed seed.
Generators are numpy's, and each picture has one of its own, so that a change to one moves no other.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from services.common import normalise, page_size

Picture = NDArray[np.uint8]
"""(height, width, 3); blue, green, red."""
Input = NDArray[np.float32]
"""(1, 3, height, width), normalised, padded with zeros."""
Triple = tuple[float, float, float]

PAGES = 60
LINES = 200

_HEIGHT = 48
_WIDTHS = (160, 240, 320, 480, 640, 960, 1280)
_LONGEST_SIDE = 960
_CANVAS_STEP = 96

_PHRASES = (
    "TOTAL",
    "Cash",
    "Change",
    "Qty",
    "SUBTOTAL incl. tax",
    "Tax Invoice No.",
    "Rounding Adjustment",
    "Discount 10%",
    "Please come again, thank you!",
    "Goods sold are not returnable",
    "Exchange within 7 days with this receipt",
    "Table 12 / Cashier: Jane",
    "Member Address & Tel. (Fax)",
    "Quick Brown Fox Paper & Pens Ltd (Reg. 81234-X)",
    "25, Jalan Taman Lumpur, 56000 Kuala Lumpur",
    "Account of the customer at the bank",
    "Date of delivery and signature",
    "Department, approved by",
    "Coffee w/ milk, bread, jam",
    "Battery AA 4-pack #6",
    "Screw M4*16 zinc, box of 100",
    "Service charge [per kg]",
)

_HERSHEY = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_PLAIN,
)


@dataclass(frozen=True)
class Slip:
    """A picture, and where its lines are: left, top, right, bottom in pixels."""

    picture: Picture
    lines: Sequence[Sequence[int]]


# ---------------------------------------------------------------- what the models get


def detector_inputs(slips: Sequence[Slip], mean: Triple, std: Triple) -> Iterator[Input]:
    """`PAGES` pages, shrunk and padded as the detector does it: a quarter of them slips, the others drawn."""
    known = normalise.table(mean, std)
    for index in range(PAGES):
        rng = _rng("page", index)
        page = slips[index // 4 % len(slips)].picture if index % 4 == 0 else _page(rng)
        page = page_size.shrink(_worn(rng, page), _LONGEST_SIDE)
        canvas = (_up(page.shape[0], _CANVAS_STEP), _up(page.shape[1], _CANVAS_STEP))
        yield _input(page, canvas, known)


def recognizer_inputs(slips: Sequence[Slip], mean: Triple, std: Triple) -> Iterator[Input]:
    """`LINES` lines, 48 pixels high and padded to a rung of widths: every second one cut out of a slip."""
    known = normalise.table(mean, std)
    cuttings = [slip.picture[y0:y1, x0:x1] for slip in slips for x0, y0, x1, y1 in slip.lines]
    for index in range(LINES):
        rng = _rng("line", index)
        line = cuttings[index // 2 % len(cuttings)] if index % 2 == 0 else _line(rng)
        line = _at_height(_worn(rng, line))
        width = next((width for width in _WIDTHS if width >= line.shape[1]), _WIDTHS[-1])
        yield _input(line[:, :width], (_HEIGHT, width), known)


def digest(inputs: Sequence[Input]) -> str:
    """sha256 over shapes and values, in order: what a quantized model was calibrated on, in one word."""
    total = hashlib.sha256()
    for array in inputs:
        total.update(repr(array.shape).encode())
        total.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return total.hexdigest()


def _input(picture: Picture, shape: tuple[int, int], known: NDArray[np.float32]) -> Input:
    """A picture no larger than `shape`, with its 256 values looked up in a table (3, 256)."""
    array = np.zeros((1, 3, *shape), dtype=np.float32)
    for channel, values in enumerate(known):
        array[0, channel, : picture.shape[0], : picture.shape[1]] = values[picture[:, :, channel]]
    return array


def _up(side: int, step: int) -> int:
    return ceil(side / step) * step


def _at_height(line: Picture) -> Picture:
    width = max(1, ceil(_HEIGHT * line.shape[1] / line.shape[0]))
    return np.asarray(cv2.resize(line, (width, _HEIGHT), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)


def _rng(kind: str, index: int) -> np.random.Generator:
    return np.random.default_rng([*kind.encode(), index])


# ---------------------------------------------------------------- drawing


def _text(rng: np.random.Generator) -> str:
    """What stands on receipts and forms: phrases, amounts, dates, numbers."""
    phrase = str(rng.choice(_PHRASES))
    amount = f"{rng.integers(1, 2000)}.{rng.integers(100):02d}"
    date = f"{rng.integers(1, 29):02d}/{rng.integers(1, 13):02d}/20{rng.integers(10, 30)}"
    clock = f"{rng.integers(24)}:{rng.integers(60):02d}"
    number = str(rng.integers(10**9))
    item = f"{rng.integers(1, 9)} x {phrase} @ RM{amount} (S)"
    kinds = (amount, f"{date} {clock}", f"{phrase}: {number}", item, phrase.upper(), phrase)
    return kinds[rng.integers(len(kinds))]


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of paper and ink: mostly dark on light and without much colour, sometimes the other way round."""
    tint = 40 if rng.random() < 0.15 else 8
    paper = _near(rng, int(rng.integers(190, 256)), tint)
    ink = _near(rng, int(rng.integers(0, 120)), 2 * tint)
    return (ink, paper) if rng.random() < 0.08 else (paper, ink)


def _near(rng: np.random.Generator, grey: int, tint: int) -> tuple[int, ...]:
    return tuple(int(value) for value in np.clip(grey + rng.integers(-tint, tint + 1, 3), 0, 255))


def _line(rng: np.random.Generator) -> Picture:
    paper, ink = _colours(rng)
    text = _text(rng)
    size = int(rng.integers(18, 56))
    width = 4 * size + size * len(text)
    line = _write(
        rng, np.full((2 * size, width, 3), paper, dtype=np.uint8), text, (size // 4, size // 4), size, ink
    )
    return _trimmed(line, paper, margin=int(rng.integers(1, max(2, size // 4))))


def _write(
    rng: np.random.Generator,
    picture: Picture,
    text: str,
    place: tuple[int, int],
    size: int,
    ink: tuple[int, ...],
) -> Picture:
    """The picture with a text of this height whose top left corner is near `place` (x, y)."""
    if rng.random() < 0.5:
        face = int(rng.choice(_HERSHEY))
        thickness = int(rng.integers(1, 2 + size // 16))
        scale = cv2.getFontScaleFromHeight(face, int(size * 0.7), thickness)
        foot = (place[0], place[1] + int(size * 0.8))
        return np.asarray(cv2.putText(picture.copy(), text, foot, face, scale, ink, thickness, cv2.LINE_AA))
    canvas = Image.fromarray(picture)
    ImageDraw.Draw(canvas).text(
        place, text, fill=ink, font=ImageFont.load_default(size), stroke_width=int(rng.integers(0, 2))
    )
    return np.array(canvas)


def _trimmed(picture: Picture, paper: tuple[int, ...], margin: int) -> Picture:
    """Cut to what was written, with a margin in pixels."""
    rows, columns = np.nonzero((picture != np.asarray(paper, dtype=np.uint8)).any(axis=2))
    top, left = max(0, rows.min() - margin), max(0, columns.min() - margin)
    return picture[top : rows.max() + 1 + margin, left : columns.max() + 1 + margin]


def _page(rng: np.random.Generator) -> Picture:
    """A receipt or form: lines of several sizes in one or more columns, some ruled."""
    paper, ink = _colours(rng)
    height, width = int(rng.integers(500, 1500)), int(rng.integers(400, 1100))
    page = np.full((height, width, 3), paper, dtype=np.uint8)
    columns = int(rng.integers(1, 4))
    size = int(rng.integers(12, 34))
    y = size
    while y < height - 2 * size:
        for column in range(columns):
            if rng.random() < 0.75:
                x = int(width * column / columns + rng.integers(4, 4 + size))
                fitting = _text(rng)[: max(2, int(1.6 * width / columns / size) - 2)]
                page = _write(rng, page, fitting, (x, y), int(size * rng.uniform(0.8, 1.3)), ink)
        if rng.random() < 0.15:
            cv2.line(page, (size // 2, y), (width - size // 2, y), ink, int(rng.integers(1, 3)))
        y += int(size * rng.uniform(1.3, 2.5))
    return page


# ---------------------------------------------------------------- wear


def _worn(rng: np.random.Generator, picture: Picture) -> Picture:
    """As a scanner or a telephone gives it: another scale, skewed, shaded, faded, blurred, noisy, JPEG."""
    for change in (_rescaled, _skewed, _shaded, _blurred, _noisy, _compressed):
        if rng.random() < 0.5:
            picture = change(rng, picture)
    return picture


def _rescaled(rng: np.random.Generator, picture: Picture) -> Picture:
    factor = rng.uniform(0.6, 1.6)
    height, width = (max(12, round(side * factor)) for side in picture.shape[:2])
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _skewed(rng: np.random.Generator, picture: Picture) -> Picture:
    height, width = picture.shape[:2]
    angle = rng.uniform(-2, 2) * min(1, 8 * height / width)
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 1)
    return np.asarray(cv2.warpAffine(picture, turn, (width, height), borderMode=cv2.BORDER_REPLICATE))


def _shaded(rng: np.random.Generator, picture: Picture) -> Picture:
    """Contrast, brightness, and light from one side."""
    contrast, brightness = rng.uniform(0.5, 1.1), rng.uniform(-30, 50)
    slope = np.linspace(0, rng.uniform(-50, 50), picture.shape[1], dtype=np.float32)[None, :, None]
    shaded = picture * np.float32(contrast) + np.float32(brightness) + slope
    return np.asarray(np.clip(shaded, 0, 255), dtype=np.uint8)


def _blurred(rng: np.random.Generator, picture: Picture) -> Picture:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.4, 1.4)), dtype=np.uint8)


def _noisy(rng: np.random.Generator, picture: Picture) -> Picture:
    noise = rng.normal(0, rng.uniform(2, 16), picture.shape[:2])[:, :, None]
    return np.asarray(np.clip(picture + noise, 0, 255), dtype=np.uint8)


def _compressed(rng: np.random.Generator, picture: Picture) -> Picture:
    _, packed = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(35, 96))])
    return np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR), dtype=np.uint8)
