import cv2
import numpy as np
import pytest

from services.common.engines.base import EngineSpec, Head
from services.common.engines.simulated import probability_map
from tests.chaos import engines
from tests.chaos.documents import healthy, make_jobs, poison

HEALTHY = healthy()
POISON = {document.name: document for document in poison()}


def pixels(document):
    return cv2.imdecode(np.frombuffer(document.value, np.uint8), cv2.IMREAD_COLOR)


def test_the_same_seed_gives_the_same_jobs():
    assert make_jobs(5, 300, 0.1, HEALTHY) == make_jobs(5, 300, 0.1, healthy())
    assert make_jobs(5, 300, 0.1, HEALTHY) != make_jobs(6, 300, 0.1, HEALTHY)


def test_as_many_as_asked_for_are_poison_and_all_kinds_of_it_come():
    jobs = make_jobs(5, 1000, 0.02, HEALTHY)
    bad = [job.document.name for job in jobs if job.sent.reason is not None]
    assert (len(jobs), len(bad)) == (1000, 20)
    assert set(bad) == set(POISON)


def test_jobs_have_names_of_their_own():
    assert len({job.sent.job_id for job in make_jobs(5, 1000, 0.02, HEALTHY)}) == 1000


def test_a_healthy_page_kills_nobody():
    images = [image for document in HEALTHY if (image := pixels(document)) is not None]
    assert len(images) > 20
    assert not any(engines.corner_kills(image) or engines.ink_kills(image) for image in images)


def test_the_deadly_page_kills_the_detector_and_the_deadly_ink_the_recognizer():
    assert engines.corner_kills(pixels(POISON["kills-detector.png"]))
    ink = pixels(POISON["kills-recognizer.png"])
    assert not engines.corner_kills(ink)
    (found,) = probability_map(ink[None], np.array([ink.shape[:2]], np.int32))
    _, boxes = cv2.connectedComponents((found[0, 0] > 0).astype(np.uint8))
    left, top, width, height = cv2.boundingRect((boxes == 1).astype(np.uint8))
    assert boxes.max() == 1, "one line, so that nothing else of the page can be read"
    assert engines.ink_kills(ink[top : top + height, left : left + width])


class Untouched:
    name, version = "inner", "1"

    def run(self, pixels, sizes):
        return (pixels,)


class Died(Exception):
    pass


@pytest.fixture
def mortal(monkeypatch):
    def die(pid, number):
        raise Died

    monkeypatch.setattr(engines.os, "kill", die)


@pytest.mark.parametrize("head", list(Head))
def test_an_engine_dies_of_its_own_kind_of_page_only(head, mortal):
    engine = engines.Deadly(EngineSpec(engine="x", model=None, head=head), Untouched())
    fatal = POISON["kills-detector.png" if head is Head.RAW else "kills-recognizer.png"]
    for document in (HEALTHY[0], fatal):
        batch = pixels(document)[None]
        sizes = np.array([batch.shape[1:3]], np.int32)
        if document is fatal:
            with pytest.raises(Died):
                engine.run(batch, sizes)
        else:
            assert engine.run(batch, sizes)[0] is batch
