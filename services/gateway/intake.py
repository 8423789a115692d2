"""Whether to take jobs from Kafka: not while a backend is down. Decides only; is told the time.

A job that meets a backend that is away is tried again with its place held, so nothing is lost without this.
But to fetch more only to hold it here helps nobody: the topic keeps it better, and so does another gateway
whose backends work.

`closed` is the normal state. Intake is `open`, that is: interrupted, when a backend says that it is not
ready, or when calls fail one after the other because nobody answers. Then, after a wait, a few documents
are let through; as soon as one gets an answer intake is closed again, and if one fails the wait is twice as
long. Words are those of electric breakers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class BreakerLimits:
    """`failures` in a row open it. `trials` documents are let through after `wait_s`, later `max_wait_s`."""

    failures: int = 8
    trials: int = 2
    wait_s: float = 1.0
    max_wait_s: float = 15.0


class Breaker:
    """Counts what became of calls; says how many documents may be on their way."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._failures = 0
        self._why: str | None = None
        self._unready: str | None = None
        self._wait_s = self._limits.wait_s
        self._try_at = 0.0

    def answered(self) -> None:
        """A backend has answered, if only to say that a document cannot be read."""
        self._failures = 0
        self._why = None
        self._wait_s = self._limits.wait_s

    def failed(self, why: str, now: float) -> None:
        """Nobody answered a document's call."""
        self._failures += 1
        if self._why is None:
            if self._failures < self._limits.failures:
                return
            self._try_at = now + self._wait_s
        elif now >= self._try_at:  # one that was let through, not one that was on its way before
            self._wait_s = min(self._limits.max_wait_s, 2 * self._wait_s)
            self._try_at = now + self._wait_s
        self._why = why

    def health(self, problem: str | None) -> None:
        """What the checks of the backends say; None: they can be used."""
        self._unready = problem

    def allowance(self, now: float) -> int | None:
        """Documents that may be on their way; None: as many as there is room for."""
        if self._unready is not None:
            return 0
        if self._why is None:
            return None
        return self._limits.trials if now >= self._try_at else 0

    def why(self) -> str | None:
        """Why intake is interrupted; None when it is not."""
        return self._unready or (self._why and f"backends do not answer: {self._why}")
