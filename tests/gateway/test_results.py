"""Pages are put together into one result, which says of each part that is missing why."""

import pytest

from services.common.errors import (
    BY_CODE,
    CorruptInput,
    EmptyInput,
    Internal,
    OcrError,
    PredictorFailed,
)
from services.common.pb import ocr_pb2 as pb
from services.common.wire import error_message
from services.gateway.results import PageRead, add_up, assemble, failed_result, from_error

READ = PageRead(1, 10, 10, lines=[pb.Line(text="a", page=1)], found=1)
BLANK = PageRead(2, 10, 10)
DAMAGED = PageRead(3, error=CorruptInput("cut"))
DIED = PageRead(4, 10, 10, error=PredictorFailed("died"))
SOME_UNREAD = PageRead(
    5, 10, 10, lines=[pb.Line(text="b", page=5)], found=2, unread=[PredictorFailed("died")]
)
NONE_READ = PageRead(6, 10, 10, found=1, unread=[PredictorFailed("died")])


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([READ], pb.OK),
        ([BLANK], pb.OK),
        ([READ, BLANK], pb.OK),
        ([READ, DAMAGED], pb.PARTIAL),
        ([BLANK, DAMAGED], pb.PARTIAL),
        ([SOME_UNREAD], pb.PARTIAL),
        ([READ, NONE_READ], pb.PARTIAL),
        ([DAMAGED], CorruptInput),
        ([NONE_READ], PredictorFailed),
        ([DAMAGED, DIED], PredictorFailed),  # ours comes first: trying again may still find text
    ],
)
def test_status(pages: list[PageRead], expected: int | type[OcrError]) -> None:
    if isinstance(expected, int):
        assert assemble("id", "file", pages).status == expected
    else:
        with pytest.raises(expected):
            assemble("id", "file", pages)


def test_pages_and_lines_are_in_order_whatever_was_done_first() -> None:
    result = assemble("id", "file", [SOME_UNREAD, DAMAGED, READ])
    assert [p.number for p in result.pages] == [1, 3, 5]
    assert [line.text for line in result.lines] == ["a", "b"]


def test_a_failed_result_names_the_job_and_the_error() -> None:
    result = failed_result(pb.Job(job_id="7", file="x.png"), EmptyInput("nothing there"))
    assert (result.job_id, result.file, result.status) == ("7", "x.png", pb.FAILED)
    assert result.error == pb.Error(code=pb.EMPTY_INPUT, message="nothing there")
    assert result.service_version


@pytest.mark.parametrize("error", BY_CODE.values())
def test_every_error_survives_the_way_into_a_message_and_back(error: type[OcrError]) -> None:
    back = from_error(error_message(error("why")))
    assert (type(back), str(back)) == (error, "why")


def test_an_error_without_a_code_is_ours() -> None:
    assert type(from_error(pb.Error(message="?"))) is Internal


def test_stages_add_up_and_batch_sizes_are_weighed_by_batches() -> None:
    small = pb.StageTiming(queue_ms=1, model_ms=2, process_ms=3, total_ms=4, batches=1, mean_batch_size=2)
    large = pb.StageTiming(queue_ms=1, model_ms=2, process_ms=3, total_ms=4, batches=3, mean_batch_size=6)
    assert add_up([small, large]) == pb.StageTiming(
        queue_ms=2, model_ms=4, process_ms=6, total_ms=8, batches=4, mean_batch_size=5
    )
    assert add_up([]) == pb.StageTiming()
