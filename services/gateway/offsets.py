"""Which offsets may be committed, and when to stop taking records. Decides only; knows no Kafka and no clock.

Documents finish in any order, but Kafka keeps one number a partition: everything below it counts as done.
So the number that we commit is the lowest offset that is not finished. What lies finished above it is
done again if this process dies; that is the price of at-least-once, and `max_span` bounds it.

A partition can be taken away and given back while documents of it are still on their way. Each time it is
given to us a new epoch begins, and a result of an earlier epoch changes nothing: its record is, or was,
somebody else's to finish.

A record holds a slot from `started` until `finished` (its result is acknowledged) or `abandoned` (it was
given up, its offset stays open). Slots and bytes are counted over all partitions and epochs, since an
abandoned partition's documents use the same memory as any other's. A record that is `answered`, but whose
answer waits for those below it, gives its slot back and keeps its bytes, and those of the answer.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

Partition = tuple[str, int]
"""Topic and number."""

NO_LEADER_EPOCH = -1


@dataclass(frozen=True)
class FlowLimits:
    """How much may be on its way at once.

    max_in_flight: documents. max_bytes: their sizes as records together; the last ones admitted may pass it.
    max_span: offsets of one partition from the lowest unfinished one to the highest started one.
    """

    max_in_flight: int = 64
    max_bytes: int = 128 << 20
    max_span: int = 1024


@dataclass(frozen=True)
class Ticket:
    """One record on its way, under the epoch in which it was taken."""

    partition: Partition
    epoch: int
    offset: int
    size: int


@dataclass(frozen=True)
class Commit:
    """`offset` is the next one to read; `leader_epoch` is that of the record before it, -1 if not known.

    `note` is kept with it by the group, for whoever has the partition next.
    """

    epoch: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    note: str = ""


class PartitionOffsets:
    """The started records of one partition in one epoch: which are open, which are done above an open one."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._order: deque[tuple[int, int]] = deque()  # (offset, leader epoch), from the lowest open one
        self._next: int | None = None
        self._leader_epoch = NO_LEADER_EPOCH

    def started(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Take a record; offsets only grow, gaps are fine (compaction, transaction markers)."""
        assert not self.goes_backwards(offset), f"offset {offset} came after {self._next}"
        self._open.add(offset)
        self._order.append((offset, leader_epoch))
        self._next = offset + 1

    def goes_backwards(self, offset: int) -> bool:
        """Whether `offset`, or one above it, was started before."""
        return self._next is not None and offset < self._next

    def finished(self, offset: int) -> None:
        """Its result is safe; the second time means nothing."""
        self._open.discard(offset)
        while self._order and self._order[0][0] not in self._open:
            _, self._leader_epoch = self._order.popleft()

    def committable(self) -> int | None:
        """The lowest unfinished offset, or the one after the last record; None before the first record."""
        return self._order[0][0] if self._order else self._next

    def prefix(self, ready: Container[int]) -> Iterator[int]:
        """The open offsets, from the lowest on, up to the first that is not `ready`."""
        for offset, _ in self._order:
            if offset in self._open:
                if offset not in ready:
                    return
                yield offset

    def after(self, offset: int) -> tuple[int, int]:
        """What `committable()` and `leader_epoch` are when all up to `offset` are finished."""
        epoch = self._leader_epoch
        for found, leader_epoch in self._order:
            if found > offset and found in self._open:
                return found, epoch
            epoch = leader_epoch
        return max(offset + 1, self._next or 0), epoch

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last record below `committable()`."""
        return self._leader_epoch

    @property
    def span(self) -> int:
        """Offsets from the lowest unfinished one to the highest started one."""
        return 0 if self._next is None else self._next - (self.committable() or 0)

    @property
    def unfinished(self) -> int:
        """Records that are open."""
        return len(self._open)


class OffsetLedger:
    """All partitions that are ours, and the slots that are taken."""

    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._partitions: dict[Partition, PartitionOffsets] = {}
        self._epochs: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._last_epoch = 0
        self._held: dict[Ticket, int] = {}
        self._answered: set[Ticket] = set()
        self._bytes = 0

    def assign(self, partitions: Iterable[Partition]) -> None:
        """These partitions are ours now; each begins a new epoch."""
        for partition in partitions:
            self._last_epoch += 1
            self._epochs[partition] = self._last_epoch
            self._partitions[partition] = PartitionOffsets()
            self._committed.pop(partition, None)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These are ours no more; what still runs for them changes nothing."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._epochs.pop(partition, None)
            self._committed.pop(partition, None)

    def started(
        self, partition: Partition, offset: int, size: int, leader_epoch: int = NO_LEADER_EPOCH
    ) -> Ticket | None:
        """Take a record of `size` bytes; None when the partition is not ours.

        A lower offset than before means that the log was cut, or its reading position reset: the partition
        begins a new epoch from there.
        """
        state = self._partitions.get(partition)
        if state is None:
            return None
        if state.goes_backwards(offset):
            self.assign([partition])
        self._partitions[partition].started(offset, leader_epoch)
        self._committed.setdefault(partition, offset)  # reading began here, so the group has it already
        ticket = Ticket(partition, self._epochs[partition], offset, size)
        self._held[ticket] = size
        self._bytes += size
        return ticket

    def answered(self, ticket: Ticket, size: int) -> None:
        """Its answer of `size` bytes waits to be sent: no slot is needed for it, but memory is."""
        if ticket in self._held:
            self._answered.add(ticket)
            self._bytes += ticket.size + size - self._held[ticket]
            self._held[ticket] = ticket.size + size

    def finished(self, ticket: Ticket) -> bool:
        """Its result is acknowledged: its slot is free and, if its epoch still runs, it is done (True)."""
        self.abandoned(ticket)
        if not self.is_current(ticket):
            return False
        self._partitions[ticket.partition].finished(ticket.offset)
        return True

    def abandoned(self, ticket: Ticket) -> None:
        """Given up: the slot is free, the offset stays open and holds back the commit."""
        self._bytes -= self._held.pop(ticket, 0)
        self._answered.discard(ticket)

    def is_current(self, ticket: Ticket) -> bool:
        """Whether the partition is still ours by the assignment under which the record was taken."""
        return self._epochs.get(ticket.partition) == ticket.epoch

    def prefix(self, partition: Partition, ready: Container[int]) -> Iterator[int]:
        """Offsets of the partition from its lowest unfinished one on, up to the first that is not `ready`."""
        state = self._partitions.get(partition)
        return iter(()) if state is None else state.prefix(ready)

    def after(self, partition: Partition, offset: int) -> Commit:
        """What is to be committed when all up to `offset` are finished; the partition is ours."""
        return Commit(self._epochs[partition], *self._partitions[partition].after(offset))

    def position(self, partition: Partition) -> int | None:
        """Where reading would have to begin again to lose nothing; None when nothing was read yet."""
        state = self._partitions.get(partition)
        return None if state is None else state.committable()

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, Commit]:
        """Where each of these stands; those of which nothing was read yet are left out."""
        found = {}
        for partition in partitions:
            offset = self.position(partition)
            if offset is not None:
                leader_epoch = self._partitions[partition].leader_epoch
                found[partition] = Commit(self._epochs[partition], offset, leader_epoch)
        return found

    def to_commit(self) -> dict[Partition, Commit]:
        """What has advanced since the last successful commit."""
        positions = self.positions(self._partitions)
        return {p: commit for p, commit in positions.items() if commit.offset != self._committed[p]}

    def committed(self, commits: Mapping[Partition, Commit]) -> None:
        """The broker has taken these; those of an earlier epoch are passed over."""
        for partition, commit in commits.items():
            if self._epochs.get(partition) == commit.epoch:
                self._committed[partition] = commit.offset

    @property
    def partitions(self) -> frozenset[Partition]:
        """Those that are ours."""
        return frozenset(self._partitions)

    @property
    def in_flight(self) -> int:
        """Slots taken."""
        return len(self._held) - len(self._answered)

    def room(self) -> int:
        """How many more records may be taken now."""
        if self._bytes >= self._limits.max_bytes:
            return 0
        return max(0, self._limits.max_in_flight - self.in_flight)

    def blocked(self) -> frozenset[Partition]:
        """Partitions not to be read now: all when there is no room, else those that ran too far ahead."""
        if self.room() == 0:
            return self.partitions
        return frozenset(p for p, state in self._partitions.items() if state.span >= self._limits.max_span)
