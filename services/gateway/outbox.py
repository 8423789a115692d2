"""What goes into the next transaction, and when it begins. Decides only; is told the time.

With exactly-once delivery an answer (a result or a dead letter) and the offset of its record become visible
together. Documents finish in any order, but the offset that Kafka keeps says that everything below it is
done. So an answer is held here until all records below its own have theirs: a transaction takes the
answers of each partition from the lowest unfinished offset on, up to the first that is missing, and the
offsets that are reached by them.

A transaction begins when an answer can go, but `interval_s` after the one before began: when little is to
do nothing waits, and when much is to do a transaction pays for many answers. Many answers, or large ones,
do not wait for the interval.

A message that its topic refuses as too large takes its transaction with it, and the broker does not say
which of several it was. So the answers of such a transaction go again one by one, each in its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.gateway.jobs import Message
from services.gateway.offsets import Commit, OffsetLedger, Partition, Ticket


@dataclass(frozen=True)
class OutboxLimits:
    """`interval_s`: seconds between the beginnings of two transactions. The others: of one transaction."""

    interval_s: float = 0.1
    max_messages: int = 256
    max_bytes: int = 16 << 20


@dataclass(frozen=True)
class Batch:
    """One transaction: answers, each with the record that it answers, and the offsets that they reach."""

    answers: tuple[tuple[Ticket, Message], ...]
    commits: Mapping[Partition, Commit]


class Outbox:
    """The answers that are held. `ledger` says which offsets are below them."""

    def __init__(self, ledger: OffsetLedger, limits: OutboxLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._held: dict[Partition, dict[int, tuple[Ticket, Message]]] = {}
        self._alone: set[Ticket] = set()
        self._next_at = float("-inf")

    def put(self, ticket: Ticket, message: Message) -> None:
        """Hold the answer to a record; a second one replaces it."""
        self._held.setdefault(ticket.partition, {})[ticket.offset] = (ticket, message)
        self._ledger.answered(ticket, message.size)

    def withdraw(self, ticket: Ticket) -> None:
        """It was sent, or given up: the next owner of the partition answers it."""
        self._alone.discard(ticket)
        held = self._held.get(ticket.partition, {})
        if held.get(ticket.offset, (None,))[0] == ticket:
            del held[ticket.offset]

    def refused(self, batch: Batch) -> None:
        """One of these was too large: each goes alone from now on."""
        self._alone.update(ticket for ticket, _ in batch.answers)

    def wait(self, now: float) -> float | None:
        """Seconds until a transaction should begin; None: not before there is another answer."""
        answers, full = self._ready()
        if not answers:
            return None
        return 0.0 if full else max(0.0, self._next_at - now)

    def take(self, now: float) -> Batch | None:
        """The next transaction, begun now; its answers stay here until they are withdrawn."""
        answers, _ = self._ready()
        if not answers:
            return None
        self._next_at = now + self._limits.interval_s
        highest = {ticket.partition: ticket.offset for ticket, _ in answers}
        commits = {partition: self._ledger.after(partition, offset) for partition, offset in highest.items()}
        for partition in highest:  # the last next time, so that none starves
            self._held[partition] = self._held.pop(partition)
        return Batch(tuple(answers), commits)

    def _ready(self) -> tuple[list[tuple[Ticket, Message]], bool]:
        """Answers with nothing missing below them, as many as fit a transaction, and whether it is full.

        At least one if there is any; one that goes alone makes it full.
        """
        found: list[tuple[Ticket, Message]] = []
        size = 0
        for ticket, message in self._in_order():
            if ticket in self._alone:
                return (found, False) if found else ([(ticket, message)], True)
            size += message.size
            if found and size > self._limits.max_bytes:
                return found, True
            found.append((ticket, message))
            if len(found) == self._limits.max_messages:
                return found, True
        return found, False

    def _in_order(self) -> Iterator[tuple[Ticket, Message]]:
        for partition, held in self._held.items():
            for offset in self._ledger.prefix(partition, held):
                ticket, _ = held[offset]
                if not self._ledger.is_current(ticket):
                    break
                yield held[offset]

    def __len__(self) -> int:
        """Answers held."""
        return sum(len(held) for held in self._held.values())
