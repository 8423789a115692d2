"""Kafka records in, jobs out; results and dead letters in, Kafka messages out. Pure functions.

In: the value is the document itself (`content-type` image/*, application/pdf, application/octet-stream
or none) or a job in JSON (`application/json`). Headers that are read: `content-type`, `job-id`, `file`, and
`redrive-count`, which goes into the dead letter if the job fails again.

Out, `ocr.results`: headers `job-id`, `content-type`, `status`, and the trace context.

Out, `ocr.jobs.dlq`: key, value and headers of the record as they came, and after them the headers of
`DeadLetterHeader`. When the value does not fit the topic it is left out and `dlq-value-dropped` says so.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from services.common.batch_queue import Priority
from services.common.errors import EmptyInput, InvalidJob, OcrError
from services.common.pb import ocr_pb2 as pb
from services.common.records import check_document_type, job_from_json, media_type, result_to_json

Headers = tuple[tuple[str, bytes], ...]
Stage = Literal["parse", "recognize", "publish"]
ResultFormat = Literal["json", "protobuf"]

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/x-protobuf"
REDRIVE_COUNT = "redrive-count"
"""Header of a job that was sent back from the dead letters: how often."""
MAX_JOB_ID = 256
MAX_MESSAGE = 1000
"""Characters of an error message that go into a header."""


@dataclass(frozen=True)
class Record:
    """One Kafka record as it was read. `timestamp_ms` counts from 1970, UTC."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    leader_epoch: int = -1

    @property
    def where(self) -> tuple[str, int]:
        """Its topic and partition."""
        return (self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return _size(self.key, self.value, self.headers)


@dataclass(frozen=True)
class Message:
    """One Kafka record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return _size(self.key, self.value, self.headers)


@dataclass(frozen=True)
class Order:
    """A job with what the batch queues want to know. `expires_ms` counts from 1970, UTC; None: never."""

    job: pb.Job
    priority: Priority
    expires_ms: int | None


class DeadLetterHeader(StrEnum):
    """What a dead letter says beside the original record. Times are RFC 3339, UTC."""

    REASON = "dlq-reason"  # name of the ErrorCode
    MESSAGE = "dlq-message"
    STAGE = "dlq-stage"  # parse, recognize or publish
    ATTEMPTS = "dlq-attempts"
    JOB_ID = "dlq-job-id"
    ORIGIN_TOPIC = "dlq-origin-topic"
    ORIGIN_PARTITION = "dlq-origin-partition"
    ORIGIN_OFFSET = "dlq-origin-offset"
    ORIGIN_TIMESTAMP = "dlq-origin-timestamp"
    GROUP = "dlq-group"
    SERVICE_VERSION = "dlq-service-version"
    REDRIVES = "dlq-redrive-count"  # how often the job was sent back before
    FIRST_FAILURE = "dlq-first-failure"
    LAST_FAILURE = "dlq-last-failure"
    TRACEPARENT = "dlq-traceparent"  # of the failed attempt; the record's own `traceparent` stays
    VALUE_DROPPED = "dlq-value-dropped"  # size of the value in bytes, which was too large for the topic


_OURS = frozenset(str(name) for name in DeadLetterHeader)


@dataclass(frozen=True)
class Failure:
    """Why and when a record was given up. Times in milliseconds since 1970, UTC. `job_id`: if it was read."""

    error: OcrError
    stage: Stage
    attempts: int
    first_ms: int
    last_ms: int
    job_id: str = ""


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(text) for name, text in headers)


def header(headers: Headers, name: str) -> str:
    """Text of the last header of that name, as Kafka has it; empty when there is none."""
    return _last(headers, name).decode("utf-8", "replace").strip()


def _last(headers: Headers, name: str) -> bytes:
    values = [value for found, value in headers if found.lower() == name]
    return values[-1] if values else b""


def job_id_of(record: Record, in_body: str = "") -> str:
    """Name of the job: header `job-id`, else `job_id` in JSON, else the key, else made from where it lies."""
    named = _readable(_last(record.headers, "job-id").strip()) or in_body or _readable(record.key)
    if len(named) > MAX_JOB_ID:
        return hashlib.sha256(named.encode()).hexdigest()
    return named or f"{record.topic}-{record.partition}-{record.offset}"


def _readable(name: bytes | None) -> str:
    """A key or header as text; in hexadecimal what is no text, such as a binary number: no two are one."""
    if not name:
        return ""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name.hex()
    return text if text.isprintable() else name.hex()


def parse(record: Record) -> Order:
    """The job that a record asks for.

    Raises:
        EmptyInput: no value. InvalidJob: bad JSON. UnsupportedFormat: a content type that is not read here.
    """
    if not record.value:
        raise EmptyInput("the Kafka message has no value; put the document, or a job in JSON, there")
    job = _job(record.value, header(record.headers, "content-type"))
    job.job_id = job_id_of(record, job.job_id)
    job.file = header(record.headers, "file") or job.file
    return Order(job, _priority(job), _expiry(job, record.timestamp_ms))


def _job(value: bytes, content_type: str) -> pb.Job:
    if media_type(content_type) == JSON_TYPE:
        return job_from_json(value)
    check_document_type(content_type)
    return pb.Job(content=value)


def _priority(job: pb.Job) -> Priority:
    """Nobody waits at the other end of a topic, unless the job says so."""
    return Priority(job.options.priority) if job.options.priority else Priority.BULK


def _expiry(job: pb.Job, timestamp_ms: int) -> int | None:
    if not job.options.deadline_ms:
        return None
    if timestamp_ms < 0:
        raise InvalidJob("options.deadline_ms counts from the message's timestamp, and it has none; send one")
    return timestamp_ms + job.options.deadline_ms


def result_message(result: pb.Result, topic: str, format_: ResultFormat, trace: Headers) -> Message:
    """The result of a job, keyed by the job's name; `trace` is the context to hand on."""
    as_json = format_ == "json"
    value = result_to_json(result) if as_json else result.SerializeToString()
    headers = {
        "job-id": result.job_id,
        "content-type": JSON_TYPE if as_json else PROTOBUF_TYPE,
        "status": pb.Status.Name(result.status).lower(),
    }
    return Message(topic, result.job_id.encode(), value, _encode(headers) + trace)


def dead_letter(
    record: Record, failure: Failure, topic: str, group: str, version: str, trace: Headers
) -> Message:
    """The record as it came, and why it could not be served."""
    says = DeadLetterHeader
    facts = {
        says.REASON: failure.error.code,
        says.MESSAGE: str(failure.error)[:MAX_MESSAGE],
        says.STAGE: failure.stage,
        says.ATTEMPTS: str(failure.attempts),
        says.JOB_ID: failure.job_id or job_id_of(record),
        says.ORIGIN_TOPIC: record.topic,
        says.ORIGIN_PARTITION: str(record.partition),
        says.ORIGIN_OFFSET: str(record.offset),
        says.ORIGIN_TIMESTAMP: _rfc3339(record.timestamp_ms),
        says.GROUP: group,
        says.SERVICE_VERSION: version,
        says.REDRIVES: header(record.headers, REDRIVE_COUNT) or "0",
        says.FIRST_FAILURE: _rfc3339(failure.first_ms),
        says.LAST_FAILURE: _rfc3339(failure.last_ms),
    }
    parent = tuple((str(says.TRACEPARENT), value) for name, value in trace if name == "traceparent")
    return _keyed(Message(topic, record.key, record.value, record.headers + _encode(facts) + parent))


def without_value(letter: Message) -> Message:
    """A dead letter whose value did not fit its topic; the origin headers say where to find it."""
    dropped = _encode({DeadLetterHeader.VALUE_DROPPED: str(len(letter.value or b""))})
    return _keyed(replace(letter, value=None, headers=letter.headers + dropped))


def without_original(letter: Message) -> Message:
    """The last resort: only our own headers, should the key and headers of the record alone be too large."""
    ours = tuple((name, value) for name, value in letter.headers if name in _OURS)
    return _keyed(replace(letter, key=None, value=None, headers=ours))


def _keyed(letter: Message) -> Message:
    """The client sends no message that has neither key nor value: then the job's name is the key."""
    if letter.key is not None or letter.value is not None:
        return letter
    return replace(letter, key=header(letter.headers, DeadLetterHeader.JOB_ID).encode())


def _encode(headers: Mapping[Any, str]) -> Headers:
    return tuple((str(name), value.encode()) for name, value in headers.items())


def _rfc3339(since_1970_ms: int) -> str:
    if since_1970_ms < 0:
        return ""
    moment = datetime.fromtimestamp(since_1970_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
