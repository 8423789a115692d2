from itertools import islice

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.studies.cuttings import Cut, Sizes, UnreadablePage, cuts, encoded, read_page

SIZES = Sizes(least=60, most=1100, area=90_000, any_area_each=20)
pages = st.lists(st.tuples(st.integers(10, 3000), st.integers(10, 3000)), min_size=1, max_size=5)


@given(pages, st.integers())
def test_a_cutting_lies_on_its_page_and_within_the_sizes(found, seed):
    for cut in islice(cuts(found, SIZES, seed), 20):
        height, width = found[cut.page]
        assert 0 <= cut.left <= cut.left + cut.width <= width
        assert 0 <= cut.top <= cut.top + cut.height <= height
        assert min(60, width) <= cut.width <= 1100
        assert min(60, height) <= cut.height <= 1100


def test_most_cuttings_are_small_and_a_few_are_not():
    areas = [cut.width * cut.height for cut in islice(cuts([(3000, 3000)], SIZES, 1), 2000)]
    above = sum(area > SIZES.area for area in areas)
    assert 10 < above < 100
    assert max(areas) > 600_000


def test_without_exceptions_the_area_binds_all():
    sizes = Sizes(least=60, most=1100, area=90_000)
    assert max(cut.width * cut.height for cut in islice(cuts([(3000, 3000)], sizes, 1), 500)) <= 90_000


def test_the_same_seed_cuts_the_same():
    first, again, other = (list(islice(cuts([(900, 700)], SIZES, seed), 9)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_cutting_is_a_file_of_its_own(tmp_path):
    page = np.zeros((80, 100, 3), np.uint8)
    page[20:40, 30:70] = 255
    assert cv2.imwrite(str(tmp_path / "page.png"), page)
    data = encoded([read_page(tmp_path / "page.png")], Cut(0, left=32, top=22, width=30, height=15))
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (15, 30, 3)
    assert image.min() > 250


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "page.png").write_bytes(b"text")
    with pytest.raises(UnreadablePage, match=r"page\.png"):
        read_page(tmp_path / "page.png")
