"""Kafka with a real broker: the consumer, and the producer that sends each message by itself.

What the thread that owns the consumer must never do is wait for long: a poll takes at most
`poll_timeout_ms`, except while the group rebalances.

A rebalance begins inside `poll`, on the client's I/O thread, and asks us there: what is taken away is
drained first, and the answer commits it. One trap: with the assignment `range` the client takes all
partitions away and mostly gives the same ones back, and **it keeps their reading position**. What was
read but not finished would never be read again. So a partition that comes back is set to its lowest
unfinished offset.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import kafka
from kafka import errors as kafka_errors
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.future import Future as KafkaFuture
from kafka.structs import MemberState, TopicPartition

from services.common.threads import Threads, tell
from services.gateway.jobs import Message, Record
from services.gateway.kafka_client import (
    CALL_TIMEOUT_MS,
    CLOSE_TIMEOUT_MS,
    check_installation,
    client_settings,
    close_producer,
    connect,
    hand_over,
    offsets_of,
    producer_settings,
    publish_error,
)
from services.gateway.kafka_ports import (
    BrokerUnreachable,
    CommitRefused,
    KafkaOptions,
    Membership,
    MessageTooLarge,
    Polled,
    Progress,
    PublishFailed,
    RebalanceListener,
    Standing,
    TopicsMissing,
)
from services.gateway.offsets import Commit, Partition

log = logging.getLogger(__name__)
T = TypeVar("T")

_ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}

_METADATA_TIMEOUT_MS = 1000
"""To learn where a topic's messages go; it blocks the producer's thread, and so all other messages."""
_ABSENT_S = 5.0
"""Messages to a topic that was not found are refused at once for so long, so that others need not wait."""
_IDLE_POLL_MS = 25
"""When every partition is paused nothing can arrive, and a free slot should be used soon."""
_LINGER_MS = 5
"""Results that are ready together travel together."""
_FETCH_BYTES_PARTITION = 8 << 20
_FETCH_BYTES = 32 << 20
"""What is read ahead; a larger message still comes, alone."""


class KafkaSource:
    """A `RecordSource` on a real broker."""

    def __init__(self, options: KafkaOptions) -> None:
        check_installation()
        self._options = options
        self._client = client_settings(options)
        self._thread: Threads | None = None
        self._consumer: Any = None

    async def open(self, listener: RebalanceListener) -> None:
        """Connect and subscribe."""
        self._thread = self._thread or Threads("kafka-consumer")
        loop = asyncio.get_running_loop()
        await self._thread.run(self._open, loop, listener)

    async def poll(self, max_records: int, paused: frozenset[Partition]) -> Polled:
        """Up to `max_records` records, at least one where one is there; waits `poll_timeout_ms` at most."""
        return await self._call(self._poll, max_records, paused)

    async def commit(self, commits: Mapping[Partition, Commit]) -> None:
        """Tell the group how far we are."""
        await self._call(self._commit, commits)

    async def standing(self, partitions: Iterable[Partition]) -> Mapping[Partition, Standing]:
        """Ask the group for the offsets and notes of these partitions."""
        return await self._call(self._standing, list(partitions))

    def membership(self) -> Membership | None:
        """Our place in the group; does not wait."""
        consumer = self._consumer
        place = None if consumer is None else consumer.group_metadata()
        # Brokers do not check who speaks when there is no generation: a member thrown out must not speak.
        return None if place is None or place.generation_id < 0 else place

    async def progress(self, partitions: Iterable[Partition]) -> Mapping[Partition, Progress]:
        """Ask the broker for the ends of these partitions."""
        return await self._call(self._progress, list(partitions))

    async def close(self) -> None:
        """Leave the group."""
        if self._thread is None:
            return
        await self._thread.run(self._close)
        self._thread.close()
        self._thread = None

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        assert self._thread is not None, "open() comes first"
        return await self._thread.run(function, *arguments)

    # ---- on the owner thread -------------------------------------------------------------------

    def _open(self, loop: asyncio.AbstractEventLoop, listener: RebalanceListener) -> None:
        options = self._options
        consumer = connect(
            kafka.KafkaConsumer,
            **self._client,
            group_id=options.group,
            group_instance_id=options.group_instance_id,
            partition_assignment_strategy=[_ASSIGNORS[options.partition_assignment]],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=min(3000, options.session_timeout_ms // 3),
            max_poll_interval_ms=options.max_poll_interval_ms,
            max_partition_fetch_bytes=_FETCH_BYTES_PARTITION,
            fetch_max_bytes=_FETCH_BYTES,
            receive_message_max_bytes=options.max_message_bytes + _FETCH_BYTES,
            metrics_enabled=False,
        )
        self._consumer = consumer
        keeps_positions = options.partition_assignment == "range"
        ours = _Listener(consumer, loop, listener, keeps_positions=keeps_positions)
        consumer.subscribe([options.jobs_topic], listener=ours)
        # Asked before the first poll: a member that joins before it knows the topic's partitions takes them
        # for a change when it learns of them, and rebalances again with the first documents under way.
        there = _topics(consumer)
        if missing := [topic for topic in options.topics if topic not in there]:
            where, names = ", ".join(options.bootstrap), ", ".join(missing)
            raise TopicsMissing(f"the broker at {where} has no topic {names}; work begins when it is created")

    def _poll(self, max_records: int, paused: frozenset[Partition]) -> Polled:
        consumer = self._consumer
        self._pause_exactly(paused)
        idle = consumer.assignment() and len(consumer.paused()) == len(consumer.assignment())
        timeout_ms = _IDLE_POLL_MS if idle else self._options.poll_timeout_ms
        try:
            fetched = consumer.poll(timeout_ms=timeout_ms, max_records=max(1, max_records))
        except Exception as error:
            raise BrokerUnreachable(f"the Kafka consumer broke down: {error!r}") from error
        self._finish_join()
        records = [_record(found) for batch in fetched.values() for found in batch]
        joined = consumer.group_metadata().state == MemberState.STABLE
        return Polled(records, joined, connected=not consumer._coordinator.coordinator_unknown())  # noqa: SLF001

    def _finish_join(self) -> None:
        """Bring a join that outlived its poll to its end.

        A rebalance that began because the topic's partitions changed is forgotten by kafka-python 3.0.12 when
        a poll ends in the middle of it: nobody applies the assignment, heartbeats stay off, and the group
        throws us out without a word. To ask for the join again is enough; the next poll takes up the old one.
        """
        coordinator = self._consumer._coordinator  # noqa: SLF001  # no public view of a join under way
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def _pause_exactly(self, paused: frozenset[Partition]) -> None:
        assigned, now = self._consumer.assignment(), self._consumer.paused()
        wanted = {TopicPartition(*partition) for partition in paused} & assigned
        self._consumer.pause(*(wanted - now))
        self._consumer.resume(*(now - wanted))

    def _commit(self, commits: Mapping[Partition, Commit]) -> None:
        try:
            self._consumer.commit(offsets_of(commits), timeout_ms=CALL_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            raise CommitRefused(f"offsets were not committed: {error}") from error

    def _standing(self, partitions: Sequence[Partition]) -> Mapping[Partition, Standing]:
        wanted = [TopicPartition(*partition) for partition in partitions]
        try:
            found = self._consumer._coordinator.fetch_committed_offsets(wanted, timeout_ms=CALL_TIMEOUT_MS)  # noqa: SLF001  # the public call asks for one partition at a time
        except kafka_errors.KafkaError as error:
            raise CommitRefused(f"the group did not say where it stands: {error}") from error
        kept = {tuple(tp): Standing(at.offset, at.metadata or "") for tp, at in found.items()}
        return {partition: kept.get(partition, Standing(None)) for partition in partitions}

    def _progress(self, partitions: Sequence[Partition]) -> Mapping[Partition, Progress]:
        wanted = [tp for p in partitions if (tp := TopicPartition(*p)) in self._consumer.assignment()]
        if not wanted:
            return {}
        try:
            ends = self._consumer.end_offsets(wanted, timeout_ms=CALL_TIMEOUT_MS)
            positions = {tp: self._consumer.position(tp, timeout_ms=CALL_TIMEOUT_MS) for tp in wanted}
        except kafka_errors.KafkaError as error:
            log.debug("no news of the partitions' ends: %s", error)
            return {}
        known = {tp: (positions[tp], ends[tp]) for tp in wanted if positions[tp] is not None and tp in ends}
        return {tuple(tp): Progress(position, end) for tp, (position, end) in known.items()}

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001  # we leave anyway; the group notices by itself
            log.warning("the Kafka consumer did not close cleanly: %r", error)


def _topics(consumer: Any) -> set[str]:
    """Names of all topics; what `consumer.topics()` does, but for its waiting without end.

    Twice, as a look that is under way already may be one at the subscribed topics only.
    """
    cluster, manager = consumer._cluster, consumer._manager  # noqa: SLF001  # the public call has no timeout
    cluster.need_all_topic_metadata = True
    try:
        for _ in range(1 + cluster.metadata_refresh_in_progress):
            consumer._net.run(manager.wait_for, cluster.request_update(), CALL_TIMEOUT_MS)  # noqa: SLF001
    except kafka_errors.KafkaError as error:
        raise BrokerUnreachable(f"Kafka did not say which topics it has: {error!r}") from error
    finally:
        cluster.need_all_topic_metadata = False
    found: set[str] = cluster.topics()
    return found


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    """Runs on the client's I/O thread; asks the event loop and waits without blocking heartbeats."""

    def __init__(
        self,
        consumer: Any,
        loop: asyncio.AbstractEventLoop,
        ours: RebalanceListener,
        *,
        keeps_positions: bool,
    ) -> None:
        self._consumer = consumer
        self._loop = loop
        self._ours = ours
        self._keeps_positions = keeps_positions
        self._stood_at: Mapping[Partition, Commit] = {}

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        partitions = _partitions(revoked)
        stood_at = await self._ask(self._ours.revoked(partitions), {})
        self._stood_at = stood_at if self._keeps_positions else {}
        if not stood_at:
            return
        try:
            manager = self._consumer._client._manager  # noqa: SLF001  # a commit has no timeout of its own
            await manager.wait_for(self._consumer.commit_async(offsets_of(stood_at)), CLOSE_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.warning("a rebalance was faster than our commit; some documents are done again: %s", error)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        partitions = _partitions(assigned)
        for partition in partitions:
            if partition in self._stood_at:
                self._consumer.seek(TopicPartition(*partition), self._stood_at[partition].offset)
        self._stood_at = {}
        await self._ask(self._ours.assigned(partitions), None)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._stood_at = {}
        await self._ask(self._ours.lost(_partitions(lost)), None)

    async def _ask(self, question: Awaitable[T], otherwise: T) -> T:
        answer = KafkaFuture()
        network = self._consumer._client._manager._net  # noqa: SLF001  # no public way onto the I/O thread

        async def ask() -> None:
            try:
                value = await question
            except Exception:
                log.exception("a rebalance was not handled; its documents are done again")
                value = otherwise
            network.call_soon_threadsafe(lambda: answer.success(value))

        try:
            asyncio.run_coroutine_threadsafe(ask(), self._loop)
        except RuntimeError:
            return otherwise  # the event loop has ended: nothing can be finished any more
        result: T = await answer
        return result


class KafkaSink:
    """A `RecordSink` on a real broker: idempotent, acknowledged by all replicas in sync."""

    def __init__(self, options: KafkaOptions) -> None:
        check_installation()
        self._options = options
        self._client = client_settings(options)
        self._thread: Threads | None = None
        self._producer: Any = None
        self._absent: dict[str, float] = {}

    async def open(self) -> None:
        """Connect."""
        self._thread = self._thread or Threads("kafka-producer")
        await self._thread.run(self._ensure_producer)

    async def send(self, message: Message) -> None:
        """Return when it is acknowledged.

        When the broker refuses a message, the idempotent producer of this client gives up for good and fails
        all messages that it holds with the same error. So it is replaced, and a message that is said to be
        too large is sent once more, alone: only that tells whether it was this one.
        """
        assert self._thread is not None, "open() comes first"
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        producer = await self._thread.run(self._send, message, acknowledged)
        try:
            await acknowledged
        except MessageTooLarge:
            await self._thread.run(self._discard, producer)
            await self._thread.run(self._send_alone, message)
        except PublishFailed as error:
            if not isinstance(error.__cause__, kafka_errors.RetriableError):
                await self._thread.run(self._discard, producer)
            raise

    async def close(self) -> None:
        """Send what is waiting and let go."""
        if self._thread is None:
            return
        await self._thread.run(self._close, CLOSE_TIMEOUT_MS / 1000)
        self._thread.close()
        self._thread = None

    # ---- on the owner thread -------------------------------------------------------------------

    def _ensure_producer(self) -> Any:
        if self._producer is None:
            self._producer = self._connect()
        return self._producer

    def _connect(self) -> Any:
        options = self._options
        return connect(
            kafka.KafkaProducer,
            **self._client,
            **producer_settings(options),
            linger_ms=_LINGER_MS,
            max_block_ms=_METADATA_TIMEOUT_MS,
        )

    def _send(self, message: Message, acknowledged: "asyncio.Future[None]") -> Any:
        if time.monotonic() < self._absent.get(message.topic, 0.0):
            raise PublishFailed(f"Kafka has no topic {message.topic}, or does not say where it is; create it")
        try:
            producer = self._ensure_producer()
            sent = hand_over(producer, message)
        except Exception as error:
            if isinstance(error, kafka_errors.KafkaTimeoutError):  # nobody knows a partition of the topic
                self._absent[message.topic] = time.monotonic() + _ABSENT_S
            raise publish_error(message, error) from error
        sent.add_callback(lambda _: tell(acknowledged, acknowledged.set_result, None))
        sent.add_errback(
            lambda error: tell(acknowledged, acknowledged.set_exception, publish_error(message, error))
        )
        return producer

    def _send_alone(self, message: Message) -> None:
        producer = self._connect()
        try:
            hand_over(producer, message).get(timeout=self._options.delivery_timeout_ms / 1000)
        except Exception as error:
            raise publish_error(message, error) from error
        finally:
            close_producer(producer, 0)

    def _discard(self, producer: Any) -> None:
        """A producer that lost count of its messages never sends again; the next message makes a new one."""
        if producer is self._producer:
            self._producer = None
            close_producer(producer, 0)

    def _close(self, timeout_s: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, timeout_s)


def _record(found: Any) -> Record:
    headers = tuple((name, value if value is not None else b"") for name, value in found.headers)
    return Record(
        found.topic,
        found.partition,
        found.offset,
        found.timestamp,
        found.key,
        found.value,
        headers,
        -1 if found.leader_epoch is None else found.leader_epoch,
    )


def _partitions(found: Iterable[TopicPartition]) -> list[Partition]:
    return sorted((tp.topic, tp.partition) for tp in found)
