"""The promises of the batch queue, with a clock that the tests turn."""

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.common.batch_queue import Batch, BatchLimits, BatchQueue, Entry, Priority
from services.common.errors import InvalidJob, Overloaded, ShuttingDown

ONLINE, BULK = Priority.ONLINE, Priority.BULK
# Multiples of 1/1024 s are exact in binary, so the tests may compare moments with ==.
TICK = 1 / 1024
TICK_MS = 1000 / 1024
LIMITS = BatchLimits(
    max_batch_size=4,
    max_queue_delay_ms=8 * TICK_MS,
    max_batch_pixels=1000,
    capacity=100,
    bulk_max_age_ms=64 * TICK_MS,
)
PIXELS = {"small": 10, "wide": 300, "huge": 5000}

Queue = BatchQueue[str]


def entry(
    shape: str = "small",
    priority: Priority = ONLINE,
    arrival: float = 0.0,
    deadline: float | None = None,
    name: str = "",
) -> Entry[str]:
    return Entry(name or shape, shape, PIXELS.get(shape, 10), priority, arrival, deadline)


def names(batch: Batch[str] | None) -> list[str]:
    return [] if batch is None else [e.payload for e in batch.entries]


def queue_of(*entries: Entry[str], limits: BatchLimits = LIMITS) -> Queue:
    queue: Queue = BatchQueue(limits)
    queue.add(*entries)
    return queue


def take(queue: Queue, now: float, *, idle: bool) -> Batch[str] | None:
    """What is proposed, run at once."""
    batch = queue.propose(now, idle=idle)
    if batch is not None:
        queue.take(batch, now)
    return batch


limits_of_any_kind = st.builds(
    lambda size, sizes, delay, pixels, capacity, age: BatchLimits(
        max_batch_size=size,
        max_queue_delay_ms=delay * TICK_MS,
        max_batch_pixels=pixels,
        capacity=capacity,
        bulk_max_age_ms=age * TICK_MS,
        allowed_batch_sizes=tuple(sorted(s for s in sizes if s <= size)),
    ),
    size=st.integers(1, 6),
    sizes=st.sets(st.integers(1, 6), max_size=3),
    delay=st.integers(0, 20),
    pixels=st.sampled_from([5, 40, 700, 10_000]),
    capacity=st.integers(1, 12),
    age=st.integers(1, 100),
)


class AnySchedule(RuleBasedStateMachine):
    """Whatever happens in whatever order, each promise holds; `waiting` says what must be in the queue."""

    @initialize(limits=limits_of_any_kind)
    def open(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.queue: Queue = BatchQueue(limits)
        self.now = 0.0
        self.waiting: list[Entry[str]] = []
        self.left: Counter[int] = Counter()
        self.bulk_led = -inf
        self.standing: Batch[str] | None = None
        self.displaced = 0

    def leave(self, entries: list[Entry[str]]) -> None:
        self.left.update(e.number for e in entries)
        for e in entries:
            self.waiting.remove(e)

    @rule(
        items=st.lists(
            st.tuples(st.sampled_from(sorted(PIXELS)), st.sampled_from(Priority)), min_size=1, max_size=5
        ),
        patience=st.none() | st.integers(0, 60),
    )
    def add(self, items: list[tuple[str, Priority]], patience: int | None) -> None:
        deadline = None if patience is None else self.now + patience * TICK
        new = [entry(shape, priority, self.now, deadline) for shape, priority in items]
        each = Counter(e.priority for e in new)
        there = Counter(e.priority for e in self.waiting)
        if self.queue.closed:
            with pytest.raises(ShuttingDown):
                self.queue.add(*new)
        elif any(there[p] + each[p] > self.limits.capacity for p in each):
            never = any(each[p] > self.limits.capacity for p in each)
            with pytest.raises((Overloaded, InvalidJob) if never else Overloaded):
                self.queue.add(*new)
        else:
            self.queue.add(*new)
            self.waiting += new

    @rule(ticks=st.integers(1, 40))
    def time_passes(self, ticks: int) -> None:
        self.now += ticks * TICK

    @rule(at=st.integers(0, 11))
    def cancel(self, at: int) -> None:
        if at < len(self.waiting):
            self.withdraw(self.waiting[at])

    @precondition(lambda self: self.standing is not None and self.standing.entries[-1] in self.waiting)
    @rule()
    def cancel_a_rider_of_the_proposal(self) -> None:
        assert self.standing is not None
        self.withdraw(self.standing.entries[-1])

    def withdraw(self, gone: Entry[str]) -> None:
        assert self.queue.remove(gone)
        assert not self.queue.remove(gone)
        self.leave([gone])

    @rule()
    def expire(self) -> None:
        expected = [e for e in self.waiting if e.deadline is not None and e.deadline <= self.now]
        expired = self.queue.expire(self.now)
        assert sorted(e.number for e in expired) == sorted(e.number for e in expected)
        self.leave(expired)

    @precondition(lambda self: not self.queue.closed)
    @rule(really=st.integers(0, 9))
    def close(self, really: int) -> None:
        if really == 0:
            self.queue.close()

    @rule(idle=st.booleans())
    def propose(self, idle: bool) -> None:
        self.expire()
        before, batch = self.standing, self.queue.propose(self.now, idle=idle, standing=self.standing)
        if batch is None:
            self.check_that_waiting_was_right(idle)
        elif batch is not before:
            self.check_that_the_batch_fits(batch)
            self.check_that_the_batch_was_due(batch, idle)
            self.check_that_each_class_is_first_in_first_out(batch)
        if before is not None:
            self.check_that_a_proposal_falls_for_a_reason_only(before, batch)
        self.standing = batch
        again = self.queue.propose(self.now, idle=idle, standing=batch)
        assert again is batch, "nothing has changed, so nothing is prepared again"

    @rule()
    def run(self) -> None:
        """A predictor is free: the proposal runs if it stands."""
        self.propose(idle=True)
        batch = self.standing
        if batch is None:
            return
        assert all(e.deadline is None or e.deadline > self.now for e in batch.entries)
        self.queue.take(batch, self.now)
        self.leave(list(batch.entries))
        if batch.entries[0].priority is BULK:
            self.bulk_led = self.now
        self.standing, self.displaced = None, 0

    def peers(self, shape: object) -> list[Entry[str]]:
        return [e for e in self.waiting if e.shape == shape]

    def is_full(self, shape: str) -> bool:
        return len(self.peers(shape)) >= self.limits.full_size(PIXELS[shape])

    def is_due(self, shape: str) -> bool:
        peers = self.peers(shape)
        waited = any(e.arrival + self.limits.max_queue_delay_ms / 1000 <= self.now for e in peers)
        return bool(peers) and (waited or self.queue.closed or self.is_full(shape))

    def rank(self, e: Entry[str]) -> int:
        """0 is bulk whose turn it is."""
        turn = max(e.arrival, self.bulk_led) + self.limits.bulk_max_age_ms / 1000
        return 1 if e.priority is ONLINE else 0 if turn <= self.now else 2

    def best_rank(self) -> int | None:
        """Of all that could run now; online is due as soon as bulk would go before it."""
        ranks = [self.rank(e) for shape in PIXELS if self.is_due(shape) for e in self.peers(shape)]
        online_waits = any(e.priority is ONLINE for e in self.waiting)
        return min(ranks + [1] * online_waits) if ranks else None

    def check_that_the_batch_fits(self, batch: Batch[str]) -> None:
        size = len(batch.entries)
        assert 1 <= size <= self.limits.max_batch_size
        assert size == 1 or batch.pixels <= self.limits.max_batch_pixels
        assert {e.shape for e in batch.entries} == {batch.shape}
        allowed = self.limits.allowed_batch_sizes
        assert size == 1 or not allowed or size in allowed
        assert all(e.deadline is None or e.deadline > self.now for e in batch.entries)

    def check_that_the_batch_was_due(self, batch: Batch[str], idle: bool) -> None:
        shape = str(batch.shape)
        assert self.is_full(shape) == (batch.reason in ("full", "pixels"))
        assert self.rank(batch.entries[0]) == self.best_rank()
        if batch.reason in ("delay", "online"):
            assert idle
            assert self.is_due(shape) == (batch.reason == "delay")
        if batch.reason == "closing":
            assert self.queue.closed

    def check_that_each_class_is_first_in_first_out(self, batch: Batch[str]) -> None:
        for priority in Priority:
            taken = [e.number for e in batch.entries if e.priority is priority]
            there = [e.number for e in self.peers(batch.shape) if e.priority is priority]
            assert taken == there[: len(taken)]

    def check_that_a_proposal_falls_for_a_reason_only(
        self, before: Batch[str], after: Batch[str] | None
    ) -> None:
        complete = all(e in self.waiting for e in before.entries)
        if after is before:
            assert complete
            best = self.best_rank()
            assert best is not None
            assert self.rank(before.entries[0]) <= best
        elif complete:
            assert self.best_rank() is not None
            assert self.rank(before.entries[0]) > self.best_rank()  # type: ignore[operator]
            self.displaced += after is not None
            assert self.displaced <= 2, "there are three classes, so this ends"
        else:
            self.displaced = 0

    def check_that_waiting_was_right(self, idle: bool) -> None:
        wake_at = self.queue.wake_at(idle=idle)
        assert wake_at is None or wake_at > self.now
        if not idle:
            return
        # An idle predictor leaves nothing that is due, and will be woken when something is.
        assert not any(self.is_due(shape) for shape in PIXELS)
        delay = self.limits.max_queue_delay_ms / 1000
        moments = [e.arrival + delay for e in self.waiting]
        moments += [e.deadline for e in self.waiting if e.deadline is not None]
        assert wake_at == min(moments, default=None)

    @invariant()
    def each_item_is_there_or_left_once(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert all(
            times <= self.limits.capacity for times in Counter(e.priority for e in self.waiting).values()
        )
        assert all(times == 1 for times in self.left.values())

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.close()
        self.expire()
        while self.waiting:
            batch = take(self.queue, self.now, idle=False)
            assert batch is not None, "a closed queue empties, also while the predictors are busy"
            self.leave(list(batch.entries))
        assert self.queue.propose(self.now, idle=True) is None
        assert self.queue.wake_at(idle=True) is None
        assert not self.queue._lines
        assert not self.queue._deadlines, "nothing is kept of what has left"
        assert not +self.queue._of_class


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_as_many_as_the_limit_leave_together_at_once() -> None:
    queue = queue_of(*(entry() for _ in range(4)))
    batch = take(queue, 0.0, idle=False)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (4, "full")


def test_one_less_than_the_limit_waits_for_the_delay_and_no_longer() -> None:
    queue = queue_of(*(entry() for _ in range(3)))
    assert take(queue, 7 * TICK, idle=True) is None
    assert queue.wake_at(idle=True) == 8 * TICK
    batch = take(queue, 8 * TICK, idle=True)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (3, "delay")


def test_a_batch_is_full_when_one_more_would_break_the_pixel_budget() -> None:
    queue = queue_of(*(entry("wide") for _ in range(3)))
    batch = take(queue, 0.0, idle=False)
    assert batch is not None
    assert (len(batch.entries), batch.pixels, batch.reason) == (3, 900, "pixels")


def test_an_item_above_the_pixel_budget_runs_alone_at_once() -> None:
    queue = queue_of(entry("huge"), entry("huge"))
    batch = take(queue, 0.0, idle=True)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (1, "pixels")
    assert len(queue) == 1


def test_if_equal_shapes_claim_different_costs_the_dearest_counts() -> None:
    cheap, dear = entry(), replace(entry(), pixels=500)
    queue = queue_of(cheap, dear, entry(), entry())
    batch = take(queue, 0.0, idle=True)
    assert batch is not None
    assert len(batch.entries) == 2


def test_batches_take_the_largest_allowed_size_that_they_can_fill() -> None:
    limits = replace(LIMITS, max_batch_size=8, allowed_batch_sizes=(2, 5))
    queue = queue_of(*(entry() for _ in range(8)), limits=limits)
    sizes = []
    while batch := take(queue, 1.0, idle=True):
        sizes.append((len(batch.entries), batch.reason))
    assert sizes == [(5, "full"), (2, "delay"), (1, "delay")]


def test_shapes_never_share_a_batch_however_they_arrive_mixed() -> None:
    queue = queue_of(*(entry(shape) for shape in ["a", "b"] * 4))
    first, second = take(queue, 0.0, idle=False), take(queue, 0.0, idle=False)
    assert names(first) == ["a"] * 4
    assert names(second) == ["b"] * 4


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param([entry("old", arrival=0), entry("new", arrival=TICK)], "old", id="age"),
        pytest.param(
            [entry("no haste"), entry("haste", deadline=20 * TICK)], "haste", id="deadline before age"
        ),
        pytest.param(
            [entry("late", deadline=40 * TICK), entry("soon", deadline=30 * TICK)], "soon", id="deadline"
        ),
        pytest.param([entry("bulk", BULK), entry("online", ONLINE, 5 * TICK)], "online", id="online first"),
        pytest.param(
            [entry("bulk", BULK, deadline=20 * TICK), entry("online")], "online", id="online before haste"
        ),
        pytest.param(
            [entry("first"), entry("far", deadline=900.0)], "first", id="a far deadline is no haste"
        ),
    ],
)
def test_the_most_urgent_shape_runs_next(waiting: list[Entry[str]], expected: str) -> None:
    assert names(take(queue_of(*waiting), 15 * TICK, idle=True)) == [expected]


def test_bulk_takes_only_the_places_that_online_leaves_free() -> None:
    bulk = [entry(priority=BULK, name=f"bulk {i}") for i in range(5)]
    queue = queue_of(*bulk, entry(name="online 0"), entry(name="online 1"))
    assert names(take(queue, 0.0, idle=True)) == ["online 0", "online 1", "bulk 0", "bulk 1"]


def test_when_bulk_has_its_turn_online_takes_the_spare_places() -> None:
    queue = queue_of(*(entry(priority=BULK, name=f"bulk {i}") for i in range(3)))
    queue.add(*(entry(name=f"online {i}", arrival=64 * TICK) for i in range(3)))
    assert names(take(queue, 64 * TICK, idle=True)) == ["bulk 0", "bulk 1", "bulk 2", "online 0"]


def test_a_full_batch_is_not_prepared_ahead_of_a_more_urgent_one() -> None:
    """Else a shape that is always full would shut out a rare one for ever."""
    queue = queue_of(entry("rare"), *(entry(arrival=TICK) for _ in range(4)))
    assert take(queue, 8 * TICK, idle=False) is None
    assert names(take(queue, 8 * TICK, idle=True)) == ["rare"]


def test_items_of_a_proposal_go_on_waiting_until_it_runs() -> None:
    queue = queue_of(*(entry() for _ in range(4)))
    batch = queue.propose(0.0, idle=False)
    assert batch is not None
    assert len(queue) == 4
    queue.take(batch, 0.0)
    assert len(queue) == 0


@pytest.mark.parametrize("leaves", ["cancelled", "expired"])
def test_a_proposal_that_lost_a_rider_is_formed_anew_and_the_others_keep_their_order(leaves: str) -> None:
    items = [entry(name=f"{i}", deadline=TICK if i == 1 else None) for i in range(5)]
    queue = queue_of(*items)
    first = queue.propose(0.0, idle=False)
    assert names(first) == ["0", "1", "2", "3"]
    if leaves == "cancelled":
        assert queue.remove(items[1])
    second = queue.propose(TICK, idle=False, standing=first)
    assert names(second) == ["0", "2", "3", "4"]


def test_a_proposal_that_cannot_be_filled_again_is_given_up_while_the_predictors_are_busy() -> None:
    items = [entry(name=f"{i}") for i in range(4)]
    queue = queue_of(*items)
    first = queue.propose(0.0, idle=False)
    queue.remove(items[0])
    assert queue.propose(0.0, idle=False, standing=first) is None
    assert names(queue.propose(8 * TICK, idle=True, standing=first)) == ["1", "2", "3"]


def test_a_proposal_gives_way_to_a_higher_class_and_to_nothing_else() -> None:
    queue = queue_of(
        *(entry("a", BULK) for _ in range(4)), *(entry("b", BULK, deadline=1.0) for _ in range(3))
    )
    bulk = queue.propose(0.0, idle=False)
    assert names(bulk) == ["a"] * 4
    queue.add(entry("b", BULK, TICK, deadline=20 * TICK))
    assert queue.propose(TICK, idle=True, standing=bulk) is bulk, (
        "full and wanted sooner, but of no higher class"
    )
    queue.add(entry("c", ONLINE, 2 * TICK))
    assert queue.propose(2 * TICK, idle=False, standing=bulk) is None, "it can still grow while it waits"
    online = queue.propose(2 * TICK, idle=True, standing=bulk)
    assert names(online) == ["c"]
    turn = queue.propose(64 * TICK, idle=True, standing=online)
    assert names(turn) == ["a"] * 4, "bulk has its turn"


def test_an_online_item_never_waits_for_company_while_bulk_runs_instead() -> None:
    queue = queue_of(*(entry("a", BULK) for _ in range(4)), entry("b", BULK), entry("b"))
    batch = take(queue, 0.0, idle=True)
    assert batch is not None
    assert (names(batch), batch.reason) == (["b", "b"], "online")
    assert [e.priority for e in batch.entries] == [ONLINE, BULK], "bulk of its shape takes the spare places"
    assert names(take(queue, 0.0, idle=True)) == ["a"] * 4


def test_a_batch_whose_rider_has_left_cannot_be_taken() -> None:
    items = [entry() for _ in range(4)]
    queue = queue_of(*items)
    batch = queue.propose(0.0, idle=True)
    assert batch is not None
    queue.remove(items[2])
    with pytest.raises(ValueError, match="propose again"):
        queue.take(batch, 0.0)


@pytest.mark.parametrize(("fills", "comes"), [(BULK, ONLINE), (ONLINE, BULK)])
def test_one_class_never_shuts_the_door_on_the_other(fills: Priority, comes: Priority) -> None:
    queue = queue_of(*(entry(priority=fills) for _ in range(100)))
    with pytest.raises(Overloaded, match=f"100 of 100 places for {fills.name.lower()} work"):
        queue.add(entry(priority=fills))
    queue.add(*(entry(priority=comes) for _ in range(100)))
    assert len(queue) == 200


def test_while_predictors_are_busy_only_deadlines_wake() -> None:
    queue = queue_of(entry(), entry(deadline=30 * TICK))
    assert queue.wake_at(idle=False) == 30 * TICK
    assert queue.wake_at(idle=True) == 8 * TICK


def test_an_expired_item_is_never_in_a_batch_even_if_nobody_asked_for_the_expired() -> None:
    queue = queue_of(entry(name="late", deadline=5 * TICK), entry(name="good"))
    assert names(take(queue, 9 * TICK, idle=True)) == ["good"]
    assert [e.payload for e in queue.expire(9 * TICK)] == ["late"]
    assert queue.expire(9 * TICK) == []


def test_clear_gives_back_everything_that_waits() -> None:
    queue = queue_of(entry(name="late", deadline=TICK), entry("wide", BULK), entry("huge"))
    take(queue, TICK, idle=False)
    assert len(queue.clear()) == 2, "the huge one has left alone"
    assert len(queue) == 0
    assert take(queue, 99.0, idle=True) is None


def test_a_bad_item_admits_none_of_its_group() -> None:
    queue = queue_of()
    with pytest.raises(TypeError, match="unhashable"):
        queue.add(entry(), Entry("bad", [1, 2], 10, ONLINE, 0.0))
    assert len(queue) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_size": 0},
        {"max_batch_pixels": 0},
        {"capacity": 0},
        {"max_queue_delay_ms": -1.0},
        {"bulk_max_age_ms": 0.0},
        {"allowed_batch_sizes": (0, 2)},
        {"allowed_batch_sizes": (2, 5)},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(LIMITS, **wrong)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ran:
    """A batch that a simulated predictor ran."""

    batch: Batch[str]
    start: float
    end: float

    @property
    def leader(self) -> Entry[str]:
        return self.batch.entries[0]


Arrivals = Sequence[tuple[float, list[Entry[str]]]]


def cost(batch: Batch[str]) -> float:
    """How long a batch runs: a full one of four 16 ticks, a single item 7."""
    return (4 + 3 * len(batch.entries)) * TICK


RUN = 16 * TICK
AGE = LIMITS.bulk_max_age_ms / 1000
WIDE = replace(LIMITS, capacity=100_000)


def simulate(queue: Queue, arrivals: Arrivals, *, until: float, predictors: int = 1) -> list[Ran]:
    """What runs when, driven as the batcher does; preparing takes no time."""
    coming, ends, ran = deque(arrivals), list[float](), list[Ran]()
    now, standing = 0.0, None
    while now <= until:
        ends = [end for end in ends if end > now]
        while coming and coming[0][0] <= now:
            queue.add(*coming.popleft()[1])
        queue.expire(now)
        while standing := queue.propose(now, idle=len(ends) < predictors, standing=standing):
            if len(ends) == predictors:
                break
            queue.take(standing, now)
            ran.append(Ran(standing, now, now + cost(standing)))
            ends.append(ran[-1].end)
            standing = None
        wake_at = queue.wake_at(idle=len(ends) < predictors)
        now = min(
            [moment for moment, _ in list(coming)[:1]] + ends + ([] if wake_at is None else [wake_at]),
            default=inf,
        )
    return ran


def poisson(seed: int, rate: float, until: float) -> Arrivals:
    """Online items of four shapes, so many a second."""
    chance, now, arrivals = random.Random(seed), 0.0, list[tuple[float, list[Entry[str]]]]()
    while (now := now + chance.expovariate(rate)) < until:
        arrivals.append((now, [entry(chance.choice("abcd"), ONLINE, now, name=f"online {len(arrivals)}")]))
    return arrivals


def constant(load: Sequence[str], runs: int, patience: float | None = None) -> Arrivals:
    """Far more online work than can be done: four items of each shape while one batch runs."""
    moments = [RUN * (step + 0.5) for step in range(runs)]
    return [
        (
            at,
            [
                entry(s, ONLINE, at, None if patience is None else at + patience)
                for s in load
                for _ in range(4)
            ],
        )
        for at in moments
    ]


def backlog(items: int) -> list[Entry[str]]:
    return [entry("abcd"[i % 4], BULK, name="bulk") for i in range(items)]


HORIZON = 200 * RUN
CAPACITY = 4 / RUN


def bulk_items(ran: list[Ran]) -> int:
    return sum(names(r.batch).count("bulk") for r in ran)


@given(seed=st.integers(0, 2**32), predictors=st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_beside_a_backlog_online_waits_for_what_runs_for_online_and_for_bulks_turns_only(
    seed: int, predictors: int
) -> None:
    arrivals = poisson(seed, 0.5 * CAPACITY * predictors, HORIZON)
    ran = simulate(
        queue_of(*backlog(2000), limits=WIDE), arrivals, until=HORIZON + 10 * RUN, predictors=predictors
    )
    started = {e.payload: r.start for r in ran for e in r.batch.entries if e.priority is ONLINE}
    assert len(started) == len(arrivals), "all of it ran"
    led_by_bulk = [r.start for r in ran if r.leader.priority is BULK]
    for at, [item] in arrivals:
        passed = [start for start in led_by_bulk if at < start < started[item.payload]]
        assert len(passed) <= 1 + (started[item.payload] - at) // AGE


@given(seed=st.integers(0, 2**32), load=st.floats(0.1, 0.7), predictors=st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_bulk_gets_all_the_time_that_online_leaves(seed: int, load: float, predictors: int) -> None:
    arrivals = poisson(seed, load * CAPACITY * predictors, HORIZON)
    ran = simulate(queue_of(*backlog(2000), limits=WIDE), arrivals, until=HORIZON, predictors=predictors)
    busy = sum(min(r.end, HORIZON) - r.start for r in ran)
    assert busy == pytest.approx(HORIZON * predictors), "no predictor is idle while bulk waits"
    led = [r for r in ran if r.leader.priority is BULK]
    assert all(r.batch.reason == "full" for r in led)
    left = HORIZON * predictors - sum(r.end - r.start for r in ran if r.leader.priority is ONLINE)
    assert bulk_items(led) >= CAPACITY * (left - 2 * RUN)
    without = simulate(queue_of(*backlog(2000), limits=WIDE), [], until=HORIZON, predictors=predictors)
    # An item alone takes 7 ticks, in which bulk would have done 7/4 items.
    assert bulk_items(ran) >= bulk_items(without) - 7 / 4 * len(arrivals) - 8


@given(load=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), with_deadline=st.booleans())
@settings(max_examples=20, deadline=None)
def test_under_constant_online_load_bulk_leads_once_in_its_age_no_more_and_hardly_less(
    load: list[str], with_deadline: bool
) -> None:
    patience = 50 * RUN if with_deadline else None
    ran = simulate(queue_of(*backlog(400), limits=WIDE), constant(load, 300, patience), until=300 * RUN)
    led = [r.start for r in ran if r.leader.priority is BULK and r.start > RUN]
    assert led[0] <= AGE + RUN
    assert all(AGE <= later - sooner <= AGE + RUN for sooner, later in pairwise(led))
    assert len(led) >= 300 * RUN / (AGE + RUN) - 2


@given(
    load=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4),
    shape=st.sampled_from(["a", "wide", "rare"]),
)
@settings(max_examples=20, deadline=None)
def test_a_single_bulk_item_is_never_starved(load: list[str], shape: str) -> None:
    queue = queue_of(entry(shape, BULK, TICK, name="the bulk item"), limits=WIDE)
    ran = simulate(queue, [(0.0, [entry("a") for _ in range(4)]), *constant(load, 20)], until=20 * RUN)
    start = next(r.start for r in ran if "the bulk item" in names(r.batch))
    assert start <= TICK + AGE + RUN


@given(load=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_an_online_item_without_a_deadline_is_not_starved_by_those_with_one(load: list[str]) -> None:
    queue = queue_of(entry("rare", name="patient"), limits=WIDE)
    at_once = [(0.0, [entry("a", deadline=8 * RUN) for _ in range(4)])]
    ran = simulate(queue, [*at_once, *constant(load, 60, 8 * RUN)], until=60 * RUN)
    place = next(i for i, r in enumerate(ran) if names(r.batch) == ["patient"])
    # What comes after `bulk_max_age_ms` is wanted later; at most what came before it runs first.
    assert place <= (AGE / RUN + 1) * len(load) + 1


@given(shapes=st.lists(st.sampled_from(["small", "wide", "rare", "a", "b"]), min_size=1, max_size=40))
@settings(max_examples=20, deadline=None)
def test_a_backlog_of_any_shapes_runs_to_its_end(shapes: list[str]) -> None:
    queue = queue_of(*(entry(shape, BULK, name="bulk") for shape in shapes), limits=WIDE)
    ran = simulate(queue, constant(["a"], 300), until=300 * RUN)
    assert bulk_items(ran) == len(shapes)


def opcodes(work: Callable[[], object]) -> int:
    """How many bytecodes `work` executes: a cost that no other process can disturb."""
    executed = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed


def test_adding_taking_and_removing_cost_the_same_however_many_wait() -> None:
    def steps(waiting: int) -> int:
        limits = replace(LIMITS, capacity=100_000)
        queue = queue_of(*(entry(deadline=1000.0) for _ in range(waiting)), limits=limits)
        extra = entry(deadline=2000.0)

        def work() -> None:
            queue.add(extra)
            take(queue, 0.0, idle=False)
            queue.wake_at(idle=True)
            queue.remove(extra)

        return opcodes(work)

    assert steps(20_000) == steps(20)


def test_nothing_grows_with_the_items_that_have_left() -> None:
    # One that stays, with the earliest deadline: the gone are not merely at the front.
    queue = queue_of(entry("rare", deadline=500.0), limits=replace(LIMITS, capacity=100_000))
    for _ in range(1_000):
        queue.add(*(entry(deadline=1000.0) for _ in range(4)))
        assert take(queue, 0.0, idle=False)
        queue.wake_at(idle=False)
        assert len(queue._deadlines) <= 2 * len(queue) + 64
