"""The arithmetic that the studies share. Pure."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadgen import report
from loadgen.samples import percentile


def median(values: Sequence[float]) -> float:
    """The 50th percentile by nearest rank."""
    return percentile(values, 50)


def growth(earlier: float, later: float) -> float:
    """By what part of `earlier` the value rose; negative when it fell."""
    return later / earlier - 1


def poisson_schedule(rate: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Arrivals of a Poisson process, in seconds from the start: as many as come, none after `seconds`."""
    draw, moment, schedule = random.Random(seed), 0.0, list[float]()
    while (moment := moment + draw.expovariate(rate)) < seconds:
        schedule.append(moment)
    return tuple(schedule)


def rate_within(moments: Iterable[float], begin: float, end: float) -> float:
    """Events a second after `begin` and until `end`."""
    return sum(begin < moment <= end for moment in moments) / (end - begin)


def per_second(moments: Iterable[float], begin: float, end: float) -> tuple[int, ...]:
    """Events in each whole second from `begin` on; a last second that is not whole is left out."""
    counts = [0] * int(end - begin)
    for moment in moments:
        second = math.floor(moment - begin)
        if 0 <= second < len(counts):
            counts[second] += 1
    return tuple(counts)


@dataclass(frozen=True)
class Verdict:
    """A claim and whether what was measured bears it out."""

    claim: str
    measured: str
    holds: bool

    def __str__(self) -> str:
        return f"{'holds' if self.holds else '**does not hold**'}: {self.claim} (measured: {self.measured})"


def verdict_list(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown list."""
    return "\n".join(f"- {verdict}" for verdict in verdicts)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats with three figures."""
    return report.table(header, [[_cell(cell) for cell in row] for row in rows])


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def with_verdicts(data: Mapping[str, object], verdicts: Iterable[Verdict]) -> dict[str, object]:
    """The data of a section with its verdicts beside the figures."""
    return {
        **data,
        "verdicts": [{"claim": v.claim, "measured": v.measured, "holds": v.holds} for v in verdicts],
    }
