"""Makes things go wrong, and right again: signals to processes, cuts of proxies.

A fault that finds nobody to hit (the process is just being started, or is stopped already) waits until it
does. So does one that would take a second broker away while another is not back: with three copies of
everything and two needed, that is a stop, which is no fault of the pipeline.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.chaos.plan import Fault, Kind, Target
from tests.chaos.proxy import Proxies, Proxy


class Hit(Protocol):
    """What a run can be hit at."""

    def pids(self, target: Target) -> Sequence[int]:
        """Processes of a target that run."""

    def networks(self, target: Target) -> Sequence[Sequence[Proxy]]:
        """What to cut, all at once, to cut off one of a target; one entry for each of them."""

    def brokers_whole(self) -> bool:
        """Whether all brokers answer."""


@dataclass(frozen=True)
class _Lasting:
    until_s: float
    what: Target
    mend: Callable[[], None]
    said: str


class Faults:
    """Carries out faults. Told the time in seconds; `say` hears what happens."""

    def __init__(self, hit: Hit, proxies: Proxies, say: Callable[[str], None]) -> None:
        self._hit = hit
        self._proxies = proxies
        self._say = say
        self._lasting: list[_Lasting] = []
        self._stopped: dict[int, int] = {}
        self._cut: set[int] = set()

    @property
    def over(self) -> bool:
        """Whether nothing is stopped or cut."""
        return not self._lasting

    def begin(self, fault: Fault, now: float) -> bool:
        """Whether it could be done; else try again later."""
        if fault.target is Target.BROKER and not (self._no_broker_is_stopped() and self._hit.brokers_whole()):
            return False
        return self._cut_off(fault, now) if fault.kind is Kind.CUT else self._signal(fault, now)

    def mend(self, now: float) -> None:
        """End what has lasted long enough."""
        for lasting in [one for one in self._lasting if now >= one.until_s]:
            self._lasting.remove(lasting)
            lasting.mend()
            self._say(f"end of {lasting.said}")

    def _signal(self, fault: Fault, now: float) -> bool:
        pids = [pid for pid in self._hit.pids(fault.target) if pid not in self._stopped]
        if not pids:
            return False
        pid = pids[int(fault.draw * len(pids))]
        descriptor = _sent(pid, _SIGNALS[fault.kind])
        if descriptor is None:
            return False
        said = f"{fault} (process {pid})"
        self._say(said)
        if fault.kind is Kind.KILL:
            os.close(descriptor)
        else:
            self._stopped[pid] = descriptor
            self._lasting.append(_Lasting(now + fault.for_s, fault.target, lambda: self._continue(pid), said))
        return True

    def _continue(self, pid: int) -> None:
        descriptor = self._stopped.pop(pid)
        with contextlib.suppress(ProcessLookupError):  # killed meanwhile
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        os.close(descriptor)

    def _cut_off(self, fault: Fault, now: float) -> bool:
        networks = self._hit.networks(fault.target)
        chosen = networks[int(fault.draw * len(networks))]
        if any(id(proxy) in self._cut for proxy in chosen):
            return False
        for proxy in chosen:
            self._cut.add(id(proxy))
            self._proxies.cut(proxy)
        self._say(str(fault))
        self._lasting.append(
            _Lasting(now + fault.for_s, fault.target, lambda: self._join(chosen), str(fault))
        )
        return True

    def _join(self, proxies: Sequence[Proxy]) -> None:
        for proxy in proxies:
            self._cut.discard(id(proxy))
            self._proxies.mend(proxy)

    def _no_broker_is_stopped(self) -> bool:
        return not any(one.what is Target.BROKER for one in self._lasting)


_SIGNALS: Mapping[Kind, signal.Signals] = {Kind.KILL: signal.SIGKILL, Kind.STOP: signal.SIGSTOP}


def _sent(pid: int, number: signal.Signals) -> int | None:
    """A descriptor of the process that got the signal, which no later process of the same id can be."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        os.close(descriptor)
        return None
    return descriptor
