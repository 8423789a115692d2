from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.corpus import Document
from loadgen.errors import NoDocuments
from loadgen.studies.cuttings import Cut, Sizes, bears_text, cuts, cuttings, encoded, page_of, part_of

SIDES = (60, 1100)
SIZES = Sizes(SIDES, SIDES, area=90_000, any_area_each=20)
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
    sizes = Sizes(SIDES, SIDES, area=90_000)
    assert max(cut.width * cut.height for cut in islice(cuts([(3000, 3000)], sizes, 1), 500)) <= 90_000


def test_the_same_seed_cuts_the_same():
    first, again, other = (list(islice(cuts([(900, 700)], SIZES, seed), 9)) for seed in (1, 1, 2))
    assert first == again != other


def document(name="page.png", *, text=True):
    page = np.full((600, 400, 3), 255, np.uint8)
    for row in range(20, 600 if text else 0, 24):
        cv2.putText(page, "TOTAL 12.50 cash 20.00 change", (5, row), cv2.FONT_HERSHEY_PLAIN, 1.2, (0, 0, 0))
    done, data = cv2.imencode(".png", page)
    assert done
    return Document(Path(name), data.tobytes())


def test_a_cutting_is_an_image_of_its_own():
    page = np.zeros((80, 100, 3), np.uint8)
    page[20:40, 30:70] = 255
    part = part_of([page], Cut(0, left=32, top=22, width=30, height=15))
    image = cv2.imdecode(np.frombuffer(encoded(part), np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (15, 30, 3)
    assert image.min() > 250


def test_cuttings_have_names_of_their_own_and_are_the_same_for_a_seed():
    first, again = (cuttings([document()], SIZES, 5, 4) for _ in range(2))
    assert first == again
    assert len({found.name for found in first}) == 4


def test_every_cutting_bears_text():
    found = [page_of(cutting) for cutting in cuttings([document(), document(text=False)], SIZES, 1, 10)]
    assert all(bears_text(part) for part in found)


def test_empty_pages_are_refused():
    with pytest.raises(NoDocuments, match="only 0 of 80 cuttings bear text"):
        cuttings([document(text=False)], SIZES, 1, 2)


def test_a_file_that_is_no_image_is_named():
    with pytest.raises(NoDocuments, match=r"page\.png"):
        page_of(Document(Path("page.png"), b"text"))
