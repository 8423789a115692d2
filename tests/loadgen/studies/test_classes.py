import json
from dataclasses import replace

import grpc
import pytest

from loadgen.prometheus import Metrics
from loadgen.studies.classes import (
    BESIDE,
    BULK_AGAIN,
    BULK_ALONE,
    ONLINE_ALONE,
    QUICK,
    STAGES,
    Both,
    Flood,
    Hurried,
    Look,
    StageWork,
    Work,
    bulk_between,
    dropped_between,
    hurried_of,
    judge,
    late_runs,
    section,
    work_between,
)
from loadgen.studies.online import Call, Order
from loadgen.studies.spans import ModelRun
from services.common.pb import ocr_pb2 as pb

BOTH = Both(
    online_rate=2.0,
    online_alone=tuple(range(50, 150)),
    online_beside=tuple(range(100, 300)),
    bulk_before=10.2,
    bulk_after=9.8,
    bulk_beside=7.9,
    bulk_seconds=(8, 7, 9),
    work={
        part: Work({stage: StageWork(mpixels, 0.9, 3.0, 500.0) for stage in STAGES}, 1.8, 0.1)
        for part, mpixels in ((BULK_ALONE, 0.82), (ONLINE_ALONE, 0.1), (BESIDE, 0.6), (BULK_AGAIN, 0.78))
    },
)
HURRIED = Hurried({"OK": 5, "DEADLINE_EXCEEDED": 15}, {"recognizer expired": 9}, runs=12, late=0)
FLOOD = Flood(12.0, 120, {"detector": 3, "recognizer": 20})


def ridden(trace, start):
    return ModelRun("recognizer", 1, "(48, 320)", 8, trace, start, 20.0)


def call(trace, expired_at, status=grpc.StatusCode.OK):
    return Call(Order(0.0, pb.Job(), trace=trace), 0.0, 1.0, expired_at, status, None)


def test_a_run_is_late_when_it_began_after_the_deadline_of_its_request():
    runs = [ridden("a", 10.0), ridden("a", 10.2), ridden("b", 10.2), ridden("other", 99.0)]
    assert late_runs(runs, {"a": 10.1, "b": 10.3}) == 1
    assert late_runs(runs, {"a": 10.19, "b": 10.3}) == 0  # within what the clock can tell


def test_hurried_calls_are_counted_by_how_they_ended_and_only_their_own_runs_are_looked_at():
    calls = [call("a", 10.0), call("b", 11.0, grpc.StatusCode.DEADLINE_EXCEEDED)]
    found = hurried_of(calls, {}, [ridden("a", 9.0), ridden("b", 11.5), ridden("other", 99.0)])
    assert found == Hurried({"OK": 1, "DEADLINE_EXCEEDED": 1}, {}, runs=2, late=1)


def metrics(detector: str, recognizer: str) -> dict[str, Metrics]:
    return {"detector": Metrics.parse(detector), "recognizer": Metrics.parse(recognizer)}


def test_dropped_items_are_counted_by_stage_and_kind_as_a_difference():
    row = 'ocr_items_dropped_total{{stage="recognizer",kind="{}"}} {}\n'.format
    before = metrics("", row("expired", 2.0))
    after = metrics('ocr_items_dropped_total{stage="detector",kind="cancelled"} 4.0', row("expired", 5.0))
    assert dropped_between(before, after) == {"detector cancelled": 4, "recognizer expired": 3}


def test_bulk_items_are_counted_apart_from_online_ones():
    row = 'ocr_batch_items_total{{stage="detector",priority="{}"}} {}\n'.format
    after = metrics(row("bulk", 7.0) + row("online", 90.0), "")
    assert bulk_between(metrics(row("bulk", 4.0), ""), after) == {"detector": 3, "recognizer": 0}


def test_work_is_told_by_the_second_by_the_batch_and_by_the_pixel():
    page = (
        'ocr_batch_pixels_total{{kind="valid"}} {}\nocr_batch_pixels_total{{kind="padding"}} {}\n'
        "ocr_batch_size_sum {}\nocr_batch_size_count {}\nocr_model_cpu_seconds_total {}\n"
    ).format
    before = Look(10.0, metrics(page(1e6, 1e6, 5, 5, 1.0), ""), 100.0, 7.0)
    after = Look(12.0, metrics(page(7e6, 3e6, 35, 15, 5.0), ""), 103.0, 7.5)
    found = work_between(before, after)
    assert found.stages["detector"] == StageWork(3.0, 0.75, 3.0, 500.0)
    assert found.stages["recognizer"].mpixels == 0
    assert (found.services, found.sender) == (1.5, 0.25)


def test_the_pixels_beside_each_other_are_a_part_of_those_of_bulk_alone():
    assert BOTH.kept_pixels("recognizer") == pytest.approx(0.75)
    busier = {**BOTH.work, BESIDE: replace(BOTH.work[BESIDE], services=0.9)}
    assert replace(BOTH, work=busier).kept_for_a_core("recognizer") == pytest.approx(1.5)
    assert (
        "75.0% in the detector and 75.0% in the recognizer" in section(QUICK, BOTH, HURRIED, FLOOD).markdown
    )


def test_what_was_to_be_shown_holds_when_it_does():
    assert [verdict.holds for verdict in judge(BOTH, HURRIED, FLOOD)] == [True] * 5


@pytest.mark.parametrize(
    ("both", "hurried", "flood", "broken"),
    [
        (replace(BOTH, online_beside=(1000,) * 100), HURRIED, FLOOD, 0),
        (replace(BOTH, bulk_beside=7.0), HURRIED, FLOOD, 1),
        (replace(BOTH, bulk_seconds=(8, 0, 9)), HURRIED, FLOOD, 2),
        (BOTH, HURRIED, replace(FLOOD, bulk_items={"detector": 3, "recognizer": 0}), 3),
        (BOTH, replace(HURRIED, late=1), FLOOD, 4),
        (BOTH, replace(HURRIED, statuses={"OK": 20}), FLOOD, 4),
    ],
)
def test_each_claim_fails_by_itself(both, hurried, flood, broken):
    assert [n for n, verdict in enumerate(judge(both, hurried, flood)) if not verdict.holds] == [broken]


def test_the_section_can_be_written_as_json():
    found = section(QUICK, BOTH, HURRIED, FLOOD)
    assert "15 DEADLINE_EXCEEDED, 5 OK" in found.markdown
    assert json.loads(json.dumps(found.data))["both"]["ratio"] == pytest.approx(297 / 148)
