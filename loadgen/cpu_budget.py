"""What the pipeline itself costs: milliseconds of CPU for a page, by process, with models that cost nothing.

    python -m loadgen.cpu_budget DIR [--kafka HOST:PORT]

The question is how many cores feed one GPU. So the services run as they would beside one: one predictor
each, batches of a GPU's size, and enough documents at a time to fill them, but with the simulated engine at
zero cost. The kernel counts what each process uses while
documents go through, first warm, then measured, through each door. That is all there is beside the models:
decoding, shrinking, box extraction, cutting, resizing, copying, messages, event loops, telemetry. The
broker's CPU and this client's are not in it. The simulated engine makes its answers from the pixels, which
takes some time too; the workers count the processor time inside of it, and it is taken off. Its boxes are
upright, so their lines are cut out without interpolation; a real detector's are mostly a little oblique.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen import bare_grpc, page_work
from loadgen.corpus import Document, repeated
from loadgen.errors import RunFailed
from loadgen.grpc_door import GrpcDoor
from loadgen.kafka_door import KafkaDoor
from loadgen.report import Section, table
from loadgen.samples import Run
from loadgen.stack import Stack, StackConfig, running
from loadgen.studies import cli
from loadgen.studies.context import Context

PROMISED_MS = 30.0
"""A page of 50 lines, all processes together, beside the models."""
LINES = 50
IN_FLIGHT = 16
PAGES, QUICK_PAGES = 200, 40

_FREE = {"engine": "simulated", "simulated_fixed_ms": 0, "simulated_ms_per_megapixel": 0, "predictors": 1}
_DETECTOR = {**_FREE, "max_batch_size": 4}
_RECOGNIZER = {**_FREE, "max_batch_size": 32, "max_batch_pixels": 2_000_000}
"""As for a GPU."""
_STAGES = {
    "decode, shrink": ("decode_ms",),
    "cut, resize": ("crop_ms",),
    "detector: read, boxes": ("detect", "process_ms"),
    "recognizer: read, text": ("recognize", "process_ms"),
}
"""Where a result's own clock stopped at both ends of work on the CPU."""


@dataclass(frozen=True)
class Budget:
    """What a run cost. Milliseconds a page; `lines` is how many lines a page had.

    `cpu` is by process. `model` is the part of the predictor processes that was inside the engine. `stages`
    are times by the clock within the results, which is CPU as far as a thread was not kept waiting.
    """

    door: str
    pages: int
    lines: float
    cpu: Mapping[str, float]
    model: float
    stages: Mapping[str, float]

    @property
    def total(self) -> float:
        """All processes, without what was inside the engine."""
        return sum(self.cpu.values()) - self.model

    @property
    def promised(self) -> float:
        """The same for a page of 50 lines, had it cost the same for each line."""
        return self.total * LINES / self.lines


def budget(
    door: str, before: Mapping[str, float], after: Mapping[str, float], model_s: float, run: Run
) -> Budget:
    """From processor seconds by process before and after a run to milliseconds a page."""
    pages = len(run.samples)
    cpu = {name: (after[name] - before[name]) * 1e3 / pages for name in after}
    lines = sum(len(sample.answer.lines) for sample in run.samples) / pages
    timings = [sample.answer.timing or {} for sample in run.samples]
    stages = {name: sum(value(timing, path) for timing in timings) / pages for name, path in _STAGES.items()}
    return Budget(door, pages, lines, cpu, model_s * 1e3 / pages, stages)


def value(timing: Mapping[str, object], path: Sequence[str]) -> float:
    """The number at a path of names in a result's timing; 0 where there is none."""
    found: object = timing
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else 0.0


@dataclass(frozen=True)
class Least:
    """Milliseconds a page that no pipeline over gRPC can undercut: its work, and the way of its bytes."""

    work: float
    bytes: float

    def promised(self, lines: float) -> float:
        """Both for a page of 50 lines, as in `Budget`; `lines` is how many there were."""
        return (self.work + self.bytes) * LINES / lines


def section(budgets: Sequence[Budget], least: Least) -> Section:
    """The figures as a part of the report."""
    doors = [budget.door for budget in budgets]
    processes = list(dict.fromkeys(name for budget in budgets for name in budget.cpu))
    rows = [
        *[_row(name, [budget.cpu.get(name, 0.0) for budget in budgets]) for name in processes],
        _row("less: inside the simulated engine", [-budget.model for budget in budgets]),
        _row("**together, a page**", [budget.total for budget in budgets]),
        _row(f"**a page of {LINES} lines**", [budget.promised for budget in budgets]),
        _row("work without services, a page", [least.work for _ in budgets]),
        _row("the same bytes through bare gRPC calls, a page", [least.bytes for _ in budgets]),
        _row(f"these two, a page of {LINES} lines", [least.promised(budget.lines) for budget in budgets]),
    ]
    stages = [_row(name, [budget.stages[name] for budget in budgets]) for name in _STAGES]
    rest = [budget.total - sum(budget.stages.values()) for budget in budgets]
    first = budgets[0]
    text = "\n\n".join(
        (
            f"{first.pages} pages of {first.lines:.1f} lines, {IN_FLIGHT} at a time, simulated engine at zero"
            f" cost; one predictor a service, batches of up to {_DETECTOR['max_batch_size']} pages and"
            f" {_RECOGNIZER['max_batch_size']} lines, as a GPU would be fed."
            f" Milliseconds of CPU (user and system) a page. Promised: {PROMISED_MS:g} for a page of"
            f" {LINES} lines; held: {'yes' if holds(budgets) else 'no'}.",
            table(["process", *doors], rows),
            "Work without services: the same pages decoded, shrunk, cut and read in one plain loop, by the"
            " same functions. Bare gRPC calls: a message of the page's size and one of its lines' from one"
            " process to another, which does nothing with them. No pipeline over gRPC can cost less than"
            " these two on this CPU.",
            "Of these, by the clocks within the results, one page at a time so that no thread waits:",
            table(["work", *doors], [*stages, _row("the rest: messages, copies, event loops", rest)]),
        )
    )
    data: dict[str, object] = {
        budget.door: {
            "pages": budget.pages,
            "lines": budget.lines,
            "cpu_ms": dict(budget.cpu),
            "model_ms": budget.model,
            "stages_ms": dict(budget.stages),
            "total_ms": budget.total,
            "ms_for_50_lines": budget.promised,
        }
        for budget in budgets
    }
    data["work_ms"], data["bare_grpc_ms"] = least.work, least.bytes
    return Section("CPU outside of the models", text, data)


def holds(budgets: Sequence[Budget]) -> bool:
    """Whether what was promised is kept through every door."""
    return all(budget.promised <= PROMISED_MS for budget in budgets)


def _row(name: str, values: Sequence[float]) -> list[str]:
    return [name, *(f"{value:.1f}" for value in values)]


# ---------------------------------------------------------------- the shell


Drive = Callable[[Sequence[Document], int], Run]
"""Sends documents, so many at a time, and gives what came of them."""


def run(context: Context) -> Section:
    """CPU a page outside of the models, by process, through both doors."""
    pages = QUICK_PAGES if context.quick else PAGES
    config = StackConfig(detector=_DETECTOR, recognizer=_RECOGNIZER, kafka=context.kafka or "")
    budgets = []
    with running(config) as stack:
        budgets.append(_measure("gRPC", stack, _through_grpc(stack), context.documents, pages))
        if context.kafka and stack.topics:
            with KafkaDoor(context.kafka, stack.topics) as door:

                def drive(documents: Sequence[Document], in_flight: int) -> Run:
                    return door.run(documents, in_flight=in_flight)

                budgets.append(_measure("Kafka", stack, drive, context.documents, pages))
    documents = list(repeated(context.documents, pages))
    sent = {document.path: page_work.sent(document) for document in context.documents}
    messages = [sent[document.path] for document in documents]
    least = Least(page_work.cpu_ms(documents), bare_grpc.cpu_ms(messages, in_flight=IN_FLIGHT))
    return section(budgets, least)


def _through_grpc(stack: Stack) -> Drive:
    async def sent(documents: Sequence[Document], in_flight: int) -> Run:
        async with GrpcDoor(stack.address("gateway")) as door:
            return await door.closed_loop(documents, concurrency=in_flight)

    return lambda documents, in_flight: asyncio.run(sent(documents, in_flight))


def _measure(door: str, stack: Stack, drive: Drive, documents: Sequence[Document], pages: int) -> Budget:
    """Warm up, measure with several at work; then one at a time for the clocks within the results."""
    _checked(drive(list(repeated(documents, pages // 4)), IN_FLIGHT))
    before, model_before = stack.cpu_s(), _model_s(stack)
    busy = _checked(drive(list(repeated(documents, pages)), IN_FLIGHT))
    after, model_after = stack.cpu_s(), _model_s(stack)
    alone = _checked(drive(list(repeated(documents, pages // 4)), 1))
    spent = budget(door, before, after, model_after - model_before, busy)
    return replace(spent, stages=budget(door, before, before, 0.0, alone).stages)


def _model_s(stack: Stack) -> float:
    """Processor seconds inside the engines so far."""
    services = ("detector", "recognizer")
    return sum(stack.metrics(service).total("ocr_model_cpu_seconds_total") for service in services)


def _checked(run: Run) -> Run:
    failed = next((sample for sample in run.samples if not sample.answer.ok), None)
    if failed:
        raise RunFailed(f"{failed.name}: {failed.answer.status} {failed.answer.error}")
    return run


if __name__ == "__main__":
    cli.main(run)
