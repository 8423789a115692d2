"""The work of a page without services is the work that the services do."""

from pathlib import Path

import cv2
import numpy as np

from loadgen import page_work
from loadgen.corpus import Document
from services.detector.settings import DetectorSettings
from services.gateway.pipeline import KEPT_JPEG_SIDE


def page(words: int) -> Document:
    """White paper with so many black words, one below the other."""
    paper = np.full((900, 700, 3), 255, np.uint8)
    for row in range(words):
        cv2.putText(paper, f"word {row}", (60, 80 + 90 * row), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 3)
    return Document(Path("page.png"), cv2.imencode(".png", paper)[1].tobytes())


def untimed(work, *arguments):
    return work(*arguments)


def test_each_line_of_a_page_is_found_and_read() -> None:
    texts = page_work.read(page(3), untimed)
    assert len(texts) == 3
    assert all(texts)


def test_a_page_without_text_has_no_lines() -> None:
    assert page_work.read(page(0), untimed) == []


def test_the_models_own_work_is_not_counted() -> None:
    counted = []

    def noted(work, *arguments):
        counted.append(work)
        return work(*arguments)

    page_work.read(page(2), noted)
    assert counted == [page_work.pages_of, page_work.lines_of, page_work.texts_of]


def test_pages_are_decoded_and_shrunk_as_the_services_do_it() -> None:
    assert page_work.KEPT_JPEG_SIDE == KEPT_JPEG_SIDE
    assert DetectorSettings.model_fields["max_side"].default == page_work.MAX_SIDE


def test_it_costs_something() -> None:
    assert page_work.cpu_ms([page(2)]) > 0


def test_a_page_is_sent_as_the_detector_sees_it_and_then_all_of_its_lines() -> None:
    seen, lines = page_work.sent(page(3))
    assert seen == page_work.pages_of(page(3).content)[0].seen.nbytes
    assert 0 < lines < seen
    assert lines % (48 * 3) == 0


def test_of_a_page_without_text_nothing_goes_to_the_recognizer() -> None:
    assert len(page_work.sent(page(0))) == 1
