"""Reading the page of metrics."""

from loadgen.prometheus import Metrics, difference

PAGE = """\
# HELP ocr_batch_pixels_total Pixels
ocr_batch_pixels_total{kind="valid",stage="recognizer"} 90.0
ocr_batch_pixels_total{kind="padding",stage="recognizer"} 1.0e+01
ocr_batch_size_sum{note="a \\"b\\", c"} 7
process_open_fds 12
"""


def test_a_total_adds_what_carries_the_labels() -> None:
    page = Metrics.parse(PAGE)
    assert page.total("ocr_batch_pixels_total") == 100
    assert page.total("ocr_batch_pixels_total", kind="valid") == 90
    assert page.total("ocr_batch_size_sum", note='a \\"b\\", c') == 7
    assert page.total("process_open_fds") == 12
    assert page.total("absent") == 0


def test_a_counter_that_was_not_there_before_rose_by_all_it_has() -> None:
    assert difference(Metrics.parse(""), Metrics.parse(PAGE), "ocr_batch_pixels_total", kind="valid") == 90
