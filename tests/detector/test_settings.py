"""The longest side must suit the model, and probabilities are probabilities."""

import pytest

from services.common.settings import load
from services.detector.settings import DetectorSettings


@pytest.mark.parametrize(
    "argv", [["--max-side", "1000"], ["--max-side", "64"], ["--threshold", "1.5"], ["--box-threshold", "0"]]
)
def test_a_value_that_cannot_be_used_is_refused(argv):
    with pytest.raises(SystemExit, match=argv[0]):
        load(DetectorSettings, argv)


def test_a_page_at_a_time_by_default():
    assert load(DetectorSettings, []).max_batch_size == 1
