"""Whether a line reads the same alone and in any company, at any load, through both doors.

    python -m loadgen.studies.invariance DIR [--kafka HOST:PORT] [--lines DIR] [--quick | --full]

The reference of an engine is each line in a call of its own, nothing else going on. Compared with it are
the same lines alone, and in random company of any number and class while several such calls are on their
way; and the documents that they come from, one at a time, many at a time, and all at once through Kafka. All
of it with one predictor and with two. `--full` takes every line and 200 calls with both engines, and an hour;
else it is a sample, as the section says.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from loadgen import corpus
from loadgen.corpus import Document
from loadgen.errors import RunFailed
from loadgen.kafka_door import KafkaDoor
from loadgen.report import Section
from loadgen.samples import Run
from loadgen.stack import Stack, running
from loadgen.studies import cli
from loadgen.studies.context import Context
from loadgen.studies.cuttings import SLIPS, cuttings, page_of
from loadgen.studies.figures import Verdict, table, verdict_list, with_verdicts
from loadgen.studies.lines import (
    Agreement,
    Image,
    Place,
    Read,
    RecognizerDoor,
    agreement,
    cut_out,
    lines_of,
    place_of,
)
from loadgen.studies.online import Call, Door, order_of, so_many_at_a_time
from services.common.pb import ocr_pb2 as pb

log = logging.getLogger(__name__)

OPENVINO, PADDLE = ("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v5-mobile")
SEED = 13
LARGEST_COMPANY = 24
LOADS = (1, 4, 16)
"""Calls on their way at once."""
CONFIDENCE_LIMIT = 1e-5

Pool = Mapping[Place, Image]


@dataclass(frozen=True)
class Scale:
    """How much is read.

    `slips` are cut out of the pages, None for the pages themselves. `alone` is how many of the lines in
    images of their own are taken, None for all. `batches` are random calls of each setup. `setups` are an
    engine, its model set and how many predictors; the first of an engine gives the reference.
    """

    slips: int | None
    alone: int | None
    batches: int
    setups: tuple[tuple[str, str, int], ...]


FULL = Scale(None, None, 200, ((*OPENVINO, 1), (*OPENVINO, 2), (*PADDLE, 1), (*PADDLE, 2)))
BENCH = Scale(slips=8, alone=40, batches=24, setups=((*OPENVINO, 1), (*OPENVINO, 2), (*PADDLE, 2)))
QUICK = Scale(slips=4, alone=10, batches=8, setups=((*OPENVINO, 2),))


@dataclass(frozen=True)
class Row:
    """How far one way of reading agreed with the reference."""

    engine: str
    predictors: int
    way: str
    found: Agreement


# ---------------------------------------------------------------- pure


def companies(pool: Sequence[Place], count: int, seed: int) -> list[tuple[Place, ...]]:
    """Random selections of 1 to `LARGEST_COMPANY` lines, none twice in one, in random order."""
    draw = random.Random(seed)
    most = min(LARGEST_COMPANY, len(pool))
    return [tuple(draw.sample(pool, draw.randint(1, most))) for _ in range(count)]


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """What was to be shown."""
    found = sum((row.found for row in rows), Agreement())
    return [
        Verdict(
            "every line has the same text in every reading, at the same place",
            f"{len(found.flips)} other texts and {found.missing} other places in {found.compared} readings",
            not found.flips and not found.missing and found.compared > 0,
        ),
        Verdict(
            f"confidences differ by no more than {CONFIDENCE_LIMIT:g}",
            f"{found.most:.1e}",
            found.most <= CONFIDENCE_LIMIT,
        ),
    ]


def section(rows: Sequence[Row], lines: Mapping[str, int], scale: Scale) -> Section:
    """What was found, for the document; `lines` counts those of the reference by engine."""
    verdicts = judge(rows)
    cells = [
        (
            r.engine,
            r.predictors,
            r.way,
            r.found.compared,
            len(r.found.flips),
            r.found.missing,
            f"{r.found.most:.1e}",
        )
        for r in rows
    ]
    header = [
        "engine",
        "predictors",
        "lines read",
        "readings",
        "other text",
        "other place",
        "confidence apart",
    ]
    sample = "the whole pages" if scale.slips is None else f"{scale.slips} slips cut out of the pages"
    text = (
        f"Lines of {sample} and lines in images of their own (seed {SEED}), {_named(lines)}."
        f" Company: {scale.batches} random calls of 1 to"
        f" {LARGEST_COMPANY} lines for each row, {', '.join(map(str, LOADS))} of them at once. Each engine is"
        " compared with itself, a line in a call of its own."
    )
    if scale is not FULL:
        text += " A sample: `--full` of the study's own command reads every line, with all setups."
    data: dict[str, Any] = {"rows": [vars(row) | {"found": vars(row.found)} for row in rows], "lines": lines}
    markdown = "\n\n".join([text, table(header, cells), verdict_list(verdicts)])
    return Section("Batch invariance", markdown, with_verdicts(data, verdicts))


def _named(lines: Mapping[str, int]) -> str:
    return ", ".join(f"{count} with {engine}" for engine, count in lines.items())


def lines_of_run(run: Run) -> list[tuple[Place, Read]]:
    """The lines of results in JSON."""
    return [
        (place_of(name, line["points"]), Read(line["text"], line["confidence"]))
        for name, lines in run.lines_by_name().items()
        for line in lines
    ]


# ---------------------------------------------------------------- measuring


def run(context: Context) -> Section:
    """Measure. Raises the errors of `loadgen.stack`. Without a broker, Kafka is left out."""
    scale = QUICK if context.quick else FULL if context.full else BENCH
    documents, alone = _documents(context, scale), _alone(context.lines, scale.alone)
    rows: list[Row] = []
    studies: dict[str, Study] = {}
    for engine, models, predictors in scale.setups:
        study = studies.setdefault(engine, Study(documents, alone, scale))
        settings = {"engine": engine, "models": models, "predictors": predictors}
        small = scale.slips is not None
        with running(context.stack(small=small, both=settings, kafka=True)) as stack:
            ways = asyncio.run(study.ways(stack))
        rows += [Row(engine, predictors, way, found) for way, found in ways.items()]
        log.info("%s with %d predictors: %s", engine, predictors, judge(rows)[0].measured)
    return section(rows, {engine: len(study.reference) for engine, study in studies.items()}, scale)


def _documents(context: Context, scale: Scale) -> Sequence[Document]:
    if scale.slips is None:
        return context.documents
    return cuttings(context.documents, SLIPS, SEED, scale.slips)


def _alone(folder: Path | None, most: int | None) -> dict[Place, Image]:
    documents: Sequence[Document] = corpus.load(folder).documents if folder else ()
    if most is not None and len(documents) > most:
        documents = random.Random(SEED).sample(documents, most)
    return {(document.name,): page_of(document) for document in documents}


class Study:
    """One engine: its reference, made with the first stack, and what other readings are compared with it."""

    def __init__(self, documents: Sequence[Document], alone: Pool, scale: Scale) -> None:
        self._documents = documents
        self._pool = dict(alone)
        self._scale = scale
        self.reference: dict[Place, Read] = {}

    async def ways(self, stack: Stack) -> dict[str, Agreement]:
        """The agreement of each way of reading with the reference."""
        async with (
            Door(stack.address("gateway")) as door,
            RecognizerDoor(stack.address("recognizer")) as reader,
        ):
            one_by_one = await self._calls(door, 1)
            if not self.reference:
                self._pool |= self._cut(one_by_one)
                self.reference = dict(await self._alone(reader))
            found = {
                "alone": await self._alone(reader),
                "in random company": await self._in_company(reader),
                "gRPC, one document at a time": _lines(one_by_one),
                f"gRPC, {LOADS[-1]} at a time": _lines(await self._calls(door, LOADS[-1])),
            }
        if stack.topics is not None:
            found["Kafka, all at once"] = self._through_kafka(stack)
        return {way: agreement(self.reference, readings) for way, readings in found.items()}

    async def _calls(self, door: Door, concurrency: int) -> list[Call]:
        orders = [order_of(document) for document in self._documents]
        calls = await so_many_at_a_time(door.send, orders, concurrency)
        failed = [call.status.name for call in calls if call.status is not grpc.StatusCode.OK]
        if failed:
            raise RunFailed(f"{len(failed)} documents failed, the first with {failed[0]}")
        return calls

    def _cut(self, calls: Iterable[Call]) -> dict[Place, Image]:
        pages = {document.name: page_of(document) for document in self._documents}
        return dict(
            line
            for call in calls
            if call.result is not None
            for line in cut_out(call.order.job.file, pages[call.order.job.file], call.result)
        )

    async def _alone(self, reader: RecognizerDoor) -> list[tuple[Place, Read]]:
        return [(place, (await reader.read([image]))[0]) for place, image in self._pool.items()]

    async def _in_company(self, reader: RecognizerDoor) -> list[tuple[Place, Read]]:
        """A part of the random calls at each of the loads."""
        calls = companies(list(self._pool), self._scale.batches, SEED)
        parts = [(load, calls[number :: len(LOADS)]) for number, load in enumerate(LOADS)]
        return [read for load, part in parts for read in await self._so_many(reader, part, load)]

    async def _so_many(
        self, reader: RecognizerDoor, calls: Iterable[tuple[Place, ...]], load: int
    ) -> list[tuple[Place, Read]]:
        left, reads = iter(calls), list[tuple[Place, Read]]()

        async def caller(priority: int) -> None:
            for places in left:
                texts = await reader.read([self._pool[place] for place in places], priority)
                reads.extend(zip(places, texts, strict=True))

        classes = (pb.ONLINE, pb.BULK)
        await asyncio.gather(*(caller(classes[number % 2]) for number in range(load)))
        return reads

    def _through_kafka(self, stack: Stack) -> list[tuple[Place, Read]]:
        assert stack.topics is not None
        with KafkaDoor(stack.config.kafka, stack.topics) as door:
            answers = door.run(self._documents)
        if failed := answers.failures():
            raise RunFailed(
                f"{len(failed)} documents failed through Kafka, the first: {failed[0].answer.error}"
            )
        return lines_of_run(answers)


def _lines(calls: Iterable[Call]) -> list[tuple[Place, Read]]:
    return [
        line
        for call in calls
        if call.result is not None
        for line in lines_of(call.order.job.file, call.result)
    ]


if __name__ == "__main__":
    cli.main(run)
