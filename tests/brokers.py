"""A real broker for tests: Apache Kafka, or the embedded one where Java or Maven is missing."""

import os
from dataclasses import dataclass

from deploy.kafka.local_kafka import KafkaUnavailable, LocalKafka, kafka_version
from services.cli.embedded_broker import EmbeddedBroker


@dataclass
class Broker:
    """`bootstrap` is HOST:PORT; `note` says what is not proved when it is not Apache Kafka."""

    bootstrap: str
    name: str
    process: LocalKafka | EmbeddedBroker
    note: str = ""

    @property
    def is_apache(self):
        return isinstance(self.process, LocalKafka)

    def stop(self):
        self.process.stop()


def start_broker() -> Broker:
    """Start one; in CI a machine without Apache Kafka is a failure, elsewhere a visible note."""
    kafka = LocalKafka()
    try:
        return Broker(kafka.start(), f"Apache Kafka {kafka_version()}", kafka)
    except KafkaUnavailable as missing:
        if os.environ.get("CI"):
            raise
        embedded = EmbeddedBroker()
        note = f"NOT on Apache Kafka but on the embedded broker, since: {missing}"
        return Broker(embedded.start(), "embedded broker (Tansu)", embedded, note)
