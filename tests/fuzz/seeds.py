"""Small valid documents of every kind that strangers may send: what the fuzzer begins with.

Made by code, so that nothing has to be stored; the same on every machine with the locked libraries.
"""

import io
import json
import time
from base64 import b64encode
from functools import cache
from typing import Any

from PIL import Image, ImageDraw

from services.common.pb import ocr_pb2 as pb
from tests.fakes.pdf import encrypted_pdf, pdf

KINDS = ("jpeg", "png", "tiff", "pdf", "webp", "gif", "bmp", "json", "protobuf")


@cache
def seeds() -> dict[str, tuple[bytes, ...]]:
    """Documents by kind, in the order of `KINDS`."""
    return {
        "jpeg": (
            _saved("JPEG"),
            _saved("JPEG", progressive=True),
            _saved("JPEG", mode="CMYK"),
            _saved("JPEG", mode="L", exif=_turned_exif()),
        ),
        "png": (
            _saved("PNG"),
            _saved("PNG", mode="P", transparency=0),
            _saved("PNG", mode="I;16"),
            _saved("PNG", mode="LA"),
        ),
        "tiff": (
            _saved("TIFF"),
            *(_saved("TIFF", mode="L", compression=name) for name in ("tiff_lzw", "tiff_deflate", "jpeg")),
            _saved("TIFF", mode="1", compression="group4"),
            _saved("TIFF", save_all=True, append_images=[_picture("L"), _picture("1")]),
        ),
        "pdf": (
            pdf((144, 72), (72, 144)),
            encrypted_pdf(),
            _saved("PDF"),
            _saved("PDF", mode="1"),
            _saved("PDF", mode="L", save_all=True, append_images=[_picture("RGB")]),
        ),
        "webp": (
            _saved("WEBP"),
            _saved("WEBP", lossless=True, mode="RGBA"),
            _saved("WEBP", save_all=True, append_images=[_picture("RGB", "two")]),
        ),
        "gif": (
            _saved("GIF", mode="P"),
            _saved("GIF", mode="P", save_all=True, append_images=[_picture("P", "two")]),
        ),
        "bmp": (_saved("BMP"), _saved("BMP", mode="P"), _saved("BMP", mode="1")),
        "json": tuple(json.dumps(job).encode() for job in _json_jobs()),
        "protobuf": tuple(job.SerializeToString() for job in _jobs()),
    }


def _picture(mode: str, text: str = "PAY 1.234,50") -> Image.Image:
    picture = Image.new("RGB", (96, 40), "white")
    ImageDraw.Draw(picture).text((8, 12), text, fill="black")
    return picture.convert("L").convert("I;16") if mode == "I;16" else picture.convert(mode)


def _saved(kind: str, *, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    dates = {"creationDate": time.gmtime(0), "modDate": time.gmtime(0)} if kind == "PDF" else {}
    _picture(mode).save(out, kind, **dates, **options)
    return out.getvalue()


def _turned_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def _json_jobs() -> list[dict[str, Any]]:
    content = b64encode(_saved("PNG", mode="1")).decode()
    options = {"priority": "ONLINE", "deadline_ms": 5000, "min_confidence": 0.5}
    return [
        {"job_id": "slip-1", "content": content, "options": options},
        {"uri": "file:///var/slips/1.png", "sha256": "0" * 64, "size": 10, "file": "1.png"},
        {"uri": "https://slips.example/1.png", "content_type": "image/png"},
    ]


def _jobs() -> list[pb.Job]:
    options = pb.Options(priority=pb.BULK, min_confidence=0.25)
    return [
        pb.Job(job_id="slip-1", content=_saved("PNG", mode="1"), options=options),
        pb.Job(uri="file:///var/slips/1.png", sha256="0" * 64, size=10),
        pb.Job(content=_saved("JPEG", mode="L"), content_type="image/jpeg", file="slip.jpg"),
    ]
