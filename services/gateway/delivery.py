"""How an answer, a result or a dead letter, gets to its topic: one way for each delivery mode.

`AtLeastOnce` sends it until the brokers have acknowledged it; the offset of its record is committed some
time after. `ExactlyOnce` holds it until all records below its own are answered, and commits it together
with the offsets in one transaction; `outbox.py` decides which, and when.

Offsets are also committed outside of transactions, with what is noted about a partition. That must not
happen while a transaction is under way, whose offset may be the higher one: such commits are made under
`quiet`, and only while `certain`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from services.gateway.jobs import Message
from services.gateway.kafka_ports import (
    Membership,
    MessageTooLarge,
    PublishFailed,
    RecordSink,
    TransactionFailed,
    Transactor,
)
from services.gateway.offsets import Commit, OffsetLedger, Partition, Ticket
from services.gateway.outbox import Batch, Outbox

log = logging.getLogger(__name__)

Pause = Callable[[int], Coroutine[Any, Any, None]]
"""Waits after failure number so much in a row."""
Note = Callable[[Mapping[Partition, Commit]], Mapping[Partition, Commit]]
"""Writes onto commits what is to be noted of their partitions."""


class Delivery(Protocol):
    """What the consumer asks of a mode."""

    quiet: asyncio.Lock
    """Held by a transaction, and by who commits offsets without one."""

    @property
    def certain(self) -> bool:
        """Whether it is known which answers were delivered."""

    @property
    def broken(self) -> Exception | None:
        """Why the client must begin anew; None when it need not."""

    async def open(self) -> None:
        """Connect. Raises BrokerUnreachable, KafkaMisconfigured."""

    async def deliver(self, ticket: Ticket, message: Message) -> None:
        """Return when the answer to a record is safe. Raises MessageTooLarge."""

    async def flush(self) -> None:
        """Deliver now what can be delivered now."""

    async def close(self) -> None:
        """Let go."""


class AtLeastOnce:
    """Each answer by itself, as soon as it is there."""

    certain = True
    broken = None

    def __init__(self, sink: RecordSink, pause: Pause) -> None:
        self.quiet = asyncio.Lock()
        self._sink = sink
        self._pause = pause

    async def open(self) -> None:
        """Connect."""
        await self._sink.open()

    async def deliver(self, ticket: Ticket, message: Message) -> None:  # noqa: ARG002  # the other mode asks
        """Send until it is acknowledged."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._sink.send(message)
            except PublishFailed as error:
                log.warning("sent again: %s", error)
            await self._pause(attempt)

    async def flush(self) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        """Send what is waiting."""
        await self._sink.close()


class ExactlyOnce:
    """Answers and offsets in transactions, one after the other."""

    def __init__(
        self,
        transactor: Transactor,
        outbox: Outbox,
        ledger: OffsetLedger,
        membership: Callable[[], Membership | None],
        note: Note,
        pause: Pause,
        clock: Callable[[], float],
    ) -> None:
        self.quiet = asyncio.Lock()
        self.broken: Exception | None = None
        self._transactor = transactor
        self._ledger = ledger
        self._membership = membership
        self._note = note
        self._pause = pause
        self._clock = clock
        self._outbox = outbox
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._settled = asyncio.Condition()
        self._hurried = 0
        self._loop: asyncio.Task[None] | None = None

    @property
    def certain(self) -> bool:
        """False from a transaction with an unknown outcome, or one under way, until all begins anew."""
        return self.broken is None

    async def open(self) -> None:
        """Connect, end what was left open, and begin to deliver."""
        await self._stop()
        await self._transactor.open()
        self.broken = None
        self._loop = asyncio.create_task(self._run(), name="kafka-transactions")

    async def deliver(self, ticket: Ticket, message: Message) -> None:
        """Hold the answer until a transaction with it is committed."""
        committed = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._outbox.put(ticket, message)
        self._changed.set()
        try:
            await committed
        finally:
            del self._waiting[ticket]
            self._outbox.withdraw(ticket)

    async def flush(self) -> None:
        """Commit all that can go, without waiting for the interval; returns also when something breaks."""
        self._hurried += 1
        self._changed.set()
        try:
            async with self._settled:
                await self._settled.wait_for(self._nothing_to_send)
        finally:
            self._hurried -= 1

    async def close(self) -> None:
        """Let go; what is not committed is dropped."""
        await self._stop()
        await self._transactor.close()

    def _nothing_to_send(self) -> bool:
        idle = self._outbox.wait(self._clock()) is None and not self.quiet.locked()
        return idle or self.broken is not None

    async def _stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])

    async def _run(self) -> None:
        try:
            await self._deliver_all()
        except Exception as error:  # a defect must not leave answers waiting for ever
            log.exception("the delivery of answers broke down")
            self.broken = error
        finally:
            await self._tell()

    async def _deliver_all(self) -> None:
        failures = 0
        while self.broken is None:
            wait = self._outbox.wait(self._clock())
            if wait == 0.0 or (wait is not None and self._hurried):
                failures = 0 if await self._transaction() else failures + 1
                await self._tell()
                if failures:
                    await self._pause(failures)
            else:
                await self._news(wait)

    async def _news(self, timeout: float | None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)

    async def _tell(self) -> None:
        async with self._settled:
            self._settled.notify_all()

    async def _transaction(self) -> bool:
        """Carry out one; False when it failed and is to be tried again after a pause."""
        async with self.quiet:
            batch, membership = self._outbox.take(self._clock()), self._membership()
            if batch is None:
                return True
            try:
                if membership is None:
                    raise TransactionFailed("we have no place in the group now")
                await self._commit(batch, membership)
            except TransactionFailed as error:
                log.warning("a transaction of %d answers is tried again: %s", len(batch.answers), error)
                return False
            except MessageTooLarge as error:
                self._refused(batch, error)
            return True

    async def _commit(self, batch: Batch, membership: Membership) -> None:
        messages = [message for _, message in batch.answers]
        try:
            await self._transactor.transact(messages, self._note(batch.commits), membership)
        except (TransactionFailed, MessageTooLarge):
            raise
        except asyncio.CancelledError:
            self.broken = RuntimeError("a transaction was left while it was under way")
            raise
        except Exception as error:  # noqa: BLE001  # nobody knows what became of it: read the offsets anew
            self.broken = error
        else:
            self._delivered(batch)

    def _delivered(self, batch: Batch) -> None:
        for ticket, _ in batch.answers:
            self._outbox.withdraw(ticket)
            self._ledger.finished(ticket)
            if (waiting := self._waiting.get(ticket)) is not None and not waiting.done():
                waiting.set_result(None)
        self._ledger.committed(batch.commits)

    def _refused(self, batch: Batch, error: MessageTooLarge) -> None:
        if len(batch.answers) > 1:
            self._outbox.refused(batch)
            return
        ((ticket, _),) = batch.answers
        if (waiting := self._waiting.get(ticket)) is not None and not waiting.done():
            waiting.set_exception(error)
        self._outbox.withdraw(ticket)
