"""The product against two designs of the field: same weights, same engine, same cores.

    python -m loadgen.studies.designs DIR [--quick]

`rivals` says what the two do. All three share the models' code, the box extraction and the cutting of lines,
so that only the way in which work is gathered differs. The rivals are spared gRPC and processes.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import cv2
import grpc

from loadgen.corpus import Document
from loadgen.errors import RunFailed
from loadgen.report import Section
from loadgen.samples import percentile
from loadgen.stack import Stack, running
from loadgen.studies import cli
from loadgen.studies.bare import BareFinder, BareReader
from loadgen.studies.context import SMALL_SIDE, Context
from loadgen.studies.cuttings import BANDS, cuttings
from loadgen.studies.figures import Verdict, poisson_schedule, table, verdict_list, with_verdicts
from loadgen.studies.lines import RecognizerDoor, cut_out
from loadgen.studies.online import Call, Door, Order, Send, on_schedule, order_of, so_many_at_a_time, texts_of
from loadgen.studies.rivals import Fifo, Finder, Line, OneLock, Server, decoded, fifo_width, read_together
from services.common.engines.base import usable_cores
from services.common.pb import ocr_pb2 as pb

log = logging.getLogger(__name__)

SEED = 7
LOAD = 0.7
"""Of the smallest capacity of the three, for the latencies of all."""


@dataclass(frozen=True)
class Scale:
    """How much is measured: bands, rounds of all of them at saturation, seconds of the schedule."""

    bands: int
    rounds: int
    seconds: float
    concurrency: int = 16
    alone: int = 100
    """Lines that are read alone, at most."""


FULL, QUICK = Scale(bands=20, rounds=1, seconds=15), Scale(bands=6, rounds=1, seconds=4, alone=20)

Texts = Mapping[str, Sequence[str]]
"""The text of each line, by document."""


@dataclass(frozen=True)
class Alone:
    """How many lines were also read alone, and how many of them read differently then."""

    lines: int
    changed: int


@dataclass(frozen=True)
class Measured:
    """What one design does. Rates in documents a second, times in milliseconds."""

    design: str
    capacity: float
    lines: int
    changed: int
    """Lines whose text differed in the second run, among other documents in another order."""
    alone: Alone
    p50_ms: float = math.nan
    p99_ms: float = math.nan


# ---------------------------------------------------------------- pure


def changed(first: Texts, second: Texts) -> tuple[int, int]:
    """Lines that read differently in two runs over the same documents, and lines in all.

    A document whose number of lines differs counts with all of its lines.
    """
    differ = sum(_differ(texts, second[document]) for document, texts in first.items())
    return differ, sum(len(texts) for texts in first.values())


def _differ(one: Sequence[str], other: Sequence[str]) -> int:
    if len(one) != len(other):
        return len(one)
    return sum(a != b for a, b in zip(one, other, strict=True))


def rounds(documents: Sequence[Document], count: int, seed: int) -> list[Order]:
    """All documents so many times, each time in another order."""
    draw = random.Random(seed)
    return [order_of(doc) for _ in range(count) for doc in draw.sample(documents, len(documents))]


def judge(product: Measured) -> list[Verdict]:
    """What was to be shown."""
    differ = product.changed + product.alone.changed
    return [
        Verdict(
            "no line of the product reads differently in other company or alone",
            f"{differ} of {product.lines + product.alone.lines}",
            differ == 0,
        )
    ]


def section(found: Sequence[Measured], scale: Scale, rate: float) -> Section:
    """What was found, for the document; the product comes last."""
    verdicts = judge(found[-1])
    rows = [
        (
            *(m.design, m.capacity, m.p50_ms, m.p99_ms),
            *(_share(m.changed, m.lines), _share(m.alone.changed, m.alone.lines)),
        )
        for m in found
    ]
    header = ["design", "documents/s", "P50 ms", "P99 ms", "changed in other company", "changed when alone"]
    text = (
        f"{scale.bands} pieces of some ten lines, cut out of the pages (seed {SEED}). Documents/s:"
        f" {scale.rounds} rounds of all, {scale.concurrency} at a time. Latencies: Poisson arrivals at"
        f" {rate:.2f} a second, {LOAD:.0%} of the smallest capacity, for {scale.seconds:g} s, counted from"
        " the scheduled moment. Changed: lines whose text differed when the same bands came in another order"
        " with others beside them; and lines whose text differed when they were read alone. The first two"
        " designs run in the process that measures, without gRPC, which flatters them."
    )
    markdown = "\n\n".join([text, table(header, rows), verdict_list(verdicts)])
    data: dict[str, Any] = {
        "rate": rate,
        "designs": [vars(m) | {"alone": vars(m.alone)} for m in found],
    }
    return Section("Against two designs of the field", markdown, with_verdicts(data, verdicts))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(whole, 1):.1%})"


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Design:
    """A way to serve documents. `read_alone` gives the text of lines in their documents, and alone."""

    name: str
    send: Send
    read_alone: Callable[[Sequence[Call], int], Awaitable[list[tuple[str, str]]]]


def run(context: Context) -> Section:
    """Measure. Raises the errors of `loadgen.stack` and of the engines."""
    cv2.setNumThreads(1)  # images are worked on side by side in threads, as in the services
    scale = QUICK if context.quick else FULL
    documents, side = cuttings(context.documents, BANDS, SEED, scale.bands), SMALL_SIDE
    with ExitStack() as open_:
        stack = open_.enter_context(running(context.stack(small=True)))
        rivals = [open_.enter_context(rival) for rival in (one_lock(side), fifo(side, usable_cores()))]
        return asyncio.run(_with_product(rivals, stack, documents, scale))


async def _with_product(
    rivals: Sequence[Design], stack: Stack, documents: Sequence[Document], scale: Scale
) -> Section:
    async with (
        Door(stack.address("gateway")) as door,
        RecognizerDoor(stack.address("recognizer")) as recognizer,
    ):
        product = Design("product", door.send, partial(read_product_alone, recognizer))
        found = [await _saturated(design, documents, scale) for design in (*rivals, product)]
        rate = LOAD * min(measured.capacity for measured in found)
        schedule = poisson_schedule(rate, scale.seconds, SEED)
        orders = [order_of(doc, at) for at, doc in zip(schedule, cycle(documents), strict=False)]
        designs = zip((*rivals, product), found, strict=True)
        return section([await _timed(design, orders, measured) for design, measured in designs], scale, rate)


async def _saturated(design: Design, documents: Sequence[Document], scale: Scale) -> Measured:
    """Capacity and texts. Two runs over all documents come before the measured one, to warm up."""
    first = await so_many_at_a_time(design.send, [order_of(doc) for doc in documents], scale.concurrency // 4)
    await so_many_at_a_time(design.send, rounds(documents, 1, SEED), scale.concurrency)
    orders, start = rounds(documents, scale.rounds, SEED + 1), time.monotonic()
    second = await so_many_at_a_time(design.send, orders, scale.concurrency)
    capacity = len(second) / (time.monotonic() - start)
    differ, lines = changed(_texts(first), _texts(second))
    pairs = await design.read_alone(first, scale.alone)
    log.info("%s: %.2f documents/s", design.name, capacity)
    alone = Alone(len(pairs), sum(one != other for one, other in pairs))
    return Measured(design.name, capacity, lines, differ, alone)


async def _timed(design: Design, orders: Sequence[Order], measured: Measured) -> Measured:
    """The same with latencies under the schedule."""
    calls = await on_schedule(design.send, orders)
    _texts(calls)
    latencies = [call.latency_ms for call in calls]
    return replace(measured, p50_ms=percentile(latencies, 50), p99_ms=percentile(latencies, 99))


def _texts(calls: Sequence[Call]) -> dict[str, list[str]]:
    """What was read of each document; in the last of its calls, if there were several. Raises RunFailed."""
    failed = [call for call in calls if call.result is None]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(calls)} documents failed, the first with {failed[0].status.name}"
        )
    return {call.order.job.file: texts_of(call) for call in calls}


# ---------------------------------------------------------------- the three as designs


@contextmanager
def one_lock(max_side: int) -> Iterator[Design]:
    """One document at a time, with all cores."""
    find, read = BareFinder(max_side, threads=0), BareReader(threads=0)
    with closing(OneLock(find, read)) as server:
        yield rival("one lock", server, find, lambda line: read_together([line], read)[0])


@contextmanager
def fifo(max_side: int, streams: int) -> Iterator[Design]:
    """As many finders and readers as cores, of one thread each: as the product has them."""
    finders = [BareFinder(max_side, threads=1) for _ in range(streams)]
    readers = [BareReader(threads=1) for _ in range(streams)]
    with closing(Fifo(finders, readers)) as server:
        yield rival(
            "first in, first out",
            server,
            finders[0],
            lambda line: readers[0]([line], fifo_width([line.shape[1]]))[0],
        )


def rival(name: str, server: Server, find: Finder, read_one: Callable[[Line], str]) -> Design:
    """A server of this process as a design; `read_alone` must find it idle, since it uses its models."""

    async def send(order: Order, due: float) -> Call:
        texts = await asyncio.wrap_future(server.submit(order.job.content))
        lines = [pb.Line(text=text) for text in texts]
        return Call(order, due, time.monotonic(), math.inf, grpc.StatusCode.OK, pb.Result(lines=lines))

    async def read_alone(calls: Sequence[Call], most: int) -> list[tuple[str, str]]:
        found = (
            (text, line) for call in calls for text, line in zip(texts_of(call), lines_in(call), strict=True)
        )
        return [(text, read_one(line)) for text, line in islice(found, most)]

    def lines_in(call: Call) -> list[Line]:
        return find(decoded(call.order.job.content))

    return Design(name, send, read_alone)


async def read_product_alone(
    recognizer: RecognizerDoor, calls: Sequence[Call], most: int
) -> list[tuple[str, str]]:
    """The text of each line in its document, and in a call of its own."""
    pairs: list[tuple[str, str]] = []
    for call in calls:
        for text, image in zip(texts_of(call), _cut(call), strict=True):
            if len(pairs) < most:
                [read] = await recognizer.read([image])
                pairs.append((text, read.text))
    return pairs


def _cut(call: Call) -> list[Line]:
    assert call.result is not None
    return [image for _, image in cut_out("", decoded(call.order.job.content), call.result)]


if __name__ == "__main__":
    cli.main(run)
