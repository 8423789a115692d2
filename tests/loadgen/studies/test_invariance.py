import json

from hypothesis import given
from hypothesis import strategies as st

from loadgen.samples import Answer, Run, Sample
from loadgen.studies.invariance import QUICK, Row, companies, judge, lines_of_run, section
from loadgen.studies.lines import Agreement, lines_of
from services.common import records
from services.common.pb import ocr_pb2 as pb

EXACT = Agreement(compared=100, most=3e-6)


@given(st.integers(1, 60), st.integers())
def test_company_is_random_lines_none_twice_in_a_call(lines, seed):
    pool = [(str(number),) for number in range(lines)]
    chosen = companies(pool, 20, seed)
    assert len(chosen) == 20
    assert all(1 <= len(call) <= 24 and len({*call}) == len(call) and {*call} <= {*pool} for call in chosen)
    assert chosen == companies(pool, 20, seed)


def test_company_is_of_many_sizes():
    pool = [(str(number),) for number in range(50)]
    assert {len(call) for call in companies(pool, 500, 1)} == set(range(1, 25))


def holds(*found: Agreement) -> list[bool]:
    return [verdict.holds for verdict in judge([Row("openvino", 1, "alone", one) for one in found])]


def test_one_flip_or_one_missing_line_or_one_confidence_is_enough_to_fail():
    assert holds(EXACT, EXACT) == [True, True]
    assert holds(EXACT, Agreement(100, flips=(("a",),))) == [False, True]
    assert holds(EXACT, Agreement(100, missing=1)) == [False, True]
    assert holds(EXACT, Agreement(100, most=1.1e-5)) == [True, False]


def test_nothing_compared_shows_nothing():
    assert holds(Agreement())[0] is False


def test_lines_through_kafka_have_the_places_and_texts_of_those_through_grpc():
    corners = ((10.123457, 2.5), (300.98765, 2.5), (300.98765, 1234.5678), (10.123457, 1234.5678))
    line = pb.Line(text="x", confidence=0.123456789, points=[pb.Point(x=x, y=y) for x, y in corners], page=1)
    result = pb.Result(status=pb.OK, lines=[line])
    found = records.to_dict(result)
    run = Run((Sample("a.jpg", 0.0, 1.0, Answer("ok", tuple(found["lines"]))),))
    [(place, read)] = lines_of_run(run)
    [(same, other)] = lines_of("a.jpg", result)
    assert place == same
    assert read.text == other.text
    assert abs(read.confidence - other.confidence) < 1e-7


def test_the_section_has_a_row_for_each_way_and_can_be_written_as_json():
    rows = [Row("paddle", 2, "in random company", EXACT + Agreement(1, (("a.jpg", "1"),)))]
    found = section(rows, {"paddle": 100}, QUICK)
    assert "| paddle | 2 | in random company | 101 | 1 | 0 | 3.0e-06 |" in found.markdown
    assert "**does not hold**" in found.markdown
    assert json.loads(json.dumps(found.data))["rows"][0]["found"]["flips"] == [["a.jpg", "1"]]
