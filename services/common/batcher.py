"""The shell around the batch queue: callers submit single items, a runner gets batches.

The decisions are in `batch_queue.py`; here is only the waiting. Whatever happens (an arrival, a batch
that was prepared or has ended, the moment that the queue named) leads to `_advance`, which does all that
can be done then. `concurrency` batches run at a time, each in a task of its own, and one more is prepared
meanwhile, so that a predictor goes on without a gap. That one is a proposal: its items stay in the queue
until a predictor is free for it, so who expires or is withdrawn by then never reaches the model.

What can go wrong stays where it belongs: an error of one item reaches its caller, an error of a batch
the callers of that batch, and an observer that raises reaches the log only.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Generic, TypeAlias, TypeVar

from services.common.batch_contract import (
    BatchFacts,
    BatchObserver,
    BatchRunner,
    Completed,
    Request,
    RunOutput,
)
from services.common.batch_queue import Batch, BatchLimits, BatchQueue, Entry, Priority
from services.common.errors import DeadlineExceeded, Internal, OcrError, ShuttingDown

__all__ = [
    "BatchFacts",
    "BatchLimits",
    "BatchObserver",
    "BatchRunner",
    "Batcher",
    "Completed",
    "Priority",
    "Request",
    "RunOutput",
]

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Output = TypeVar("Output")
_Answers: TypeAlias = list[Completed[Output] | OcrError]


class _Call(asyncio.Future[Any]):
    """Where a caller waits for the answers to all of its items, which come in any order.

    One for a call, not for an item: a page has fifty lines, and a future for each would cost more than to
    queue them. Cancelling withdraws at once; a callback would come a turn of the loop late.
    """

    def __init__(self, items: int) -> None:
        super().__init__()
        self.withdraw: Callable[[], None] | None = None
        self._answers: list[Any] = [None] * items
        self._missing = items
        if not items:
            self.set_result([])

    def cancel(self, msg: Any = None) -> bool:
        withdraw, self.withdraw = self.withdraw, None
        if withdraw is not None:
            withdraw()
        return super().cancel(msg)

    def give(self, index: int, answer: object) -> None:
        """The first answer to an item counts."""
        if self._answers[index] is None:
            self._answers[index] = answer
            self._missing -= 1
            if not self._missing:
                self.withdraw = None  # it refers to the items, which can be large
                if not self.done():
                    self.set_result(self._answers)


@dataclass(slots=True)
class _Waiter(Generic[Item]):
    """An item of a call, and which one it is."""

    request: Request[Item]
    call: _Call
    index: int

    def give(self, answer: object) -> None:
        self.call.give(self.index, answer)


class _Proposal(Generic[Item]):
    """A batch whose items still wait, and its preparation: `(prepared, milliseconds)`."""

    def __init__(
        self, batch: Batch[_Waiter[Item]], preparation: Coroutine[Any, Any, tuple[Any, float]]
    ) -> None:
        self.batch = batch
        self.preparation = asyncio.create_task(preparation, name="preparation")
        # Else a failed preparation whose batch was dropped would be reported as never looked at.
        self.preparation.add_done_callback(lambda task: task.cancelled() or task.exception())


class _Run(Generic[Item]):
    """A batch that has left the queue, and what becomes known of it."""

    def __init__(self, batch_id: int, proposal: _Proposal[Item], started: float) -> None:
        self.batch_id = batch_id
        self.batch = proposal.batch
        self.preparation = proposal.preparation
        self.started = started
        self.prepare_ms = 0.0
        self.model_ms = 0.0
        self.model_cpu_ms = 0.0
        self.error: str | None = None

    @cached_property
    def queue_ms(self) -> tuple[float, ...]:
        """Asked for once the batch has been prepared."""
        before = self.started - self.prepare_ms / 1000
        return tuple([max((before - entry.arrival) * 1000, 0.0) for entry in self.batch.entries])

    def facts(self) -> BatchFacts:
        batch = self.batch
        return BatchFacts(
            batch_id=self.batch_id,
            shape=batch.shape,
            size=len(batch.entries),
            pixels=batch.pixels,
            reason=batch.reason,
            queue_ms=self.queue_ms,
            prepare_ms=self.prepare_ms,
            model_ms=self.model_ms,
            contexts=tuple([entry.payload.request.context for entry in batch.entries]),
            priorities=tuple([entry.priority for entry in batch.entries]),
            model_cpu_ms=self.model_cpu_ms,
            error=self.error,
        )


class Batcher(Generic[Item, Output]):
    """Gathers the items of all callers into batches for `runner`. Nothing runs before `start`."""

    def __init__(
        self,
        limits: BatchLimits,
        runner: BatchRunner[Item, Output],
        *,
        concurrency: int,
        clock: Callable[[], float] = time.monotonic,
        observer: BatchObserver | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self._queue: BatchQueue[_Waiter[Item]] = BatchQueue(limits)
        self._runner = runner
        self._concurrency = concurrency
        self._clock = clock
        self._observer = observer
        self._wake = asyncio.Event()
        self._batch_ids = count(1)
        self._proposal: _Proposal[Item] | None = None
        self._busy = 0
        """Predictors at work."""
        self._running: dict[_Run[Item], asyncio.Task[None]] = {}
        self._dispatcher: asyncio.Task[None] | None = None

    @property
    def depth(self) -> int:
        """Items that wait, those of a prepared batch included."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Items in batches that run."""
        return sum(len(run.batch.entries) for run in self._running)

    def check_room(self, items: int, priority: Priority) -> None:
        """Refuses so many items where `submit_all` would, for those who can know before they have them.

        Raises Overloaded, ShuttingDown or InvalidJob, and counts the items as refused.
        """
        self._answer_expired(self._clock())  # they must not take the places of the living
        try:
            self._queue.check_room(items, priority)
        except OcrError:
            self._tell(lambda observer: observer.on_refuse(items))
            raise

    async def submit(
        self,
        item: Item,
        *,
        shape: Hashable,
        pixels: int,
        priority: Priority,
        deadline: float | None,
        context: object = None,
    ) -> Completed[Output]:
        """The output for `item`. Raises its OcrError, that of its batch, or what `submit_all` raises."""
        requests = [Request(item, shape, pixels, context)]
        [answer] = await self.submit_all(requests, priority=priority, deadline=deadline)
        if isinstance(answer, OcrError):
            raise answer
        return answer

    async def submit_all(
        self, requests: Sequence[Request[Item]], *, priority: Priority, deadline: float | None
    ) -> _Answers[Output]:
        """An output or an error for each of `requests`, in order, when all are done.

        All are admitted or none: then raises Overloaded, ShuttingDown, or InvalidJob for more than the
        queue can ever hold. `deadline`, by the clock of the batcher, is when whatever still waits is
        answered with DeadlineExceeded. Cancelling the caller withdraws whatever still waits. What runs
        already goes on: it costs the model, and an answer that comes after the deadline is still given.
        """
        answers: _Answers[Output] = await self._admit(requests, priority, deadline)
        return answers

    def start(self) -> None:
        """Begins to run what was and will be submitted."""
        if self._dispatcher is None:
            self._dispatcher = asyncio.create_task(self._serve(), name="batcher")

    async def drain(self) -> None:
        """Refuses new work from now on; returns when all accepted work has been answered."""
        self._queue.close()
        self._wake.set()
        if self._dispatcher is None:
            self._abandon(ShuttingDown("The service shut down before it had started."))
        else:
            await asyncio.wait([self._dispatcher])

    async def close(self) -> None:
        """Stops now: whatever still waits or runs is answered with ShuttingDown."""
        self._abandon(ShuttingDown("The service shut down before this item was done; try another replica."))
        preparation = self._proposal.preparation if self._proposal else None
        tasks = [task for task in (*self._running.values(), preparation, self._dispatcher) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()  # a task that was cancelled before its first step did not do so
        self._proposal = None

    def _admit(self, requests: Sequence[Request[Item]], priority: Priority, deadline: float | None) -> _Call:
        now = self._clock()
        call = _Call(len(requests))
        entries = [
            Entry(_Waiter(request, call, index), request.shape, request.pixels, priority, now, deadline)
            for index, request in enumerate(requests)
        ]
        if deadline is not None and deadline <= now:
            self._answer_as_expired(entries, now)
        else:
            self.check_room(len(entries), priority)
            self._queue.add(*entries)
            call.withdraw = lambda: self._withdraw(entries)
            self._wake.set()
        return call

    def _withdraw(self, entries: Sequence[Entry[_Waiter[Item]]]) -> None:
        """What still waits of a call. All of its items have the same deadline."""
        left = sum([self._queue.remove(entry) for entry in entries])
        if left:
            # gRPC cancels a call whose deadline has passed, perhaps a moment before the dispatcher looks.
            deadline = entries[0].deadline
            late = deadline is not None and deadline <= self._clock()
            self._tell(lambda observer: observer.on_drop("expired" if late else "cancelled", left))
            self._wake.set()

    async def _serve(self) -> None:
        try:
            await self._dispatch()
        except Exception:
            log.exception("the dispatcher of a batcher failed")
            self._abandon(Internal("BUG: the dispatcher failed; the log has the stack trace."))

    async def _dispatch(self) -> None:
        """Ends when the queue is closed and the last batch has ended."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            wake_at = self._advance()
            # Asked last: dropping a proposal whose items have all expired may have been the end.
            if self._queue.closed and not (self._queue or self._proposal or self._running):
                return
            delay = None if wake_at is None else max(wake_at - self._clock(), 0.0)
            timer = None if delay is None else loop.call_later(delay, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _advance(self) -> float | None:
        """Does all that can be done now; returns when time alone will let it do more."""
        now = self._clock()
        self._answer_expired(now)
        self._begin_batches(now)
        return self._queue.wake_at(idle=self._proposal is None and not self._all_busy())

    def _all_busy(self) -> bool:
        return self._busy >= self._concurrency

    def _answer_expired(self, now: float) -> None:
        if expired := self._queue.expire(now):
            self._answer_as_expired(expired, now)

    def _answer_as_expired(self, entries: Sequence[Entry[_Waiter[Item]]], now: float) -> None:
        for entry in entries:
            waited_ms = round((now - entry.arrival) * 1000)
            error = DeadlineExceeded(f"The deadline passed after {waited_ms} ms in the queue.")
            entry.payload.give(error)
        self._tell(lambda observer: observer.on_drop("expired", len(entries)))

    def _begin_batches(self, now: float) -> None:
        while (proposal := self._reconsidered(now)) is not None and not self._all_busy():
            self._begin(proposal, now)

    def _begin(self, proposal: _Proposal[Item], now: float) -> None:
        self._queue.take(proposal.batch, now)
        self._proposal = None
        self._busy += 1
        run = _Run(next(self._batch_ids), proposal, now)
        self._running[run] = asyncio.create_task(self._carry_out(run), name=f"batch {run.batch_id}")

    def _reconsidered(self, now: float) -> _Proposal[Item] | None:
        """The proposal, if it is prepared and stands; else the next one is begun, one at a time."""
        current = self._proposal
        if current is not None and not current.preparation.done():
            return None
        standing = current.batch if current else None
        batch = self._queue.propose(now, idle=not self._all_busy(), standing=standing)
        if batch is not None and batch is standing:
            return current
        self._proposal = None if batch is None else _Proposal(batch, self._prepare(batch))
        return None

    async def _prepare(self, batch: Batch[_Waiter[Item]]) -> tuple[Any, float]:
        begun = self._clock()
        try:
            prepared = await self._runner.prepare([entry.payload.request.item for entry in batch.entries])
            return prepared, (self._clock() - begun) * 1000
        finally:
            self._wake.set()

    async def _carry_out(self, run: _Run[Item]) -> None:
        outcome: Sequence[Output | OcrError] | BaseException
        try:
            outcome = await self._run(run)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, the callers wait
            outcome = error
        try:
            await self._go_on()
        finally:
            self._answer(run, outcome)

    async def _go_on(self) -> None:
        """A predictor is free: the next batch runs before the answers are made, and all that they start."""
        self._busy -= 1
        now = self._clock()
        if (proposal := self._reconsidered(now)) is not None:
            self._begin(proposal, now)
        await asyncio.sleep(0)

    def _answer(self, run: _Run[Item], outcome: Sequence[Output | OcrError] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            answers = self._failed(run, outcome)
        else:
            answers = self._completed(run, outcome)
        for entry, answer in zip(run.batch.entries, answers, strict=True):
            entry.payload.give(answer)
        self._tell(lambda observer: observer.on_batch(run.facts()))
        del self._running[run]
        self._wake.set()

    async def _run(self, run: _Run[Item]) -> Sequence[Output | OcrError]:
        prepared, run.prepare_ms = await run.preparation
        output = await self._runner.run(prepared)
        run.model_ms, run.model_cpu_ms = output.model_ms, output.model_cpu_ms
        expected = len(run.batch.entries)
        if len(output.outputs) != expected:
            raise Internal(f"BUG: the runner returned {len(output.outputs)} outputs for {expected} items.")
        return output.outputs

    def _completed(self, run: _Run[Item], outputs: Sequence[Output | OcrError]) -> _Answers[Output]:
        return [
            output
            if isinstance(output, OcrError)
            else Completed(output, queue_ms, run.model_ms, len(outputs), run.batch_id)
            for output, queue_ms in zip(outputs, run.queue_ms, strict=True)
        ]

    def _failed(self, run: _Run[Item], error: BaseException) -> _Answers[Output]:
        """An error of its own for each caller, as each will raise it."""
        run.error = f"{type(error).__name__}: {error}"
        if isinstance(error, Internal) or not isinstance(error, OcrError | asyncio.CancelledError):
            log.error("batch %d failed", run.batch_id, exc_info=error)
        return [_copy_for_caller(error) for _ in run.batch.entries]

    def _abandon(self, error: OcrError) -> None:
        """Ends the wait of all callers; batches that still run answer nobody any more."""
        self._queue.close()
        running = [entry for run in self._running for entry in run.batch.entries]
        for entry in [*self._queue.clear(), *running]:
            entry.payload.give(_copy_for_caller(error))
        self._wake.set()

    def _tell(self, what: Callable[[BatchObserver], None]) -> None:
        try:
            if self._observer is not None:
                what(self._observer)
        except Exception:
            log.exception("the observer of a batcher failed")


def _copy_for_caller(error: BaseException) -> OcrError:
    if isinstance(error, OcrError):
        own = copy.copy(error)
    else:
        own = Internal(f"The batch of this item failed: {type(error).__name__}: {error}")
    own.__cause__ = error
    return own
