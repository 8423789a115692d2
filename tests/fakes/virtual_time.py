"""An event loop whose clock jumps: waiting costs nothing, and waiting for ever is an error at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class WaitsForEver(RuntimeError):
    """Every task waits and no timer is set: in real time this would hang."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise WaitsForEver("all tasks wait for something that will never happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, time jumps to the next timer. For code that waits on the loop only."""

    def __init__(self) -> None:
        self._selector_of_time = _JumpingSelector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs `main` in virtual time, from 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The virtual time; the clock to give to the code under test."""
    return asyncio.get_running_loop().time()
