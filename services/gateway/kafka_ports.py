"""Kafka as the gateway sees it: what is said to it, what it answers, and what can go wrong. No client here.

`RecordSource` reads and `RecordSink` writes, each message by itself; `Transactor` writes messages together
with the offsets of the records that they answer. `kafka_io.py` and `kafka_txn.py` keep these promises with
a real broker, tests with one in memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from services.common.errors import SetupError
from services.gateway.jobs import Message, Record
from services.gateway.offsets import Commit, Partition

Assignment = Literal["range", "cooperative-sticky"]


class KafkaMisconfigured(SetupError):
    """Kafka cannot work as installed or set up; the message says what to change. Trying again is useless."""


class TopicsMissing(RuntimeError):
    """The broker lacks some of the three topics; work begins when somebody has made them."""


class BrokerUnreachable(RuntimeError):
    """No broker answers, or the client broke down; try again."""


class CommitRefused(RuntimeError):
    """The group did not take the offsets: it rebalances, or threw us out. The next owner reads them again."""


class PublishFailed(RuntimeError):
    """A message was not acknowledged in time. It may have arrived all the same."""


class TransactionFailed(RuntimeError):
    """Nothing of a transaction will ever be seen; it may be tried again."""


class OutcomeUnknown(RuntimeError):
    """Nobody knows whether a transaction was committed; only the group's offsets tell."""


class MessageTooLarge(RuntimeError):
    """The topic, or the client, takes no message of this size."""


@dataclass(frozen=True)
class KafkaOptions:
    """How to reach Kafka.

    `security`: options of the client, such as `security_protocol` and `ssl_cafile`, as text; what they may be
    is checked by `client_options` when a client is made.
    """

    bootstrap: tuple[str, ...]
    jobs_topic: str = "ocr.jobs"
    results_topic: str = "ocr.results"
    dlq_topic: str = "ocr.jobs.dlq"
    group: str = "ocr-gateway"
    partition_assignment: Assignment = "range"
    group_instance_id: str | None = None
    client_id: str = "ocr-gateway"
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    poll_timeout_ms: int = 100
    delivery_timeout_ms: int = 15_000
    transaction_timeout_ms: int = 15_000
    max_message_bytes: int = 64 << 20
    security: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, str, str]:
        """All three."""
        return (self.jobs_topic, self.results_topic, self.dlq_topic)


@dataclass(frozen=True)
class Polled:
    """What one poll brought. `joined`: the group gave us our share, which may be nothing."""

    records: Sequence[Record] = ()
    joined: bool = True
    connected: bool = True


Membership = object
"""Says to the brokers which member of the group, in which generation, speaks; only its makers look inside."""


@dataclass(frozen=True)
class Standing:
    """What the group keeps of a partition: the next offset to read, None if nothing is kept, and a note."""

    offset: int | None
    note: str = ""


@dataclass(frozen=True)
class Progress:
    """Next offset to be read of a partition, and the end of what can be read."""

    position: int
    end: int


class RebalanceListener(Protocol):
    """Is told, on the event loop and while `poll` waits, which partitions come and go."""

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        """These are ours now; their records come after this returns."""

    async def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Commit]:
        """These will be taken away: finish what can be, and say where each of them stands."""

    async def lost(self, partitions: Sequence[Partition]) -> None:
        """These were taken away already; somebody else has them."""


class RecordSource(Protocol):
    """A member of a consumer group. Calls come one at a time."""

    async def open(self, listener: RebalanceListener) -> None:
        """Connect and subscribe. Raises BrokerUnreachable, TopicsMissing, KafkaMisconfigured."""

    async def poll(self, max_records: int, paused: frozenset[Partition]) -> Polled:
        """Records of partitions that are not paused, soon. Raises BrokerUnreachable when beyond repair."""

    async def commit(self, commits: Mapping[Partition, Commit]) -> None:
        """Raises CommitRefused."""

    async def standing(self, partitions: Iterable[Partition]) -> Mapping[Partition, Standing]:
        """What the group keeps of these. Raises CommitRefused when it does not say so in time."""

    def membership(self) -> Membership | None:
        """Our place in the group as of now, without waiting; None when we have none."""

    async def progress(self, partitions: Iterable[Partition]) -> Mapping[Partition, Progress]:
        """How far each partition is; those that cannot be told are left out."""

    async def close(self) -> None:
        """Leave the group; the listener is asked once more."""


class RecordSink(Protocol):
    """Writes messages; many calls of `send` may run at once."""

    async def open(self) -> None:
        """Connect. Raises BrokerUnreachable, KafkaMisconfigured."""

    async def send(self, message: Message) -> None:
        """Return when the brokers have acknowledged it. Raises MessageTooLarge, PublishFailed."""

    async def close(self) -> None:
        """Send what is waiting and let go."""


@runtime_checkable
class Transactor(Protocol):
    """Writes messages and offsets together, or not at all. One transaction at a time."""

    async def open(self) -> None:
        """Connect, and end what an earlier client of the same name left open.

        Raises BrokerUnreachable, KafkaMisconfigured.
        """

    async def transact(
        self, messages: Sequence[Message], commits: Mapping[Partition, Commit], membership: Membership
    ) -> None:
        """Return when all of it is committed.

        Raises MessageTooLarge (one of them is, nothing is sent), TransactionFailed, OutcomeUnknown.
        """

    async def close(self) -> None:
        """Let go; what is not committed is dropped."""
