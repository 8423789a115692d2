"""Pictures of what was read: the page with a box around each line, and the text beside it.

The text stands in a white panel to the right, each line at the height of its box, in a font of this computer
that has the characters. Where no such font is found the boxes carry numbers instead, and a text file of the
same name says what each number reads. Nothing is downloaded for it.
"""

import errno
import functools
import itertools
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from services.cli.documents import display_name
from services.cli.errors import UsageError, printable
from services.common.errors import OcrError
from services.common.images import LARGEST_MAX_PIXELS, ImageLimits, decode_document
from services.common.pb import ocr_pb2 as pb

FONT_FOLDERS = (
    "/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts",
    "/System/Library/Fonts", "/Library/Fonts", "C:/Windows/Fonts",
)  # fmt: skip
# Fonts with Chinese, Japanese and Korean first, since they have Latin letters too; then Latin ones.
FONT_FILES = (
    "NotoSansCJK*", "NotoSansSC*", "NotoSansTC*", "SourceHanSans*", "NotoSerifCJK*", "wqy-*",
    "DroidSansFallback*", "PingFang*", "msyh*", "simsun*", "uming*",
    "DejaVuSans.ttf", "LiberationSans-Regular*", "Arial*",
)  # fmt: skip
READABLE_SHARE = 0.95  # a few tofu boxes (a rare currency sign) do less harm than a page of numbers
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#e377c2", "#8c564b", "#ff7f0e", "#17becf")
MIN_FONT_PX, MAX_FONT_PX = 9, 96
PREVIEW_SIDE = 4000  # a larger page is shrunk: the picture is for the eye

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Overlays:
    """Writes the pictures of one run into `folder`. No file is overwritten: a taken name gets a number.

    Raises `UsageError` when the folder cannot be made or written, or holds one of `inputs`: a picture among
    the documents would be read as one the next time.
    """

    def __init__(self, folder: Path, inputs: Iterable[Path] = ()) -> None:
        _require_apart(folder, inputs)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._taken = {path.name.casefold() for path in folder.iterdir()}
        except OSError as error:
            raise _unusable(folder, error.strerror) from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unusable(folder, "nothing can be written there")
        self._folder = folder

    def write(self, path: Path, result: pb.Result) -> list[Path]:
        """Write one JPEG for each page of the document at `path` that was read; gives their paths.

        Raises `OSError`, and `OcrError` when the document is no longer what was read.
        """
        numbers = [page.number for page in result.pages]
        endings = {number: f"-p{number}" if len(numbers) > 1 else "" for number in numbers}
        name = self._free_name(path.stem, list(endings.values()))
        written = []
        for number, page in load_pages(path, result):
            target = self._folder / f"{name}{endings[number]}.jpg"
            picture, legend = draw(page, [line for line in result.lines if line.page == number])
            with target.open("xb") as file:
                picture.save(file, "JPEG", quality=88, subsampling=0)  # thin coloured lines keep their colour
            written.append(target)
            if legend:
                with target.with_suffix(".txt").open("x", encoding="utf-8") as text:
                    text.write(legend)
        return written

    def _free_name(self, stem: str, endings: Sequence[str]) -> str:
        for count in itertools.count(1):
            name = stem if count == 1 else f"{stem}-{count}"
            files = {f"{name}{end}{suffix}".casefold() for end in endings for suffix in (".jpg", ".txt")}
            if not files & self._taken:
                self._taken |= files
                return name
        raise AssertionError("numbers do not end")


def _require_apart(folder: Path, inputs: Iterable[Path]) -> None:
    target = os.path.realpath(folder)
    for path in inputs:
        if os.path.realpath(path.parent) == target:
            raise _unusable(
                folder, f"{display_name(path)} is in it; choose a folder without documents to read"
            )


def _unusable(folder: Path, why: str | None) -> UsageError:
    return UsageError(printable(f"The folder for pictures, {display_name(folder)}, cannot be used: {why}."))


def load_pages(path: Path, result: pb.Result) -> Iterator[tuple[int, Image.Image]]:
    """The pages that were read, upright, at the size in which the result counts its pixels."""
    sizes = {page.number: (page.width, page.height) for page in result.pages if page.width and page.height}
    if not sizes:
        return
    if not path.is_file():
        raise OSError(errno.ESPIPE, "a pipe can be read only once")
    limits = ImageLimits(max_bytes=sys.maxsize, max_pixels=LARGEST_MAX_PIXELS, max_pages=sys.maxsize)
    for page in decode_document(path.read_bytes(), limits):
        if page.number in sizes and not isinstance(page.image, OcrError):
            picture = Image.fromarray(np.ascontiguousarray(page.image[:, :, ::-1]))
            size = sizes[page.number]
            yield page.number, picture if picture.size == size else picture.resize(size)


def draw(page: Image.Image, lines: Sequence[pb.Line]) -> tuple[Image.Image, str | None]:
    """The page with its boxes and the text beside it; or numbered boxes, and what the numbers read."""
    scale = min(1.0, PREVIEW_SIDE / max(page.size))
    if scale < 1:
        page = page.resize((max(1, round(page.width * scale)), max(1, round(page.height * scale))))
    boxes = [[(point.x * scale, point.y * scale) for point in line.points] for line in lines]
    texts = [line.text for line in lines]
    font = font_for("".join(texts))
    if font is None:
        return _draw_numbers(page, boxes), _legend(texts)
    return _draw_beside(page, boxes, texts, font), None


def _draw_beside(
    page: Image.Image, boxes: list[list[tuple[float, float]]], texts: list[str], font: str
) -> Image.Image:
    canvas = Image.new("RGB", (page.width * 2, page.height), "white")
    canvas.paste(page, (0, 0))
    pen = ImageDraw.Draw(canvas)
    for index, (box, text) in enumerate(zip(boxes, texts, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        pen.polygon(box, outline=colour, width=_stroke(page))
        left, top, width, height = _extent(box)
        fitted = _fit(font, text, width, height)
        pen.text((page.width + left, top), text, fill=colour, font=fitted)
    return canvas


def _draw_numbers(page: Image.Image, boxes: list[list[tuple[float, float]]]) -> Image.Image:
    canvas = page.copy()
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(max(MIN_FONT_PX, round(page.height / 80)))
    for index, box in enumerate(boxes):
        colour = COLOURS[index % len(COLOURS)]
        pen.polygon(box, outline=colour, width=_stroke(page))
        corner, label = (box[0][0], box[0][1]), str(index + 1)
        pen.rectangle(pen.textbbox(corner, label, font=font, anchor="rt"), fill="white")
        pen.text(corner, label, fill=colour, font=font, anchor="rt")
    return canvas


def _legend(texts: list[str]) -> str:
    return "".join(f"{number}\t{text}\n" for number, text in enumerate(texts, start=1))


def _stroke(page: Image.Image) -> int:
    return max(1, round(max(page.size) / 800))


def _extent(box: list[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Left, top, and the lengths of the text's own sides: a slanted line is as long as its slanted side."""
    (ax, ay), (bx, by), (cx, cy) = box[0], box[1], box[2]
    return ax, min(ay, by), math.hypot(bx - ax, by - ay), math.hypot(cx - bx, cy - by)


def _fit(font: str, text: str, width: float, height: float) -> Font:
    size = min(MAX_FONT_PX, max(MIN_FONT_PX, round(height * 0.8)))
    drawn = _font(font, size).getlength(text)
    if drawn > width > 0:
        size = max(MIN_FONT_PX, int(size * width / drawn))
    return _font(font, size)


@functools.lru_cache(maxsize=256)
def _font(file: str, size: int) -> Font:
    return ImageFont.truetype(file, size) if file else ImageFont.load_default(size)


def font_for(text: str) -> str | None:
    """File of a font that has the characters of `text` ("": the one inside Pillow), or None when none has."""
    wanted = [character for character in text if not character.isspace()]
    for file in _installed_fonts():
        if not wanted or sum(_has(file, character) for character in wanted) >= READABLE_SHARE * len(wanted):
            return file
    return None


@functools.cache
def _installed_fonts() -> tuple[str, ...]:
    files = [file for folder in FONT_FOLDERS for file in Path(folder).expanduser().rglob("*.[to]t[cf]")]
    chosen = [str(file) for pattern in FONT_FILES for file in sorted(files) if file.match(pattern)]
    return (*(file for file in chosen if _loads(file)), "")


def _loads(file: str) -> bool:
    try:
        _font(file, 16)
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=50_000)
def _has(file: str, character: str) -> bool:
    """A font draws what it lacks as its "not defined" glyph, which is how a character nobody has looks."""
    font = _font(file, 16)
    return bytes(font.getmask(character)) != bytes(font.getmask("\U0010fffd"))
