"""Tests of the command run in an environment of their own, whatever runs on this machine."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for name in ("OCR_GATEWAY", "OCR_KAFKA", "OCR_ENGINE", "OCR_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return folder
