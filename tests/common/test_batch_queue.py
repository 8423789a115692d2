"""The promises of the batch queue, with a clock that the tests turn."""

import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
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

    def leave(self, entries: list[Entry[str]]) -> None:
        self.left.update(e.number for e in entries)
        for e in entries:
            self.waiting.remove(e)

    @rule(
        shapes=st.lists(st.sampled_from(sorted(PIXELS)), min_size=1, max_size=5),
        priority=st.sampled_from(Priority),
        patience=st.none() | st.integers(0, 60),
    )
    def add(self, shapes: list[str], priority: Priority, patience: int | None) -> None:
        deadline = None if patience is None else self.now + patience * TICK
        new = [entry(shape, priority, self.now, deadline) for shape in shapes]
        if self.queue.closed:
            with pytest.raises(ShuttingDown):
                self.queue.add(*new)
        elif len(new) > self.limits.capacity:
            with pytest.raises(InvalidJob):
                self.queue.add(*new)
        elif len(self.waiting) + len(new) > self.limits.capacity:
            with pytest.raises(Overloaded):
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
            gone = self.waiting[at]
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

    @rule(prefetch=st.booleans())
    def take(self, prefetch: bool) -> None:
        self.expire()
        batch = self.queue.take(self.now, prefetch=prefetch)
        if batch is None:
            self.check_that_waiting_was_right(prefetch)
            return
        self.check_that_the_batch_fits(batch)
        self.check_that_the_batch_was_due(batch, prefetch)
        self.check_that_each_class_is_first_in_first_out(batch)
        self.leave(list(batch.entries))

    def peers(self, shape: object) -> list[Entry[str]]:
        return [e for e in self.waiting if e.shape == shape]

    def is_full(self, shape: str) -> bool:
        return len(self.peers(shape)) >= self.limits.full_size(PIXELS[shape])

    def check_that_the_batch_fits(self, batch: Batch[str]) -> None:
        size = len(batch.entries)
        assert 1 <= size <= self.limits.max_batch_size
        assert size == 1 or batch.pixels <= self.limits.max_batch_pixels
        assert {e.shape for e in batch.entries} == {batch.shape}
        allowed = self.limits.allowed_batch_sizes
        assert size == 1 or not allowed or size in allowed
        assert all(e.deadline is None or e.deadline > self.now for e in batch.entries)

    def check_that_the_batch_was_due(self, batch: Batch[str], prefetch: bool) -> None:
        full = self.is_full(str(batch.shape))
        assert full == (batch.reason in ("full", "pixels"))
        oldest = min(e.arrival for e in self.peers(batch.shape))
        if batch.reason == "delay":
            assert not prefetch
            assert oldest + self.limits.max_queue_delay_ms / 1000 <= self.now
        assert full or batch.reason == "delay" or self.queue.closed

    def check_that_each_class_is_first_in_first_out(self, batch: Batch[str]) -> None:
        for priority in Priority:
            taken = [e.number for e in batch.entries if e.priority is priority]
            there = [e.number for e in self.peers(batch.shape) if e.priority is priority]
            assert taken == there[: len(taken)]

    def check_that_waiting_was_right(self, prefetch: bool) -> None:
        wake_at = self.queue.wake_at(prefetch=prefetch)
        assert wake_at is None or wake_at > self.now
        if prefetch:
            return
        # An idle predictor leaves nothing that is due, and will be woken when something is.
        assert not any(self.is_full(shape) for shape in PIXELS)
        assert not (self.queue.closed and self.waiting)
        delay = self.limits.max_queue_delay_ms / 1000
        moments = [e.arrival + delay for e in self.waiting]
        moments += [e.deadline for e in self.waiting if e.deadline is not None]
        assert wake_at == min(moments, default=None)

    @invariant()
    def each_item_is_there_or_left_once(self) -> None:
        assert len(self.queue) == len(self.waiting) <= self.limits.capacity
        assert all(times == 1 for times in self.left.values())

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.close()
        self.expire()
        while self.waiting:
            batch = self.queue.take(self.now, prefetch=True)
            assert batch is not None, "a closed queue empties, also while the predictors are busy"
            self.leave(list(batch.entries))
        assert self.queue.take(self.now, prefetch=False) is None
        assert self.queue.wake_at(prefetch=False) is None
        assert not self.queue._lines
        assert not self.queue._deadlines, "nothing is kept of what has left"


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_as_many_as_the_limit_leave_together_at_once() -> None:
    queue = queue_of(*(entry() for _ in range(4)))
    batch = queue.take(0.0, prefetch=True)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (4, "full")


def test_one_less_than_the_limit_waits_for_the_delay_and_no_longer() -> None:
    queue = queue_of(*(entry() for _ in range(3)))
    assert queue.take(7 * TICK, prefetch=False) is None
    assert queue.wake_at(prefetch=False) == 8 * TICK
    batch = queue.take(8 * TICK, prefetch=False)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (3, "delay")


def test_a_batch_is_full_when_one_more_would_break_the_pixel_budget() -> None:
    queue = queue_of(*(entry("wide") for _ in range(3)))
    batch = queue.take(0.0, prefetch=True)
    assert batch is not None
    assert (len(batch.entries), batch.pixels, batch.reason) == (3, 900, "pixels")


def test_an_item_above_the_pixel_budget_runs_alone_at_once() -> None:
    queue = queue_of(entry("huge"), entry("huge"))
    batch = queue.take(0.0, prefetch=False)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (1, "pixels")
    assert len(queue) == 1


def test_if_equal_shapes_claim_different_costs_the_dearest_counts() -> None:
    cheap, dear = entry(), replace(entry(), pixels=500)
    queue = queue_of(cheap, dear, entry(), entry())
    batch = queue.take(0.0, prefetch=False)
    assert batch is not None
    assert len(batch.entries) == 2


def test_batches_take_the_largest_allowed_size_that_they_can_fill() -> None:
    limits = replace(LIMITS, max_batch_size=8, allowed_batch_sizes=(2, 5))
    queue = queue_of(*(entry() for _ in range(8)), limits=limits)
    sizes = []
    while batch := queue.take(1.0, prefetch=False):
        sizes.append((len(batch.entries), batch.reason))
    assert sizes == [(5, "full"), (2, "delay"), (1, "delay")]


def test_shapes_never_share_a_batch_however_they_arrive_mixed() -> None:
    queue = queue_of(*(entry(shape) for shape in ["a", "b"] * 4))
    first, second = queue.take(0.0, prefetch=True), queue.take(0.0, prefetch=True)
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
    assert names(queue_of(*waiting).take(15 * TICK, prefetch=False)) == [expected]


def test_bulk_takes_only_the_places_that_online_leaves_free() -> None:
    bulk = [entry(priority=BULK, name=f"bulk {i}") for i in range(5)]
    queue = queue_of(*bulk, entry(name="online 0"), entry(name="online 1"))
    assert names(queue.take(0.0, prefetch=False)) == ["online 0", "online 1", "bulk 0", "bulk 1"]


def test_when_bulk_has_its_turn_online_takes_the_spare_places() -> None:
    queue = queue_of(*(entry(priority=BULK, name=f"bulk {i}") for i in range(3)))
    queue.add(*(entry(name=f"online {i}", arrival=64 * TICK) for i in range(3)))
    assert names(queue.take(64 * TICK, prefetch=False)) == ["bulk 0", "bulk 1", "bulk 2", "online 0"]


def test_a_full_batch_is_not_prepared_ahead_of_a_more_urgent_one() -> None:
    """Else a shape that is always full would shut out a rare one for ever."""
    queue = queue_of(entry("rare"), *(entry(arrival=TICK) for _ in range(4)))
    assert queue.take(8 * TICK, prefetch=True) is None
    assert names(queue.take(8 * TICK, prefetch=False)) == ["rare"]


def test_while_predictors_are_busy_only_deadlines_wake() -> None:
    queue = queue_of(entry(), entry(deadline=30 * TICK))
    assert queue.wake_at(prefetch=True) == 30 * TICK
    assert queue.wake_at(prefetch=False) == 8 * TICK


def test_an_expired_item_is_never_in_a_batch_even_if_nobody_asked_for_the_expired() -> None:
    queue = queue_of(entry(name="late", deadline=5 * TICK), entry(name="good"))
    assert names(queue.take(9 * TICK, prefetch=False)) == ["good"]
    assert [e.payload for e in queue.expire(9 * TICK)] == ["late"]
    assert queue.expire(9 * TICK) == []


def test_clear_gives_back_everything_that_waits() -> None:
    queue = queue_of(entry(name="late", deadline=TICK), entry("wide"), entry("huge", BULK))
    queue.take(TICK, prefetch=True)
    assert len(queue.clear()) == 2, "the huge one has left alone"
    assert len(queue) == 0
    assert queue.take(99.0, prefetch=False) is None


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


# One predictor, always busy, one batch after the other: `arrivals(step)` comes in while each runs.
RUN = 16 * TICK


def saturate(queue: Queue, arrivals: Callable[[float], list[Entry[str]]], runs: int) -> list[Batch[str]]:
    """The batches of a predictor that never rests, with prefetching, as the batcher drives it."""
    ran: list[Batch[str]] = []
    prepared: deque[Batch[str]] = deque()
    for step in range(runs):
        now = step * RUN
        queue.expire(now)
        if not prepared and (batch := queue.take(now, prefetch=False)):
            prepared.append(batch)
        if prepared:
            ran.append(prepared.popleft())
        queue.add(*arrivals(now + RUN / 2))
        if batch := queue.take(now + RUN / 2, prefetch=True):
            prepared.append(batch)
    return ran


online_loads = st.lists(st.sampled_from(["small", "wide", "a", "b"]), min_size=1, max_size=4)


@given(load=online_loads, shape=st.sampled_from(["small", "wide", "rare"]), with_deadline=st.booleans())
@settings(max_examples=30, deadline=None)
def test_bulk_is_never_starved_by_constant_online_load(
    load: list[str], shape: str, with_deadline: bool
) -> None:
    """Its turn comes after `bulk_max_age_ms`; two batches may be on their way then."""
    queue = queue_of(entry(shape, BULK, name="the bulk item"), limits=replace(LIMITS, capacity=10_000))

    def arrivals(now: float) -> list[Entry[str]]:
        deadline = now + 50 * RUN if with_deadline else None
        return [entry(s, ONLINE, now, deadline) for s in load for _ in range(4)]

    ran = saturate(queue, arrivals, runs=10)
    place = next(i for i, batch in enumerate(ran) if "the bulk item" in names(batch))
    assert place * RUN <= LIMITS.bulk_max_age_ms / 1000 + 2 * RUN


@given(shapes=st.lists(st.sampled_from(["small", "wide", "rare", "a", "b"]), min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_a_backlog_of_bulk_moves_on_in_turns_and_costs_online_no_more(shapes: list[str]) -> None:
    queue = queue_of(
        *(entry(shape, BULK, name="bulk") for shape in shapes), limits=replace(LIMITS, capacity=10_000)
    )
    ran = saturate(queue, lambda now: [entry("busy", ONLINE, now) for _ in range(4)], runs=300)
    led = [i for i, batch in enumerate(ran) if "bulk" in names(batch)]
    assert sum(names(batch).count("bulk") for batch in ran) == len(shapes), "all of it ran"
    apart = [later - sooner for sooner, later in pairwise(led)]
    # `bulk_max_age_ms` is four runs: bulk leads one batch in four, not more, and not much less.
    assert all(3 <= runs <= 6 for runs in apart)


@given(load=online_loads)
@settings(max_examples=30, deadline=None)
def test_an_online_item_without_a_deadline_is_not_starved_by_those_with_one(load: list[str]) -> None:
    queue = queue_of(entry("rare", name="patient"), limits=replace(LIMITS, capacity=10_000))
    ran = saturate(
        queue, lambda now: [entry(s, ONLINE, now, now + 8 * RUN) for s in load for _ in range(4)], 40
    )
    place = next(i for i, batch in enumerate(ran) if "patient" in names(batch))
    # What comes after `bulk_max_age_ms` is wanted later; at most what came before it runs first.
    assert place <= (LIMITS.bulk_max_age_ms / 1000 / RUN + 1) * len(load) * 2


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
    def cost(waiting: int) -> int:
        limits = replace(LIMITS, capacity=100_000)
        queue = queue_of(*(entry(deadline=1000.0) for _ in range(waiting)), limits=limits)
        extra = entry(deadline=2000.0)

        def work() -> None:
            queue.add(extra)
            queue.take(0.0, prefetch=True)
            queue.wake_at(prefetch=False)
            queue.remove(extra)

        return opcodes(work)

    assert cost(20_000) == cost(20)


def test_nothing_grows_with_the_items_that_have_left() -> None:
    # One that stays, with the earliest deadline: the gone are not merely at the front.
    queue = queue_of(entry("rare", deadline=500.0), limits=replace(LIMITS, capacity=100_000))
    for _ in range(1_000):
        queue.add(*(entry(deadline=1000.0) for _ in range(4)))
        assert queue.take(0.0, prefetch=True)
        queue.wake_at(prefetch=True)
        assert len(queue._deadlines) <= 2 * len(queue) + 64
