"""A PDF may hang, eat memory or crash its reader; it costs an error for itself and nothing for the others."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from services.common.errors import CorruptInput, OcrError, ShuttingDown, TooManyPages
from services.common.images import ImageLimits, pdf_pages_here
from services.gateway.pdf_process import EndedChild, PdfProcess
from tests.fakes.pdf import laughing_pdf, pdf

LIMITS = ImageLimits(max_pages=5)
GOOD = pdf((144, 72), (72, 144))


@pytest.fixture
def make() -> Iterator[Callable[..., PdfProcess]]:
    made: list[PdfProcess] = []

    def start(**options: float) -> PdfProcess:
        made.append(PdfProcess(**options))
        return made[-1]

    yield start
    for process in made:
        process.close()


def shapes(process: PdfProcess, data: bytes) -> list[object]:
    pages = process.pages(data, LIMITS)
    return [type(p.image) if isinstance(p.image, OcrError) else p.image.shape for p in pages]


def test_pages_are_those_that_this_process_would_draw(make: Callable[..., PdfProcess]) -> None:
    there, here = make().pages(GOOD, LIMITS), pdf_pages_here(GOOD, LIMITS)
    for a, b in zip(there, here, strict=True):
        assert (a.number, a.of) == (b.number, b.of)
        assert np.array_equal(a.image, b.image)


def test_errors_of_the_whole_document_are_raised(make: Callable[..., PdfProcess]) -> None:
    process = make()
    with pytest.raises(TooManyPages):
        shapes(process, pdf(*[(72.0, 72.0)] * 6))
    with pytest.raises(CorruptInput):
        shapes(process, b"%PDF-1.7 and then nothing")
    assert shapes(process, GOOD) == [(200, 400, 3), (400, 200, 3)]


def test_a_page_that_takes_for_ever_is_given_up_and_others_are_not(make: Callable[..., PdfProcess]) -> None:
    process = make(timeout_s=1.0)
    open_beside = process.pages(GOOD, LIMITS)
    assert next(open_beside).image.shape == (200, 400, 3)
    assert shapes(process, laughing_pdf()) == [EndedChild]
    assert next(open_beside).image.shape == (400, 200, 3)


def test_a_document_of_such_pages_is_given_up_after_two(make: Callable[..., PdfProcess]) -> None:
    process = make(timeout_s=0.5)
    pages = process.pages(laughing_pdf(pages=5), LIMITS)
    pids = []
    for page in pages:
        assert isinstance(page.image, EndedChild)
        pids.append(process.pid)
    assert pids == [None] * 5  # ended by the first two, and not started by the rest
    assert shapes(process, GOOD) == [(200, 400, 3), (400, 200, 3)]


def test_a_page_that_eats_memory_is_given_up(make: Callable[..., PdfProcess]) -> None:
    process = make(timeout_s=120.0, memory_mb=450)
    (page,) = process.pages(laughing_pdf(fan=60, levels=4), LIMITS)
    assert isinstance(page.image, CorruptInput)
    assert shapes(process, GOOD) == [(200, 400, 3), (400, 200, 3)]


def test_a_child_that_is_killed_is_replaced_and_nothing_is_lost(make: Callable[..., PdfProcess]) -> None:
    process = make()
    pages = process.pages(GOOD, LIMITS)
    next(pages)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert next(pages).image.shape == (400, 200, 3)


def test_many_threads_may_draw_at_once(make: Callable[..., PdfProcess]) -> None:
    process = make()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(shapes(process, GOOD))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(200, 400, 3), (400, 200, 3)]] * 6


def test_the_child_outlives_the_thread_that_drew_the_first_pdf(make: Callable[..., PdfProcess]) -> None:
    """Linux ties a death signal of a parent to the thread that made the child, not to the process."""
    process = make()
    thread = threading.Thread(target=shapes, args=(process, GOOD))
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    end = time.monotonic() + 30
    while task.exists():
        assert time.monotonic() < end, "the thread does not end"
        time.sleep(0.001)
    pid = process.pid
    assert shapes(process, GOOD) == [(200, 400, 3), (400, 200, 3)]
    assert process.pid == pid


def test_closing_ends_the_child_in_the_middle_of_its_work(make: Callable[..., PdfProcess]) -> None:
    process = make(timeout_s=120.0)
    assert shapes(process, GOOD)
    pid = process.pid
    caught: list[BaseException] = []

    def draw() -> None:
        try:
            caught.extend(p.image for p in process.pages(laughing_pdf(), LIMITS))
        except OcrError as error:
            caught.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    _until_busy(pid)
    process.close()
    thread.join(timeout=10)
    assert [type(error) for error in caught] == [ShuttingDown]
    assert not Path(f"/proc/{pid}").exists()


def _until_busy(pid: int | None) -> None:
    """Wait until the child, idle so far, has used a fifth of a second of a core: by then it draws."""
    end, idle = time.monotonic() + 30, _ticks(pid)
    while _ticks(pid) < idle + 20:
        assert time.monotonic() < end, "the child does nothing"
        time.sleep(0.01)


def _ticks(pid: int | None) -> int:
    """Hundredths of a second of user time."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def test_no_child_is_started_before_the_first_pdf(make: Callable[..., PdfProcess]) -> None:
    assert make().pid is None
