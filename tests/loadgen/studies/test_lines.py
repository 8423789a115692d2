import numpy as np
import pytest

from loadgen.studies.lines import Agreement, Read, agreement, cut_out, lines_of
from services.common.pb import ocr_pb2 as pb

REFERENCE = {("a",): Read("one", 0.9), ("b",): Read("two", 0.8)}


def test_equal_texts_agree_up_to_the_largest_difference_of_confidence():
    found = agreement(REFERENCE, [(("a",), Read("one", 0.9 + 2e-6)), (("b",), Read("two", 0.8 - 5e-6))])
    assert found == Agreement(compared=2, most=pytest.approx(5e-6))


def test_another_text_is_a_flip_and_its_confidence_says_nothing():
    found = agreement(REFERENCE, [(("b",), Read("twc", 0.1)), (("c",), Read("three", 0.9))])
    assert found == Agreement(compared=1, flips=(("b",),), missing=1)


def test_agreements_add_up():
    assert Agreement(2, (("a",),), 1, 1e-6) + Agreement(3, (), 0, 2e-6) == Agreement(5, (("a",),), 1, 2e-6)


def result(*points):
    line = pb.Line(text="x", confidence=0.5, points=[pb.Point(x=x, y=y) for x, y in points])
    return pb.Result(lines=[line])


def test_a_place_is_the_same_through_both_doors_though_kafka_prints_fewer_digits():
    through_grpc = result((10.123456, 2), (30.7, 2), (30.7, 9), (10.123456, 9))
    printed = [(float(f"{p.x:.7g}"), float(f"{p.y:.7g}")) for p in through_grpc.lines[0].points]
    assert lines_of("page", through_grpc)[0][0] == lines_of("page", result(*printed))[0][0]


def test_a_line_is_cut_where_the_result_has_it():
    page = np.zeros((20, 40, 3), np.uint8)
    page[5:10, 10:30] = 7
    [(place, image)] = cut_out("page", page, result((10, 5), (30, 5), (30, 10), (10, 10)))
    assert place == ("page", "10", "5", "30", "5", "30", "10", "10", "10")
    assert image.shape == (5, 20, 3)
    assert (image == 7).all()
