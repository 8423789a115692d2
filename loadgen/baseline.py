"""The pipeline beside the floor of its models and beside its peers, on the user's own pages.

For each model set, on the same pages, one after the other: the services are started with their default
settings, which warms up every shape; then the pipeline under more work than it can do, which gives the
texts too; at last the peer that runs the same weights. For the first set also the bare models on the lines
that were found: one half of the batches right after the pipeline, the other after the mixed load, so that a
machine that changes its speed meanwhile shows.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadgen import corpus, floor
from loadgen.corpus import Corpus, Document
from loadgen.errors import BrokerFailed, RunFailed
from loadgen.grpc_door import BULK, GrpcDoor
from loadgen.kafka_door import KafkaDoor, require_broker
from loadgen.peers import measure as peers
from loadgen.peers.measure import Outcome
from loadgen.prometheus import Metrics, difference
from loadgen.samples import Run
from loadgen.score import Score, score
from loadgen.stack import Stack, StackConfig, running
from services.common.errors import SetupError
from services.common.models import resolve

log = logging.getLogger(__name__)

Send = Callable[[Sequence[Document]], Run]

CALLERS = 32
"""Documents at a time where there is no Kafka, half of what the gateway takes in."""


@dataclass(frozen=True)
class System:
    """A model set on an engine, the peer with the same weights, and how many times its speed is wanted."""

    name: str
    engine: str
    models: str
    peer: str
    times_peer: float


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System("v6-small", "openvino", "ppocr-v6-small", "rapidocr", 2.2),
        System("v6-small-int8", "openvino", "ppocr-v6-small-int8", "rapidocr", 4.5),
        System("v5-mobile", "paddle", "ppocr-v5-mobile", "paddleocr", 1.8),
    )
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    The pages go through the pipeline as often as gives `counted` of them, between `edge` more at the start
    and at the end that do not count. The mixed load is `mixed` documents, edges included. Settings of floor
    and peers are chosen on `choose_from` pages, 0: not.
    """

    counted: int
    edge: int
    mixed: int
    choose_from: int

    def rounds(self, pages: int) -> int:
        """How often so many pages are sent."""
        return max(1, round(self.counted / pages))


FULL = Scale(counted=32, edge=6, mixed=24, choose_from=2)
QUICK = Scale(counted=5, edge=2, mixed=0, choose_from=0)


@dataclass(frozen=True)
class Plan:
    """What to measure. `kafka` is HOST:PORT, or empty: then documents go through gRPC.

    `mix` are further documents: with the pages of the corpus a mixed load, in a run of its own on the first
    system.
    """

    corpus: Corpus
    mix: tuple[Document, ...]
    kafka: str
    systems: tuple[System, ...]
    peers: tuple[str, ...]
    scale: Scale
    cores: int

    @property
    def door(self) -> str:
        """What the documents go through, for the report."""
        return "Kafka" if self.kafka else "gRPC"


@dataclass(frozen=True)
class Waste:
    """What one stage put into its batches: the share of pixels that were no padding, and items a batch."""

    valid_share: float
    mean_batch: float


@dataclass(frozen=True)
class Load:
    """The pipeline under more work than it can do.

    `rate` is pages a second in the middle of the run, `whole_rate` with its start and end. `cpu_ms` is
    processor time a page by process.
    """

    rate: float
    whole_rate: float
    pages: int
    cpu_ms: Mapping[str, float]
    waste: Mapping[str, Waste]


@dataclass(frozen=True)
class Beneath:
    """The bare models, a half of their batches at each of two times, each with its best setting."""

    settings: Mapping[floor.Role, floor.Setting]
    passes: tuple[floor.Pass, ...]

    @property
    def seconds(self) -> float:
        """Seconds a page, both models and both halves together."""
        return sum(one.det_s + one.rec_s for one in self.passes)


@dataclass(frozen=True)
class Measured:
    """One system: its floor, its pipeline, its accuracy."""

    system: System
    beneath: "Beneath | None"
    """Its floor; None for all but the first system, as a floor takes minutes."""
    load: Load
    mixed: Load | None
    accuracy: Score | None

    @property
    def of_floor(self) -> float | None:
        """Speed of the pipeline as a share of that of its bare models."""
        return self.load.rate * self.beneath.seconds if self.beneath else None


@dataclass(frozen=True)
class Baseline:
    """All that was measured, and why some of it was not."""

    plan: Plan
    measured: tuple[Measured, ...]
    outcomes: Mapping[str, Outcome]
    left_out: tuple[str, ...]


def run(plan: Plan) -> Baseline:
    """Measure everything; what cannot run here is left out and said.

    Raises:
        SetupError: nothing could be measured, or the broker failed.
    """
    if plan.kafka:
        require_broker(plan.kafka)
    measured: list[Measured] = []
    outcomes: dict[str, Outcome] = {}
    left_out: list[str] = []
    for system in plan.systems:
        with _said_if_left_out(system.name, left_out):
            measured.append(measure(system, plan, first=not measured))
        if system.peer in plan.peers and system.peer not in outcomes:
            with _said_if_left_out(system.peer, left_out):
                outcomes[system.peer] = _peer(system.peer, plan)
    if not measured:
        raise RunFailed("no system could be measured: " + "; ".join(left_out))
    return Baseline(plan, tuple(measured), outcomes, tuple(left_out))


@contextlib.contextmanager
def _said_if_left_out(name: str, left_out: list[str]) -> Iterator[None]:
    log.info("measuring %s", name)
    try:
        yield
    except BrokerFailed:
        raise
    except SetupError as error:
        log.warning("%s is left out: %s", name, error)
        left_out.append(f"{name}: {error}")


def _peer(name: str, plan: Plan) -> Outcome:
    documents = plan.corpus.documents
    choose_from = plan.scale.choose_from
    return peers.measure(peers.PEERS[name], documents, cores=plan.cores, choose_from=choose_from)


def measure(system: System, plan: Plan, *, first: bool) -> Measured:
    """One system; the first with its floor and with the mixed load if there is one."""
    for role in floor.ROLES:
        resolve(system.models, role)  # says what is missing before anything is started
    told = {"engine": system.engine, "models": system.models}
    config = StackConfig(detector=told, recognizer=told, kafka=plan.kafka)
    pages, scale = plan.corpus.documents, plan.scale
    count = scale.rounds(len(pages)) * len(pages) + 2 * scale.edge
    beneath, mixed = None, None
    with running(config) as stack, through(stack) as send:
        log.info("the services are ready")
        load, answers = under_load(stack, send, tuple(corpus.repeated(pages, count)), scale.edge)
        if first:
            beneath, mixed = _compared(system, plan, stack, send, answers)
    return Measured(system, beneath, load, mixed, score(plan.corpus.labels, texts(answers)))


def _compared(
    system: System, plan: Plan, stack: Stack, send: Send, answers: Run
) -> tuple[Beneath, Load | None]:
    """The floor, and in the middle of it the mixed load if there is one."""
    pages, scale, mixed = plan.corpus.documents, plan.scale, None
    inputs = floor.Inputs.of(pages, answers.lines_by_name())
    bare = floor.Bare(system.engine, system.models)
    with floor.warm(bare, inputs, cores=plan.cores, choose_from=scale.choose_from) as loops:
        passes = [loops.measure(0)]
        if plan.mix:
            both = tuple(corpus.mixed(pages, plan.mix, scale.mixed))
            mixed, _ = under_load(stack, send, both, scale.edge)
        passes.append(loops.measure(1))
        return Beneath(loops.settings, tuple(passes)), mixed


def texts(answers: Run) -> dict[str, list[str]]:
    """The texts of the lines by document."""
    return {name: [line["text"] for line in lines] for name, lines in answers.lines_by_name().items()}


@contextlib.contextmanager
def through(stack: Stack) -> Iterator[Send]:
    """Through Kafka where the stack has it, else through gRPC."""
    if stack.topics is not None:
        with KafkaDoor(stack.config.kafka, stack.topics) as door:
            yield door.run
        return

    async def called(documents: Sequence[Document]) -> Run:
        async with GrpcDoor(stack.address("gateway"), priority=BULK) as door:
            return await door.closed_loop(documents, concurrency=CALLERS)

    yield lambda documents: asyncio.run(called(documents))


def answered(answers: Run) -> Run:
    """The run, when every document was read. Raises `RunFailed` otherwise."""
    if failed := answers.failures():
        one = failed[0]
        raise RunFailed(
            f"{len(failed)} documents were not read; {one.name}: {one.answer.status} {one.answer.error}"
        )
    return answers


def under_load(stack: Stack, send: Send, pages: Sequence[Document], edge: int) -> tuple[Load, Run]:
    """These pages, as fast as they are taken in, and their answers; `edge` at either end do not count."""
    cpu = stack.cpu_s()
    metrics = {stage: stack.metrics(stage) for stage in ("detector", "recognizer")}
    answers = answered(send(pages))
    rate = answers.steady_rate(edge)
    log.info("pipeline: %.3f s a page over %d pages", 1 / rate, len(pages))
    load = Load(
        rate=rate,
        whole_rate=answers.whole_rate(),
        pages=len(pages),
        cpu_ms={name: 1000 * (s - cpu.get(name, 0)) / len(pages) for name, s in stack.cpu_s().items()},
        waste={stage: waste(before, stack.metrics(stage)) for stage, before in metrics.items()},
    )
    return load, answers


def waste(before: Metrics, after: Metrics) -> Waste:
    """Of one stage between two looks at its metrics."""
    pixels = {
        kind: difference(before, after, "ocr_batch_pixels_total", kind=kind) for kind in ("valid", "padding")
    }
    batches = difference(before, after, "ocr_batch_size_count")
    items = difference(before, after, "ocr_batch_size_sum")
    return Waste(pixels["valid"] / max(sum(pixels.values()), 1), items / max(batches, 1))
