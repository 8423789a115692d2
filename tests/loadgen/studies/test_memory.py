import json

import pytest

from loadgen.studies.memory import Held, ShapeTimes, held, judge, section, shape_times
from loadgen.studies.spans import ModelRun


def run(ms, *, shape="(48, 320)", size=8, stage="recognizer"):
    return ModelRun(stage, 1, shape, size, "", 0.0, ms)


def test_memory_is_compared_between_a_third_and_the_end_not_with_the_start():
    [process] = held({"gateway": 50, "gone": 1}, {"gateway": 200, "new": 7}, {"gateway": 206, "new": 9})
    assert process == Held("gateway", 50, 200, 206)
    assert process.growth == pytest.approx(0.03)


def test_shapes_of_two_sizes_or_stages_are_two_and_rare_ones_are_left_out():
    runs = [
        run(1),
        run(2),
        run(3, size=4),
        run(4, stage="detector"),
        run(5),
        run(6, shape="(48, 640)"),
        run(7),
    ]
    [shape] = shape_times(runs, least=3)
    assert shape == ShapeTimes("recognizer", "(48, 320)", 8, (1, 2, 5, 7))
    assert len(shape_times(runs, least=1)) == 4


def test_a_first_batch_is_judged_by_the_median_of_its_shape():
    shape = ShapeTimes("recognizer", "s", 8, (25.0, 10.0, 10.0, 11.0, 31.0))
    assert shape.median == 11
    assert shape.first == pytest.approx(25 / 11)
    assert max(shape.later) == pytest.approx(31 / 11)


FLAT = Held("gateway", 100, 200, 202)
EVEN = ShapeTimes("detector", "s", 1, (10.0,) * 5)


@pytest.mark.parametrize(
    ("process", "shape", "holds"),
    [
        (FLAT, EVEN, [True, True]),
        (Held("worker", 100, 200, 206.5), EVEN, [False, True]),
        (Held("worker", 100, 200, 190), EVEN, [False, True]),
        (FLAT, ShapeTimes("recognizer", "s", 8, (20.1, 10, 10, 10, 10)), [True, False]),
        (FLAT, ShapeTimes("recognizer", "s", 8, (10, 10, 10, 10, 99.0)), [True, True]),
    ],
)
def test_the_verdicts_follow_the_worst_process_and_the_worst_first_batch(process, shape, holds):
    assert [verdict.holds for verdict in judge([FLAT, process], [EVEN, shape])] == holds


def test_the_section_has_every_process_and_can_be_written_as_json():
    found = section(300, [FLAT], [EVEN, ShapeTimes("recognizer", "s", 8, (30.0, 10, 10, 10, 50))])
    assert "| gateway | 0 | 0 | 0 | +1.0% |" in found.markdown
    assert found.data["first_batches_slow"] == 1
    assert found.data["later_batch_worst"] == 5
    json.dumps(found.data)
