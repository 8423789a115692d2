"""The command's own small Kafka client: sends documents, and waits for what is said about them.

It reads without a consumer group, by explicit assignment from positions taken before the first document is
sent, so that it disturbs nobody's offsets and misses no answer. A broker may report an end that is too low
(the embedded one does); then older records are read as well, and are told apart by their key, the job id.
"""

import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanKind

from services.cli import answers, documents
from services.cli.dead_letters import Headers, RawRecord
from services.cli.documents import MAX_MESSAGE_BYTES, display_name
from services.cli.errors import CliError, Unreachable
from services.cli.formats import failure, not_readable
from services.cli.state import Address
from services.common import telemetry
from services.common.errors import DocumentTooLarge
from services.common.pb import ocr_pb2 as pb

MAX_RESULT_BYTES = MAX_MESSAGE_BYTES - (1 << 20)  # beside it the key, the headers and Kafka's own
UNACKNOWLEDGED = 16  # documents on their way to the broker, which are also those held in memory
CONNECT_TIMEOUT_S = 5.0
FETCH_BYTES = 8 << 20  # at once; a larger record comes all the same, alone
SILENT_S = 30.0  # without a record for so long, and not at the end, the broker has a trouble of its own
QUIET_S = 1.0  # without a record for so long a topic counts as read to its end
POLL_MS = 200


@dataclass(frozen=True)
class Topics:
    """Names of the three topics."""

    jobs: str = "ocr.jobs"
    results: str = "ocr.results"
    dead_letters: str = "ocr.jobs.dlq"


def new_job_id() -> str:
    """A name that nobody else has."""
    return secrets.token_hex(12)


class Kafka:
    """Connections to the broker, made when needed. Not thread-safe: kafka-python's consumer is not."""

    def __init__(self, address: Address, topics: Topics) -> None:
        self._address = address
        self._topics = topics
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Kafka":
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters is raised, and said in our words
        require_broker(self._address)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from kafka.errors import KafkaError

        self._stack.close()
        if isinstance(error, KafkaError):
            raise Unreachable(f"The Kafka broker at {self._address.target} failed: {error}.") from None

    # -- sending

    def submit(self, files: Sequence[Path], job_ids: Sequence[str]) -> Iterator[tuple[int, pb.Result | None]]:
        """Send each file; yields its number, with a failure where it could not be read or was not taken.

        Yields None only after the broker has acknowledged the document.
        """
        producer = self._producer()
        waiting: list[tuple[int, Any]] = []
        for index, path in enumerate(files):
            try:
                waiting.append((index, self._send(producer, path, job_ids[index])))
            except (OSError, DocumentTooLarge) as error:
                yield index, not_readable(path, job_ids[index], error)
            if len(waiting) >= UNACKNOWLEDGED:
                yield self._acknowledged(waiting.pop(0), files, job_ids)
        for sent in waiting:
            yield self._acknowledged(sent, files, job_ids)

    def _send(self, producer: Any, path: Path, job_id: str) -> Any:
        from kafka.errors import KafkaError

        topic, kind = self._topics.jobs, documents.content_type(path)
        headers = [("content-type", kind.encode()), ("file", display_name(path).encode())]
        content = documents.read(path)
        with telemetry.tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER):
            try:
                return producer.send(topic, content, job_id.encode(), headers + trace_headers())
            except KafkaError as error:
                return error

    def _acknowledged(
        self, sent: tuple[int, Any], files: Sequence[Path], job_ids: Sequence[str]
    ) -> tuple[int, pb.Result | None]:
        from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

        index, outcome = sent
        name = display_name(files[index])
        try:
            if isinstance(outcome, KafkaError):
                raise outcome
            outcome.get(timeout=30)
        except (MessageSizeTooLargeError, RecordListTooLargeError):
            why = (
                f"{name} is too large for topic {self._topics.jobs}: raise its max.message.bytes; `ocrctl "
                "recognize` takes documents up to the gateway's max_document_mb, 32 MiB unless set otherwise"
            )
            return index, failure(name, job_ids[index], "DOCUMENT_TOO_LARGE", why)
        except KafkaError as error:
            where = f"The broker at {self._address.target}"
            raise Unreachable(f"{where} did not take {name}: {error}.") from None
        return index, None

    def _producer(self) -> Any:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            **self._connection(),
            max_request_size=MAX_MESSAGE_BYTES,
            max_block_ms=10_000,
            delivery_timeout_ms=30_000,
            request_timeout_ms=20_000,
        )
        self._stack.callback(producer.close, timeout=5)
        return producer

    def _connection(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._address.target.split(","),
            "client_id": "ocrctl",
            "metrics_enabled": False,
        }

    def sender(self) -> Callable[[str, bytes | None, bytes | None, Headers], None]:
        """What sends a record (topic, key, value, headers) as it is and returns when the broker has it."""
        from kafka.errors import KafkaError

        producer = self._producer()

        def send(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
            try:
                producer.send(topic, value, key, headers=list(headers)).get(timeout=30)
            except KafkaError as error:
                raise Unreachable(
                    f"The broker at {self._address.target} did not take a record for {topic}: {error}."
                ) from None

        return send

    # -- reading

    def listen(self, *, from_beginning: bool) -> "Answers":
        """Stand at the end (or the beginning) of results and dead letters."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            **self._connection(), group_id=None, enable_auto_commit=False, fetch_max_wait_ms=100,
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES, isolation_level="read_committed",
        )  # fmt: skip
        self._stack.callback(consumer.close)
        partitions = [
            TopicPartition(topic, number)
            for topic in (self._topics.results, self._topics.dead_letters)
            for number in self._partitions(consumer, topic)
        ]
        consumer.assign(partitions)
        start = consumer.beginning_offsets(partitions) if from_beginning else consumer.end_offsets(partitions)
        for partition, offset in start.items():
            consumer.seek(partition, offset)
        return Answers(consumer, self._topics)

    def records(
        self, topic: str, *, since_ms: int | None = None, starts: Mapping[int, int] | None = None
    ) -> Iterator[RawRecord]:
        """What a topic holds now, each partition in its order; what a transaction took back is left out.

        `since_ms`: of those no older, in milliseconds since 1970. `starts`: only these partitions, each from
        this offset on.
        """
        from kafka import TopicPartition

        consumer = self._whole_reader()
        numbers = self._partitions(consumer, topic) if starts is None else starts
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        for partition, offset in consumer.beginning_offsets(partitions).items():
            consumer.seek(partition, max(offset, (starts or {}).get(partition.partition, 0)))
        if since_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
            for partition, at in found.items():
                consumer.seek(partition, at.offset if at is not None else ends[partition])
        return self._to_the_end(consumer, ends)

    def record_at(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """The record that lies there; None when there is none, or no longer."""
        if not self.has_topic(topic):
            return None
        found = next(self.records(topic, starts={partition: offset}), None)
        return found if found is not None and found.offset == offset else None

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; asking does not make it."""
        return topic in self._whole_reader().topics()

    def _whole_reader(self) -> Any:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            **self._connection(), group_id=None, enable_auto_commit=False, fetch_max_wait_ms=100,
            max_partition_fetch_bytes=FETCH_BYTES, fetch_max_bytes=FETCH_BYTES, max_poll_records=20,
            isolation_level="read_committed",
        )  # fmt: skip
        self._stack.callback(consumer.close)
        return consumer

    def _to_the_end(self, consumer: Any, ends: Mapping[Any, int]) -> Iterator[RawRecord]:
        """All records up to `ends`, and what comes at once after that, for a reported end may be too low."""
        heard = time.monotonic()
        at_end_since: float | None = None
        while True:
            batches = consumer.poll(timeout_ms=POLL_MS)
            for record in (record for records in batches.values() for record in records):
                yield _raw(record)
            now = time.monotonic()
            heard = now if batches else heard
            if at_end_since is None and all(consumer.position(p) >= end for p, end in ends.items()):
                at_end_since = now
            if at_end_since is not None and (not batches or now - at_end_since > QUIET_S):
                return
            if now - heard > SILENT_S:
                where = f"The broker at {self._address.target}"
                raise Unreachable(f"{where} gave no more records for {SILENT_S:g} s, before the end of them.")

    def _partitions(self, consumer: Any, topic: str) -> Iterable[int]:
        found = consumer.partitions_for_topic(topic)
        if not found:
            raise CliError(
                f"The broker at {self._address.target} has no topic {topic}: "
                "create it, or let `ocrctl up --kafka HOST:PORT` do so."
            )
        numbers: Iterable[int] = sorted(found)
        return numbers


def _raw(record: Any) -> RawRecord:
    where = (record.topic, record.partition, record.offset, record.timestamp)
    return RawRecord(*where, record.key, record.value, tuple(record.headers or ()))


class Answers:
    """Results and dead letters as they come, both as results."""

    def __init__(self, consumer: Any, topics: Topics) -> None:
        self._consumer = consumer
        self._topics = topics

    def poll(self) -> list[pb.Result]:
        """What has come; waits a moment when there is nothing."""
        batches = self._consumer.poll(timeout_ms=POLL_MS)
        return [self._read(record) for records in batches.values() for record in records]

    def _read(self, record: Any) -> pb.Result:
        headers = dict(record.headers or ())
        key = (record.key or b"").decode(errors="replace")
        if record.topic == self._topics.dead_letters:
            return answers.dead_letter(key, headers)
        return answers.result_from(record.value or b"", key, headers)


def submit_and_wait(
    kafka: Kafka,
    files: Sequence[Path],
    job_ids: Sequence[str],
    *,
    timeout_s: float,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, pb.Result]]:
    """Each file's number and result, as they come; `timeout_s` without any answer fails the rest.

    `give_up` is asked every moment, and fails the rest at once when it says so.
    """
    heard_from = kafka.listen(from_beginning=False)
    awaited = {job_id: index for index, job_id in enumerate(job_ids)}
    for index, refused in kafka.submit(files, job_ids):
        if refused is not None:
            del awaited[job_ids[index]]
            yield index, refused
    heard = time.monotonic()
    while awaited and time.monotonic() - heard < timeout_s and not give_up():
        for result in heard_from.poll():
            if (number := awaited.pop(result.job_id, None)) is not None:
                heard = time.monotonic()
                result.file = display_name(files[number])
                yield number, result
    for job_id, index in awaited.items():
        why = f"no result for {timeout_s:g} s; is a gateway running? `ocrctl results` shows late ones"
        yield index, failure(display_name(files[index]), job_id, "DEADLINE_EXCEEDED", why)


def all_answers(kafka: Kafka, *, follow: bool, from_beginning: bool) -> Iterator[pb.Result]:
    """What the topics hold, or what comes from now on; without `follow` it ends with what is there."""
    heard_from = kafka.listen(from_beginning=from_beginning or not follow)
    heard = time.monotonic()
    while follow or time.monotonic() - heard < QUIET_S:
        for result in heard_from.poll():
            heard = time.monotonic()
            yield result


def trace_headers() -> list[tuple[str, bytes]]:
    """The current trace; a new one where none is recorded here, so that all logs carry one id."""
    current = telemetry.inject_headers()
    if any(name == "traceparent" for name, _ in current):
        return current
    return [("traceparent", f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01".encode())]


# -- broker and topics


def require_broker(address: Address) -> None:
    """Raise `Unreachable` when nobody listens; kafka-python by itself would try for much longer."""
    for target in address.target.split(","):
        host, _, port = target.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
            return
    raise Unreachable(
        f"No Kafka broker answers at {address.target} (from {address.origin}): start one with `ocrctl up`, "
        "or say where it is with --kafka HOST:PORT or OCR_KAFKA."
    )


def create_topics(address: Address, topics: Topics, *, partitions: int) -> list[str]:
    """Create those of the topics that are missing; returns their names."""
    names = {topics.jobs, topics.results, topics.dead_letters}
    return _create(address, names, partitions, 1, {"max.message.bytes": str(MAX_MESSAGE_BYTES)})


def create_notes(address: Address, topic: str) -> None:
    """Create the topic of what was sent back, unless it is there: small, and kept for ever."""
    _create(address, {topic}, 1, -1, {"cleanup.policy": "compact"})


def _create(
    address: Address, names: Set[str], partitions: int, replicas: int, configs: dict[str, str]
) -> list[str]:
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    require_broker(address)
    servers = address.target.split(",")
    try:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers, client_id="ocrctl")) as admin:
            missing = sorted(names - set(admin.list_topics()))
            wanted = [NewTopic(name, partitions, replicas, topic_configs=configs) for name in missing]
            if wanted:
                with contextlib.suppress(TopicAlreadyExistsError):  # somebody else was faster
                    admin.create_topics(wanted)
    except KafkaError as error:
        raise CliError(f"The broker at {address.target} did not create the topics: {error}.") from None
    return missing
