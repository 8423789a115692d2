"""What should run next: waiting items in, batches out. Pure: no clock, no I/O, no asyncio; told the time.

Rules of this file: all times are seconds of one monotonic clock, given by the caller and never going
back. Every item that was added leaves exactly once: in a batch by `take`, from `remove`, `expire` or
`clear`. A proposal takes nothing out: until its batch runs, an item waits like any other.

The theory
----------
**Batch invariance.** The same line must give the same text, alone or among others, or a disputed slip
cannot be run again. The recognition models have global attention: a line padded to the width of a long
neighbour can read differently (measured: a third of all lines at twice their width). At equal width the
neighbours do not matter. So an item's shape is decided before it gets here, from the item alone, and a
batch holds **equal shapes only**. That is the whole guarantee, and it costs only this: each shape fills
its own batches. A mask cannot replace it. The models take no mask, so what leaks from padding into a
line's columns inside attention cannot be undone outside; a mask can cut decoding and weigh confidence,
no more.

**When a batch is due.** Full: no further item would fit, by size or by pixels. Delay: its oldest item
has waited `max_queue_delay_ms`. Closing: nothing more will come to fill it. Online: bulk would run
next. To wait for company is right while a predictor has nothing else to do; an online item that waited
for it beside bulk would wait for a whole batch of bulk. An idle predictor takes a due batch at once: but
for the moment of preparing, none is idle while a batch is due.

**Prepared ahead, decided late.** A predictor shall go on without a gap, so a batch is prepared while
others run. But until it runs it is a proposal, and its items stay in the queue: they can expire, be
withdrawn, and count as waiting. When a predictor is free, the proposal is looked at again, and stands
if all of its riders still wait and nothing due comes before it by class. Else the best batch of that
moment is prepared, from all that wait, so a rider that stays loses neither its age nor its place.
Within a class a proposal stands, so what became urgent after it was made waits for one batch more: no
gap is worth that. While every predictor is busy, a batch that is not full can still grow at no cost, so
only a full one is proposed; and never past a more urgent due batch, or a shape that is always full would
shut out a rare one. No proposal is put off for ever: each time costs a rider, who left, or gives way to
a higher class, and there are three of these. Once a batch runs it cannot be stopped: a rider that is
withdrawn or expires from then on has cost its place.

**Who is next.** Among due shapes, the one with the most urgent item at its head. Online comes before
bulk. Within a class an item is wanted by its deadline, or `bulk_max_age_ms` after it came if that is
sooner, and the earliest goes first. As that moment never moves and later arrivals are wanted later and
later, only a finite number of items can ever pass a waiting one: no item starves within its class.
Within a shape and class it is first in, first out.

**Bulk's turn.** Strict priority would starve bulk while online work keeps the predictors full. Yet if
old bulk counted as online for good, a backlog, which is all old, would put every online item at its
tail. So ageing is a share: when the oldest bulk has waited `bulk_max_age_ms` and as long has passed
since bulk last led a batch, bulk leads the next one. Bulk always moves, and costs online at most one
batch in `bulk_max_age_ms`. The class that leads a batch fills it first, the other takes its spare places.

In all, an online item waits for the batch that runs, for online work that goes before it, and for one
batch of bulk in `bulk_max_age_ms`.

**What leaves early.** Expired and cancelled items go before they cost anything. A full queue refuses at
the door, before anything was begun. Each class has places of its own: bulk that waits in any number
never shuts the door on online work.

Cost, for n items in s shapes: `add` and `expire` O(log n) an item, `remove` O(1), `propose` and
`wake_at` O(s), `take` O(1) an item. s is small, as the set of shapes is closed so that it can be warmed
up.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from math import inf
from typing import Generic, Literal, TypeAlias, TypeVar

from services.common.errors import InvalidJob, Overloaded, ShuttingDown

Payload = TypeVar("Payload")
Reason = Literal["full", "pixels", "delay", "closing", "online"]
"""Why a batch is due: full by size or by pixels, waited long enough, nothing will come, or ahead of bulk."""


class Priority(IntEnum):
    """Class of service; the numbers are those of the contract."""

    ONLINE = 1
    BULK = 2

    @property
    def other(self) -> "Priority":
        """The class that takes the spare places of this one."""
        return Priority.BULK if self is Priority.ONLINE else Priority.ONLINE


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch may be, how long an item may wait, and how many may wait."""

    max_batch_size: int
    """Most items in one batch."""
    max_queue_delay_ms: float
    """An idle predictor waits at most this long, from the oldest arrival, for a batch to fill."""
    max_batch_pixels: int
    """Most pixels in one batch, padding included; an item above it runs alone."""
    capacity: int
    """Items of each class that may wait; more are refused."""
    bulk_max_age_ms: float
    """Bulk leads a batch this often however busy online is: many times as long as one batch runs."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Batches take the largest of these that they can fill, so few are warmed up. Empty: any; 1: always."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_batch_pixels", "capacity"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.max_queue_delay_ms < inf:
            raise ValueError(f"max_queue_delay_ms must be 0 or more, not {self.max_queue_delay_ms}")
        if not 0 < self.bulk_max_age_ms < inf:
            raise ValueError(f"bulk_max_age_ms must be more than 0, not {self.bulk_max_age_ms}")
        if any(not 1 <= size <= self.max_batch_size for size in self.allowed_batch_sizes):
            raise ValueError(
                f"allowed_batch_sizes must lie between 1 and max_batch_size, {self.max_batch_size}, "
                f"not {self.allowed_batch_sizes}"
            )

    def size_for(self, items: int) -> int:
        """The largest size that a batch may have with so many items there; at least 1."""
        most = min(items, self.max_batch_size)
        if not self.allowed_batch_sizes:
            return max(most, 1)
        return max((size for size in self.allowed_batch_sizes if size <= most), default=1)

    def full_size(self, pixels: int) -> int:
        """The size at which a batch of items of so many pixels is full; at least 1."""
        return self.size_for(self.max_batch_pixels // max(pixels, 1))


@dataclass(slots=True, eq=False)
class Entry(Generic[Payload]):
    """One waiting item and what the queue must know of it."""

    payload: Payload
    shape: Hashable
    pixels: int
    """What the item costs as it runs, padding included: the same for equal shapes, or the dearest counts."""
    priority: Priority
    arrival: float
    deadline: float | None = None
    number: int = field(default=-1, init=False)
    """Given by the queue, in order of admission."""
    wanted_by: float = field(default=inf, init=False)
    """Given by the queue: the earlier of its deadline and of the moment that it counts as old."""


@dataclass(frozen=True, eq=False)
class Batch(Generic[Payload]):
    """Items of one shape that leave together, and why now. The first one leads: the batch leaves for it."""

    shape: Hashable
    entries: tuple[Entry[Payload], ...]
    reason: Reason

    @property
    def pixels(self) -> int:
        """Pixels of all items, padding included."""
        return sum(entry.pixels for entry in self.entries)


class _Line(Generic[Payload]):
    """The waiting items of one shape, a first-in-first-out lane for each class."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        # Not dict: finding the first key of a dict that loses its first keys takes longer and longer.
        self.online: OrderedDict[int, Entry[Payload]] = OrderedDict()
        self.bulk: OrderedDict[int, Entry[Payload]] = OrderedDict()
        self.lanes = {Priority.ONLINE: self.online, Priority.BULK: self.bulk}
        self.pixels = -1
        self.full = limits.max_batch_size
        """The size at which a batch of these items is full."""

    def __len__(self) -> int:
        return len(self.online) + len(self.bulk)

    def add(self, entry: Entry[Payload]) -> None:
        self.lanes[entry.priority][entry.number] = entry
        if entry.pixels > self.pixels:
            self.pixels = entry.pixels
            self.full = self._limits.full_size(entry.pixels)

    def heads(self) -> list[Entry[Payload]]:
        return [next(iter(lane.values())) for lane in (self.online, self.bulk) if lane]

    def oldest(self) -> float:
        return min([head.arrival for head in self.heads()])

    def first(self, size: int, leader: Priority) -> Iterator[Entry[Payload]]:
        """The next `size` items: those of the leading class, then of the other."""
        return islice(chain(self.lanes[leader].values(), self.lanes[leader.other].values()), size)


_Candidate: TypeAlias = tuple[tuple[int, float, int], Entry[Payload], _Line[Payload], Reason]
"""How urgent it is, the less the sooner; the item that a batch would leave for; its line; and why."""


class BatchQueue(Generic[Payload]):
    """Decides which waiting items run together, and when. See the theory at the top of the file."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.closed = False
        self._largest = limits.size_for(limits.max_batch_size)
        self._delay = limits.max_queue_delay_ms / 1000
        self._max_age = limits.bulk_max_age_ms / 1000
        self._numbers = count()
        self._lines: dict[Hashable, _Line[Payload]] = {}
        self._waiting: dict[int, Entry[Payload]] = {}
        self._of_class: Counter[Priority] = Counter()
        # May hold numbers that have left already; `_forget_the_gone` keeps those few.
        self._deadlines: list[tuple[float, int]] = []
        self._expired: list[Entry[Payload]] = []
        self._bulk_led = -inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, *entries: Entry[Payload]) -> None:
        """Admits all of `entries` or none.

        Raises Overloaded when there is no room, InvalidJob when there can never be, ShuttingDown when closed.
        """
        for priority, items in Counter(entry.priority for entry in entries).items():
            self.check_room(items, priority)
        for entry in entries:
            hash(entry.shape)  # raises before anything was admitted
        for entry in entries:
            self._insert(entry)

    def check_room(self, items: int, priority: Priority) -> None:
        """Raises what `add` would for so many items of a class; changes nothing."""
        capacity, taken = self.limits.capacity, self._of_class[priority]
        if self.closed:
            raise ShuttingDown("This service is shutting down and takes no new work; try another replica.")
        if items > capacity:
            raise InvalidJob(f"{items} items can never fit a queue of {capacity}; send fewer in one call.")
        if taken + items > capacity:
            places = f"{taken} of {capacity} places for {priority.name.lower()} work are taken"
            raise Overloaded(f"{places}, no room for {items}; try later.")

    def remove(self, entry: Entry[Payload]) -> bool:
        """Takes back an item that still waits, also one of a proposal; False if it has left already."""
        if self._waiting.pop(entry.number, None) is None:
            return False
        self._of_class[entry.priority] -= 1
        line = self._lines[entry.shape]
        del line.lanes[entry.priority][entry.number]
        if not line:
            del self._lines[entry.shape]
        return True

    def expire(self, now: float) -> list[Entry[Payload]]:
        """Takes out the items whose deadline is `now` or has passed, each of them once."""
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = self._waiting.get(heappop(self._deadlines)[1])
            if entry is not None and self.remove(entry):
                self._expired.append(entry)
        expired, self._expired = self._expired, []
        return expired

    def propose(
        self, now: float, *, idle: bool, standing: Batch[Payload] | None = None
    ) -> Batch[Payload] | None:
        """The batch to prepare now, and to `take` if a predictor is idle; None: nothing, yet.

        `standing` is what was proposed before; the answer is that very batch as long as it stands. If no
        predictor is `idle`, only a batch that cannot grow is proposed. No item leaves, but the expired do:
        they are set aside for the next `expire`.
        """
        self._expired = self.expire(now)
        if standing is not None and self._stands(standing, now):
            return standing
        best = self._best(now)
        if best is None:
            return None
        _, leader, line, reason = best
        if not idle and reason in ("delay", "online"):
            return None
        size = self.limits.size_for(min(len(line), line.full))
        return Batch(leader.shape, tuple(line.first(size, leader.priority)), reason)

    def take(self, batch: Batch[Payload], now: float) -> None:
        """Lets a batch leave to be run, which `propose` has given, or given again, at this very moment."""
        for entry in batch.entries:
            if not self.remove(entry):
                raise ValueError("a rider of this batch has left already; propose again")
        if batch.entries[0].priority is Priority.BULK:
            self._bulk_led = now

    def wake_at(self, *, idle: bool) -> float | None:
        """When time alone lets `expire` or `propose` give something, after both gave nothing; None: never."""
        self._forget_the_gone()
        moments = [deadline for deadline, _ in self._deadlines[:1]]
        if idle:
            moments += [self._waited_enough_at(line) for line in self._lines.values()]
        return min(moments, default=None)

    def close(self) -> None:
        """Admits nothing more, and lets what waits leave without delay."""
        self.closed = True

    def clear(self) -> list[Entry[Payload]]:
        """Takes out everything that waits."""
        entries = [*self._expired, *self._waiting.values()]
        for pool in (self._expired, self._waiting, self._lines, self._deadlines, self._of_class):
            pool.clear()
        return entries

    def _insert(self, entry: Entry[Payload]) -> None:
        entry.number = number = next(self._numbers)
        entry.wanted_by = entry.arrival + self._max_age
        self._waiting[number] = entry
        self._of_class[entry.priority] += 1
        line = self._lines.get(entry.shape)
        if line is None:
            line = self._lines[entry.shape] = _Line(self.limits)
        line.add(entry)
        if entry.deadline is not None:
            entry.wanted_by = min(entry.wanted_by, entry.deadline)
            heappush(self._deadlines, (entry.deadline, number))

    def _best(self, now: float) -> _Candidate[Payload] | None:
        """The most urgent of what is due; online that waits for company only, before bulk that does not."""
        lines = self._lines.values()
        best = self._most_urgent([(line, why) for line in lines if (why := self._due(line, now))], now)
        if best is None or best[0][0] < Priority.BULK:
            return best
        online: Reason = "online"
        return self._most_urgent([(line, online) for line in lines if line.online], now) or best

    def _most_urgent(
        self, lines: Iterable[tuple[_Line[Payload], Reason]], now: float
    ) -> _Candidate[Payload] | None:
        candidates = [
            ((self._rank(head, now), head.wanted_by, head.number), head, line, reason)
            for line, reason in lines
            for head in line.heads()
        ]
        return min(candidates, default=None)

    def _stands(self, standing: Batch[Payload], now: float) -> bool:
        """Asked at every arrival, so it looks at all lines only when it must."""
        if any(entry.number not in self._waiting for entry in standing.entries):
            return False
        rank = self._rank(standing.entries[0], now)
        if rank == Priority.BULK and self._of_class[Priority.ONLINE]:
            return False
        if rank == 0 or not self._of_class[Priority.BULK] or self._bulk_led + self._max_age > now:
            return True
        best = self._best(now)
        return best is None or rank <= best[0][0]

    def _due(self, line: _Line[Payload], now: float) -> Reason | None:
        if len(line.online) + len(line.bulk) >= line.full:  # asked of every line at every turn
            return "full" if line.full == self._largest else "pixels"
        if self.closed:
            return "closing"
        # Without a delay every arrival is in the past, so there is nothing to look at.
        return "delay" if not self._delay or self._waited_enough_at(line) <= now else None

    def _waited_enough_at(self, line: _Line[Payload]) -> float:
        return line.oldest() + self._delay

    def _rank(self, entry: Entry[Payload], now: float) -> int:
        """The class of an item at this moment: 0 is bulk whose turn it is."""
        if entry.priority is Priority.ONLINE:
            return Priority.ONLINE
        turn = max(entry.arrival, self._bulk_led) + self._max_age
        return 0 if turn <= now else Priority.BULK

    def _forget_the_gone(self) -> None:
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heappop(self._deadlines)
        # Rebuilt only after as many left as still wait, so each item pays O(1) for it.
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [pair for pair in self._deadlines if pair[1] in self._waiting]
            heapify(self._deadlines)
