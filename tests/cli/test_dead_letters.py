"""What a dead letter says, which are meant, and what goes back: against what the gateway writes and reads."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import dead_letters
from services.cli.dead_letters import Filter, RawRecord
from services.cli.dlq import Pace
from services.cli.errors import UsageError
from services.common.errors import CorruptInput, DeadlineExceeded, OcrError
from services.gateway import jobs

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def job(key=b"slip-1", value=b"jpeg", headers=(), offset=41):
    return jobs.Record("ocr.jobs", 3, offset, 1_700_000_000_000, key, value, tuple(headers))


def buried(record, error: OcrError | None = None, *, offset=7, shrink=lambda letter: letter, trace=()):
    """A record of the dead letters as the gateway writes it."""
    failure = jobs.Failure(error or CorruptInput("cut"), "recognize", 2, 0, 1)
    message = shrink(jobs.dead_letter(record, failure, "ocr.jobs.dlq", "g", "1", ()))
    return RawRecord(message.topic, 1, offset, 1_700_000_009_000, message.key, message.value,
                     (*message.headers, *trace))  # fmt: skip


def sent_back(letter: RawRecord, place: int) -> jobs.Record:
    """What the gateway reads after the letter was sent back."""
    found = dead_letters.letter(letter)
    headers = dead_letters.own_headers(letter.headers)
    original = RawRecord("ocr.jobs", 3, 41, 0, letter.key, letter.value, headers)
    return job(letter.key, letter.value, dead_letters.job_of(found, original), offset=place)


def test_a_letter_says_what_the_gateway_wrote():
    found = dead_letters.letter(buried(job(headers=[("file", "收.png".encode())])))
    assert (found.place, found.reason, found.message, found.stage) == (
        "1:7",
        "CORRUPT_INPUT",
        "cut",
        "recognize",
    )
    assert (found.job_id, found.file, found.attempts, found.redrives) == ("slip-1", "收.png", "2", 0)
    assert (found.origin_topic, found.origin_partition, found.origin_offset) == ("ocr.jobs", 3, 41)
    assert (found.size, found.dropped) == (4, 0)
    assert found.time == datetime(2023, 11, 14, 22, 13, 29, tzinfo=UTC)


def test_a_letter_whose_value_did_not_fit_says_how_large_it_was():
    found = dead_letters.letter(buried(job(), shrink=jobs.without_value))
    assert (found.size, found.dropped) == (0, 4)
    assert dead_letters.as_record(found, None)["size"] == 4


def test_what_another_program_wrote_has_no_reason_and_is_not_sent_back():
    found = dead_letters.letter(RawRecord("ocr.jobs.dlq", 0, 1, -1, None, None, (("dlq-attempts", b"\xff"),)))
    assert (found.reason, found.origin_offset) == ("", -1)
    assert "came from topic (none)" in dead_letters.why_not(found, "ocr.jobs", 3)


@given(
    key=st.none() | st.binary(max_size=300),
    named=st.none() | st.binary(max_size=300),
    body=st.sampled_from([b"jpeg", b'{"uri":"file:///a","job_id":"of-body"}', b"{", b""]),
    kind=st.sampled_from([b"image/png", b"application/json"]),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["file", "x", "traceparent", "dlq-reason", "dlq-job-id"]), st.binary(max_size=5)
        )
    ),
)
def test_a_job_that_is_sent_back_has_value_key_headers_and_id_as_before(key, named, body, kind, headers):
    own = (*headers, ("content-type", kind), *(() if named is None else (("job-id", named),)))
    first = job(key, body, own)
    letter = buried(first, trace=() if any(n == "traceparent" for n, _ in own) else (("traceparent", b"t"),))
    again = sent_back(letter, place=99)
    assert again.value == first.value
    assert again.headers[: len(own)] == own
    assert {name for name, _ in again.headers[len(own) :]} <= {"job-id", "redrive-count"}
    if first.key is not None or first.value is not None:
        assert again.key == first.key
    assert jobs.job_id_of(again) == dead_letters.letter(letter).job_id
    assert dead_letters.letter(buried(again)).job_id == dead_letters.letter(letter).job_id


def test_each_time_a_job_is_sent_back_is_counted_until_it_stays():
    record, counts = job(key=None, headers=[("x", b"1")]), []
    while True:
        letter = buried(record)
        found = dead_letters.letter(letter)
        counts.append(found.redrives)
        if why := dead_letters.why_not(found, "ocr.jobs", 3):
            break
        record = sent_back(letter, place=100 + len(counts))
    assert counts == [0, 1, 2, 3]
    assert "sent back 3 times" in why
    assert [name for name, _ in record.headers] == ["x", "job-id", "redrive-count"]
    assert jobs.job_id_of(record) == "ocr.jobs-3-41"


def test_a_letter_of_another_topic_stays():
    found = dead_letters.letter(buried(job()))
    assert dead_letters.why_not(found, "ocr.jobs", 3) is None
    assert "ocr.jobs, not from other" in dead_letters.why_not(found, "other", 3)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"places": ["1:7"]}, True),
        ({"places": ["01:007"]}, True),
        ({"places": ["1:8", "2:7"]}, False),
        ({"reasons": ["corrupt_input"]}, True),
        ({"reasons": ["EMPTY_INPUT", "CORRUPT_INPUT"]}, True),
        ({"reasons": ["EMPTY_INPUT"]}, False),
        ({"job_ids": ["slip-1"]}, True),
        ({"job_ids": ["slip-2"]}, False),
        ({"since": "2023-11-14T22:13:29Z"}, True),
        ({"since": "2023-11-14T22:13:30"}, False),
        ({"until": "2023-11-14T22:13:29"}, False),
        ({"until": "2023-11-15"}, True),
        ({"until": "2023-11-14T23:13:29.5+01:00"}, True),
        ({"since": "1h"}, False),
        ({"reasons": ["CORRUPT_INPUT"], "job_ids": ["slip-2"]}, False),
    ],
)
def test_which_letters_are_meant(options, taken):
    nothing = {"places": [], "reasons": [], "job_ids": [], "since": None, "until": None}
    wanted = dead_letters.checked_filter(**{**nothing, **options}, now=NOW)
    assert wanted.takes(dead_letters.letter(buried(job()))) is taken


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reasons": ["CORUPT"]}, "CORUPT; there are EMPTY_INPUT"),
        ({"places": ["7"]}, "PARTITION:OFFSET"),
        ({"places": ["-1:7"]}, "PARTITION:OFFSET"),
        ({"since": "yesterday"}, "is no time"),
        ({"since": "2"}, "is no time"),
        ({"until": "h"}, "is no time"),
        ({"until": "99999999999d"}, "is no time"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, says):
    nothing = {"places": [], "reasons": [], "job_ids": [], "since": None, "until": None}
    with pytest.raises(UsageError, match=says):
        dead_letters.checked_filter(**{**nothing, **options}, now=NOW)


@pytest.mark.parametrize(
    ("text", "ago"), [("90s", {"seconds": 90}), ("30m", {"minutes": 30}), ("7d", {"days": 7})]
)
def test_how_long_ago_is_understood(text, ago):
    assert dead_letters.moment(text, NOW) == NOW - timedelta(**ago)


def test_the_oldest_come_first_and_no_more_than_wanted():
    records = [RawRecord("d", 0, n, ms, None, b"", ()) for n, ms in enumerate((5, 3, 9, 1))]
    letters = [dead_letters.letter(record) for record in records]
    assert [found.place for found in dead_letters.chosen(letters, 3)] == ["0:3", "0:1", "0:0"]
    assert len(dead_letters.chosen(letters, None)) == 4


def test_a_letter_that_was_sent_back_is_known_again_but_not_one_of_a_topic_made_anew():
    letter = buried(job(), DeadlineExceeded("late"))
    key, value = dead_letters.note_of(dead_letters.letter(letter), NOW)
    notes = dead_letters.notes_from(
        [RawRecord("n", 0, 0, 0, key, value, ()), RawRecord("n", 0, 1, 0, None, b"x", ())]
    )
    assert notes[dead_letters.letter(letter).mark] == "2026-01-31T12:00:00.000Z"
    anew = RawRecord(letter.topic, 1, 7, letter.timestamp_ms + 1, letter.key, letter.value, letter.headers)
    assert dead_letters.letter(anew).mark not in notes


def test_a_letter_is_one_object_of_plain_values():
    shown = dead_letters.as_record(dead_letters.letter(buried(job())), None)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["origin"] == {"topic": "ocr.jobs", "partition": 3, "offset": 41}
    assert (shown["time"], shown["redriven"]) == ("2023-11-14T22:13:29.000Z", None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"\xff\xd8\xff", "ff d8 ff"), (b'{"uri"', '{"uri"'), (b"a\x1b[2J", "61 1b 5b 32 4a"), (b"", "")],
)
def test_how_a_document_begins_is_shown_without_harm_to_a_terminal(value, shown):
    assert dead_letters.beginning(value) == shown
    assert dead_letters.beginning(value + bytes(100)).endswith(" …")


def test_reasons_are_counted():
    letters = [
        dead_letters.letter(buried(job(), error))
        for error in (CorruptInput(), DeadlineExceeded(), CorruptInput())
    ]
    assert dead_letters.reasons(letters) == "2 CORRUPT_INPUT, 1 DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("per_s", "sent", "now", "wait"), [(None, 9, 0, 0), (2, 0, 100, 0), (2, 4, 101, 1), (2, 4, 103, 0)]
)
def test_the_pace_is_kept_from_the_beginning(per_s, sent, now, wait):
    assert Pace(per_s, began=100).wait(sent, now) == wait


def test_a_filter_without_words_takes_all():
    assert Filter().takes(dead_letters.letter(buried(job())))
