"""Does an adaptive wait beat a fixed one? The real batch queue, a simulated predictor, a clock that jumps.

`max_queue_delay_ms` is how long an idle predictor waits for company. The rule it is compared with knows
more: how often items of each shape come, and what a batch costs. For n waiting items of a shape whose
next comes in g seconds on average, with a batch cost of `fixed + each * n`, waiting for the next one
delays the n by g + each and the next by n * each; it saves the next one a batch of its own, `fixed`. So
waiting pays while

    (n + 1) * g + n * each < value * fixed

where `value` is what a second of the predictor is worth: 1 on an idle machine, more the busier it is,
since whoever comes meanwhile would have waited for that second too: 1 / (1 - utilisation). If the next
item has not come after the wait that would still pay, the guess was wrong and the batch leaves. Gaps and
costs are not given to the rule; it learns them from what comes and what runs.

Lines come one by one here, each by itself, which favours waiting: the lines of a page come together, and
need no wait to share a batch. All times are seconds. The same seed gives the same arrivals to every rule.

    python -m loadgen.wait_study [--seed N] [--lines N]
"""

import argparse
import random
import sys
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import inf
from typing import Any

from loadgen.report import Section, table
from loadgen.samples import percentile
from services.common.batch_queue import Batch, BatchLimits, BatchQueue, Entry, Priority

HEIGHT = 48
WIDTHS = {
    160: 12,
    240: 14,
    320: 16,
    480: 14,
    640: 12,
    800: 9,
    960: 7,
    1280: 6,
    1600: 4,
    2048: 3,
    2560: 2,
    3200: 1,
}
"""Widths of lines, and how many of a hundred lines have each."""
FIXED_MS = (0.0, 1.0, 2.0, 5.0, 10.0)
LOADS = (0.3, 0.7, 0.9)


@dataclass(frozen=True)
class Cost:
    """What a batch costs: seconds, and seconds a pixel."""

    name: str
    fixed: float
    pixel: float

    def of(self, pixels: int) -> float:
        """Seconds that a batch of so many pixels runs."""
        return self.fixed + self.pixel * pixels


GPU = Cost("GPU, 5 ms + 50 ms/Mpixel", 5e-3, 50e-9)
CPU = Cost("CPU, 1 ms + 540 ms/Mpixel", 1e-3, 540e-9)


def limits(delay_ms: float) -> BatchLimits:
    """The recognizer's limits with such a wait, and room for any backlog."""
    return BatchLimits(
        max_batch_size=8,
        max_queue_delay_ms=delay_ms,
        max_batch_pixels=2_000_000,
        capacity=10**9,
        bulk_max_age_ms=2000.0,
        allowed_batch_sizes=(1, 2, 4, 8),
    )


def capacity(cost: Cost) -> float:
    """Items a second of one predictor that runs full batches only."""
    each = {width: cost.of(8 * HEIGHT * width) / 8 for width in WIDTHS}
    return sum(WIDTHS.values()) / sum(share * each[width] for width, share in WIDTHS.items())


def arrivals(seed: int, rate: float, items: int) -> list[Entry[int]]:
    """Lines that come independently of each other, so many a second."""
    chance, now, lines = random.Random(seed), 0.0, list[Entry[int]]()
    for number, width in enumerate(chance.choices(list(WIDTHS), list(WIDTHS.values()), k=items)):
        now += chance.expovariate(rate)
        lines.append(Entry(number, width, HEIGHT * width, Priority.ONLINE, now))
    return lines


class CostEstimate:
    """Fixed and per-pixel cost of a batch, fitted to those that ran, the latest most."""

    def __init__(self, keep: float = 0.98) -> None:
        self._keep = keep
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def learn(self, pixels: int, seconds: float) -> None:
        """A batch of so many pixels has run for so long."""
        new = (1.0, pixels, seconds, pixels * pixels, pixels * seconds)
        sums = (self._count, self._x, self._y, self._xx, self._xy)
        self._count, self._x, self._y, self._xx, self._xy = (
            self._keep * old + one for old, one in zip(sums, new, strict=True)
        )

    def fit(self) -> tuple[float, float]:
        """Seconds, and seconds a pixel, neither below zero; both are zero before two sizes were seen."""
        spread = self._count * self._xx - self._x**2
        if spread <= 1e-9 * self._xx * self._count:
            return 0.0, 0.0
        pixel = max((self._count * self._xy - self._x * self._y) / spread, 0.0)
        return max((self._y - pixel * self._x) / self._count, 0.0), pixel


class ShapeRate:
    """The average gap between arrivals of one shape, the latest counting most."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self.last = -inf
        self.gap = inf

    def arrived(self, now: float) -> None:
        """Another item of this shape has come."""
        gap = now - self.last
        self.gap = gap if self.gap == inf else (1 - self._weight) * self.gap + self._weight * gap
        self.last = now


def wait_that_pays(waiting: int, gap: float, fixed: float, each: float, value: float) -> float:
    """Seconds to wait for the next item after the last one came; 0 where it does not pay."""
    budget = (value * fixed - waiting * each) / (waiting + 1)
    return budget if gap < budget else 0.0


class AdaptiveQueue(BatchQueue[int]):
    """The batch queue, with the adaptive rule in place of `max_queue_delay_ms`."""

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits)
        self._delay = inf  # a queue that never waits would not ask how long
        self._cost = CostEstimate()
        self._rates: dict[Hashable, ShapeRate] = {}
        self._utilisation = 0.0
        self._last_end = 0.0

    def add(self, *entries: Entry[int]) -> None:
        """Admits them, and learns how often their shapes come."""
        super().add(*entries)
        for entry in entries:
            self._rates.setdefault(entry.shape, ShapeRate()).arrived(entry.arrival)

    def ran(self, batch: Batch[int], start: float, end: float) -> None:
        """Learns what a batch cost, and how much of the time the predictor is busy."""
        self._cost.learn(batch.pixels, end - start)
        busy = (end - start) / (end - self._last_end)
        weight = min((end - self._last_end) / 1.0, 1.0)  # an average over about a second
        self._utilisation += weight * (busy - self._utilisation)
        self._last_end = end

    def _waited_enough_at(self, line: Any) -> float:
        rate = self._rates[line.heads()[0].shape]
        fixed, pixel = self._cost.fit()
        value = 1 / (1 - min(self._utilisation, 0.95))
        wait = wait_that_pays(len(line), rate.gap, fixed, pixel * line.pixels, value)
        return rate.last + wait if wait else float(line.oldest())


@dataclass(frozen=True)
class Row:
    """What one rule gave at one load."""

    machine: str
    load: float
    rule: str
    p50_ms: float
    p99_ms: float
    items_per_s: float
    mean_batch: float


@dataclass(frozen=True)
class Outcome:
    """Seconds from arrival to answer of each item, when the last one was answered, how many batches ran."""

    latencies: tuple[float, ...]
    end: float
    batches: int


def simulate(queue: BatchQueue[int], lines: Sequence[Entry[int]], cost: Cost) -> Outcome:
    """One predictor that runs whatever the queue proposes, until all lines are answered."""
    latencies, batches, coming, now, busy_until = list[float](), 0, 0, 0.0, 0.0
    while now < inf:
        while coming < len(lines) and lines[coming].arrival <= now:
            queue.add(lines[coming])
            coming += 1
        idle = busy_until <= now
        if idle and (batch := queue.propose(now, idle=True)) is not None:
            queue.take(batch, now)
            busy_until, batches, idle = now + cost.of(batch.pixels), batches + 1, False
            latencies += [busy_until - entry.arrival for entry in batch.entries]
            if isinstance(queue, AdaptiveQueue):
                queue.ran(batch, now, busy_until)
        comes = lines[coming].arrival if coming < len(lines) else inf
        wakes = (queue.wake_at(idle=True) if idle else busy_until if queue else None) or inf
        now = min(comes, wakes)
    return Outcome(tuple(latencies), busy_until, batches)


def compare(seed: int, items: int) -> list[Row]:
    """Every rule at every load on both kinds of machine."""
    rows = []
    for cost in (GPU, CPU):
        for load in LOADS:
            lines = arrivals(seed, load * capacity(cost), items)
            rows += [measure(cost, load, delay, lines) for delay in (*FIXED_MS, None)]
    return rows


def measure(cost: Cost, load: float, delay_ms: float | None, lines: Sequence[Entry[int]]) -> Row:
    """One rule at one load: a fixed wait, or None for the adaptive one."""
    queue = AdaptiveQueue(limits(0.0)) if delay_ms is None else BatchQueue[int](limits(delay_ms))
    outcome = simulate(queue, lines, cost)
    return Row(
        machine=cost.name,
        load=load,
        rule="adaptive" if delay_ms is None else f"{delay_ms:g} ms",
        p50_ms=1000 * percentile(outcome.latencies, 50),
        p99_ms=1000 * percentile(outcome.latencies, 99),
        items_per_s=len(lines) / (outcome.end - lines[0].arrival),
        mean_batch=len(lines) / outcome.batches,
    )


_WORTH = 0.01
"""A difference of less than this share is noise."""


def best_fixed(rows: Sequence[Row]) -> Row:
    """Of the rows of one load, the fixed wait with the least P99; the least P50 decides among equals."""
    fixed = [row for row in rows if row.rule != "adaptive"]
    least = min(row.p99_ms for row in fixed)
    return min((row for row in fixed if row.p99_ms <= (1 + _WORTH) * least), key=lambda row: row.p50_ms)


def adaptive_wins(rows: Sequence[Row]) -> bool:
    """At one load: better than the best fixed wait in P50 or P99, and not worse in the other."""
    best = best_fixed(rows)
    [adaptive] = [row for row in rows if row.rule == "adaptive"]
    ratios = adaptive.p50_ms / best.p50_ms, adaptive.p99_ms / best.p99_ms
    return min(ratios) < 1 - _WORTH and max(ratios) <= 1 + _WORTH


def verdict(rows: Sequence[Row]) -> str:
    """A sentence: whether the adaptive rule is worth shipping."""
    loads = [list(group) for _, group in groupby(rows, key=lambda row: (row.machine, row.load))]
    won = sum(map(adaptive_wins, loads))
    best = sorted({best_fixed(group).rule for group in loads}, key=lambda rule: float(rule.split()[0]))
    found = f"The adaptive rule beats the best fixed wait ({', '.join(best)}) at {won} of {len(loads)} loads"
    return f"{found}: {'it is worth shipping' if won == len(loads) else 'it does not ship'}."


def section(seed: int, lines: int) -> Section:
    """The study as a part of a report."""
    rows = compare(seed, lines)
    head = ("machine", "load", "wait", "P50 ms", "P99 ms", "lines/s", "mean batch")
    figures = [
        (
            row.machine,
            row.load,
            row.rule,
            f"{row.p50_ms:.1f}",
            f"{row.p99_ms:.1f}",
            f"{row.items_per_s:.1f}",
            f"{row.mean_batch:.2f}",
        )
        for row in rows
    ]
    says = (
        f"{lines} lines of {len(WIDTHS)} widths that come independently (seed {seed}), one predictor with"
        f" batches of at most 8. Load: share of what full batches would carry. {verdict(rows)}"
    )
    data = {"seed": seed, "lines": lines, "rows": [asdict(row) for row in rows], "verdict": verdict(rows)}
    return Section("Waiting for company", f"{says}\n\n{table(head, figures)}", data)


def main() -> None:
    """Prints the study as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.wait_study", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=6000)
    asked = parser.parse_args()
    shown = section(asked.seed, asked.lines)
    sys.stdout.write(f"## {shown.title}\n\n{shown.markdown}\n")


if __name__ == "__main__":
    main()
