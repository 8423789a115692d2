import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.batch_queue import Priority
from services.common.errors import CorruptInput, EmptyInput, InvalidJob, UnsupportedFormat
from services.common.pb import ocr_pb2 as pb
from services.gateway.jobs import (
    DeadLetterHeader,
    Failure,
    Message,
    Record,
    dead_letter,
    header,
    job_id_of,
    parse,
    result_message,
    without_original,
    without_value,
)

TRACE = (("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),)


def record(value=b"jpeg", key=b"slip-1", headers=(), **changes):
    return Record("ocr.jobs", 3, 41, 1_700_000_000_000, key, value, tuple(headers), **changes)


def as_json(**job):
    return record(json.dumps(job).encode(), headers=[("content-type", b"application/json")])


@pytest.mark.parametrize(
    "content_type",
    [None, b"", b"image/jpeg", b"IMAGE/TIFF; q=1", b"application/pdf", b"application/octet-stream"],
)
def test_a_document_is_taken_as_it_is(content_type):
    headers = [] if content_type is None else [("Content-Type", content_type)]
    order = parse(record(headers=[*headers, ("file", "收据.jpg".encode())]))
    assert order.job == pb.Job(job_id="slip-1", file="收据.jpg", content=b"jpeg")
    assert (order.priority, order.expires_ms) == (Priority.BULK, None)


def test_a_job_in_json_is_read_by_the_rules_of_the_contract():
    order = parse(
        as_json(
            job_id="from-body",
            file="a.png",
            content=base64.b64encode(b"png").decode(),
            options={"priority": "ONLINE", "deadline_ms": 500},
        )
    )
    assert (order.job.content, order.job.job_id, order.job.file) == (b"png", "from-body", "a.png")
    assert (order.priority, order.expires_ms) == (Priority.ONLINE, 1_700_000_000_500)


@pytest.mark.parametrize(
    ("bad", "error", "names"),
    [
        (record(None), EmptyInput, "no value"),
        (record(b""), EmptyInput, "no value"),
        (as_json(uri="file:///a.jpg", colour="red"), InvalidJob, "colour"),
        (as_json(file="a.jpg"), InvalidJob, "neither"),
        (record(b"\xff{", headers=[("content-type", b"application/json")]), InvalidJob, "UTF-8"),
        (record(headers=[("content-type", b"text/plain")]), UnsupportedFormat, "text/plain"),
        (as_json(uri="file:///a.doc", content_type="application/msword"), UnsupportedFormat, "msword"),
        (as_json(uri="file:///a.jpg", sha256="abc"), InvalidJob, "64 hexadecimal"),
    ],
)
def test_what_is_no_job_is_a_typed_error_that_names_it(bad, error, names):
    with pytest.raises(error, match=names):
        parse(bad)


def test_a_deadline_without_a_timestamp_is_refused():
    job = as_json(uri="file:///a.jpg", options={"deadline_ms": 5})
    with pytest.raises(InvalidJob, match="timestamp"):
        parse(Record("t", 0, 0, -1, None, job.value, job.headers))


@pytest.mark.parametrize(
    ("key", "headers", "job_id", "why"),
    [
        (b"k", [("job-id", b"h")], "h", "the header wins"),
        (b"k", [("job-id", b"a"), ("job-id", b"b")], "b", "the last header counts, as everywhere in Kafka"),
        (b"k", [("job-id", b"\xff\x01")], "ff01", "a header that is no UTF-8 in hexadecimal, as a key"),
        (b"k", [("job-id", b"a\nb")], "610a62", "so is one that cannot be printed"),
        (b"k", [("job-id", b" h\n")], "h", "space around it does not count"),
        (b"k", [("job-id", b" ")], "k", "an empty header names nothing"),
        (b"k", [], "k", "else the key"),
        (b"\x00\x00\x00\x07", [], "00000007", "a binary key in hexadecimal"),
        (b"\xff\xfe", [], "fffe", "no UTF-8 either"),
        (b"", [], "ocr.jobs-3-41", "an empty key names nothing"),
        (None, [], "ocr.jobs-3-41", "else where it lay"),
    ],
)
def test_the_name_of_a_job(key, headers, job_id, why):
    assert job_id_of(record(key=key, headers=headers)) == job_id, why


@given(
    key=st.none() | st.binary(max_size=2000),
    named=st.none() | st.binary(max_size=300),
    offset=st.integers(0, 2**62),
)
def test_every_record_has_a_short_printable_name_and_always_the_same(key, named, offset):
    headers = () if named is None else (("job-id", named),)
    first, second = (job_id_of(Record("t", 0, offset, 0, key, None, headers)) for _ in range(2))
    assert first == second
    assert first.isprintable()
    assert 1 <= len(first) <= 256


def test_a_result_carries_what_a_reader_needs_before_it_opens_the_value():
    result = pb.Result(job_id="slip-1", status=pb.PARTIAL)
    message = result_message(result, "ocr.results", "json", TRACE)
    assert (message.topic, message.key) == ("ocr.results", b"slip-1")
    assert json.loads(message.value)["status"] == "partial"
    assert dict(message.headers) == {
        "job-id": b"slip-1",
        "content-type": b"application/json",
        "status": b"partial",
        **dict(TRACE),
    }


def test_a_result_in_protobuf_is_the_message_itself():
    result = pb.Result(job_id="x", status=pb.OK)
    message = result_message(result, "ocr.results", "protobuf", ())
    assert pb.Result.FromString(message.value) == result
    assert header(message.headers, "content-type") == "application/x-protobuf"


FAILURE = Failure(CorruptInput("cut " + "x" * 5000), "recognize", 2, 1_700_000_000_000, 1_700_000_001_500)


def letter_of(bad, failure=FAILURE) -> Message:
    return dead_letter(bad, failure, "ocr.jobs.dlq", "ocr-gateway", "0.1.0", TRACE)


def test_a_dead_letter_keeps_the_record_and_adds_why():
    original = (("traceparent", b"00-theirs"), ("twice", b"1"), ("twice", b"2"))
    letter = letter_of(record(b"\xff\xd8", b"\x00k", original))
    assert (letter.topic, letter.key, letter.value) == ("ocr.jobs.dlq", b"\x00k", b"\xff\xd8")
    assert letter.headers[: len(original)] == original
    assert {name: value.decode() for name, value in letter.headers[len(original) :]} == {
        "dlq-reason": "CORRUPT_INPUT",
        "dlq-message": "cut " + "x" * 996,
        "dlq-stage": "recognize",
        "dlq-attempts": "2",
        "dlq-job-id": "006b",
        "dlq-origin-topic": "ocr.jobs",
        "dlq-origin-partition": "3",
        "dlq-origin-offset": "41",
        "dlq-origin-timestamp": "2023-11-14T22:13:20.000Z",
        "dlq-group": "ocr-gateway",
        "dlq-service-version": "0.1.0",
        "dlq-redrive-count": "0",
        "dlq-first-failure": "2023-11-14T22:13:20.000Z",
        "dlq-last-failure": "2023-11-14T22:13:21.500Z",
        "dlq-traceparent": TRACE[0][1].decode(),
    }


@pytest.mark.parametrize("shrink", [lambda letter: letter, without_value, without_original])
def test_how_often_a_job_was_sent_back_stays_with_it_whatever_must_be_left_out(shrink):
    letter = shrink(letter_of(record(headers=[("redrive-count", b"2")])))
    assert header(letter.headers, DeadLetterHeader.REDRIVES) == "2"


def test_a_dead_letter_without_its_value_says_how_much_is_missing():
    letter = without_value(letter_of(record(b"x" * 7)))
    assert letter.value is None
    assert header(letter.headers, DeadLetterHeader.VALUE_DROPPED) == "7"


@pytest.mark.parametrize("shrink", [lambda letter: letter, without_value, without_original])
@pytest.mark.parametrize("value", [None, b"", b"x"])
def test_a_dead_letter_always_has_a_key_or_a_value(shrink, value):
    letter = shrink(letter_of(record(value, None)))
    assert letter.key is not None or letter.value is not None


def test_the_last_resort_keeps_only_our_headers():
    letter = without_original(without_value(letter_of(record(headers=[("big", b"x" * 9999)]))))
    assert {name for name, _ in letter.headers} == {str(name) for name in DeadLetterHeader}
