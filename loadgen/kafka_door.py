"""Documents through Kafka: topics of one's own, and runs that put jobs in and time what comes out.

The only file here that imports the Kafka client.
"""

import contextlib
import json
import logging
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from loadgen.corpus import Document
from loadgen.errors import BrokerFailed, RunFailed
from loadgen.samples import Answer, Run, Sample

PARTITIONS = 2
LARGEST = 32 << 20
"""Bytes of the largest message."""
_CONNECT_TIMEOUT_S = 5.0
_POLL_MS = 50
_SENT_AT_ONCE = 8
"""Documents between two looks at the answers, so that none waits long to be timed."""


@dataclass(frozen=True)
class Topics:
    """Names of the three topics, and of the group of gateways that share them."""

    jobs: str
    results: str
    dlq: str
    group: str

    def settings(self, bootstrap: str) -> dict[str, object]:
        """What a gateway must be told to work on them."""
        names = {"jobs_topic": self.jobs, "results_topic": self.results, "dlq_topic": self.dlq}
        return {"kafka": bootstrap, **names, "group": self.group}


def require_broker(bootstrap: str) -> None:
    """Raise `BrokerFailed` when nobody listens; the client by itself would try for much longer."""
    for target in bootstrap.split(","):
        host, _, port = target.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
            return
    raise BrokerFailed(
        f"no Kafka broker answers at {bootstrap}: start one (python deploy/kafka/local_kafka.py prints its"
        " HOST:PORT) and name it with --kafka HOST:PORT"
    )


@contextlib.contextmanager
def own_topics(bootstrap: str) -> Iterator[Topics]:
    """Three topics that nobody else has, deleted at the end.

    Raises:
        BrokerFailed: nobody answers, or the topics are refused.
    """
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters is raised
    require_broker(bootstrap)
    prefix = f"loadgen-{secrets.token_hex(6)}"
    topics = Topics(f"{prefix}.jobs", f"{prefix}.results", f"{prefix}.dlq", prefix)
    names = [topics.jobs, topics.results, topics.dlq]
    shape = {
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "configs": {"max.message.bytes": str(LARGEST)},
    }
    try:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
            admin.create_topics(dict.fromkeys(names, shape), wait_for_metadata=True)
            try:
                yield topics
            finally:
                with contextlib.suppress(KafkaError):  # the broker may be gone, and the names are unique
                    admin.delete_topics(names)
    except KafkaError as error:
        raise BrokerFailed(f"the broker at {bootstrap} failed: {error!r}") from None


class KafkaDoor(contextlib.AbstractContextManager["KafkaDoor"]):
    """A producer of jobs and a reader of their answers. Not for several threads."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition

        servers = bootstrap.split(",")
        self._topics = topics
        self._producer: Any = KafkaProducer(bootstrap_servers=servers, max_request_size=LARGEST, linger_ms=0)
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=None,
            enable_auto_commit=False,
            max_partition_fetch_bytes=LARGEST,
            isolation_level="read_committed",
        )
        outputs = [TopicPartition(t, n) for t in (topics.results, topics.dlq) for n in range(PARTITIONS)]
        self._consumer.assign(outputs)
        self._consumer.seek_to_end()
        for partition in outputs:
            self._consumer.position(partition)  # asks now where the end is, not after the first jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close(timeout=5)
        self._consumer.close()

    def run(
        self, documents: Iterable[Document], *, in_flight: int | None = None, timeout_s: float = 120.0
    ) -> Run:
        """Send the documents, however many there will be, and wait for all answers.

        At most `in_flight` are sent and not answered; None sends all as fast as the broker takes them. They
        go to the partitions in turn, so that they are read in about this order.

        Raises:
            RunFailed: for `timeout_s` no answer came.
        """
        prefix, left = secrets.token_hex(4), iter(enumerate(documents))
        sent: dict[str, tuple[str, float]] = {}
        records: list[tuple[Any, float]] = []
        heard, more = time.monotonic(), True
        while more or len(records) < len(sent):
            room = in_flight - (len(sent) - len(records)) if in_flight else _SENT_AT_ONCE
            asked = min(room, _SENT_AT_ONCE)
            taken = list(islice(left, asked))
            more = more and len(taken) == asked
            for number, document in taken:
                sent[f"{prefix}-{number}"] = (document.name, time.monotonic())
                self._send(document, f"{prefix}-{number}", number)
            if fresh := [(record, time.monotonic()) for record in self._poll() if _job_of(record) in sent]:
                heard = fresh[-1][1]
                records += fresh
            if time.monotonic() - heard > timeout_s:
                missing = len(sent) - len(records)
                raise RunFailed(f"for {timeout_s:g} s no answer came, and {missing} documents are open")
        return Run(tuple(self._sample(record, done, *sent[_job_of(record)]) for record, done in records))

    def _send(self, document: Document, job_id: str, number: int) -> None:
        headers = [("content-type", document.content_type.encode()), ("file", document.name.encode())]
        place = number % PARTITIONS
        self._producer.send(
            self._topics.jobs, document.content, key=job_id.encode(), headers=headers, partition=place
        )

    def _poll(self) -> list[Any]:
        return [record for records in self._consumer.poll(timeout_ms=_POLL_MS).values() for record in records]

    def _sample(self, record: Any, done: float, name: str, sent: float) -> Sample:
        dead = record.topic == self._topics.dlq
        return Sample(name, sent, done, dead_letter(record.headers) if dead else answer(record.value))


def _job_of(record: Any) -> str:
    key: bytes = record.key or b""
    return key.decode(errors="replace")


def answer(value: bytes) -> Answer:
    """A record of the results topic in JSON, the default form."""
    found = json.loads(value)
    error = found["error"]
    why = f"{error['code']}: {error['message']}" if error else ""
    return Answer(found["status"], tuple(found["lines"]), why, found["timing"])


def dead_letter(headers: Sequence[tuple[str, bytes]]) -> Answer:
    """A record of the dead letters; its headers say why."""
    said = {name: value.decode(errors="replace") for name, value in headers}
    return Answer("failed", error=f"{said.get('dlq-reason', '?')}: {said.get('dlq-message', '?')}")
