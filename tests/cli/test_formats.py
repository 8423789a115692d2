"""What is printed for a result, and how the command ends."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import formats
from services.cli.answers import dead_letter, result_from
from services.cli.errors import ExitCode
from services.cli.output import Reporter
from services.common.pb import ocr_pb2 as pb
from services.common.records import result_to_json


def line(text: str, page: int = 1) -> pb.Line:
    corners = [pb.Point(x=x, y=y) for x, y in ((1, 2), (30.5, 2), (30.5, 12), (1, 12))]
    return pb.Line(text=text, confidence=0.875, points=corners, page=page)


def read(*lines: pb.Line, file: str = "slip.jpg") -> pb.Result:
    return pb.Result(job_id="j1", file=file, status=pb.OK, lines=lines)


def test_a_record_has_exactly_the_promised_fields() -> None:
    assert formats.as_record(read(line("总计 12.00"))) == {
        "file": "slip.jpg",
        "job_id": "j1",
        "status": "ok",
        "lines": [
            {
                "text": "总计 12.00",
                "confidence": 0.875,
                "points": [[1, 2], [30.5, 2], [30.5, 12], [1, 12]],
                "page": 1,
            }
        ],
        "error": None,
    }


def test_a_failure_says_code_and_message() -> None:
    failed = formats.failure("a.pdf", "j2", "PASSWORD_PROTECTED", "needs a password")
    record = json.loads(formats.as_jsonl(failed))
    assert record["status"] == "failed"
    assert record["lines"] == []
    assert record["error"] == {"code": "PASSWORD_PROTECTED", "message": "needs a password"}
    assert formats.complaint(failed) == "a.pdf: not read: PASSWORD_PROTECTED: needs a password"


def test_a_partial_result_says_why_its_first_unread_page_was_not_read() -> None:
    unread = pb.Page(number=2, error=pb.Error(code=pb.CORRUPT_INPUT, message="page 2 is damaged"))
    result = pb.Result(status=pb.PARTIAL, pages=[pb.Page(number=1), unread], lines=[line("x")])
    record = formats.as_record(result)
    assert (record["status"], record["error"]["code"]) == ("partial", "CORRUPT_INPUT")


def test_jsonl_is_one_line_and_keeps_chinese_readable() -> None:
    text = formats.as_jsonl(read(line("发票")))
    assert "\n" not in text
    assert "发票" in text


def test_text_sets_pages_apart_and_names_the_file_only_when_asked() -> None:
    result = read(line("a"), line("b"), line("c", page=2))
    assert formats.as_text(result, heading=False) == "a\nb\n\nc"
    assert formats.as_text(result, heading=True) == "== slip.jpg ==\na\nb\n\nc"
    assert formats.as_text(read(), heading=False) == ""


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([pb.OK, pb.OK], ExitCode.OK),
        ([pb.OK, pb.PARTIAL], ExitCode.SOME_FAILED),
        ([pb.FAILED], ExitCode.SOME_FAILED),
    ],
)
def test_only_whole_success_ends_with_zero(statuses: list[pb.Status], code: ExitCode) -> None:
    reporter = Reporter([Path("slip.jpg")] * len(statuses), formats.Format.JSONL, None)
    for index, status in enumerate(statuses):
        reporter.add(index, pb.Result(status=status))
    assert reporter.exit_code is code


@given(st.permutations(range(8)))
def test_results_come_out_in_the_order_of_the_files_whatever_order_they_finish_in(order: list[int]) -> None:
    turn = formats.InOrder(8)
    out: list[str] = []
    for done, index in enumerate(order, start=1):
        out += [result.job_id for result in turn.add(index, pb.Result(job_id=str(index)))]
        # As soon as possible: everything whose predecessors are all there is out.
        finished = set(order[:done])
        assert len(out) == next((n for n in range(9) if n not in finished), 8)
    assert out == [str(index) for index in range(8)]


def test_a_second_result_for_a_file_is_a_defect() -> None:
    turn = formats.InOrder(2)
    assert list(turn.add(0, pb.Result()))
    with pytest.raises(ValueError, match="not expected"):
        list(turn.add(0, pb.Result()))


def test_a_result_survives_the_way_through_kafka_in_both_forms() -> None:
    sent = read(line("总计"), line("b", page=2))
    sent.pages.add(number=1, width=100, height=50)
    sent.timing.detect.queue_ms = 3.5
    sent.detector.settings["max_side"] = "960"
    assert result_from(result_to_json(sent), "j1", {"content-type": b"application/json"}) == sent
    assert result_from(sent.SerializeToString(), "j1", {"content-type": b"application/x-protobuf"}) == sent


def test_a_failed_result_survives_the_way_through_kafka() -> None:
    sent = formats.failure("a", "j", "EMPTY_INPUT", "no bytes")
    assert result_from(result_to_json(sent), "j", {}) == sent


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"lines": 3}', b'{"status": "new"}', b"\xff"])
def test_a_record_that_is_no_result_fails_its_job_only(value: bytes) -> None:
    result = result_from(value, "j7", {})
    assert (result.job_id, result.status, result.error.code) == ("j7", pb.FAILED, pb.INTERNAL)


def test_a_dead_letter_becomes_a_failed_result_with_its_reason() -> None:
    headers = {
        "file": b"bad.jpg",
        "dlq-reason": b"CORRUPT_INPUT",
        "dlq-message": b"damaged",
        "dlq-job-id": b"j9",
    }
    assert dead_letter("key", headers) == formats.failure("bad.jpg", "j9", "CORRUPT_INPUT", "damaged")


def test_a_dead_letter_of_strangers_is_still_shown() -> None:
    result = dead_letter("key", {"dlq-reason": b"SOMETHING_NEW"})
    assert (result.job_id, result.error.code) == ("key", pb.INTERNAL)
