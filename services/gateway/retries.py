"""When to try again: how long to wait, and how much trying again is too much. Told the time and the dice."""

from dataclasses import dataclass
from typing import Literal

from services.common.errors import DeadlineExceeded, InputError, OcrError


@dataclass(frozen=True)
class Backoff:
    """Waits between tries, in seconds: the first is up to `base_s`, each next up to twice as long."""

    base_s: float = 0.1
    cap_s: float = 10.0

    def wait(self, attempt: int, draw: float) -> float:
        """Seconds to wait after try number `attempt` (from 1); `draw` is a random number from 0 to 1.

        Full jitter: anything from 0 to the limit, so that many who wait for the same thing spread out.
        """
        return draw * min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 30))


class RetryBudget:
    """Lets at most `share` of all first tries be tried again, and `reserve` tries more.

    When a backend is slow or half dead, trying again is more of what it cannot bear. Each first try earns a
    part of a second one, a second try costs one; what is earned is kept up to `reserve`. So a replica that
    goes away for a moment costs nobody an error, and a backend that stays away is not asked much more often
    than its callers ask.
    """

    def __init__(self, share: float = 0.2, reserve: float = 100.0) -> None:
        self._share = share
        self._reserve = reserve
        self._left = reserve

    def first_try(self) -> None:
        """Somebody calls, not for the second time."""
        self._left = min(self._reserve, self._left + self._share)

    def spend(self) -> bool:
        """Whether one more try is allowed; it counts then."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


Step = Literal["retry", "dead-letter"]


def next_step(error: OcrError, attempts: int, max_attempts: int) -> Step:
    """What becomes of a record that failed with `error` on its try number `attempts`."""
    if error.retryable:
        return "retry"
    if isinstance(error, InputError | DeadlineExceeded):
        return "dead-letter"
    return "retry" if attempts < max_attempts else "dead-letter"
