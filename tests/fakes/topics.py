"""A producer and a reader of topics that share no code with the product."""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

LARGEST = 32 << 20
_numbers = itertools.count()


def create_topics(bootstrap: str, partitions: int = 2) -> dict[str, str]:
    """Topics of one test by their role: jobs, results, dlq."""
    prefix = f"e2e-{os.getpid()}-{next(_numbers)}"
    topics = {role: f"{prefix}.{role}" for role in ("jobs", "results", "dlq")}
    shape = {
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": {"max.message.bytes": str(LARGEST)},
    }
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        for topic in topics.values():
            admin.create_topics({topic: shape}, wait_for_metadata=True)
    finally:
        admin.close()
    return topics


class Topics(contextlib.AbstractContextManager):
    """Sends jobs; collects what comes out of the results and dead letter topics from their beginning."""

    def __init__(self, bootstrap: str, topics: dict[str, str]) -> None:
        self.topics = topics
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=LARGEST, linger_ms=0)
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, max_partition_fetch_bytes=LARGEST)
        outputs = (topics["results"], topics["dlq"])
        self._consumer.assign(
            [
                TopicPartition(topic, n)
                for topic in outputs
                for n in self._consumer.partitions_for_topic(topic)
            ]
        )
        self._consumer.seek_to_beginning()
        self.records: list = []

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._consumer.close()

    def send(self, value: bytes | None, headers: Sequence[tuple[str, bytes]] = (), key: bytes | None = None):
        """Until the broker has it; the record's metadata."""
        return self._producer.send(self.topics["jobs"], value, key, headers=list(headers)).get(timeout=30)

    def answers(self, count: int, timeout: float = 120.0) -> list:
        """All records of both topics so far, as soon as there are `count`."""
        return self.until(lambda records: len(records) >= count, timeout)

    def until(self, enough: Callable[[list], bool], timeout: float = 120.0) -> list:
        """All records of both topics so far, as soon as `enough` says that they suffice."""
        deadline = time.monotonic() + timeout
        while not enough(self.records):
            assert time.monotonic() < deadline, f"after {timeout} s only {self.records}"
            for batch in self._consumer.poll(200).values():
                self.records += batch
        return self.records
