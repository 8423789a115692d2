"""The INT8 set: what it is calibrated on, what the command says, what it needs. No NNCF here."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli import calibration, doctor, int8, model_sets, quantize
from services.cli.__main__ import app
from services.cli.calibration import Slip
from services.cli.doctor import Verdict
from services.common import models
from services.common.models import ModelFiles

HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CHARSET = ("", "a", "\u2028", "元", " ")


@pytest.fixture(scope="module")
def slips() -> list[Slip]:
    return quantize.shipped_slips()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "PAGES", 3)
    monkeypatch.setattr(calibration, "LINES", 5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---------------------------------------------------------------- calibration inputs


def test_the_lines_are_48_high_padded_to_a_rung_and_as_many_as_said(slips: list[Slip]) -> None:
    inputs = list(calibration.recognizer_inputs(slips, *HALF))
    assert len(inputs) == calibration.LINES
    widths = {array.shape[3] for array in inputs}
    assert {array.shape[:3] for array in inputs} == {(1, 3, 48)}
    assert {160, 320, 640, 960} <= widths
    assert all(array.dtype == np.float32 and np.abs(array).max() <= 1 for array in inputs)
    assert all(np.ptp(array) > 0 for array in inputs)


@pytest.mark.usefixtures("few")
def test_the_pages_fit_the_grid_of_the_detector(slips: list[Slip]) -> None:
    for array in calibration.detector_inputs(slips, *HALF):
        height, width = array.shape[2:]
        assert array.shape[:2] == (1, 3)
        assert max(height, width) <= 960
        assert height % 32 == width % 32 == 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("make", [calibration.detector_inputs, calibration.recognizer_inputs])
def test_the_same_inputs_come_every_time_whatever_other_random_numbers_were_drawn(
    slips: list[Slip], make: quantize.MakeInputs
) -> None:
    first = calibration.digest(list(make(slips, *HALF)))
    np.random.default_rng().random()
    np.random.seed(3)
    cv2.setRNGSeed(5)
    assert calibration.digest(list(make(slips, *HALF))) == first


def test_the_digest_knows_values_shapes_and_order() -> None:
    one, other = (np.full((1, 3, 2, 4), value, dtype=np.float32) for value in (0, 1))
    turned = other.reshape(1, 3, 4, 2)
    digests = {calibration.digest(inputs) for inputs in ([one, other], [other, one], [one, turned], [one])}
    assert len(digests) == 4


def test_the_shipped_slips_have_all_their_lines_inside(slips: list[Slip]) -> None:
    assert len(slips) == 2
    for slip in slips:
        height, width = slip.picture.shape[:2]
        assert slip.lines
        for left, top, right, bottom in slip.lines:
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


# ---------------------------------------------------------------- the command


@pytest.fixture
def source(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A set to start from, and a quantizer that copies; gives the names of what was quantized."""
    done: list[str] = []

    def copy(model: ModelFiles, inputs: Sequence[calibration.Input], target: Path) -> None:
        done.append(model.role)
        target.write_text("<net/>")
        target.with_suffix(".bin").write_bytes(f"{model.role} {len(inputs)}".encode())

    def resolve(name: str, role: models.Role, **_: object) -> ModelFiles:
        if name != "ppocr-v6-small":
            return real(name, role)
        charset = CHARSET if role == "rec" else ()
        return ModelFiles(name, role, "onnx", Path(__file__), None, "0" * 64, charset, *HALF)

    real = models.resolve
    monkeypatch.setattr(models, "resolve", resolve)
    monkeypatch.setattr(int8, "load", lambda: None)
    monkeypatch.setattr(int8, "quantize", copy)
    monkeypatch.setattr(quantize.importlib.metadata, "version", lambda tool: f"{tool} 1")
    return done


def ocrctl(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.usefixtures("few")
def test_what_was_made_is_resolved_with_its_dictionary_and_the_hash_of_its_weights(source: list[str]) -> None:
    code, out, err = ocrctl("models", "quantize")
    assert (code, err) == (0, "")
    det, rec = (models.resolve(quantize.NAME, role) for role in models.ROLES)
    assert (det.format, rec.format) == ("openvino-ir", "openvino-ir")
    assert det.sha256 == hashlib.sha256(b"det 3").hexdigest()
    assert rec.sha256 == hashlib.sha256(b"rec 5").hexdigest()
    assert rec.charset == CHARSET
    assert det.sha256 in out
    assert rec.sha256 in out
    assert models.verify(quantize.NAME) == []


@pytest.mark.usefixtures("few")
def test_a_set_that_is_there_is_made_again_only_when_forced_or_damaged(
    source: list[str], cache: Path
) -> None:
    ocrctl("models", "quantize")
    code, out, _ = ocrctl("models", "quantize")
    assert code == 0
    assert "--force" in out
    assert source == ["det", "rec"]
    ocrctl("models", "quantize", "--force")
    assert source == ["det", "rec"] * 2
    (cache / quantize.NAME / "rec" / "inference.bin").write_bytes(b"bit rot")
    ocrctl("models", "quantize")
    assert source == ["det", "rec"] * 3
    assert models.verify(quantize.NAME) == []


def test_without_nncf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    code, out, err = ocrctl("models", "quantize")
    assert (code, out) == (1, "")
    assert "pip install 'ocr-serving[quantize]'" in err
    assert not cache.exists()


def test_without_the_set_to_start_from_it_says_how_to_fetch_it(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(int8, "load", lambda: None)
    code, _, err = ocrctl("models", "quantize")
    assert code == 1
    assert "ocrctl models fetch ppocr-v6-small" in err


def test_what_cannot_be_fetched_says_how_it_is_made(cache: Path) -> None:
    assert "ocrctl models quantize" in ocrctl("models", "fetch", quantize.NAME)[2]
    assert "ocrctl models quantize" in ocrctl("up", "--engine", "openvino", "--models", quantize.NAME)[2]
    assert "not made" in ocrctl("models", "list")[1]
    check = doctor._model_files("openvino", quantize.NAME)
    assert (check.verdict, check.remedy) == (Verdict.MISSING, "ocrctl models quantize")


def test_the_paddle_engine_is_told_that_the_set_is_not_for_it() -> None:
    code, _, err = ocrctl("up", "--engine", "paddle", "--models", quantize.NAME)
    assert code == 2
    assert "it is for openvino" in err
    assert not model_sets.can_be_fetched(quantize.NAME)


@pytest.mark.parametrize(
    ("flags", "able"),
    [
        ("fpu avx2 avx512_vnni", True),
        ("avx2 avx_vnni", True),
        ("amx_int8", True),
        ("sse2 avx2 avx512f", False),
    ],
)
def test_a_processor_is_known_by_its_flags(flags: str, able: bool) -> None:
    assert quantize.has_int8_instructions(f"processor : 0\nflags\t\t: {flags}\n") is able
