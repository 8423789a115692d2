"""The promises of the batcher, in virtual time: nothing here sleeps, and what would hang fails at once."""

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.batcher import (
    Batcher,
    BatchFacts,
    BatchLimits,
    Completed,
    Priority,
    Request,
    RunOutput,
)
from services.common.errors import (
    CorruptInput,
    DeadlineExceeded,
    Internal,
    InvalidJob,
    OcrError,
    Overloaded,
    PredictorFailed,
    ShuttingDown,
)
from tests.fakes.virtual_time import now, run

ONLINE, BULK = Priority.ONLINE, Priority.BULK
LIMITS = BatchLimits(
    max_batch_size=4, max_queue_delay_ms=10, max_batch_pixels=1000, capacity=20, bulk_max_age_ms=2000
)
PREPARE, RUN = 0.002, 0.100


class BadRunner(RuntimeError):
    """What a defect in a runner raises."""


@dataclass
class FakeRunner:
    """Doubles numbers. The first item that is a word decides how its batch, or that item, goes wrong."""

    concurrency: int = 1
    prepare_s: float = PREPARE
    run_s: float = RUN
    batches: list[list[Any]] = field(default_factory=list)
    """What reached the model."""
    preparations: list[list[Any]] = field(default_factory=list)
    preparing: bool = False
    running: int = 0
    deadlines: dict[int, float] = field(default_factory=dict)
    """Of items, by identity."""

    async def prepare(self, items: Sequence[Any]) -> list[Any]:
        assert not self.preparing, "one at a time"
        self.preparations.append(list(items))
        self.preparing = True
        try:
            await asyncio.sleep(self.prepare_s)
        finally:
            self.preparing = False
        if "prepare fails" in items:
            raise BadRunner("prepare")
        return list(items)

    async def run(self, prepared: Any) -> RunOutput[int]:
        assert prepared == self.preparations[-1], "what was dropped never runs"
        assert all(self.deadlines.get(id(item), now() + 1) > now() for item in prepared), "expired"
        self.batches.append(prepared)
        self.running += 1
        assert self.running <= self.concurrency, "more batches run than there are predictors"
        try:
            await asyncio.sleep(self.run_s)
            return self.outputs(prepared)
        finally:
            self.running -= 1

    def outputs(self, items: list[Any]) -> RunOutput[int]:
        if "run fails" in items:
            raise PredictorFailed("the predictor died")
        if "run is cancelled" in items:
            raise asyncio.CancelledError
        outputs = [CorruptInput(f"{i}") if i == "bad item" else i * 2 for i in items if i != "lost"]
        return RunOutput(outputs, self.run_s * 1000, 2 * self.run_s * 1000)


@dataclass
class Watcher:
    """Remembers what it was told."""

    facts: list[BatchFacts] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def on_batch(self, facts: BatchFacts) -> None:
        self.facts.append(facts)

    def on_drop(self, kind: Literal["expired", "cancelled"], count: int) -> None:
        self.counts[kind] += count

    def on_refuse(self, count: int) -> None:
        self.counts["refused"] += count


class Bench:
    """A batcher with everything around it faked, and short words for what tests do with it."""

    def __init__(self, limits: BatchLimits = LIMITS, concurrency: int = 1, **runner: Any) -> None:
        self.runner = FakeRunner(concurrency, **runner)
        self.watcher = Watcher()
        self.batcher: Batcher[Any, int] = Batcher(
            limits, self.runner, concurrency=concurrency, clock=now, observer=self.watcher
        )

    async def __aenter__(self) -> "Bench":
        self.batcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.batcher.close()

    def submit(
        self,
        item: Any,
        *,
        shape: str = "s",
        pixels: int = 10,
        priority: Priority = ONLINE,
        within: float | None = None,
        context: object = None,
    ) -> "asyncio.Task[Completed[int]]":
        deadline = None if within is None else now() + within
        return asyncio.create_task(
            self.batcher.submit(
                item, shape=shape, pixels=pixels, priority=priority, deadline=deadline, context=context
            )
        )

    def submit_all(
        self, items: Sequence[Any], **options: Any
    ) -> "asyncio.Task[list[Completed[int] | OcrError]]":
        requests = [Request(item, "s", 10) for item in items]
        options = {"priority": ONLINE, "deadline": None} | options
        return asyncio.create_task(self.batcher.submit_all(requests, **options))


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs an async test in virtual time."""

    def in_virtual_time() -> None:
        run(test())  # type: ignore[arg-type]

    in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
    return in_virtual_time


async def turn() -> None:
    """Lets everything that is ready run, without time passing."""
    for _ in range(10):
        await asyncio.sleep(0)


async def answer_of(task: "asyncio.Task[Any]") -> Any:
    """The result of `task`, or the exception that it ended with."""
    return (await asyncio.gather(task, return_exceptions=True))[0]


@scenario
async def test_items_of_many_callers_run_together_and_each_gets_its_own_output() -> None:
    async with Bench() as bench:
        answers = await asyncio.gather(*(bench.submit(i) for i in range(4)))
        assert bench.runner.batches == [[0, 1, 2, 3]]
        assert [a.output for a in answers] == [0, 2, 4, 6]
        assert {(a.batch_size, a.batch_id, a.model_ms) for a in answers} == {(4, 1, RUN * 1000)}


@scenario
async def test_a_lone_item_waits_for_the_queue_delay_only() -> None:
    async with Bench() as bench:
        answer = await bench.submit(1)
        assert answer.queue_ms == pytest.approx(LIMITS.max_queue_delay_ms)
        assert now() == pytest.approx(0.010 + PREPARE + RUN)


@scenario
async def test_a_full_batch_does_not_wait() -> None:
    async with Bench() as bench:
        answers = await bench.submit_all(range(4))
        assert now() == pytest.approx(PREPARE + RUN)
        assert all(isinstance(a, Completed) and a.queue_ms == pytest.approx(0) for a in answers)


@scenario
async def test_one_batch_is_prepared_while_others_run_so_a_predictor_goes_on_without_a_gap() -> None:
    async with Bench(concurrency=2) as bench:
        await bench.submit_all(range(20))
        assert now() == pytest.approx(PREPARE + 3 * RUN), (
            "5 batches on 2 predictors, all but the first prepared in the shadow of others"
        )
        assert len(bench.runner.preparations) == 5


@scenario
async def test_a_predictor_goes_on_before_the_answers_of_its_last_batch_are_made() -> None:
    async with Bench() as bench:
        begun: list[int] = []

        class Looks(Watcher):
            def on_batch(self, facts: BatchFacts) -> None:
                begun.append(len(bench.runner.batches))

        bench.batcher._observer = Looks()
        await bench.submit_all(range(12))
        assert begun == [2, 3, 3]


@scenario
async def test_time_waiting_for_a_predictor_counts_as_queue_time_and_preparing_does_not() -> None:
    async with Bench() as bench:
        bench.submit_all(range(4))
        second = bench.submit_all(range(4))
        [answer, *_] = await second
        assert isinstance(answer, Completed)
        facts = bench.watcher.facts[-1]
        assert answer.queue_ms == pytest.approx(RUN * 1000)
        assert facts.prepare_ms == pytest.approx(PREPARE * 1000)
        assert answer.queue_ms + facts.prepare_ms + facts.model_ms == pytest.approx(now() * 1000)


@scenario
async def test_while_the_predictor_is_busy_a_batch_that_is_not_full_goes_on_growing() -> None:
    async with Bench() as bench:
        first = bench.submit_all(range(4))
        await turn()
        second = []
        for item in (10, 11, 12):
            second.append(bench.submit(item))
            await asyncio.sleep(0.030)
        await asyncio.gather(first, *second)
        assert bench.runner.batches == [[0, 1, 2, 3], [10, 11, 12]]


@scenario
async def test_an_expired_item_is_answered_at_its_deadline_also_while_the_predictors_are_busy() -> None:
    async with Bench() as bench:
        busy = bench.submit_all(range(8))
        late = bench.submit(99, within=0.030)
        with pytest.raises(DeadlineExceeded, match="30 ms in the queue"):
            await late
        assert now() == pytest.approx(0.030)
        await busy
        assert [99] not in bench.runner.batches
        assert bench.watcher.counts == {"expired": 1}


@scenario
async def test_a_deadline_that_has_passed_already_never_reaches_the_runner() -> None:
    async with Bench() as bench:
        with pytest.raises(DeadlineExceeded):
            await bench.submit(1, within=-1.0)
        assert bench.runner.batches == []
        assert bench.watcher.counts == {"expired": 1}


@scenario
async def test_a_deadline_that_has_passed_already_takes_no_place_in_the_queue() -> None:
    bench = Bench(replace(LIMITS, capacity=1))
    waiting = bench.submit(1)
    await turn()
    assert isinstance(await answer_of(bench.submit(2, within=0.0)), DeadlineExceeded)
    assert bench.batcher.depth == 1
    assert bench.watcher.counts == {"expired": 1}
    await bench.batcher.close()
    assert isinstance(await answer_of(waiting), ShuttingDown)


@pytest.mark.parametrize("gone", ["cancelled", "expired"])
@pytest.mark.parametrize("when", ["while it is prepared", "while it waits for a predictor"])
def test_who_leaves_a_prepared_batch_never_reaches_the_runner(gone: str, when: str) -> None:
    """The others ride in the batch that is formed anew, in their old order."""
    moment = PREPARE + (0.5 * PREPARE if when == "while it is prepared" else 0.5 * RUN)

    async def main() -> None:
        async with Bench() as bench:
            first = bench.submit_all(range(4))
            riders = [
                bench.submit(10 + i, within=moment if i == 2 and gone == "expired" else None)
                for i in range(5)
            ]
            await asyncio.sleep(moment)
            if gone == "cancelled":
                riders[2].cancel()
            await asyncio.gather(first, *riders, return_exceptions=True)
            assert bench.runner.batches == [[0, 1, 2, 3], [10, 11, 13, 14]]
            assert bench.runner.preparations[1:] == [[10, 11, 12, 13], [10, 11, 13, 14]]
            assert now() == pytest.approx(PREPARE + 2 * RUN), (
                "prepared again in the shadow of the first batch"
            )
            assert bench.watcher.counts == {gone: 1}

    run(main())


@pytest.mark.parametrize("gone", ["cancelled", "expired"])
def test_who_leaves_while_an_idle_predictor_waits_for_the_preparation_never_reaches_the_runner(
    gone: str,
) -> None:
    async def main() -> None:
        async with Bench() as bench:
            riders = [
                bench.submit(i, within=0.5 * PREPARE if i == 2 and gone == "expired" else None)
                for i in range(5)
            ]
            await asyncio.sleep(0.5 * PREPARE)
            if gone == "cancelled":
                riders[2].cancel()
            await asyncio.gather(*riders, return_exceptions=True)
            assert bench.runner.batches == [[0, 1, 3, 4]]
            assert now() == pytest.approx(2 * PREPARE + RUN)

    run(main())


@scenario
async def test_who_leaves_while_the_batch_runs_has_cost_its_place_and_is_not_counted_as_dropped() -> None:
    async with Bench() as bench:
        riders = [bench.submit(i, within=0.5 * RUN if i == 2 else None) for i in range(4)]
        await asyncio.sleep(PREPARE + 0.6 * RUN)
        riders[1].cancel()
        await asyncio.gather(*riders, return_exceptions=True)
        assert bench.runner.batches == [[0, 1, 2, 3]]
        assert riders[2].result().output == 4, "late, but there"
        assert bench.watcher.counts == {}


@scenario
async def test_online_goes_before_a_bulk_batch_that_is_prepared_already() -> None:
    async with Bench() as bench:
        backlog = bench.submit_all(range(12), priority=BULK)
        await asyncio.sleep(PREPARE + RUN / 2)
        assert bench.runner.preparations == [[0, 1, 2, 3], [4, 5, 6, 7]]
        urgent = await bench.submit(99, shape="other")
        assert now() == pytest.approx(PREPARE + 2 * RUN + PREPARE)
        assert urgent.queue_ms == pytest.approx(RUN / 2 * 1000)
        await backlog
        assert bench.runner.batches == [[0, 1, 2, 3], [99], [4, 5, 6, 7], [8, 9, 10, 11]]


@scenario
async def test_bulk_in_any_number_never_shuts_the_door_on_online() -> None:
    async with Bench() as bench:
        backlog = bench.submit_all(range(20), priority=BULK)
        await turn()
        with pytest.raises(Overloaded, match="bulk"):
            await bench.submit(1, priority=BULK)
        assert (await bench.submit(2)).output == 4
        await backlog


@given(at=st.lists(st.integers(0, 400), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_rain_of_cancellations_cannot_put_a_batch_off_for_ever(at: list[int]) -> None:
    """Each preparation that came to nothing has cost an item, so what stays runs after that many."""

    async def main() -> None:
        async with Bench(replace(LIMITS, capacity=100)) as bench:
            patient = bench.submit_all([1, 2, 3])
            await turn()
            for tenths in sorted(at):
                await asyncio.sleep(max(tenths / 10_000 - now(), 0.0))
                victim = bench.submit(99)
                await asyncio.sleep(PREPARE / 2)
                victim.cancel()
            await patient
            assert len(bench.runner.preparations) <= len(at) + len(bench.runner.batches)
            assert bench.watcher.facts[0].queue_ms[0] <= LIMITS.max_queue_delay_ms + len(at) * PREPARE * 1000

    run(main())


@scenario
async def test_a_cancelled_item_never_reaches_the_runner_even_if_cancelled_in_the_last_moment() -> None:
    async with Bench() as bench:
        others = [bench.submit(i) for i in range(2)]
        victim = bench.submit(99)
        await turn()
        # Both in one turn of the loop: the item that fills the batch, and the cancellation.
        filler = bench.submit(3)
        victim.cancel()
        await asyncio.gather(*others, filler)
        assert victim.cancelled()
        assert bench.runner.batches == [[0, 1, 3]]
        assert bench.watcher.counts == {"cancelled": 1}


@scenario
async def test_who_is_cancelled_after_the_deadline_counts_as_expired() -> None:
    """As gRPC does with a call whose deadline has passed."""
    bench = Bench()
    late = bench.submit(1, within=0.010)
    await asyncio.sleep(0.010)
    late.cancel()
    await turn()
    assert bench.watcher.counts == {"expired": 1}
    await bench.batcher.close()


@scenario
async def test_cancelling_submit_all_withdraws_all_that_still_waits() -> None:
    async with Bench() as bench:
        page = bench.submit_all(range(11))
        await turn()
        await asyncio.sleep(2 * PREPARE)
        assert (bench.batcher.in_flight, bench.batcher.depth) == (4, 7), "what is prepared still waits"
        assert len(bench.runner.preparations) == 2
        page.cancel()
        assert bench.batcher.depth == 0, "at once"
        await turn()
        assert page.cancelled()
        assert bench.watcher.counts == {"cancelled": 7}
        assert (await bench.submit(50)).output == 100, "the batch of the callers that left harms nobody"
        assert bench.runner.batches == [[0, 1, 2, 3], [50]]


@scenario
async def test_a_callers_own_timeout_withdraws_its_item() -> None:
    async with Bench() as bench:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await bench.batcher.submit(1, shape="s", pixels=1, priority=ONLINE, deadline=None)
        assert bench.batcher.depth == 0
        await bench.batcher.drain()
        assert bench.runner.batches == []


@scenario
async def test_a_full_queue_refuses_at_the_door_and_begins_nothing() -> None:
    async with Bench() as bench:
        busy = bench.submit_all(range(4))
        await asyncio.sleep(2 * PREPARE)
        waiting = bench.submit_all(range(20))
        await turn()
        with pytest.raises(Overloaded):
            await bench.submit(99)
        with pytest.raises(Overloaded):
            bench.batcher.check_room(5, ONLINE)
        assert bench.watcher.counts == {"refused": 6}
        await asyncio.gather(busy, waiting)
        assert all(99 not in batch for batch in bench.runner.batches)


@scenario
async def test_submit_all_admits_all_or_none() -> None:
    async with Bench(replace(LIMITS, capacity=5)) as bench:
        first = bench.submit_all([1, 2, 3])
        await turn()
        with pytest.raises(Overloaded):
            await bench.submit_all([4, 5, 6])
        assert bench.batcher.depth == 3
        assert len(await first) == 3
        with pytest.raises(InvalidJob, match="6 items can never fit a queue of 5"):
            await bench.submit_all(range(6))


@scenario
async def test_items_that_expired_do_not_take_the_place_of_the_living() -> None:
    """Also when the deadline and the new item come in the same moment."""
    bench = Bench(replace(LIMITS, capacity=1))
    late = bench.submit(1, within=1.0)
    asyncio.get_running_loop().call_later(1.0, lambda: setattr(bench, "living", bench.submit(2)))
    await asyncio.sleep(1.0)
    bench.batcher.start()
    assert isinstance(await answer_of(late), DeadlineExceeded)
    assert (await bench.living).output == 4  # type: ignore[attr-defined]
    await bench.batcher.close()


@scenario
async def test_no_items_give_no_answers_and_wait_for_nothing() -> None:
    async with Bench() as bench:
        assert await bench.submit_all([]) == []


@scenario
async def test_the_error_of_one_item_reaches_its_caller_only() -> None:
    async with Bench() as bench:
        good, bad, fine = bench.submit(1), bench.submit("bad item"), bench.submit(3)
        assert [(await good).output, (await fine).output] == [2, 6]
        assert isinstance(await answer_of(bad), CorruptInput)
        assert bench.watcher.facts[0].error is None


@pytest.mark.parametrize(
    ("poison", "expected", "says"),
    [
        ("prepare fails", Internal, "BadRunner: prepare"),
        ("run fails", PredictorFailed, "the predictor died"),
        ("run is cancelled", Internal, "CancelledError"),
        ("lost", Internal, "BUG: the runner returned 1 outputs for 2 items"),
    ],
)
def test_a_failing_batch_fails_alone_and_each_caller_gets_an_error_of_its_own(
    poison: str, expected: type[OcrError], says: str
) -> None:
    async def main() -> None:
        async with Bench() as bench:
            one, two = bench.submit(1), bench.submit(poison)
            neighbour = bench.submit(3, shape="other")
            errors = [await answer_of(one), await answer_of(two)]
            assert [type(e) for e in errors] == [expected] * 2
            assert errors[0] is not errors[1]
            assert says in str(errors[0])
            assert (await neighbour).output == 6
            assert (await bench.submit(4)).output == 8, "the loop goes on"
            assert [says in str(f.error) for f in bench.watcher.facts] == [True, False, False]

    run(main())


@scenario
async def test_an_observer_that_raises_harms_nobody() -> None:
    class Broken(Watcher):
        def on_batch(self, facts: BatchFacts) -> None:
            raise BadRunner

        def on_drop(self, kind: Literal["expired", "cancelled"], count: int) -> None:
            raise BadRunner

        def on_refuse(self, count: int) -> None:
            raise BadRunner

    async with Bench(replace(LIMITS, capacity=4)) as bench:
        bench.batcher._observer = Broken()
        with pytest.raises(InvalidJob):
            await bench.submit_all(range(9))
        with pytest.raises(DeadlineExceeded):
            await bench.submit(1, within=0.001)
        gone = bench.submit(2)
        await turn()
        gone.cancel()
        assert (await bench.submit(3)).output == 6


@scenario
async def test_the_facts_of_a_batch_say_who_rode_in_it_and_why_it_left() -> None:
    async with Bench() as bench:
        await asyncio.gather(bench.submit(1, priority=BULK, context="b"), bench.submit(2, context="a"))
        [facts] = bench.watcher.facts
        assert facts == BatchFacts(
            batch_id=1,
            shape="s",
            size=2,
            pixels=20,
            reason="delay",
            queue_ms=(pytest.approx(10), pytest.approx(10)),  # type: ignore[arg-type]
            prepare_ms=pytest.approx(PREPARE * 1000),
            model_ms=RUN * 1000,
            contexts=("a", "b"),
            priorities=(ONLINE, BULK),
            model_cpu_ms=2 * RUN * 1000,
            error=None,
        )


@scenario
async def test_an_answered_item_is_freed_at_once_not_at_the_next_garbage_collection() -> None:
    """Items are images; a cycle would keep them in memory for long."""

    class Scan(float):
        pass

    async with Bench() as bench:
        scan = Scan(1.0)
        alive = weakref.ref(scan)
        task = bench.submit(scan)
        del scan
        gc.disable()
        try:
            await task
            bench.runner.batches.clear()
            bench.runner.preparations.clear()
            await turn()
            assert alive() is None
        finally:
            gc.enable()


@scenario
async def test_drain_refuses_new_work_and_finishes_what_was_accepted_without_delay() -> None:
    async with Bench() as bench:
        page = bench.submit_all(range(9))
        await turn()
        draining = asyncio.create_task(bench.batcher.drain())
        await turn()
        with pytest.raises(ShuttingDown):
            await bench.submit(1)
        await draining
        assert page.done()
        assert [a.output for a in await page if isinstance(a, Completed)] == [2 * i for i in range(9)]
        assert (bench.batcher.depth, bench.batcher.in_flight) == (0, 0)
        assert [f.reason for f in bench.watcher.facts] == ["full", "full", "closing"]


@scenario
async def test_drain_ends_when_all_that_waits_expires_while_it_is_prepared() -> None:
    async with Bench() as bench:
        calls = [bench.submit(1, within=PREPARE / 2) for _ in range(LIMITS.max_batch_size)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await bench.batcher.drain()
        assert {type(answer) for answer in answers} == {DeadlineExceeded}


@scenario
async def test_drain_of_an_idle_batcher_returns_at_once_and_twice() -> None:
    async with Bench() as bench:
        await bench.batcher.drain()
        await bench.batcher.drain()
        assert now() == 0.0


@scenario
async def test_giving_up_on_a_drain_does_not_stop_the_work() -> None:
    async with Bench() as bench:
        page = bench.submit_all(range(9))
        await turn()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await bench.batcher.drain()
        assert all(isinstance(a, Completed) for a in await page)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 10])
def test_close_answers_everybody_at_once_whatever_stage_their_item_is_in(turns: int) -> None:
    async def main() -> None:
        bench = Bench()
        bench.batcher.start()
        await turn()
        page = bench.submit_all(range(11))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.batcher.close()
        answers = await answer_of(page)
        errors = answers if isinstance(answers, list) else [answers]
        assert {type(e) for e in errors} == {ShuttingDown}
        assert now() == 0.0
        assert (bench.batcher.depth, bench.batcher.in_flight) == (0, 0)

    run(main())


@scenario
async def test_what_was_never_started_can_be_drained_and_answers_its_callers() -> None:
    bench = Bench()
    task = bench.submit(1)
    await turn()
    await bench.batcher.drain()
    assert isinstance(await answer_of(task), ShuttingDown)
    await bench.batcher.close()


@scenario
async def test_if_the_dispatcher_itself_fails_no_caller_is_left_waiting() -> None:
    async with Bench() as bench:
        await turn()
        bench.batcher._queue.wake_at = None  # type: ignore[assignment,method-assign]
        with pytest.raises(Internal, match="BUG"):
            await bench.submit(1)
        with pytest.raises(ShuttingDown):
            await bench.submit(2)


def test_a_batcher_needs_a_predictor() -> None:
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        Bench(concurrency=0)


@dataclass(frozen=True)
class Call:
    """One call of a generated schedule; moments in milliseconds."""

    at: int
    shape: str
    items: tuple[Any, ...]
    priority: Priority
    within: int | None
    cancel_after: int | None


POISON = ["bad item", "prepare fails", "run fails", "lost", "run is cancelled"]
calls = st.lists(
    st.builds(
        Call,
        at=st.integers(0, 400),
        shape=st.sampled_from("abc"),
        items=st.lists(st.just(1) | st.sampled_from([1, 1, 1, *POISON]), min_size=1, max_size=6).map(tuple),
        priority=st.sampled_from(Priority),
        within=st.none() | st.integers(0, 300),
        cancel_after=st.none() | st.none() | st.integers(0, 300),
    ),
    max_size=12,
)


class Poisoned(str):
    """A word that is told from its equals by identity only."""

    __slots__ = ()


async def play(bench: Bench, call: Call) -> tuple[list[Any], Any]:
    """The items of one call, each of them an object of its own, and what the call ended with."""
    await asyncio.sleep(call.at / 1000)
    items = [Poisoned(i) if isinstance(i, str) else 1000.0 + n for n, i in enumerate(call.items)]
    requests = [Request(item, call.shape, 100, (call, item)) for item in items]
    deadline = None if call.within is None else now() + call.within / 1000
    if deadline is not None:
        bench.runner.deadlines |= {id(item): deadline for item in items}
    task = asyncio.create_task(bench.batcher.submit_all(requests, priority=call.priority, deadline=deadline))
    if call.cancel_after is not None:
        asyncio.get_running_loop().call_later(call.cancel_after / 1000, task.cancel)
    return items, await answer_of(task)


def check_call(call: Call, items: list[Any], outcome: Any, ran: set[int]) -> None:
    if isinstance(outcome, asyncio.CancelledError):
        assert call.cancel_after is not None
    elif isinstance(outcome, Overloaded):
        assert not any(id(item) in ran for item in items), "refused, so nothing was begun"
    else:
        assert len(outcome) == len(items)
        for item, answer in zip(items, outcome, strict=True):
            check_answer(item, answer, ran)


def check_answer(item: Any, answer: Any, ran: set[int]) -> None:
    if isinstance(answer, DeadlineExceeded):
        assert id(item) not in ran, "an expired item never reaches the runner"
    elif isinstance(answer, Completed):
        assert answer.output == item * 2
    else:
        assert isinstance(answer, CorruptInput) == (item == "bad item") or not isinstance(
            answer, CorruptInput
        )
        assert isinstance(answer, CorruptInput | PredictorFailed | Internal)


@given(schedule=calls, concurrency=st.integers(1, 3), sizes=st.sampled_from([(), (1, 3)]))
@settings(max_examples=100, deadline=None)
def test_whatever_callers_do_each_is_answered_once_and_only_guilty_batches_fail(
    schedule: list[Call], concurrency: int, sizes: tuple[int, ...]
) -> None:
    async def main() -> None:
        bench = Bench(replace(LIMITS, capacity=12, allowed_batch_sizes=sizes), concurrency)
        bench.batcher.start()
        played = await asyncio.gather(*(play(bench, call) for call in schedule))
        await bench.batcher.drain()

        ran = [id(item) for batch in bench.runner.batches for item in batch]
        assert len(ran) == len(set(ran)), "no item runs twice"
        for call, (items, outcome) in zip(schedule, played, strict=True):
            check_call(call, items, outcome, set(ran))
        check_facts(bench)
        admitted = sum(len(items) for items, outcome in played if not isinstance(outcome, Overloaded))
        counts = bench.watcher.counts
        left = sum(facts.size for facts in bench.watcher.facts)
        assert left + counts["expired"] + counts["cancelled"] == admitted, "all are accounted for"
        assert (bench.batcher.depth, bench.batcher.in_flight) == (0, 0)

    run(main())


def check_facts(bench: Bench) -> None:
    for facts in bench.watcher.facts:
        assert 1 <= facts.size <= LIMITS.max_batch_size
        assert {call.shape for call, _ in facts.contexts} == {facts.shape}  # type: ignore[misc]
        items = [item for _, item in facts.contexts]  # type: ignore[misc]
        assert (facts.error is not None) == bool(set(items) & set(POISON[1:])), "only guilty batches fail"
    ran = [f for f in bench.watcher.facts if "prepare" not in str(f.error)]
    assert sum(f.size for f in ran) == sum(map(len, bench.runner.batches))


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 300), st.sampled_from("abcd")), min_size=1, max_size=20),
    concurrency=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_no_item_waits_longer_than_the_delay_while_a_predictor_is_idle(
    arrivals: list[tuple[int, str]], concurrency: int
) -> None:
    async def main() -> None:
        bench = Bench(concurrency=concurrency)
        bench.batcher.start()

        async def call(at: int, shape: str) -> tuple[float, float]:
            await asyncio.sleep(at / 1000)
            arrived = now()
            answer = await bench.submit(1, shape=shape, context=arrived)
            return arrived, answer.queue_ms

        await asyncio.gather(*(call(*arrival) for arrival in arrivals))
        ends = ends_of_runs(bench.watcher.facts)
        for facts in bench.watcher.facts:
            check_wait(facts, ends, concurrency)
        await bench.batcher.close()

    run(main())


def start_of(facts: BatchFacts) -> float:
    arrived: Any = facts.contexts[0]
    return float(arrived) + (facts.queue_ms[0] + facts.prepare_ms) / 1000


def ends_of_runs(batches: list[BatchFacts]) -> list[tuple[float, float]]:
    return [(start_of(f), start_of(f) + RUN) for f in batches]


def check_wait(facts: BatchFacts, runs: list[tuple[float, float]], concurrency: int) -> None:
    """Between the moment that it was due and its start, less preparing, every predictor had a batch.

    Batches are prepared one at a time: before this one perhaps one for each of the other predictors.
    """
    arrived: Any = min(facts.contexts)  # type: ignore[type-var]
    due = float(arrived) + LIMITS.max_queue_delay_ms / 1000
    start, preparing = start_of(facts), concurrency * PREPARE + 1e-6
    if start <= due + preparing:
        return
    # It started late: then some run ended when it could start, or so long before.
    assert any(start - preparing <= end <= start + 1e-6 for _, end in runs)
    middle = due + (start - due) / 2
    given_out = sum(begin - preparing <= middle <= end + preparing for begin, end in runs)
    assert given_out >= concurrency
