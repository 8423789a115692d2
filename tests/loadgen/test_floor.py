"""The bare models: what they are given, and how they are run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import floor
from loadgen.corpus import Document, load
from loadgen.errors import FloorFailed
from loadgen.floor_worker import Work, batches, normalised, warm_up_set
from services.common.models import ModelMissing, fetch
from tests.conftest import SLIPS

WORK = Work("openvino", "m", "", pir=False, mean=(0.5, 0.25, 0.0), std=(0.5, 0.5, 1.0), images="i",
            batch=2, streams=1, threads=1, share=0, shares=1)  # fmt: skip


def blank(height: int, width: int) -> np.ndarray:
    return np.zeros((height, width, 3), np.uint8)


@given(st.lists(st.sampled_from([(48, 32), (48, 64), (48, 96)]), max_size=20), st.integers(1, 4))
def test_batches_hold_every_image_once_and_only_equal_shapes(shapes, size: int) -> None:
    images = [blank(*shape) for shape in shapes]
    found = batches(images, size)
    assert sorted(id(image) for batch in found for image in batch) == sorted(map(id, images))
    assert all(len({image.shape for image in batch}) == 1 and len(batch) <= size for batch in found)
    least = sum(-(-shapes.count(shape) // size) for shape in set(shapes))
    assert len(found) == least


def test_the_models_get_normalised_channels_first() -> None:
    image = np.full((48, 32, 3), (255, 0, 51), np.uint8)
    found = normalised([image, image], WORK)
    assert found.shape == (2, 3, 48, 32)
    assert found.dtype == np.float32
    assert found[1, :, 7, 9].tolist() == pytest.approx([1.0, -0.5, 0.2])


def test_each_stream_meets_each_shape_before_the_time_counts() -> None:
    first, second = np.zeros((2, 3, 4, 4), np.float32), np.zeros((1, 3, 4, 4), np.float32)
    assert [batch.shape for batch in warm_up_set([first, second, first], 2)] == [first.shape] * 4 + [
        second.shape
    ] * 4


@pytest.mark.parametrize("role", floor.ROLES)
@given(cores=st.integers(1, 64))
def test_every_setting_uses_all_cores_and_no_two_are_the_same(role, cores: int) -> None:
    tried = floor.candidates(role, cores)
    assert {setting.threads for setting in tried} == {cores}
    assert len(set(tried)) == len(tried)
    assert {setting.streams for setting in tried} == {1, cores}


def test_a_line_is_48_rows_high_and_a_multiple_of_32_wide() -> None:
    page = blank(200, 400)
    quad = [[10, 10], [131, 10], [131, 30], [10, 30]]
    assert floor.line_image(page, quad).shape == (48, 320, 3)  # 121 x 20 pixels are 290.4 columns


def test_a_file_that_is_no_image_is_named(tmp_path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"no picture")
    with pytest.raises(FloorFailed, match=r"a\.png cannot be decoded"):
        floor.page_image(Document(file, file.read_bytes()))


def test_a_model_set_that_is_not_there_is_known_before_anything_runs() -> None:
    inputs = floor.Inputs((blank(64, 64),), (blank(48, 32),))
    missing = floor.Bare("openvino", "no-such-set_det")
    with pytest.raises(ModelMissing), floor.warm(missing, inputs, cores=1, choose_from=0):
        pass


@pytest.mark.model
@pytest.mark.parametrize(
    ("engine", "models"), [("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v5-mobile")]
)
def test_the_bare_models_run_and_are_gone_afterwards(engine: str, models: str) -> None:
    fetch(models)
    slip = load(SLIPS).first(1)
    lines = {slip.documents[0].name: [{"points": [[10, 10], [100, 10], [100, 40], [10, 40]]}]}
    inputs = floor.Inputs.of(slip.documents, lines)
    with floor.warm(floor.Bare(engine, models), inputs, cores=2, choose_from=1) as running:
        first, second = running.measure(0), running.measure(1)
    assert first.det_s > second.det_s > 0, "one page is one batch, all of it in the first half"
    assert first.rec_s > 0
    with pytest.raises(ValueError, match="closed"):
        running.measure(0)
