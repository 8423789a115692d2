"""The two ends of a run: a thread that sends the jobs, and one that reads what comes out, committed only.

They share no code with the product, and go through the same proxies as the gateways.
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tests.chaos.accounts import Outcome
from tests.chaos.documents import Job

PARTITIONS = 6
LARGEST = 8 << 20
_PATIENCE_MS = 300_000
"""A broker's death must not end the sending, which is no part of what is tested."""
_RETRY_S = 0.5


@dataclass(frozen=True)
class Topics:
    """Names of a run's topics and of its group of gateways."""

    jobs: str
    results: str
    dlq: str
    group: str

    @property
    def flags(self) -> list[str]:
        """What a gateway must be told."""
        named = {"jobs-topic": self.jobs, "results-topic": self.results, "dlq-topic": self.dlq}
        return [
            word for name, value in {**named, "group": self.group}.items() for word in (f"--{name}", value)
        ]


def create_topics(bootstrap: Sequence[str], copies: int) -> Topics:
    """Topics that nobody else uses, with `copies` of each partition."""
    group = f"chaos-{secrets.token_hex(4)}"
    topics = Topics(f"{group}.jobs", f"{group}.results", f"{group}.dlq", group)
    shape = {
        "num_partitions": PARTITIONS,
        "replication_factor": copies,
        "configs": {"max.message.bytes": str(LARGEST)},
    }
    admin = KafkaAdminClient(bootstrap_servers=list(bootstrap))
    try:
        admin.create_topics(
            dict.fromkeys((topics.jobs, topics.results, topics.dlq), shape), wait_for_metadata=True
        )
    finally:
        admin.close()
    return topics


class Feeder:
    """Sends jobs, one at each of `moments` (seconds from the start), or later if it cannot keep up."""

    def __init__(self, bootstrap: Sequence[str], topic: str) -> None:
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=list(bootstrap),
            max_request_size=LARGEST,
            linger_ms=5,
            max_block_ms=_PATIENCE_MS,
            delivery_timeout_ms=_PATIENCE_MS,
        )
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.sent = 0

    def start(self, jobs: Sequence[Job], every_s: float) -> None:
        """Begin to send, in the background."""
        self._thread = threading.Thread(target=self._run, args=(jobs, every_s), name="feeder", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the brokers have all jobs. Raises what went wrong."""
        if self._error is not None:
            raise RuntimeError(f"the jobs could not be sent: {self._error!r}") from self._error
        return self._thread is not None and not self._thread.is_alive()

    def close(self) -> None:
        """Stop sending."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
        self._producer.close(timeout=5)

    def _run(self, jobs: Sequence[Job], every_s: float) -> None:
        try:
            self._send(jobs, every_s)
        except BaseException as error:
            self._error = error

    def _send(self, jobs: Sequence[Job], every_s: float) -> None:
        began, pending = time.monotonic(), []
        for number, job in enumerate(jobs):
            if self._stop.wait(max(0.0, began + number * every_s - time.monotonic())):
                return
            document, key = job.document, job.sent.job_id.encode()
            headers = [*document.headers, ("job-id", key)]
            pending.append(self._producer.send(self._topic, document.value, key, headers=headers))
            self.sent = number + 1
        for sent in pending:
            sent.get(timeout=_PATIENCE_MS / 1000)


class Reader:
    """Collects results and dead letters from the beginning, as a `read_committed` reader sees them."""

    def __init__(self, bootstrap: Sequence[str], topics: Topics) -> None:
        self._bootstrap = list(bootstrap)
        self._topics = topics
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, isolation_level="read_committed"
        )
        self._outputs = _partitions(topics.results) + _partitions(topics.dlq)
        self._consumer.assign(self._outputs)
        self._consumer.seek_to_beginning()
        self._stop = threading.Event()
        self._read_to: dict[TopicPartition, int] = {}
        self.outcomes: list[Outcome] = []
        self.accounted: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def caught_up(self) -> bool:
        """Whether everything that was written by now has been read."""
        ends = self._asked(lambda consumer: consumer.end_offsets(self._outputs))
        return ends is not None and all(self._read_to.get(where, 0) >= end for where, end in ends.items())

    def jobs_done(self) -> bool:
        """Whether the group has committed the end of every partition of the jobs."""
        wanted = _partitions(self._topics.jobs)
        ends = self._asked(lambda consumer: consumer.end_offsets(wanted))
        committed = self._asked(
            lambda consumer: {where: consumer.committed(where) or 0 for where in wanted}, self._topics.group
        )
        return ends is not None and committed is not None and all(committed[w] >= ends[w] for w in wanted)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(60)

    def _asked(
        self, question: Callable[[KafkaConsumer], dict[TopicPartition, int]], group: str | None = None
    ) -> dict[TopicPartition, int] | None:
        """What the brokers say, None when they do not."""
        consumer = None
        try:
            consumer = KafkaConsumer(
                bootstrap_servers=self._bootstrap, group_id=group, isolation_level="read_committed"
            )
            return question(consumer)
        except KafkaError:
            return None
        finally:
            if consumer is not None:
                consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                found = self._consumer.poll(timeout_ms=200)
            except KafkaError:
                self._stop.wait(_RETRY_S)
                continue
            for records in found.values():
                for record in records:
                    outcome = outcome_of(record.topic == self._topics.dlq, record.value, record.headers)
                    self.outcomes.append(outcome)
                    self.accounted.add(outcome.job_id)
            # Markers of transactions have offsets, too, so the position says more than the last record.
            self._read_to = {where: self._consumer.position(where) for where in self._outputs}
        self._consumer.close()


def outcome_of(dead: bool, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Outcome:
    """A record of the results or of the dead letters."""
    said = {name: text.decode(errors="replace") for name, text in headers}
    if dead:
        return Outcome(said["dlq-job-id"], reason=said["dlq-reason"])
    return Outcome(said["job-id"], text=reading(json.loads(value or b"")))


def reading(result: dict) -> str:
    """What must be the same whatever happens: the status and the texts, as a hash with their number."""
    texts = [line["text"] for line in result["lines"]]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    return f"{result['status']}, {len(texts)} lines, {digest}"


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]
