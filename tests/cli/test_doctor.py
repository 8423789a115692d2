"""What `ocrctl doctor` fails for, and which engine and models `ocrctl` expects the services to choose."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from services.cli import doctor, model_sets
from services.cli.doctor import Check, Verdict
from services.cli.errors import CliError
from services.common.engines import base

NOBODY = "127.0.0.1:1"  # a port that nobody listens on


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if these modules were not installed."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name in missing else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def examined(engine: str | None = None, models: str | None = None) -> dict[str, Check]:
    return {check.name: check for check in doctor.examine(engine=engine, models=models, kafka=NOBODY)}


def test_a_gateway_without_crc32c_would_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "crc32c", "paddle", "openvino")
    assert examined("simulated")["crc32c"].verdict is Verdict.MISSING


def test_an_engine_that_was_asked_for_and_is_not_installed_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, "paddle")
    check = examined("paddle")["engine"]
    assert check.verdict is Verdict.MISSING
    assert check.remedy == "pip install 'ocr-serving[paddle]'"
    assert doctor.verdict([check]) == 1
    monkeypatch.setenv("OCR_ENGINE", "paddle")
    assert examined()["engine"].verdict is Verdict.MISSING


def test_an_engine_that_nobody_asked_for_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "paddle", "openvino")
    checks = examined("simulated")
    assert checks["engine paddle"].verdict is Verdict.NOTE
    assert checks["engine"].verdict is Verdict.OK


def test_without_any_engine_the_remedy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_version", lambda name: None)
    check = doctor._chosen_engine(None, None, [])
    assert check.verdict is Verdict.MISSING
    assert "ocr-serving[openvino]" in check.remedy


def test_on_a_gpu_the_models_are_those_of_the_engine_that_the_services_choose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "_version", {"openvino": "1", "paddlepaddle-gpu": "3"}.get)
    monkeypatch.setattr(base, "_GPU", tmp_path)
    assert model_sets.wanted(None, None) == "ppocr-v5-mobile"
    monkeypatch.setenv("OCR_DEVICES", "cpu")
    assert model_sets.wanted(None, None) == "ppocr-v6-small"
    monkeypatch.setenv("OCR_DEVICES", "cpu,gpu:1")
    assert model_sets.wanted(None, None) == "ppocr-v5-mobile"


def test_flags_beat_the_environment_in_what_models_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCR_ENGINE", "simulated")
    monkeypatch.setenv("OCR_MODELS", "ppocr-v4-mobile")
    assert model_sets.wanted(None, None) is None
    assert model_sets.wanted(None, "paddle") == "ppocr-v4-mobile"
    assert model_sets.wanted("ppocr-v5-mobile", "paddle") == "ppocr-v5-mobile"


def test_settings_that_the_services_refuse_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCR_PREDICTORS", "none")
    with pytest.raises(CliError, match="predictors"):
        model_sets.wanted(None, None)


def test_an_engine_that_does_not_exist_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "paddle", "openvino")
    monkeypatch.setenv("OCR_ENGINE", "nope")
    check = examined()["engine"]
    assert check.verdict is Verdict.MISSING
    assert "'nope'" in check.remedy
    assert "simulated" in check.remedy


@pytest.mark.parametrize(
    ("engine", "models"), [("openvino", "nope"), ("openvino", "/nowhere"), ("paddle", "ppocr-v6-small")]
)
def test_models_that_up_would_refuse_are_missing(engine: str, models: str) -> None:
    check = doctor._model_files(engine, models)
    assert check.verdict is Verdict.MISSING
    assert models in check.remedy
    assert "ocrctl up` fetches" not in check.remedy


def test_models_that_up_would_fetch_are_a_note_where_they_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path / "new" / "models"))
    assert doctor._model_files("openvino", None).verdict is Verdict.NOTE
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCR_MODELS_DIR", str(tmp_path / "file" / "models"))
    check = doctor._model_files("openvino", None)
    assert check.verdict is Verdict.MISSING
    assert "cannot be written" in check.remedy


def test_a_folder_of_models_in_the_wrong_format_is_missing(tmp_path: Path) -> None:
    (tmp_path / "inference.onnx").touch()
    check = doctor._model_files("paddle", str(tmp_path))
    assert check.verdict is Verdict.MISSING
    assert "ONNX" in check.remedy
