import json
import time

import grpc

from loadgen.corpus import Document
from loadgen.studies.designs import QUICK, Alone, Measured, changed, judge, rounds, section
from loadgen.studies.online import Call, Order, texts_of
from services.common.pb import ocr_pb2 as pb

ONE = {"a": ["1", "2"], "b": ["3"]}


def test_lines_that_read_differently_are_counted_among_all():
    assert changed(ONE, ONE) == (0, 3)
    assert changed(ONE, {"a": ["1", "two"], "b": ["3"]}) == (1, 3)


def test_a_document_with_another_number_of_lines_changed_as_a_whole():
    assert changed(ONE, {"a": ["1"], "b": ["3"]}) == (2, 3)


def test_every_round_has_every_document_in_an_order_of_its_own(tmp_path):
    documents = [Document(tmp_path / f"{n}.jpg", b"") for n in range(20)]
    names = [order.job.file for order in rounds(documents, 2, seed=1)]
    assert sorted(names[:20]) == sorted(names[20:]) == sorted(document.name for document in documents)
    assert names[:20] != names[20:]


def test_texts_are_those_of_the_lines_in_order():
    result = pb.Result(lines=[pb.Line(text="b"), pb.Line(text="a")])
    call = Call(Order(0.0, pb.Job()), 0.0, time.monotonic(), 0.0, grpc.StatusCode.OK, result)
    assert texts_of(call) == ["b", "a"]


def measured(design="product", differ=0, alone=0):
    return Measured(design, 5.0, 100, differ, Alone(50, alone), 100.0, 300.0)


def test_the_product_is_judged_by_both_kinds_of_change():
    assert judge(measured())[0].holds
    assert not judge(measured(differ=1))[0].holds
    assert not judge(measured(alone=1))[0].holds


def test_the_section_judges_the_last_design_and_can_be_written_as_json():
    found = section([measured("one lock", alone=5), measured()], QUICK, rate=3.5)
    assert "| one lock | 5 | 100 | 300 | 0 of 100 (0.0%) | 5 of 50 (10.0%) |" in found.markdown
    assert "- holds" in found.markdown
    assert json.loads(json.dumps(found.data))["designs"][0]["alone"] == {"lines": 50, "changed": 5}
