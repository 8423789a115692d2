"""The producer of exactly-once delivery: answers and offsets in one transaction, with a real broker.

Kafka fences twice. A client of the same transactional id ends the transactions of the one before it, and
the group takes offsets only from a member of its present generation. So a gateway that was thought dead and
comes back writes nothing.

The producer of kafka-python 3.0.12 has two traps. Its calls wait without end, so here they are made on the
parts below, which take a time limit. And offsets of a transaction that the group refused are sent again
with the next one, even if their partition has left; so a producer whose transaction failed is thrown away.
Its successor has the same id, and by that ends what it left open.

While a transaction is open, readers that see only what is committed see nothing behind it either. Should
this process die, that lasts until its successor comes or `transaction_timeout_ms` has passed.
"""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import kafka
from kafka import errors as kafka_errors

from services.common.threads import Threads
from services.gateway.jobs import Message
from services.gateway.kafka_client import (
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
    KafkaMisconfigured,
    KafkaOptions,
    Membership,
    MessageTooLarge,
    OutcomeUnknown,
    TransactionFailed,
)
from services.gateway.offsets import Commit, Partition

log = logging.getLogger(__name__)

_INIT_TIMEOUT_MS = 10_000
"""To end what a predecessor left open and get its place; also to learn where a topic's messages go."""
_COMMIT_TIMEOUT_S = 10.0
"""For the last word of a transaction; after that its outcome is unknown."""
_RETRY_MS = 20
"""The coordinator says "not yet" for some milliseconds after each transaction; the usual 100 would hurt."""
_REFUSED = (
    kafka_errors.TransactionalIdAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.InvalidTransactionTimeoutError,
)


class KafkaTransactor:
    """A `Transactor` on a real broker."""

    def __init__(self, options: KafkaOptions) -> None:
        check_installation()
        self._options = options
        self._client = client_settings(options)
        self._id = f"{options.group}-{options.group_instance_id or secrets.token_hex(8)}"
        self._thread: Threads | None = None
        self._producer: Any = None

    async def open(self) -> None:
        """Connect; what an earlier client of the same id left open is ended."""
        self._thread = self._thread or Threads("kafka-transactions")
        await self._thread.run(self._renew)

    async def transact(
        self, messages: Sequence[Message], commits: Mapping[Partition, Commit], membership: Membership
    ) -> None:
        """Return when messages and offsets are committed."""
        assert self._thread is not None, "open() comes first"
        await self._thread.run(self._transact, messages, commits, membership)

    async def close(self) -> None:
        """Let go; what is not committed is dropped."""
        if self._thread is None:
            return
        await self._thread.run(self._discard)
        self._thread.close()
        self._thread = None

    # ---- on the owner thread -------------------------------------------------------------------

    def _renew(self) -> Any:
        """A producer without a past. Raises BrokerUnreachable, KafkaMisconfigured."""
        self._discard()
        options = self._options
        producer: Any = connect(
            kafka.KafkaProducer,
            **self._client,
            **producer_settings(options),
            transactional_id=self._id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            linger_ms=0,
            retry_backoff_ms=_RETRY_MS,
            max_block_ms=_INIT_TIMEOUT_MS,
        )
        try:
            producer.init_transactions()
        except kafka_errors.KafkaError as error:
            close_producer(producer, 0)
            if isinstance(error, _REFUSED):
                raise KafkaMisconfigured(f"Kafka refuses transactions of {self._id}: {error}") from error
            raise BrokerUnreachable(f"no transactions with Kafka yet: {error!r}") from error
        self._producer = producer
        return producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, 0)

    def _transact(
        self, messages: Sequence[Message], commits: Mapping[Partition, Commit], membership: Membership
    ) -> None:
        producer = self._producer or self._successor()
        try:
            self._fill(producer, messages, commits, membership)
            ending = producer._transaction_manager.begin_commit()  # noqa: SLF001  # the public call has no timeout
        except Exception as error:
            self._end_what_is_open()
            raise _failure(error) from error
        self._finish(producer, ending)

    def _successor(self) -> Any:
        try:
            return self._renew()
        except BrokerUnreachable as error:
            raise TransactionFailed(str(error)) from error

    def _end_what_is_open(self) -> None:
        """At once, for it hides from readers what comes after it; the broker does it when we cannot."""
        try:
            self._renew()
        except Exception as error:  # noqa: BLE001  # the next transaction tries again, and tells
            log.debug("a failed transaction stays open for now: %s", error)

    def _fill(
        self,
        producer: Any,
        messages: Sequence[Message],
        commits: Mapping[Partition, Commit],
        membership: Membership,
    ) -> None:
        until = time.monotonic() + self._options.delivery_timeout_ms / 1000
        producer.begin_transaction()
        sent = [(message, _sent(producer, message)) for message in messages]
        manager = producer._transaction_manager  # noqa: SLF001
        taken = manager.send_offsets_to_transaction(offsets_of(commits), membership)
        producer._sender.wakeup()  # noqa: SLF001
        for _, acknowledged in sent:
            try:
                acknowledged.get(timeout=max(0.0, until - time.monotonic()))
            except kafka_errors.KafkaError as error:
                raise _refusal(sent, error) from error
        if not taken.wait(max(0.0, until - time.monotonic()) * 1000):
            raise TransactionFailed("the group did not take the offsets in time")

    def _finish(self, producer: Any, ending: Any) -> None:
        producer._sender.wakeup()  # noqa: SLF001
        try:
            ended = ending.wait(_COMMIT_TIMEOUT_S * 1000)
        except Exception as error:
            self._discard()
            raise OutcomeUnknown(f"a transaction was not committed, or was: {error!r}") from error
        if not ended:
            self._discard()
            raise OutcomeUnknown(f"a transaction was not confirmed in {_COMMIT_TIMEOUT_S:g} s")


def _sent(producer: Any, message: Message) -> Any:
    try:
        return hand_over(producer, message)
    except Exception as error:
        raise publish_error(message, error) from error


def _refusal(sent: Sequence[tuple[Message, Any]], error: Exception) -> Exception:
    """What is wrong with these messages: that one is too large may be said of another than failed first."""
    for message, acknowledged in sent:
        if acknowledged.failed():
            found = publish_error(message, acknowledged.exception)
            if isinstance(found, MessageTooLarge):
                return found
    return TransactionFailed(f"the messages of a transaction were not acknowledged: {error!r}")


def _failure(error: Exception) -> Exception:
    if isinstance(error, MessageTooLarge | TransactionFailed):
        return error
    return TransactionFailed(f"a transaction failed: {error}")
