"""`ocrctl models quantize`: an INT8 twin of a model set, made here and kept in the cache with its hashes."""

import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

from services.cli import calibration, int8
from services.cli.calibration import Slip
from services.common import models
from services.common.model_manifest import Recipe
from services.common.models import ModelFiles

NAME = "ppocr-v6-small-int8"
SOURCE = "ppocr-v6-small"

_SLIPS = Path(__file__).with_name("calibration_slips")
MakeInputs = Callable[[Sequence[Slip], calibration.Triple, calibration.Triple], Iterator[calibration.Input]]

_INPUTS: dict[str, MakeInputs] = {"det": calibration.detector_inputs, "rec": calibration.recognizer_inputs}
_TOOLS = ("nncf", "numpy", "opencv-python-headless", "openvino", "pillow")

Say = Callable[[str], None]


def run(say: Say, *, force: bool) -> Path:
    """Make the set unless it is there, and return its folder; `say` tells how far it is.

    Raises `QuantizerMissing`, and `ModelMissing` or `ModelDamaged` for the set it is made from.
    """
    if not force and not models.verify(NAME):
        say(f"{NAME} is here and unchanged; --force makes it again")
        return models.default_cache() / NAME
    int8.load()  # before minutes of work
    sources = [models.resolve(SOURCE, role) for role in models.ROLES]
    return models.make(NAME, lambda folder: _build(sources, folder, say), anew=force)


def report(folder: Path) -> Iterator[str]:
    """One line for each model of the set in this folder, and what to expect of it on this processor."""
    yield f"{NAME}  {folder}"
    for role in models.ROLES:
        made = models.resolve(NAME, role)
        assert made.params is not None
        yield f"{role}  {made.params.stat().st_size / 1e6:.1f} MB  sha256 {made.sha256}"
    if (flags := _cpuinfo()) and not has_int8_instructions(flags):
        yield "This processor has neither VNNI nor AMX: INT8 gains less here; see docs/int8.md."


def has_int8_instructions(cpuinfo: str) -> bool:
    """Whether the text of `/proc/cpuinfo` names instructions that add products of 8-bit integers."""
    return bool(set(cpuinfo.split()) & {"avx512_vnni", "avx_vnni", "amx_int8"})


def _cpuinfo() -> str:
    """Empty where there is none, or where it speaks of other processors than x86."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text if "sse2" in text.split() else ""


def _build(sources: Sequence[ModelFiles], folder: Path, say: Say) -> Recipe:
    slips = shipped_slips()
    digests: dict[str, str] = {}
    for source in sources:
        inputs = list(_INPUTS[source.role](slips, source.mean, source.std))
        digests[source.role] = calibration.digest(inputs)
        target = folder / source.role
        target.mkdir()
        with _timed(say, f"{source.role}: quantized on {len(inputs)} inputs"):
            int8.quantize(source, inputs, target / "inference.xml")
        _write_dictionary(source, target)
    return Recipe(digests, {tool: importlib.metadata.version(tool) for tool in _TOOLS})


@contextmanager
def _timed(say: Say, what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    say(f"{what} in {time.monotonic() - began:.0f} s")


def shipped_slips() -> list[Slip]:
    """The slips that lie in this package, with the places of their lines."""
    lines = json.loads((_SLIPS / "lines.json").read_text(encoding="utf-8"))
    return [Slip(_picture(_SLIPS / name), boxes) for name, boxes in lines.items()]


def _picture(path: Path) -> calibration.Picture:
    packed = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    return np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR), dtype=np.uint8)


def _write_dictionary(source: ModelFiles, folder: Path) -> None:
    """The characters, one a line, without the blank before and the space after them that readers add."""
    if source.role == "rec":
        lines = "".join(f"{character}\n" for character in source.charset[1:-1])
        (folder / "dictionary.txt").write_text(lines, encoding="utf-8", newline="\n")
