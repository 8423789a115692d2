"""The ladder of widths is read from flags, environment and file, and must rise."""

import pytest

from services.common.settings import load
from services.recognizer.preprocess import WIDTH_LADDER
from services.recognizer.settings import RecognizerSettings


def test_the_default_ladder_is_the_measured_one():
    assert load(RecognizerSettings, []).width_ladder == WIDTH_LADDER


def test_a_ladder_is_numbers_with_commas(tmp_path, monkeypatch):
    file = tmp_path / "settings.toml"
    file.write_text("width_ladder = [160, 320, 640]\n")
    assert load(RecognizerSettings, ["--config", str(file)]).width_ladder == (160, 320, 640)
    monkeypatch.setenv("OCR_WIDTH_LADDER", "160, 320")
    assert load(RecognizerSettings, ["--config", str(file)]).width_ladder == (160, 320)
    assert load(RecognizerSettings, ["--width-ladder", "96,192"]).width_ladder == (96, 192)


@pytest.mark.parametrize("ladder", ["320,160", "160,160", "", "17", "0,160", "wide"])
def test_a_ladder_that_cannot_be_used_is_refused(ladder):
    with pytest.raises(SystemExit, match="--width-ladder"):
        load(RecognizerSettings, ["--width-ladder", ladder])
