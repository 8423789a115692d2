import asyncio
import itertools
import os

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from services.gateway.jobs import Message
from services.gateway.kafka_ports import KafkaOptions


class Town:
    """Topics of one test, and a view of them that shares no code with the gateway."""

    _numbers = itertools.count()

    def __init__(self, broker, **changes):
        self.broker = broker
        name = f"t{os.getpid()}-{next(self._numbers)}"
        self.options = KafkaOptions(
            (broker.bootstrap,),
            jobs_topic=f"{name}.jobs",
            results_topic=f"{name}.results",
            dlq_topic=f"{name}.dlq",
            group=name,
            **{"session_timeout_ms": 6000, **changes},
        )
        self._bootstrap = {"bootstrap_servers": broker.bootstrap}
        self._producer = KafkaProducer(**self._bootstrap, max_request_size=64 << 20, linger_ms=0)

    def close(self):
        self._producer.close()

    async def create(self, partitions, configs, topics=None):
        await asyncio.to_thread(self._create, partitions, configs, topics or self.options.topics)

    def _create(self, partitions, configs, topics):
        admin = KafkaAdminClient(**self._bootstrap)
        for topic in topics:
            shape = {
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": configs.get(topic.split(".")[1], {}),
            }
            admin.create_topics({topic: shape}, wait_for_metadata=True)
        admin.close()

    async def send(self, value, *, partition=None, key=None, headers=()):
        """Returns (partition, offset) when the broker has it."""

        def send():
            sent = self._producer.send(
                self.options.jobs_topic, value, key, headers=list(headers), partition=partition
            ).get(timeout=20)
            return sent.partition, sent.offset

        return await asyncio.to_thread(send)

    async def read(self, topic, until, timeout=30.0):
        """Committed messages of a topic from the beginning, until `until(messages)`."""
        return await asyncio.to_thread(self._read, topic, until, timeout)

    def _read(self, topic, until, timeout):
        consumer = KafkaConsumer(
            **self._bootstrap, max_partition_fetch_bytes=16 << 20, isolation_level="read_committed"
        )
        consumer.assign([TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic)])
        consumer.seek_to_beginning()
        found = []
        try:
            for _ in range(int(timeout / 0.1)):
                for batch in consumer.poll(100).values():
                    found += [Message(topic, m.key, m.value, tuple(m.headers)) for m in batch]
                if until(found):
                    return found
        finally:
            consumer.close()
        raise TimeoutError(f"{topic}: {len(found)} messages after {timeout} s: {found[:20]}")

    async def committed(self):
        """Offsets of the group by partition."""

        def ask():
            admin = KafkaAdminClient(**self._bootstrap)
            try:
                offsets = admin.list_group_offsets([self.options.group])[self.options.group]
            finally:
                admin.close()
            return {tp.partition: at.offset for tp, at in offsets.items()}

        return await asyncio.to_thread(ask)


@pytest.fixture
async def make_town(kafka):
    """A function that makes topics: `await make_town(partitions=1, configs={"dlq": {...}}, **options)`."""
    towns = []

    async def make(partitions=4, configs=None, **options):
        town = await asyncio.to_thread(Town, kafka, **options)
        towns.append(town)
        await town.create(partitions, configs or {})
        return town

    yield make
    for town in towns:
        await asyncio.to_thread(town.close)


@pytest.fixture
async def town(make_town):
    return await make_town()
