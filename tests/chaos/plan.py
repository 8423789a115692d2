"""What goes wrong, and when: the same seed gives the same plan. Pure.

A fault has a target, a kind and a moment. Which process of a target is hit is drawn when it happens, since
only then is it known which there are; that draw comes from the plan's seed too.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens: SIGKILL, SIGSTOP and later SIGCONT, or a network that is silent for a while."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"


class Target(StrEnum):
    """Who it happens to. A gateway is cut off from all brokers, the others from their clients."""

    GATEWAY = "gateway"
    DETECTOR = "detector"
    RECOGNIZER = "recognizer"
    DETECTOR_PREDICTOR = "detector's predictor"
    RECOGNIZER_PREDICTOR = "recognizer's predictor"
    BROKER = "broker"


PREDICTORS = (Target.DETECTOR_PREDICTOR, Target.RECOGNIZER_PREDICTOR)
COMBINATIONS: tuple[tuple[Target, Kind], ...] = tuple(
    (target, kind)
    for target, kind in itertools.product(Target, Kind)
    if not (target in PREDICTORS and kind is Kind.CUT)  # a predictor has no network, only a pipe
)
"""All faults there are."""

GATEWAYS = (1, 3, 1)
"""How many run in the first, second and last third of the time."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. `at_s` and `for_s` in seconds, `for_s` 0 for what a supervisor mends.

    `draw` from 0 to 1 chooses among the processes of the target.
    """

    at_s: float
    target: Target
    kind: Kind
    for_s: float
    draw: float

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.kind} {self.target}{lasts}"


@dataclass(frozen=True)
class Scale:
    """From `at_s` on, `gateways` of them run."""

    at_s: float
    gateways: int

    def __str__(self) -> str:
        return f"scale to {self.gateways} gateway{'s' if self.gateways > 1 else ''}"


Event = Fault | Scale


@dataclass(frozen=True)
class Durations:
    """Seconds that a stop or a cut lasts, and that a supervisor waits before it starts a dead process."""

    least_s: float = 1.0
    most_s: float = 12.0
    restart_least_s: float = 0.2
    restart_most_s: float = 3.0


def make_plan(seed: int, *, seconds: float, faults: int, durations: Durations) -> tuple[Event, ...]:
    """The events of a run, in order. Each of `COMBINATIONS` comes before any comes again.

    Faults have a slot of time each and a random moment in it, so they come close together at times, and
    what lasts overlaps what follows. The gateways change near the ends of the thirds.
    """
    random_ = random.Random(f"plan {seed}")
    slot = seconds / max(1, faults)
    events: list[Event] = [
        Fault(
            (number + random_.random()) * slot,
            target,
            kind,
            _lasts(kind, durations, random_),
            random_.random(),
        )
        for number, (target, kind) in enumerate(_kinds(faults, random_))
    ]
    events += _scales(seconds, random_)
    return tuple(sorted(events, key=lambda event: event.at_s))


def _kinds(count: int, random_: random.Random) -> list[tuple[Target, Kind]]:
    found: list[tuple[Target, Kind]] = []
    while len(found) < count:
        found += random_.sample(COMBINATIONS, len(COMBINATIONS))
    return found[:count]


def _lasts(kind: Kind, durations: Durations, random_: random.Random) -> float:
    drawn = random_.uniform(durations.least_s, durations.most_s)
    return 0.0 if kind is Kind.KILL else drawn


def _scales(seconds: float, random_: random.Random) -> list[Scale]:
    thirds = [seconds * part / 3 for part in range(len(GATEWAYS))]
    changes = zip(thirds[1:], GATEWAYS[1:], strict=True)
    return [Scale(at + random_.uniform(-0.1, 0.1) * seconds, gateways) for at, gateways in changes]


def covered(events: Sequence[Event]) -> set[tuple[Target, Kind]]:
    """The combinations that a plan has."""
    return {(event.target, event.kind) for event in events if isinstance(event, Fault)}
