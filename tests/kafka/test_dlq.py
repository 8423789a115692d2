"""`ocrctl dlq` against a real broker: letters as the gateway writes them, jobs as it reads them."""

import hashlib
import json

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from services.cli.__main__ import app
from services.common.errors import CorruptInput, Internal, OcrError
from services.gateway import jobs

pytestmark = pytest.mark.kafka
TRACE = (("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),)


class Desk:
    """The operator's terminal, and the gateway's way of burying a job."""

    def __init__(self, town):
        self.town, self.options = town, town.options
        self._producer = KafkaProducer(
            bootstrap_servers=town.broker.bootstrap, max_request_size=8 << 20, linger_ms=0
        )

    def close(self):
        self._producer.close()

    async def job(self, value, *, key=None, headers=()):
        """A record on the jobs topic, as the gateway reads it."""
        partition, offset = await self.town.send(value, partition=0, key=key, headers=headers)
        return jobs.Record(self.options.jobs_topic, partition, offset, 0, key, value, tuple(headers))

    def bury(self, record, error: OcrError, shrink=lambda letter: letter):
        failure = jobs.Failure(error, "recognize", 1, 0, 0)
        letter = shrink(jobs.dead_letter(record, failure, self.options.dlq_topic, "g", "1", TRACE))
        sent = self._producer.send(
            letter.topic, letter.value, letter.key, headers=list(letter.headers), partition=0
        )
        return f"0:{sent.get(timeout=20).offset}"

    def run(self, command, *flags, code=0, answer=None):
        topics = {"OCR_JOBS_TOPIC": self.options.jobs_topic, "OCR_DLQ_TOPIC": self.options.dlq_topic}
        kafka = ("--kafka", self.town.broker.bootstrap)
        done = CliRunner().invoke(app, ["dlq", command, *flags, *kafka], input=answer, env=topics)
        assert done.exit_code == code, done.output
        return done.stdout

    def list(self, *flags):
        return [json.loads(line) for line in self.run("list", "-f", "jsonl", *flags).splitlines()]

    async def jobs(self, count):
        return await self.town.read(self.options.jobs_topic, lambda found: len(found) >= count)


@pytest.fixture
async def desk(make_town):
    desk = Desk(await make_town(partitions=1))
    yield desk
    desk.close()


async def test_letters_are_listed_by_what_is_asked_for(desk):
    assert desk.list() == []
    first = desk.bury(await desk.job(b"a", key=b"one"), CorruptInput("cut"))
    second = desk.bury(await desk.job(b"bb", headers=[("job-id", b"two")]), Internal("odd"))
    assert [(one["letter"], one["reason"], one["job_id"], one["size"]) for one in desk.list()] == [
        (first, "CORRUPT_INPUT", "one", 1),
        (second, "INTERNAL", "two", 2),
    ]
    asked = {
        ("--reason", "internal"): [second],
        ("--job-id", "one"): [first],
        ("--letter", second): [second],
        ("--limit", "1"): [first],
        ("--since", "1h"): [first, second],
        ("--since", "2100-01-01"): [],
        ("--until", "1h"): [],
    }
    for flags, places in asked.items():
        assert [one["letter"] for one in desk.list(*flags)] == places, flags
    heading, *lines = [line.split() for line in desk.run("list").splitlines()]
    assert heading == ["letter", "time", "(UTC)", "reason", "job", "bytes", "redrives", "message"]
    assert [line[3:] for line in lines] == [
        ["CORRUPT_INPUT", "one", "1", "0", "cut"],
        ["INTERNAL", "two", "2", "0", "odd"],
    ]


async def test_one_letter_is_shown_with_all_it_says_and_its_document_saved(desk, tmp_path):
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
    place = desk.bury(await desk.job(png, key=b"k", headers=[("x", b"\xff\x1b[2J")]), CorruptInput("cut"))
    saved = tmp_path / "slip.png"
    text = desk.run("show", place, "--save", str(saved))
    assert saved.read_bytes() == png
    for part in ("CORRUPT_INPUT: cut", "208 bytes, PNG", "dlq-stage: recognize", "x: \\xff\\x1b[2J"):
        assert part in text
    assert "\x1b" not in text
    desk.run("show", place, "--save", str(saved), code=2)
    assert json.loads(desk.run("show", place, "-f", "jsonl"))["headers"]["dlq-reason"] == "CORRUPT_INPUT"
    desk.run("show", "0:99", code=1)


async def test_a_job_goes_back_once_as_it_came(desk):
    original = await desk.job(b"jpeg", headers=[("content-type", b"image/jpeg"), ("x", b"\xff")])
    desk.bury(original, Internal("odd"))
    assert "would send 0:0" in desk.run("redrive", "--dry-run")
    desk.run("redrive", answer="n\n", code=1)
    assert "sent 0:0" in desk.run("redrive", answer="y\n")
    assert desk.run("redrive", "--yes") == ""
    _, again = await desk.jobs(2)
    assert (again.key, again.value) == (None, b"jpeg")
    assert again.headers == (
        *original.headers,
        ("job-id", jobs.job_id_of(original).encode()),
        ("redrive-count", b"1"),
    )
    assert desk.list()[0]["redriven"] is not None


async def test_a_job_that_fails_again_and_again_stays_in_the_end(desk):
    record = await desk.job(b"jpeg", key=b"slip-1")
    for count in (1, 2):
        desk.bury(record, Internal("odd"))
        desk.run("redrive", "--yes", "--max-redrives", "2")
        found = (await desk.jobs(1 + count))[-1]
        assert jobs.header(found.headers, "redrive-count") == str(count)
        record = jobs.Record(found.topic, 0, count, 0, found.key, found.value, found.headers)
    desk.bury(record, Internal("odd"))
    assert "sent" not in desk.run("redrive", "--yes", "--max-redrives", "2", code=1)
    assert [one["redrives"] for one in desk.list()] == [0, 1, 2]
    assert jobs.job_id_of(record) == "slip-1"


async def test_only_what_is_asked_for_goes_back_and_the_rest_can_go_later(desk):
    for number in range(6):
        error = Internal("odd") if number % 2 else CorruptInput("cut")
        desk.bury(await desk.job(b"x", key=b"%d" % number), error)
    desk.run("redrive", "--yes", "--reason", "INTERNAL", "--limit", "2", "--rate", "1000")
    desk.run("redrive", "--yes", "--reason", "INTERNAL")
    desk.run("redrive", "--yes", "--letter", "0:4")
    assert [message.key for message in (await desk.jobs(10))[6:]] == [b"1", b"3", b"5", b"4"]
    assert [one["redriven"] is not None for one in desk.list()] == [False, True, False, True, True, True]


async def test_a_value_that_did_not_fit_is_fetched_from_where_it_came(desk, tmp_path):
    large = bytes(range(256)) * 500
    original = await desk.job(large, key=b"k", headers=[("x", b"1")])
    lost = jobs.Record(original.topic, 0, 99, 0, b"gone", b"gone", ())
    desk.bury(original, Internal("odd"), lambda letter: jobs.without_original(jobs.without_value(letter)))
    desk.bury(lost, Internal("odd"), jobs.without_value)
    desk.run("show", "0:0", "--save", str(tmp_path / "saved"))
    assert hashlib.sha256((tmp_path / "saved").read_bytes()).digest() == hashlib.sha256(large).digest()
    assert "0:1" not in desk.run("redrive", "--yes", code=1)
    _, again = await desk.jobs(2)
    assert (again.key, again.value) == (b"k", large)
    assert again.headers == (("x", b"1"), ("redrive-count", b"1"))


async def test_letters_of_transactions_are_read_to_their_end(desk):
    record = await desk.job(b"jpeg", key=b"k")
    producer = KafkaProducer(
        bootstrap_servers=desk.town.broker.bootstrap, transactional_id=desk.options.group
    )
    try:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            failure = jobs.Failure(Internal("odd"), "recognize", 1, 0, 0)
            letter = jobs.dead_letter(record, failure, desk.options.dlq_topic, "g", "1", TRACE)
            producer.send(letter.topic, letter.value, letter.key, headers=list(letter.headers)).get(
                timeout=20
            )
            end()
    finally:
        producer.close()
    shown = [one["letter"] for one in desk.list()]
    assert shown == ["0:0"] or not desk.town.broker.is_apache, "the embedded broker shows what was taken back"
    desk.run("redrive", "--yes", "--letter", "0:0")
