"""Whether memory is flat, and the first batch of a shape as fast as the others.

    python -m loadgen.studies.memory DIR [--quick]

3,000 documents of random sizes go through a pipeline of real models. What each process holds is read when
it has been idle for some seconds, after a third of them and at the end. Every batch's shape and time come
from the traces: a shape that was not warmed up would show as a first batch that is slower than the rest of
its shape.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from loadgen.errors import RunFailed
from loadgen.report import Section
from loadgen.stack import Stack, running
from loadgen.studies import cli
from loadgen.studies.context import Context
from loadgen.studies.cuttings import Sizes, cuttings
from loadgen.studies.figures import Verdict, growth, median, table, verdict_list, with_verdicts
from loadgen.studies.online import Call, Door, Order, order_of, so_many_at_a_time
from loadgen.studies.spans import TRACE_ALL, ModelRun, SpanReceiver, batches
from services.common.process import TRIM_EVERY_S

DOCUMENTS, QUICK_DOCUMENTS = 3000, 150
CONCURRENCY = 16
SEED = 3
SIDES = (60, 1100)
SIZES = Sizes(widths=SIDES, heights=SIDES, area=8_000, any_area_each=100)
"""Small ones in the main, so that 3,000 take a minute or two; every 100th may be as large as a page."""

GROWTH_LIMIT = 0.03
SLOW = 2.0
"""Times the median of its shape, from which a batch counts as slow."""
LEAST_BATCHES = 5
"""Of a shape, or its median says nothing."""


@dataclass(frozen=True)
class Held:
    """Resident bytes of one process: when it was ready, after a third of the documents, after all."""

    process: str
    ready: int
    third: int
    end: int

    @property
    def growth(self) -> float:
        """From the third to the end, as a part of the third."""
        return growth(self.third, self.end)


@dataclass(frozen=True)
class ShapeTimes:
    """The model's milliseconds for the batches of one shape and size in one stage, in order."""

    stage: str
    shape: str
    size: int
    ms: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of all its batches."""
        return median(self.ms)

    @property
    def first(self) -> float:
        """How many times the median its first batch took."""
        return self.ms[0] / self.median

    @property
    def later(self) -> tuple[float, ...]:
        """The same of the others."""
        return tuple(ms / self.median for ms in self.ms[1:])


def held(ready: Mapping[str, int], third: Mapping[str, int], end: Mapping[str, int]) -> list[Held]:
    """The processes that lived from start to end, by name."""
    return [Held(name, ready[name], third[name], end[name]) for name in sorted({*ready} & {*third} & {*end})]


def shape_times(runs: Iterable[ModelRun], least: int = LEAST_BATCHES) -> list[ShapeTimes]:
    """By stage, shape and size, those with at least so many batches; `runs` in order, one for each batch."""
    times: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in runs:
        times[run.stage, run.shape, run.size].append(run.ms)
    return [ShapeTimes(*key, tuple(ms)) for key, ms in sorted(times.items()) if len(ms) >= least]


def judge(processes: Sequence[Held], shapes: Sequence[ShapeTimes]) -> list[Verdict]:
    """What was to be shown."""
    most = max(processes, key=lambda process: abs(process.growth))
    worst = max(shapes, key=lambda shape: shape.first)
    return [
        Verdict(
            f"resident memory of each process moves by less than {GROWTH_LIMIT:.0%} after a third",
            f"most in {most.process}, {most.growth:+.1%}",
            abs(most.growth) < GROWTH_LIMIT,
        ),
        Verdict(
            f"no first batch of a shape takes more than {SLOW:g} times the median of its shape",
            f"at worst {worst.first:.2f} times, {worst.size} of {worst.shape} in the {worst.stage}",
            worst.first <= SLOW,
        ),
    ]


def section(documents: int, processes: Sequence[Held], shapes: Sequence[ShapeTimes]) -> Section:
    """What was found, for the document."""
    verdicts = judge(processes, shapes)
    later = [ratio for shape in shapes for ratio in shape.later]
    figures: dict[str, Any] = {
        "documents": documents,
        "resident_bytes": [vars(process) | {"growth": process.growth} for process in processes],
        "shapes": len(shapes),
        "batches": len(later) + len(shapes),
        "first_batches_slow": sum(shape.first > SLOW for shape in shapes),
        "first_batch_worst": max(shape.first for shape in shapes),
        "later_batches_slow": sum(ratio > SLOW for ratio in later),
        "later_batch_worst": max(later),
    }
    return Section(
        "Memory and shapes", _markdown(figures, processes, verdicts), with_verdicts(figures, verdicts)
    )


def _markdown(figures: Mapping[str, Any], processes: Sequence[Held], verdicts: Sequence[Verdict]) -> str:
    sizes = [
        (h.process, *(f"{size / 2**20:.0f}" for size in (h.ready, h.third, h.end)), f"{h.growth:+.1%}")
        for h in processes
    ]
    return "\n\n".join(
        (
            f"{figures['documents']} documents of random sizes, {SIDES[0]} to {SIDES[1]} pixels a side,"
            f" all but one in {SIZES.any_area_each} of at most {SIZES.area} pixels or {SIDES[0]} rows,"
            f" seed {SEED}, {CONCURRENCY} at a time through gRPC, tracing on. Resident MiB while idle.",
            table(["process", "ready", "after a third", "at the end", "growth after a third"], sizes),
            f"{figures['batches']} batches of {figures['shapes']} shapes (stage, height and width, size;"
            f" those with at least {LEAST_BATCHES} batches). More than {SLOW:g} times the median of"
            f" their shape took {figures['first_batches_slow']} of the {figures['shapes']} first batches"
            f" (at worst {figures['first_batch_worst']:.2f} times) and {figures['later_batches_slow']} of the"
            f" {figures['batches'] - figures['shapes']} later ones (at worst"
            f" {figures['later_batch_worst']:.2f} times). The later ones show what other work on the cores"
            " does to a batch whose shape is not new.",
            verdict_list(verdicts),
        )
    )


def run(context: Context) -> Section:
    """Measure. Raises the errors of `loadgen.stack`."""
    orders = _orders(context, QUICK_DOCUMENTS if context.quick else DOCUMENTS)
    with SpanReceiver() as receiver:
        with running(context.stack(env=receiver.environment | TRACE_ALL)) as stack:
            ready = stack.rss()
            third, end = asyncio.run(_load(stack, orders))
        runs = batches(receiver.runs())  # the last of them came when the services ended
    return section(len(orders), held(ready, third, end), shape_times(runs))


def _orders(context: Context, count: int) -> list[Order]:
    documents = cuttings(context.documents, SIZES, SEED, count)
    return [order_of(document) for document in documents]


async def _load(stack: Stack, orders: Sequence[Order]) -> tuple[dict[str, int], dict[str, int]]:
    """Resident bytes after a third of the documents, and after all."""
    first = len(orders) // 3
    async with Door(stack.address("gateway")) as door:
        _check(await so_many_at_a_time(door.send, orders[:first], CONCURRENCY))
        third = await _idle(stack)
        _check(await so_many_at_a_time(door.send, orders[first:], CONCURRENCY))
    return third, await _idle(stack)


async def _idle(stack: Stack) -> dict[str, int]:
    """Resident bytes once the services have handed back what they freed."""
    await asyncio.sleep(2 * TRIM_EVERY_S)
    return stack.rss()


def _check(calls: Iterable[Call]) -> None:
    failed = [call.status.name for call in calls if call.status is not grpc.StatusCode.OK]
    if failed:
        raise RunFailed(f"{len(failed)} documents failed, the first with {failed[0]}")


if __name__ == "__main__":
    cli.main(run)
