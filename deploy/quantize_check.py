"""`make quantize-check`: INT8 models made twice are the same files, and read slips they never saw as well.

    python deploy/quantize_check.py SCRATCH

The slips of the tests that calibration does not use are read by both sets, without services. Exit status 1
says that files differ, or that INT8 finds fewer of the strings that stand on the slips, by more than one.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from services.cli.quantize import NAME, SOURCE
from services.common import models, page_size
from services.common.engines.base import Engine, EngineSpec, Head, create_engine
from services.detector import preprocess as pages
from services.detector.postprocess import BoxRules, find_lines
from services.gateway.crops import crop
from services.recognizer import preprocess as lines
from services.recognizer.decode import decode, valid_steps

SLIPS = Path(__file__).parents[1] / "tests" / "data" / "slips"
HELD_OUT = ("bank-loan-rates.jpeg", "receipt-057.jpg", "vat-e-invoice.png")
ALLOWED_LOSS = 1
MAX_SIDE = 960

Picture = np.ndarray[Any, np.dtype[np.uint8]]


class Reader:
    """Both models of a set, one page at a time."""

    def __init__(self, name: str, cache: Path) -> None:
        det, rec = (models.resolve(name, role, cache=cache) for role in models.ROLES)
        self._det = create_engine(EngineSpec(engine="openvino", model=det, head=Head.RAW))
        self._rec = create_engine(EngineSpec(engine="openvino", model=rec, head=Head.CTC))
        self._charset = rec.charset

    def read(self, page: Picture) -> list[str]:
        """The text of each line of a page, in no order."""
        seen = page_size.shrink(page, MAX_SIDE)
        height, width = seen.shape[:2]
        found = _run(self._det, seen, pages.canvas(height, width, MAX_SIDE))[0][0, 0, :height, :width]
        quads = find_lines(np.ascontiguousarray(found), page.shape[:2], BoxRules())
        return [self._text(lines.resize(crop(page, quad.points))) for quad in quads]

    def _text(self, line: Picture) -> str:
        width = lines.padded_width(line.shape[1])
        classes, probabilities = _run(self._rec, line, (lines.HEIGHT, width))
        steps = valid_steps(line.shape[1], width, classes.shape[1])
        return decode(classes[0], probabilities[0], self._charset, steps).text


def _run(engine: Engine, picture: Picture, canvas: tuple[int, int]) -> tuple[Any, ...]:
    pixels = np.zeros((1, *canvas, 3), dtype=np.uint8)
    pixels[0, : picture.shape[0], : picture.shape[1]] = picture
    sizes = np.asarray([picture.shape[:2]], dtype=np.int32)
    return engine.run(pixels, sizes)


def strings_found(reader: Reader, wanted: Sequence[dict[str, Any]]) -> int:
    """How many of the strings that stand on the slips are in what is read."""
    found = 0
    for slip in wanted:
        page = cv2.imread(str(SLIPS / slip["file"]))
        text = _plain("".join(reader.read(np.asarray(page, dtype=np.uint8))))
        found += sum(_plain(string) in text for string in slip["strings"])
    return found


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()


def made(cache: Path) -> dict[str, str]:
    """sha256 of each file of the set, made by the command in a cache of its own."""
    models.fetch(SOURCE, cache)
    command = [sys.executable, "-m", "services.cli", "models", "quantize", "--force"]
    subprocess.run(command, check=True, env={**os.environ, "OCR_MODELS_DIR": str(cache)})
    files = sorted(path for path in (cache / NAME).rglob("*") if path.is_file())
    return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(scratch: Path) -> int:
    """Make, compare, read."""
    first, second = (made(scratch / name) for name in ("first", "second"))
    print("same files" if first == second else f"files differ: {first} and {second}")
    expected = (SLIPS / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = [slip for slip in map(json.loads, expected) if slip["file"] in HELD_OUT]
    before, after = (strings_found(Reader(name, scratch / "first"), wanted) for name in (SOURCE, NAME))
    print(f"strings found on held-out slips: {before} with {SOURCE}, {after} with {NAME}")
    return int(first != second or after < before - ALLOWED_LOSS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
