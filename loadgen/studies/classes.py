"""Online beside bulk: what each costs the other, and what becomes of work that comes too late.

    python -m loadgen.studies.classes DIR --kafka HOST:PORT [--quick]

Both classes send slips of the same kind, online through gRPC on a Poisson schedule, bulk through Kafka as
much as the pipeline takes. One after the other: bulk alone; online alone; both, on the same schedule; bulk
alone again, since machines drift; online requests whose deadline is too short, beside bulk; and online that
by itself is more than the pipeline can carry, beside bulk.

Documents of one class need not be as dear as those of the other in a short run, and online work that goes
first leaves in smaller batches; so what the models did in each part is counted too: pixels, items a batch,
processor time for a pixel, and how much of the machine was at work.
"""

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice, takewhile
from typing import Any

import grpc

from loadgen.corpus import Document
from loadgen.errors import BrokerFailed, RunFailed
from loadgen.kafka_door import KafkaDoor
from loadgen.prometheus import Metrics, difference
from loadgen.report import Section
from loadgen.samples import Run, percentile
from loadgen.stack import Stack, running
from loadgen.studies import cli
from loadgen.studies.context import Context
from loadgen.studies.cuttings import SLIPS, cuttings
from loadgen.studies.figures import (
    Verdict,
    per_second,
    poisson_schedule,
    rate_within,
    table,
    verdict_list,
    with_verdicts,
)
from loadgen.studies.online import Call, Door, Order, on_schedule, order_of, so_many_at_a_time
from loadgen.studies.spans import TRACE_ASKED, ModelRun, SpanReceiver

log = logging.getLogger(__name__)

SEED = 11
DOCUMENTS = 40
ONLINE_SHARE = 0.2
"""Of the capacity that bulk alone showed."""
STAGES = ("detector", "recognizer")
BULK_ALONE, ONLINE_ALONE, BESIDE = "bulk alone", "online alone", "online beside bulk"
BULK_AGAIN = "bulk alone again"
FLOOD = 24
"""Online requests at a time that are more than the pipeline can carry."""
BACKLOG = 24
"""Bulk documents that are always on their way: enough to keep every predictor busy."""

HURRY = (0.1, 1.5)
"""Deadlines of hurried requests, as parts of the usual latency: too short for most."""
HURRY_GAP_S = 0.1

RATIO_LIMIT = 3.0
TOLERANCE = 0.05
"""By which two rates of the same machine may differ without meaning anything."""
CLOCK_SLACK_S = 0.02
"""A batch's beginning is told from its length and from when its end was noticed, on busy cores a bit late."""


@dataclass(frozen=True)
class Scale:
    """Seconds of each part, and how many requests are sent too late."""

    alone_s: float
    online_s: float
    hurried: int
    flood_s: float
    settle_s: float = 3.0


FULL = Scale(alone_s=12, online_s=30, hurried=60, flood_s=6)
QUICK = Scale(alone_s=3, online_s=5, hurried=20, flood_s=2, settle_s=1)


# ---------------------------------------------------------------- pure


@dataclass(frozen=True)
class Look:
    """What had been done at a moment of the monotonic clock: counters of the stages, processor seconds.

    `services_s` is of all processes of the pipeline, `sender_s` of the one that measures and sends.
    """

    at: float
    metrics: Mapping[str, Metrics]
    services_s: float
    sender_s: float


@dataclass(frozen=True)
class StageWork:
    """What a stage did.

    `mpixels` are those of a second that were no padding, `valid_share` is their share of all, `mean_batch` is
    in items, and `ms_per_mpixel` is the model's processor time for a Mpixel, padding included.
    """

    mpixels: float
    valid_share: float
    mean_batch: float
    ms_per_mpixel: float


@dataclass(frozen=True)
class Work:
    """What was done between two looks, by stage; `services` and `sender` are cores that were kept busy."""

    stages: Mapping[str, StageWork]
    services: float
    sender: float


def work_between(before: Look, after: Look) -> Work:
    """The difference of two looks."""
    seconds = after.at - before.at
    return Work(
        {stage: _stage_work(before.metrics[stage], after.metrics[stage], seconds) for stage in STAGES},
        (after.services_s - before.services_s) / seconds,
        (after.sender_s - before.sender_s) / seconds,
    )


def _stage_work(before: Metrics, after: Metrics, seconds: float) -> StageWork:
    rose = partial(difference, before, after)
    valid = rose("ocr_batch_pixels_total", kind="valid") / 1e6
    whole = valid + rose("ocr_batch_pixels_total", kind="padding") / 1e6
    model_ms = 1000 * rose("ocr_model_cpu_seconds_total")
    batch = rose("ocr_batch_size_sum") / max(rose("ocr_batch_size_count"), 1)
    return StageWork(
        valid / seconds, valid / whole if whole else 1.0, batch, model_ms / whole if whole else 0.0
    )


@dataclass(frozen=True)
class Both:
    """Online and bulk, each alone and together. Rates in documents a second, latencies in milliseconds."""

    online_rate: float
    online_alone: tuple[float, ...]
    online_beside: tuple[float, ...]
    bulk_before: float
    bulk_after: float
    """Of bulk alone, before and after both went together."""
    bulk_beside: float
    bulk_seconds: tuple[int, ...]
    """Bulk documents finished in each second beside online."""
    work: Mapping[str, Work]
    """By part: bulk alone, online alone, both, and bulk alone again."""

    @property
    def bulk_alone(self) -> float:
        """The mean of before and after."""
        return (self.bulk_before + self.bulk_after) / 2

    @property
    def ratio(self) -> float:
        """P99 of online beside bulk, as a multiple of that alone."""
        return percentile(self.online_beside, 99) / percentile(self.online_alone, 99)

    @property
    def kept(self) -> float:
        """Work done a second beside each other, as a part of what bulk alone did."""
        return (self.bulk_beside + self.online_rate) / self.bulk_alone

    def kept_pixels(self, stage: str) -> float:
        """Pixels a second that were no padding beside each other, as a part of what bulk alone did."""
        before, both, after = (self.work[part].stages[stage] for part in (BULK_ALONE, BESIDE, BULK_AGAIN))
        return 2 * both.mpixels / (before.mpixels + after.mpixels)

    def kept_for_a_core(self, stage: str) -> float:
        """The same for each core that the services kept busy: less than 1 is work that became dearer."""
        cores = (self.work[BULK_ALONE].services + self.work[BULK_AGAIN].services) / 2
        return self.kept_pixels(stage) * cores / self.work[BESIDE].services


@dataclass(frozen=True)
class Hurried:
    """Online requests with deadlines that were too short for some of them."""

    statuses: Mapping[str, int]
    dropped: Mapping[str, int]
    """Items that left before the model by `stage kind`, those of bulk included."""
    runs: int
    """Times that one of these requests rode in a batch."""
    late: int
    """Of these, the ones where the batch began after the request's deadline."""


@dataclass(frozen=True)
class Flood:
    """Bulk beside online work that is more than the pipeline can carry."""

    seconds: float
    online: int
    bulk_items: Mapping[str, int]
    """Items of bulk that a model has taken in that time, by stage."""


def late_runs(runs: Sequence[ModelRun], deadlines: Mapping[str, float], slack: float = CLOCK_SLACK_S) -> int:
    """How many runs began after the deadline of their trace. `deadlines` in seconds of the system's clock."""
    return sum(run.start > deadlines[run.trace] + slack for run in runs if run.trace in deadlines)


def hurried_of(calls: Sequence[Call], dropped: Mapping[str, int], runs: Sequence[ModelRun]) -> Hurried:
    """What became of hurried calls, and of what they asked the models for."""
    deadlines = {call.order.trace: call.expired_at for call in calls}
    ridden = [run for run in runs if run.trace in deadlines]
    return Hurried(
        Counter(call.status.name for call in calls), dropped, len(ridden), late_runs(ridden, deadlines)
    )


def dropped_between(before: Mapping[str, Metrics], after: Mapping[str, Metrics]) -> dict[str, int]:
    """Items that left without a model's work, by stage and kind; the kinds that there were."""
    found = {
        f"{stage} {kind}": round(
            difference(before[stage], after[stage], "ocr_items_dropped_total", stage=stage, kind=kind)
        )
        for stage in STAGES
        for kind in ("expired", "cancelled", "refused")
    }
    return {name: count for name, count in found.items() if count}


def bulk_between(before: Mapping[str, Metrics], after: Mapping[str, Metrics]) -> dict[str, int]:
    """Items of bulk that ran, by stage."""
    name = "ocr_batch_items_total"
    return {
        stage: round(difference(before[stage], after[stage], name, stage=stage, priority="bulk"))
        for stage in STAGES
    }


def judge(both: Both, hurried: Hurried, flood: Flood) -> list[Verdict]:
    """What was to be shown."""
    expired = hurried.statuses.get("DEADLINE_EXCEEDED", 0)
    return [
        Verdict(
            f"P99 of online beside saturating bulk <= {RATIO_LIMIT:g} times P99 without bulk",
            f"{both.ratio:.2f}",
            both.ratio <= RATIO_LIMIT,
        ),
        Verdict(
            f"bulk falls by no more than the online work it made room for, within {TOLERANCE:.0%}",
            f"{both.bulk_beside:.2f} + {both.online_rate:.2f} of {both.bulk_alone:.2f} documents/s"
            f" (before and after: {both.bulk_before:.2f}, {both.bulk_after:.2f}),"
            f" {both.kept:.1%}",
            both.kept >= 1 - TOLERANCE,
        ),
        Verdict(
            "bulk moves in every second beside online",
            f"at least {min(both.bulk_seconds)} documents in each",
            min(both.bulk_seconds) > 0,
        ),
        Verdict(
            "bulk moves though online alone is more than the pipeline can carry",
            ", ".join(f"{count} items in the {stage}" for stage, count in flood.bulk_items.items())
            + f" in {flood.seconds:.0f} s",
            all(count > 0 for count in flood.bulk_items.values()),
        ),
        Verdict(
            f"requests that expire say so; no batch begins more than {CLOCK_SLACK_S * 1000:.0f} ms after the"
            " deadline of one in it",
            f"{expired} expired; {hurried.late} of {hurried.runs} runs began too late",
            expired > 0 and hurried.late == 0,
        ),
    ]


def section(scale: Scale, both: Both, hurried: Hurried, flood: Flood) -> Section:
    """What was found, for the document."""
    verdicts = judge(both, hurried, flood)
    rows: list[tuple[object, ...]] = [
        (name, len(ms), *(percentile(ms, p) for p in (50, 99)), bulk)
        for name, ms, bulk in (
            (ONLINE_ALONE, both.online_alone, "-"),
            (BESIDE, both.online_beside, f"{both.bulk_beside:.2f}"),
        )
    ]
    for name, rate in ((BULK_ALONE, both.bulk_before), (BULK_AGAIN, both.bulk_after)):
        rows.append((name, 0, "-", "-", f"{rate:.2f}"))
    header = ["load", "online requests", "P50 ms", "P99 ms", "bulk documents/s"]
    text = (
        f"Slips of a few lines, cut out of the pages (seed {SEED}), of the same kind in both classes. Online:"
        f" Poisson, {both.online_rate:.2f} a second, about {ONLINE_SHARE:.0%} of capacity, for"
        f" {scale.online_s:g} s, timed from the schedule. Bulk: {BACKLOG} documents always on their way"
        " through Kafka."
    )
    late = (
        f"{scale.hurried} online requests beside bulk with deadlines of {HURRY[0]:g} to"
        f" {HURRY[1]:g} times the usual latency: {_counts(hurried.statuses)}. Items that left before a"
        f" model: {_counts(hurried.dropped) or 'none'}."
    )
    data: dict[str, Any] = {
        "both": vars(both)
        | {
            "bulk_alone": both.bulk_alone,
            "ratio": both.ratio,
            "kept": both.kept,
            "kept_pixels": {stage: both.kept_pixels(stage) for stage in STAGES},
            "kept_for_a_core": {stage: both.kept_for_a_core(stage) for stage in STAGES},
            "work": {part: asdict(work) for part, work in both.work.items()},
        },
        "hurried": vars(hurried),
        "flood": vars(flood),
    }
    markdown = "\n\n".join([text, table(header, rows), work_done(both), late, verdict_list(verdicts)])
    return Section("Online beside bulk", markdown, with_verdicts(data, verdicts))


def work_done(both: Both) -> str:
    """What the models did in each part, and how much of the work of bulk alone was done beside online."""
    rows = [
        (
            part,
            *(figure for stage in work.stages.values() for figure in _figures(stage)),
            f"{work.services:.2f}",
            f"{work.sender:.2f}",
        )
        for part, work in both.work.items()
    ]
    each = ("Mpixels/s", "no padding", "batch", "CPU ms/Mpixel")
    header = [
        "load",
        *(f"{stage}: {name}" for stage in STAGES for name in each),
        "cores, services",
        "cores, sender",
    ]
    kept = " and ".join(f"{both.kept_pixels(stage):.1%} in the {stage}" for stage in STAGES)
    dear = " and ".join(f"{both.kept_for_a_core(stage):.1%}" for stage in STAGES)
    text = (
        f"Of the pixels a second that bulk alone put through the models, both together put through {kept};"
        f" for each core that the services kept busy, {dear}."
    )
    return f"{table(header, rows)}\n\n{text}"


def _figures(stage: StageWork) -> tuple[str, ...]:
    return (
        f"{stage.mpixels:.3f}",
        f"{stage.valid_share:.3f}",
        f"{stage.mean_batch:.2f}",
        f"{stage.ms_per_mpixel:.0f}",
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


# ---------------------------------------------------------------- measuring


class Bulk:
    """Bulk work in a thread, from entering `with` to leaving it; then `answers` has its samples."""

    def __init__(self, bootstrap: str, stack: Stack, documents: Sequence[Document]) -> None:
        assert stack.topics is not None
        self._door = KafkaDoor(bootstrap, stack.topics)
        self._documents = documents
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1, "bulk")
        self.answers: Run

    def _endless(self) -> Iterator[Document]:
        for document in cycle(self._documents):
            if self._over.is_set():
                return
            yield document

    def __enter__(self) -> "Bulk":
        self._samples: Future[Run] = self._thread.submit(self._door.run, self._endless(), in_flight=BACKLOG)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.shutdown()
        self._door.__exit__(None, None, None)
        self.answers = self._samples.result()

    def finished(self) -> list[float]:
        """When each document was read, on the monotonic clock. Raises RunFailed: one was not."""
        if failed := self.answers.failures():
            raise RunFailed(f"{len(failed)} documents of bulk failed, the first: {failed[0].answer.error}")
        return [sample.done_s for sample in self.answers.samples]


class Study:
    """The parts of the study, against one running stack."""

    def __init__(self, bootstrap: str, stack: Stack, documents: Sequence[Document], scale: Scale) -> None:
        self._stack = stack
        self._documents = documents
        self._scale = scale
        self._bulk = partial(Bulk, bootstrap, stack, documents)

    async def measure(self) -> tuple[Both, list[Call], Mapping[str, int], Flood]:
        """All parts in order: both classes, the hurried calls, what was dropped meanwhile, the flood."""
        async with Door(self._stack.address("gateway")) as door:
            alone_rate, alone_work = await self._bulk_alone()
            log.info("bulk alone: %.2f documents/s", alone_rate)
            orders = self._online(ONLINE_SHARE * alone_rate)
            look = self._look()
            alone = _latencies(await on_schedule(door.send, orders))
            online_work = work_between(look, self._look())
            with self._bulk() as bulk:
                await asyncio.sleep(self._scale.settle_s)
                begin, look = time.monotonic(), self._look()
                beside = _latencies(await on_schedule(door.send, orders))
                work = work_between(look, self._look())
                again = self._look()
                await asyncio.sleep(self._scale.alone_s)
                after = self._look()
                before = self._metrics()
                hurried = await on_schedule(door.send, self._hurried(orders, percentile(beside, 50)))
                dropped = dropped_between(before, self._metrics())
                flood = await self._flood(door)
        done = bulk.finished()
        end = begin + self._scale.online_s
        both = Both(
            online_rate=len(orders) / self._scale.online_s,
            online_alone=tuple(alone),
            online_beside=tuple(beside),
            bulk_before=alone_rate,
            bulk_after=rate_within(done, again.at, after.at),
            bulk_beside=rate_within(done, begin, end),
            bulk_seconds=per_second(done, begin, end),
            work={
                BULK_ALONE: alone_work,
                ONLINE_ALONE: online_work,
                BESIDE: work,
                BULK_AGAIN: work_between(again, after),
            },
        )
        return both, hurried, dropped, flood

    async def _bulk_alone(self) -> tuple[float, Work]:
        with self._bulk() as bulk:
            await asyncio.sleep(self._scale.settle_s)
            begin = self._look()
            await asyncio.sleep(self._scale.alone_s)
            end = self._look()
        return rate_within(bulk.finished(), begin.at, end.at), work_between(begin, end)

    def _online(self, rate: float) -> list[Order]:
        schedule = poisson_schedule(rate, self._scale.online_s, SEED)
        return [order_of(doc, at=at) for at, doc in zip(schedule, cycle(self._documents), strict=False)]

    def _hurried(self, usual: Sequence[Order], latency_ms: float) -> list[Order]:
        """Orders of the same kind, each with a trace and a deadline near `latency_ms`."""
        draw = random.Random(SEED)
        return [
            replace(
                order,
                at=number * HURRY_GAP_S,
                timeout_s=draw.uniform(*HURRY) * latency_ms / 1000,
                trace=f"{draw.getrandbits(127) + 1:032x}",
            )
            for number, order in enumerate(islice(cycle(usual), self._scale.hurried))
        ]

    async def _flood(self, door: Door) -> Flood:
        before, begin = self._metrics(), time.monotonic()
        calls = await so_many_at_a_time(door.send, self._until(begin + self._scale.flood_s), FLOOD)
        after = self._metrics()
        return Flood(time.monotonic() - begin, len(calls), bulk_between(before, after))

    def _until(self, end: float) -> Iterator[Order]:
        return map(order_of, takewhile(lambda _: time.monotonic() < end, cycle(self._documents)))

    def _look(self) -> Look:
        cpu = sum(self._stack.cpu_s().values())
        return Look(time.monotonic(), self._metrics(), cpu, time.process_time())

    def _metrics(self) -> dict[str, Metrics]:
        return {stage: self._stack.metrics(stage) for stage in STAGES}


def _latencies(calls: Sequence[Call]) -> list[float]:
    failed = [call.status.name for call in calls if call.status is not grpc.StatusCode.OK]
    if failed:
        raise RunFailed(f"{len(failed)} of {len(calls)} online requests failed, the first with {failed[0]}")
    return [call.latency_ms for call in calls]


def run(context: Context) -> Section:
    """Measure. Raises the errors of `loadgen.stack`; BrokerFailed without a broker."""
    if context.kafka is None:
        raise BrokerFailed("bulk comes through Kafka: start a broker and name it with --kafka HOST:PORT")
    scale = QUICK if context.quick else FULL
    documents = cuttings(context.documents, SLIPS, SEED, DOCUMENTS)
    with SpanReceiver() as receiver:
        config = context.stack(small=True, kafka=True, env=receiver.environment | TRACE_ASKED)
        with running(config) as stack:
            study = Study(context.kafka, stack, documents, scale)
            both, calls, dropped, flood = asyncio.run(study.measure())
        runs = receiver.runs()  # the last of them came when the services ended
    return section(scale, both, hurried_of(calls, dropped, runs), flood)


if __name__ == "__main__":
    cli.main(run)
