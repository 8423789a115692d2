"""The documents of a run: real pages cut small, awkward ones, poison. The same seed makes the same jobs."""

import base64
import io
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from tests.chaos.accounts import Sent
from tests.chaos.engines import CORNER, DEADLY
from tests.fakes.pages import page, png, png_header
from tests.fakes.pdf import encrypted_pdf, laughing_pdf

SLIPS = Path(__file__).parents[1] / "data" / "slips"
CUT = (360, 240)
"""Width and height in pixels of what is cut out of a page."""
_CUTS_EACH = 4

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Document:
    """A message of the jobs topic. `reason` is that of the dead letter that it must become, or None."""

    name: str
    value: bytes
    content_type: str = ""
    reason: str | None = None

    @property
    def headers(self) -> Headers:
        """Of the message."""
        return (("content-type", self.content_type.encode()),) if self.content_type else ()


@dataclass(frozen=True)
class Job:
    """A document under the name of its job."""

    sent: Sent
    document: Document


def make_jobs(seed: int, count: int, poison_share: float, healthy: Sequence[Document]) -> list[Job]:
    """`count` jobs in random order, of which `poison_share` are poison, all kinds of it in turn."""
    random_ = random.Random(f"jobs {seed}")
    kinds = random_.sample(poison(), len(poison()))
    bad = round(count * poison_share)
    chosen = [kinds[number % len(kinds)] for number in range(bad)]
    chosen += [random_.choice(healthy) for _ in range(count - bad)]
    random_.shuffle(chosen)
    return [named(f"{number:05}", document) for number, document in enumerate(chosen)]


def named(prefix: str, document: Document) -> Job:
    """A job whose name says what it is."""
    return Job(Sent(f"{prefix}-{document.name}", document.name, document.reason), document)


def healthy() -> list[Document]:
    """Parts of real slips in the usual formats, and what few expect."""
    cuts = [cut for path in sorted(SLIPS.iterdir()) if path.suffix in _PICTURES for cut in _cuts(path)]
    usual = [
        Document(f"{name}.{kind}", _encoded(cut, kind))
        for number, (name, cut) in enumerate(cuts)
        for kind in [("jpg", "png", "webp")[number % 3]]
    ]
    return [*usual, *_awkward([cut for _, cut in cuts])]


_PICTURES = {".png", ".jpg", ".jpeg"}


def _cuts(path: Path) -> list[tuple[str, np.ndarray]]:
    """Parts of a page, as wide apart as it allows."""
    image = cv2.imread(str(path))
    height, width = image.shape[:2]
    tops = np.linspace(0, max(0, height - CUT[1]), _CUTS_EACH).astype(int)
    lefts = np.linspace(0, max(0, width - CUT[0]), _CUTS_EACH).astype(int)
    return [
        (f"{path.stem}-{number}", image[top : top + CUT[1], left : left + CUT[0]])
        for number, (top, left) in enumerate(zip(tops, lefts, strict=True))
    ]


def _encoded(image: np.ndarray, kind: str) -> bytes:
    return cv2.imencode(f".{kind}", image)[1].tobytes()


def _awkward(cuts: Sequence[np.ndarray]) -> list[Document]:
    first, second, third = (Image.fromarray(cut[:, :, ::-1]) for cut in cuts[:3])
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    content = base64.b64encode(_encoded(cuts[3], "jpg")).decode()
    stamp = {"creationDate": time.gmtime(0), "modDate": time.gmtime(0)}
    blank = Image.new("L", CUT, 255)
    return [
        Document("two-pages.tiff", _saved(first, "TIFF", save_all=True, append_images=[second])),
        Document("fax.tiff", _saved(third.convert("1"), "TIFF", compression="group4")),
        Document(
            "three-pages.pdf", _saved(first, "PDF", save_all=True, append_images=[second, third], **stamp)
        ),
        Document("turned.jpg", _saved(second, "JPEG", exif=exif)),
        Document("cmyk.jpg", _saved(third.convert("CMYK"), "JPEG")),
        Document("grey.png", _saved(first.convert("L"), "PNG")),
        Document("palette.png", _saved(second.convert("P"), "PNG")),
        Document("blank.png", _saved(blank, "PNG")),
        Document("job.json", json.dumps({"content": content}).encode(), "application/json"),
    ]


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def poison() -> list[Document]:
    """What must become a dead letter, with the reason that it must have."""
    slip = _encoded(_cuts(SLIPS / "receipt-057.jpg")[0][1], "jpg")
    return [
        Document("truncated.jpg", slip[: len(slip) // 8], reason="CORRUPT_INPUT"),
        Document("damaged.png", png_header(300, 200)[:-20], reason="CORRUPT_INPUT"),
        Document("bomb.png", png_header(60_000, 60_000), reason="IMAGE_TOO_LARGE"),
        Document("bomb.pdf", laughing_pdf(), reason="CORRUPT_INPUT"),
        Document("locked.pdf", encrypted_pdf(), reason="PASSWORD_PROTECTED"),
        Document("program.exe", b"MZ\x90\0" + bytes(400), reason="UNSUPPORTED_FORMAT"),
        Document("page.html", b"<html>no image</html>", "text/html", reason="UNSUPPORTED_FORMAT"),
        Document("dot.png", png(np.zeros((1, 1, 3), np.uint8)), reason="IMAGE_TOO_SMALL"),
        Document("half-a-job.json", b'{"content": "', "application/json", reason="INVALID_JOB"),
        Document("nothing", b"", reason="EMPTY_INPUT"),
        Document("kills-detector.png", png(_with_deadly_corner()), reason="PREDICTOR_FAILED"),
        Document("kills-recognizer.png", png(_with_deadly_ink()), reason="PREDICTOR_FAILED"),
    ]


def _with_deadly_corner() -> np.ndarray:
    drawn = page(["READ ME"], width=300)
    drawn[:CORNER, :CORNER] = DEADLY
    return drawn


def _with_deadly_ink() -> np.ndarray:
    drawn = np.full((120, 300, 3), 255, np.uint8)
    cv2.putText(drawn, "READ ME", (30, 75), cv2.FONT_HERSHEY_SIMPLEX, 1.5, DEADLY, 4)
    return drawn
