"""Threads for work of milliseconds, handed over from an event loop.

As `run_in_executor` with a `ThreadPoolExecutor`, for half of the processor time or less: that one makes two
futures, a lock and a condition for each call and tells the loop by a chain of callbacks, which at a dozen
calls a page costs more than some of the work does.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class Threads:
    """Up to `count` threads, begun as work comes, that take it in that order. They keep no process alive."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._closed = False
        self._name, self._count = name, count
        self._threads: list[threading.Thread] = []

    async def run(
        self, work: Callable[Parameters, Returned], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Returned:
        """What `work` returns or raises. Cancelling the caller withdraws work that has not begun.

        Raises RuntimeError when closed.
        """
        answer: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()

        def answered() -> None:
            if answer.cancelled():
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller waits
                tell(answer, answer.set_exception, error)
            else:
                tell(answer, answer.set_result, result)

        self.submit(answered)
        return await answer

    def submit(self, work: Callable[[], object]) -> None:
        """Have `work` done by and by; what it raises is logged. Raises RuntimeError when closed.

        From the thread of the loop only until all threads have begun, from then on from any.
        """
        if self._closed:
            raise RuntimeError("these threads were closed and take no new work")
        self._work.put(work)
        if len(self._threads) < self._count:
            name = f"{self._name} {len(self._threads)}"
            self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """Take no new work; what was accepted is done."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)

    def join(self) -> None:
        """Wait for the end of all work after `close`."""
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("work that nobody waits for failed")
            del work  # it refers to what was worked on, which can be large


def tell(answer: "asyncio.Future[Any]", how: Callable[[Any], None], outcome: object) -> None:
    """From any thread: `how`, a setter of `answer`, with `outcome`, unless nobody waits any more.

    So it is when the caller has left, or its loop has ended.
    """

    def give() -> None:
        if not answer.done():
            how(outcome)

    with suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(give)
