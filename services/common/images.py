"""Bytes of a document in, pages of pixels out; everything that can be wrong becomes a typed error.

Rules of this file:

- A format is decided by the first bytes alone, and only that one decoder is asked. Pillow knows some forty
  formats; each that is not needed is a parser for strangers to attack.
- Sizes are compared with the limits as declared, before a pixel is decoded: a bomb costs a header.
- A page that cannot be read is that page's error. An exception that is not an `OcrError` never leaves.
- Pages are `uint8` arrays of shape (height, width, 3), blue green red, as displayed: EXIF rotation applied,
  transparency laid on white paper, every depth brought to 8 bits.
"""

import contextlib
import ctypes
import io
import itertools
import logging
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import PIL
import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c
from PIL import Image, UnidentifiedImageError, _imaging

from services.common.errors import (
    CorruptInput,
    DocumentTooLarge,
    EmptyInput,
    ImageTooLarge,
    ImageTooSmall,
    OcrError,
    PasswordProtected,
    TooManyPages,
    UnsupportedFormat,
)

Bgr = np.ndarray[Any, np.dtype[np.uint8]]

READABLE = "JPEG, PNG, WebP, BMP, GIF, TIFF or PDF"

# Pillow refuses by itself above twice its own limit; that stays as a second fence behind ours.
LARGEST_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)

# A progressive JPEG may repeat its scans without end in a few bytes each, and each is a pass over the whole
# image. Encoders write about ten; a second of CPU goes through some 400 megapixels of them.
MAX_JPEG_SCANS = 60
MAX_JPEG_SCANS_AT_FULL_SIZE = 20
"""Scans of a page of `max_pixels`; smaller pages may have more, for the same work in all."""
_MAX_JPEG_SEGMENTS = 10_000


@dataclass(frozen=True)
class ImageLimits:
    """What is refused. The defaults take an A4 page at 600 dpi (35 megapixels) and an A3 page at 400 (31)."""

    max_bytes: int = 32 * 1024 * 1024
    """Bytes of one document."""
    max_pixels: int = 64_000_000
    """Pixels of one page, as declared by its header."""
    min_side: int = 4
    """Pixels of the shorter side; below it no letter can be told from dust."""
    max_pages: int = 100
    """Pages of one document."""
    pdf_dpi: float = 200.0
    """Dots per inch that PDF pages are drawn with: 8 point type becomes about 22 pixels high."""
    max_pdf_side: int = 5_000
    """Longest side of a drawn PDF page in pixels; larger sheets are drawn with fewer dots per inch."""
    kept_jpeg_side: int | None = None
    """A JPEG page is decoded at a half, a quarter or an eighth as long as its longer side keeps this many
    pixels, which costs that much less; None decodes every page whole."""

    def __post_init__(self) -> None:
        """Refuse limits that make no sense, at start and not at the first document."""
        if min(self.max_bytes, self.min_side, self.max_pages, self.max_pdf_side) < 1 or self.pdf_dpi <= 0:
            raise ValueError(f"every limit must be positive: {self}")
        if not self.min_side**2 <= self.max_pixels <= LARGEST_MAX_PIXELS:
            raise ValueError(
                f"max_pixels must be within {self.min_side**2}..{LARGEST_MAX_PIXELS}: {self.max_pixels}"
            )


@dataclass(frozen=True)
class DecodedPage:
    """One page of a document, or why it could not be read."""

    number: int
    """From 1."""
    of: int
    """Pages of the document."""
    image: Bgr | OcrError
    displayed: tuple[int, int] | None = None
    """Height and width in pixels of the page as displayed, where `image` was decoded smaller than that."""


def decoder_versions() -> dict[str, str]:
    """Versions of the libraries that make pixels of documents; others may make slightly different ones."""
    return {"opencv": cv2.__version__, "pdfium": str(pdfium.PDFIUM_INFO), "pillow": PIL.__version__}


def silence_decoders() -> None:
    """Keep the decoders' remarks off stderr and out of the log.

    They tell of odd metadata in callers' files, which nobody here can act on; what matters is raised.
    Set once, because `warnings.catch_warnings` is not safe in threads.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    for name in ("PIL", "pypdfium2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _silence_libtiff()


def _silence_libtiff() -> None:
    """Stop libtiff writing to the process's stderr by itself, which Pillow offers no way to."""
    library = ctypes.CDLL(_imaging.__file__)  # looks its symbols up in what Pillow was linked with
    for setter in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        with contextlib.suppress(AttributeError):  # a Pillow built without libtiff, or with a hidden one
            getattr(library, setter)(None)


silence_decoders()


# -- the two ways in ------------------------------------------------------------------------------


def decode_image(data: bytes, limits: ImageLimits) -> Bgr:
    """The first frame or page of an image file as (height, width, 3) uint8 BGR.

    Raises an `InputError` that says what is wrong. A PDF is a document, not an image: `UnsupportedFormat`.
    """
    kind = _accept(data, limits)
    if kind == "PDF":
        raise UnsupportedFormat("a PDF is read by Ocr.Recognize, not as a single image; send a rendered page")
    with _open_image(data, kind) as opened:
        return _jpeg(data, opened, 1, limits) if kind == "JPEG" else _decode_frame(opened, limits)


def decode_document(
    data: bytes,
    limits: ImageLimits,
    pdf_pages: Callable[[bytes, ImageLimits], Iterator[DecodedPage]] | None = None,
) -> Iterator[DecodedPage]:
    """The pages of a document, one at a time, so that memory holds no more of them than the caller does.

    What is wrong with the whole document is raised by the first `next`; what is wrong with one page is that
    page's `image`. Blocks for as long as decoding takes; may be called from any thread, one at a time.
    `pdf_pages` draws PDFs: by default in this process, which trusts them.
    """
    kind = _accept(data, limits)
    if kind == "PDF":
        yield from (pdf_pages or pdf_pages_here)(data, limits)
    elif kind == "TIFF":
        yield from _tiff_pages(data, limits)
    elif kind == "JPEG":
        yield _jpeg_page(data, limits)
    else:
        yield DecodedPage(1, 1, decode_image(data, limits))


# -- which format ---------------------------------------------------------------------------------


def sniff(data: bytes) -> str | None:
    """The format that the first bytes promise, by Pillow's name or `PDF`; None for any other."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    # Readers of PDF have always allowed junk before the header, and mail gateways do add it.
    return "PDF" if b"%PDF-" in data[:1024] else None


_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)


def _accept(data: bytes, limits: ImageLimits) -> str:
    if not data:
        raise EmptyInput("the document has no bytes")
    if len(data) > limits.max_bytes:
        raise DocumentTooLarge(f"the document has {len(data)} bytes; the limit is {limits.max_bytes}")
    kind = sniff(data)
    if kind is None:
        raise UnsupportedFormat(f"the document starts with {data[:8]!r}; send {READABLE}")
    return kind


# -- images ---------------------------------------------------------------------------------------


def _open_image(data: bytes, kind: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=[kind])
    except Exception as error:
        raise _typed(error, kind) from error


def _decode_frame(opened: Image.Image, limits: ImageLimits) -> Bgr:
    """The frame that `opened` stands at. Every exception of the decoder becomes an `OcrError`."""
    try:
        check_size(*opened.size, limits)
        _check_tile(opened, limits)
        opened.load()
        return _turned(_to_bgr(opened), _orientation(opened))
    except Exception as error:
        raise _typed(error, opened.format or "image") from error


def _jpeg_page(data: bytes, limits: ImageLimits) -> DecodedPage:
    """The one page of a JPEG, at the size that `kept_jpeg_side` asks for."""
    with _open_image(data, "JPEG") as opened:
        width, height = opened.size
        scale = jpeg_scale(width, height, limits.kept_jpeg_side)
        image = _jpeg(data, opened, scale, limits)
        if scale == 1:
            return DecodedPage(1, 1, image)
        on_its_side = _orientation(opened) in _ON_ITS_SIDE
        return DecodedPage(1, 1, image, (width, height) if on_its_side else (height, width))


def _jpeg(data: bytes, opened: Image.Image, scale: int, limits: ImageLimits) -> Bgr:
    """A JPEG, decoded `scale` times smaller.

    OpenCV and Pillow call the same decoder and get the same pixels; OpenCV needs half the time, because it
    has them in our order at once. It has no limits of its own, and from a truncated file it would take what
    there is: so only a file whose outline is what Pillow made of it goes there, the others get Pillow's
    verdict. Of a damaged file the decoder in OpenCV says a line on stderr, which nothing can turn off.
    """
    outline = jpeg_outline(data)
    _check_scans(outline.scans, opened.size, limits)
    check_size(*opened.size, limits)
    if outline.complete and outline.size == opened.size and opened.mode in ("RGB", "L"):
        pixels = _by_opencv(data, scale)
        if pixels is not None:
            return _turned(pixels, _orientation(opened))
    if scale > 1:
        wanted = (max(opened.width // scale, 1), max(opened.height // scale, 1))
        opened.draft(None, wanted)  # only notes what to do
    return _decode_frame(opened, limits)


def _by_opencv(data: bytes, scale: int) -> Bgr | None:
    """A JPEG as it lies in the file, not turned; None when OpenCV cannot read it."""
    with contextlib.suppress(cv2.error):
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), _DECODE[scale] | cv2.IMREAD_IGNORE_ORIENTATION)
        return None if pixels is None else np.asarray(pixels, np.uint8)
    return None


_DECODE = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
"""How OpenCV is told to decode so many times smaller."""


def jpeg_scale(width: int, height: int, kept_side: int | None) -> int:
    """By how much to decode a JPEG smaller: 8, 4 or 2 if its longer side keeps `kept_side` pixels, else 1."""
    if kept_side is None:
        return 1
    return next((scale for scale in (8, 4, 2) if max(width, height) // scale >= kept_side), 1)


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    """Raise `ImageTooLarge` or `ImageTooSmall` for a size in pixels, as declared by a header or a caller."""
    if width * height > limits.max_pixels:
        raise ImageTooLarge(f"the page has {width} x {height} pixels; the limit is {limits.max_pixels}")
    if min(width, height) < limits.min_side:
        raise ImageTooSmall(f"the page has {width} x {height} pixels; a side needs {limits.min_side}")


def _check_scans(scans: int, size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if scans > MAX_JPEG_SCANS:
        raise CorruptInput(f"the JPEG has {scans} scans; the limit is {MAX_JPEG_SCANS}")
    if scans * width * height > MAX_JPEG_SCANS_AT_FULL_SIZE * limits.max_pixels:
        raise ImageTooLarge(f"the JPEG has {scans} scans of {width} x {height} pixels; save it with fewer")


@dataclass(frozen=True)
class JpegOutline:
    """What the markers of the first image of a JPEG say."""

    scans: int
    size: tuple[int, int] | None
    """Width and height in its first frame header; None without one."""
    complete: bool
    """Whether it has its end marker."""


def jpeg_outline(data: bytes) -> JpegOutline:
    """The outline of the first image of a JPEG, up to its end marker; decodes nothing.

    Goes from segment to segment as decoders do: in a comment, or in the film that a telephone appends to a
    photograph, the bytes of a start of scan mean nothing. Raises `CorruptInput` when there is no end of them.
    """
    scans, size, at = 0, None, 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        marker = _JPEG_MARKER.search(data, at)
        if marker is None or marker[0] == b"\xff\xd9":
            return JpegOutline(scans, size, complete=marker is not None)
        at = marker.end()
        if marker[0] not in _BARE_MARKERS:
            scans += marker[0] == b"\xff\xda"
            if size is None and marker[0] in _FRAME_MARKERS:
                size = _frame_size(data, at)
            at += max(int.from_bytes(data[at : at + 2], "big"), 2)
    raise CorruptInput(f"the JPEG has more than {_MAX_JPEG_SEGMENTS} segments")


def _frame_size(data: bytes, at: int) -> tuple[int, int]:
    """Width and height in the frame header at `at`: after its length and the depth come height and width."""
    return int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 3 : at + 5], "big")


_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
"""Not what stands within a scan: stuffed zeros, restarts, fill bytes."""
_BARE_MARKERS = (b"\xff\x01", b"\xff\xd8")
"""Those without a length."""
_FRAME_MARKERS = frozenset(
    bytes((0xFF, code)) for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC)
)
"""Those that begin a frame: all kinds of coding."""


def _check_tile(opened: Image.Image, limits: ImageLimits) -> None:
    """A TIFF tile may declare more pixels than its image, and libtiff allocates it whole."""
    tags = getattr(opened, "tag_v2", {})
    width, height = tags.get(322, 0), tags.get(323, 0)  # TileWidth, TileLength
    if not isinstance(width, int) or not isinstance(height, int) or width * height > limits.max_pixels:
        raise ImageTooLarge(f"the TIFF declares tiles of {width} x {height} pixels")


def _typed(error: Exception, kind: str) -> OcrError:
    """Pillow and pdfium raise whatever their parsers ran into; all of it means damaged data."""
    if isinstance(error, OcrError):
        return error
    if isinstance(error, Image.DecompressionBombError | MemoryError):
        return ImageTooLarge(f"the {kind} declares more pixels than can be decoded")
    if isinstance(error, UnidentifiedImageError):
        return CorruptInput(f"the document starts like {kind}, but its header cannot be read")
    return CorruptInput(f"the {kind} is damaged or truncated: {error or type(error).__name__}")


def _to_bgr(image: Image.Image) -> Bgr:
    if image.mode in ("1", "L") and not image.has_transparency_data:
        return _from_gray(np.asarray(image.convert("L")))
    if image.mode.startswith("I;16"):
        return _from_gray(_to_8_bits(np.asarray(image), _bits(image)))
    if image.mode in ("I", "F"):
        return _from_gray(_stretched(np.asarray(image)))
    if image.mode == "LAB":
        return _from_lab(image)
    packed = _on_white(image).tobytes("raw", "BGR")  # three times faster than asarray and cvtColor
    return np.frombuffer(packed, np.uint8).reshape(image.height, image.width, 3)


def _from_gray(gray: np.ndarray[Any, Any]) -> Bgr:
    return np.asarray(cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR), np.uint8)


def _bits(image: Image.Image) -> int:
    """Significant bits of a 16-bit picture: TIFF scanners also write 12."""
    bits = getattr(image, "tag_v2", {}).get(258, (16,))  # BitsPerSample
    return int(bits[0]) if 8 <= int(bits[0]) <= 16 else 16


def _to_8_bits(values: np.ndarray[Any, Any], bits: int) -> Bgr:
    scale = 255.0 / (2**bits - 1)
    return np.asarray(np.clip(values.astype(np.float32) * scale + 0.5, 0, 255), np.uint8)


def _stretched(values: np.ndarray[Any, Any]) -> Bgr:
    """32-bit pictures have no agreed white: their own darkest and brightest finite values are taken."""
    clean = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(clean.min()), float(clean.max())
    if high <= low:
        return np.full(values.shape, 255, np.uint8)
    return np.asarray((clean - low) * (255.0 / (high - low)) + 0.5, np.uint8)


def _from_lab(image: Image.Image) -> Bgr:
    """Pillow has no plain conversion from LAB; its bands are OpenCV's, but with a and b packed signed."""
    lab = np.asarray(image) ^ np.array([0, 128, 128], np.uint8)
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2BGR), np.uint8)


def _on_white(image: Image.Image) -> Image.Image:
    """RGB, with what is transparent shown as on white paper."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image  # `convert` would copy it
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    paper = Image.new("RGB", rgba.size, "white")
    paper.paste(rgba, mask=rgba.getchannel("A"))
    return paper


def _orientation(loaded: Image.Image) -> int:
    """EXIF orientation 1 to 8; damaged metadata counts as upright. Pillow's `load` turned TIFF already."""
    try:
        return int(loaded.getexif().get(0x0112, 1))
    except Exception:  # noqa: BLE001 metadata of strangers raises anything
        return 1


_TURN: dict[int, Callable[[Bgr], Any]] = {
    2: lambda image: cv2.flip(image, 1),
    3: lambda image: cv2.rotate(image, cv2.ROTATE_180),
    4: lambda image: cv2.flip(image, 0),
    5: cv2.transpose,
    6: lambda image: cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE),
    7: lambda image: cv2.rotate(cv2.transpose(image), cv2.ROTATE_180),
    8: lambda image: cv2.rotate(image, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


_ON_ITS_SIDE = (5, 6, 7, 8)
"""Orientations that change width for height."""


def _turned(image: Bgr, orientation: int) -> Bgr:
    turn = _TURN.get(orientation)
    return image if turn is None else turn(image)


# -- TIFF -----------------------------------------------------------------------------------------


def _tiff_pages(data: bytes, limits: ImageLimits) -> Iterator[DecodedPage]:
    count = max(count_tiff_pages(data, limits.max_pages), 1)
    with _open_image(data, "TIFF") as opened:
        for index in range(count):
            yield DecodedPage(index + 1, count, _tiff_page(opened, index, limits))


def _tiff_page(opened: Image.Image, index: int, limits: ImageLimits) -> Bgr | OcrError:
    try:
        opened.seek(index)
        return _decode_frame(opened, limits)
    except Exception as error:  # noqa: BLE001 so do their directories
        return _typed(error, "TIFF")


def count_tiff_pages(data: bytes, max_pages: int) -> int:
    """Follow the chain of page directories by their offsets alone, without believing anything in them.

    The chain may be cut (it ends there) or run in circles (each directory counts once).
    Raises `TooManyPages`.
    """
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    at = _number(data, 8 if big else 4, order, big)
    seen: set[int] = set()
    while at and at not in seen:
        seen.add(at)
        if len(seen) > max_pages:
            raise TooManyPages(f"the TIFF has more than {max_pages} pages, the limit; split it")
        at = _next_directory(data, at, order, big)
    return len(seen)


def _next_directory(data: bytes, at: int, order: str, big: bool) -> int:
    """A directory is its number of entries, the entries, and the offset of the next directory."""
    field, entry = (8, 20) if big else (2, 12)
    if at + field > len(data):
        return 0
    (entries,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    return _number(data, at + field + entries * entry, order, big)


def _number(data: bytes, at: int, order: str, big: bool) -> int:
    size = 8 if big else 4
    if at + size > len(data):
        return 0
    return int(struct.unpack_from(order + ("Q" if big else "I"), data, at)[0])


# -- PDF ------------------------------------------------------------------------------------------

# pdfium keeps global state and is not thread-safe, not even across documents: two threads inside it crash
# the process. Reentrant, because the garbage collector may close a document while this thread holds it.
_PDFIUM = threading.RLock()

_OBJECTS_LOOKED_AT = 1_000
"""Of a PDF page, to find the size of its pictures. Scans hold one; a drawing may hold a million lines."""


class PdfFile:
    """An open PDF. Raises what `decode_document` does for a whole document; any thread may use it.

    What is not guarded against here is a page whose drawing takes hours or all memory, as a few hundred
    bytes can demand; whoever reads PDFs of strangers does so in a process of its own.
    """

    def __init__(self, data: bytes, limits: ImageLimits) -> None:
        self._limits = limits
        with _PDFIUM:
            self._document = _open_pdf(data)
            self.count = len(self._document)
        if self.count > limits.max_pages:
            self.close()
            raise TooManyPages(f"the PDF has {self.count} pages; the limit is {limits.max_pages}; split it")

    def page(self, index: int) -> Bgr | OcrError:
        """Page `index`, from 0, drawn; or why it cannot be."""
        with _PDFIUM:
            page = None
            try:
                page = self._document[index]
                return _render(page, self._limits)
            except Exception as error:  # noqa: BLE001 and their pages
                return _typed(error, "PDF page")
            finally:
                if page is not None:
                    page.close()

    def close(self) -> None:
        """Let go of the document; more than once does no harm."""
        with _PDFIUM:
            self._document.close()


def pdf_pages_here(data: bytes, limits: ImageLimits) -> Iterator[DecodedPage]:
    """The pages of a PDF, drawn in this process."""
    with contextlib.closing(PdfFile(data, limits)) as file:
        for index in range(file.count):
            yield DecodedPage(index + 1, file.count, file.page(index))


def _open_pdf(data: bytes) -> pdfium.PdfDocument:
    try:
        document = pdfium.PdfDocument(data)
        document.init_forms()  # or what was typed into form fields would not be drawn
    except pdfium.PdfiumError as error:
        if error.err_code in (pdfium_c.FPDF_ERR_PASSWORD, pdfium_c.FPDF_ERR_SECURITY):
            raise PasswordProtected("the PDF is encrypted; send it without a password") from error
        raise _typed(error, "PDF") from error
    except Exception as error:
        raise _typed(error, "PDF") from error
    return document


def _render(page: pdfium.PdfPage, limits: ImageLimits) -> Bgr:
    width, height = page.get_size()
    scale = pdf_scale(width, height, limits)
    check_size(int(width * scale + 0.5), int(height * scale + 0.5), limits)
    _check_pictures(page)
    bitmap = page.render(scale=scale)
    try:
        return np.array(bitmap.to_numpy(), np.uint8, order="C")
    finally:
        bitmap.close()


def pdf_scale(width: float, height: float, limits: ImageLimits) -> float:
    """Pixels per point (1/72 inch) for a page of that size in points: as asked, less for a large sheet."""
    if not (0 < width < float("inf") and 0 < height < float("inf")):
        raise CorruptInput(f"the PDF page has the size {width} x {height} points")
    by_side = limits.max_pdf_side / max(width, height)
    by_pixels = (limits.max_pixels / (width * height)) ** 0.5 * 0.999  # sides are rounded up to whole pixels
    return float(min(limits.pdf_dpi / 72, by_side, by_pixels))


def _check_pictures(page: pdfium.PdfPage) -> None:
    """A small sheet may hold a picture that decodes to gigabytes; its declared size tells."""
    for found in itertools.islice(page.get_objects(), _OBJECTS_LOOKED_AT):
        width, height = found.get_px_size() if found.type == pdfium_c.FPDF_PAGEOBJ_IMAGE else (0, 0)
        if width * height > LARGEST_MAX_PIXELS:
            raise ImageTooLarge(f"the PDF page holds a picture of {width} x {height} pixels")
