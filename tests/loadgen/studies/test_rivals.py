import threading

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.studies.rivals import Fifo, OneLock, Together, fifo_width, one_document

widths = st.lists(st.integers(8, 3200), min_size=1, max_size=40)


@given(widths)
def test_one_document_reads_every_line_once_six_at_a_time_and_none_wider_than_its_batch(found):
    batches = one_document(found)
    assert sorted(index for batch in batches for index in batch.lines) == list(range(len(found)))
    assert all(1 <= len(batch.lines) <= 6 for batch in batches)
    assert all(batch.width == max(320, *(found[index] for index in batch.lines)) for batch in batches)


def test_lines_of_one_document_are_sorted_before_they_are_split():
    assert one_document([900, 10, 20, 30, 40, 50, 60]) == [
        Together((1, 2, 3, 4, 5, 6), 320),
        Together((0,), 900),
    ]


def test_a_page_without_lines_needs_no_batch():
    assert one_document([]) == []


@given(widths)
def test_first_in_first_out_pads_to_the_widest_on_a_grid(found):
    width = fifo_width(found)
    assert width % 32 == 0
    assert 0 <= width - max(found) < 32


def page(*widths: int) -> bytes:
    """A document whose lines the fake finder reads off its pixels: the first row says how wide each is."""
    image = np.zeros((1, max(len(widths), 1), 3), np.uint8)
    image[0, : len(widths), 0] = widths
    done, data = cv2.imencode(".png", image)
    assert done
    return data.tobytes()


def find(image):
    return [np.zeros((48, int(width), 3), np.uint8) for width in image[0, :, 0] if width]


class Reader:
    """Reads a line as its own width and that of its batch; remembers the sizes of batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.begun = threading.Event()
        self.go.set()

    def __call__(self, lines, width):
        self.begun.set()
        assert self.go.wait(10)
        self.sizes.append(len(lines))
        return [f"{line.shape[1]}/{width}" for line in lines]


def test_under_one_lock_the_answer_is_in_the_order_of_the_page():
    server = OneLock(find, Reader())
    assert server.submit(page(200, 100)).result(10) == ["200/320", "100/320"]
    assert server.submit(page()).result(10) == []
    server.close()


def test_lines_of_many_callers_run_together_and_each_gets_its_own():
    reader = Reader()
    reader.go.clear()
    server = Fifo([find], [reader])
    first = server.submit(page(40))
    assert reader.begun.wait(10)  # the first line keeps the reader busy, so the others gather
    rest = [server.submit(page(50, 60)), server.submit(page(70, 250))]
    last = server.submit(page())
    assert last.result(10) == []  # one finder, in order: all lines of the others wait now
    reader.go.set()
    assert first.result(10) == ["40/64"]
    assert [answer.result(10) for answer in rest] == [["50/256", "60/256"], ["70/256", "250/256"]]
    assert reader.sizes == [1, 4]
    server.close()


def test_what_a_reader_or_finder_raises_reaches_the_callers_and_the_server_goes_on():
    def broken(lines, width):
        if len(lines) == 1 and lines[0].shape[1] == 13:
            raise ValueError("unlucky")
        return ["fine"] * len(lines)

    server = Fifo([find], [broken])
    with pytest.raises(ValueError, match="unlucky"):
        server.submit(page(13)).result(10)
    with pytest.raises(Exception, match=r".+"):
        server.submit(b"no image").result(10)
    assert server.submit(page(20)).result(10) == ["fine"]
    server.close()


def test_closing_waits_for_what_was_begun():
    server = Fifo([find, find], [Reader(), Reader()])
    answers = [server.submit(page(*range(10, 30))) for _ in range(20)]
    server.close()
    assert [len(answer.result(0)) for answer in answers] == [20] * 20
