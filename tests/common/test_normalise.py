"""Normalisation is exact, padding is zero, and neighbours in a batch do not touch each other."""

import numpy as np
import pytest

from services.common.normalise import stack, table

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("constants", [IMAGENET, HALF])
def test_normalisation_is_that_of_paddleocr(constants):
    pixels = image(32, 64)
    slow = (pixels.astype(np.float64) / 255 - constants[0]) / constants[1]
    batch = stack([pixels], (32, 64), table(*constants))
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch[0], slow.transpose(2, 0, 1), atol=1e-6)


def test_padding_is_zero_on_the_right_and_below():
    batch = stack([image(32, 64), image(64, 32)], (96, 96), table(*IMAGENET))
    assert batch.shape == (2, 3, 96, 96)
    assert batch[0, :, :32, :64].any()
    assert not batch[0, :, 32:].any()
    assert not batch[0, :, :, 64:].any()
    assert not batch[1, :, 64:].any()


def test_an_image_looks_the_same_alone_and_among_others():
    images = [image(48, width, seed=width) for width in (20, 90, 160)]
    together = stack(images, (48, 160), table(*HALF))
    for row, one in zip(together, images, strict=True):
        np.testing.assert_array_equal(row, stack([one], (48, 160), table(*HALF))[0])
