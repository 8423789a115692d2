import pytest

from services.gateway.kafka_ports import Progress
from services.gateway.stall import StallWatch

P0, P1 = ("ocr.jobs", 0), ("ocr.jobs", 1)


def test_a_partition_that_stands_still_before_the_end_is_noticed():
    watch, nothing = StallWatch(10.0), frozenset()
    at = {P0: Progress(5, 9), P1: Progress(9, 9)}
    assert watch.stuck(at, nothing, 0.0) == []
    assert watch.stuck(at, nothing, 9.0) == []
    assert watch.stuck(at, nothing, 10.0) == [P0]


@pytest.mark.parametrize(
    ("between", "paused", "why"),
    [
        ({P0: Progress(6, 9)}, frozenset(), "it moved"),
        ({P0: Progress(5, 9)}, frozenset({P0}), "it was paused"),
        ({P0: Progress(5, 5)}, frozenset(), "there was nothing"),
        ({}, frozenset(), "it was away"),
    ],
)
def test_a_partition_is_not_stuck_if_it_had_a_reason(between, paused, why):
    watch = StallWatch(10.0)
    watch.stuck({P0: Progress(5, 9)}, frozenset(), 0.0)
    watch.stuck(between, paused, 9.0)
    assert watch.stuck({P0: Progress(5, 9)}, frozenset(), 12.0) == [], why
