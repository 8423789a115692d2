"""What exactly-once delivery costs beside at-least-once, through Kafka, with the simulated engine.

Two stacks run side by side, one for each mode, and are used in turn, so that whatever the machine does
meanwhile happens to both. Each round has two parts: many documents at a time, which gives the rate, and few
at a time, which gives the time from sending a job to reading its result as a reader that sees only what is
committed. The modes differ in nothing else.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen import corpus
from loadgen.corpus import Document
from loadgen.errors import BrokerFailed
from loadgen.kafka_door import KafkaDoor
from loadgen.report import Section, table
from loadgen.samples import percentile
from loadgen.stack import Stack, StackConfig, running
from loadgen.studies import cli
from loadgen.studies.context import SMALL_PAGES, Context
from loadgen.studies.cuttings import SLIPS, cuttings

TITLE = "What exactly-once delivery costs"
MODES = ("at_least_once", "exactly_once")
MANY, FEW = 48, 2
"""Documents on their way at a time: enough to keep everything busy, and few enough to wait for nobody."""
_ENGINE = {"engine": "simulated", "simulated_fixed_ms": 5, "simulated_ms_per_megapixel": 0, "predictors": 1}


@dataclass(frozen=True)
class Round:
    """One mode in one round: documents a second of many, seconds of each of few, CPU seconds a document.

    The rate is that of the whole run: with transactions answers come in bunches, which have no steady rate.
    """

    rate: float
    latencies_s: tuple[float, ...]
    gateway_cpu_s: float


def run(context: Context) -> Section:
    """Both modes in turn, on pieces of the user's pages. Raises BrokerFailed without Kafka."""
    if not context.kafka:
        raise BrokerFailed("this study needs a broker: name it with --kafka HOST:PORT")
    documents = cuttings(context.documents, SLIPS, seed=1, count=40)
    rounds, count, few = (1, 60, 20) if context.quick else (5, 400, 150)
    found: dict[str, list[Round]] = {mode: [] for mode in MODES}
    with contextlib.ExitStack() as stacks:
        doors = {mode: _door(stacks, mode, context.kafka) for mode in MODES}
        for stack, door in doors.values():
            door.run(corpus.repeated(documents, 2 * MANY), in_flight=MANY)
            assert stack.topics is not None
        for number in range(rounds):
            for mode in MODES if number % 2 else reversed(MODES):
                found[mode].append(_round(*doors[mode], documents, count, few))
    return _section(found, count, few)


def _door(stacks: contextlib.ExitStack, mode: str, kafka: str) -> tuple[Stack, KafkaDoor]:
    config = StackConfig(
        {**_ENGINE, **SMALL_PAGES}, _ENGINE, {"delivery": mode, "kafka_max_in_flight": MANY}, kafka=kafka
    )
    stack = stacks.enter_context(running(config))
    assert stack.topics is not None
    return stack, stacks.enter_context(KafkaDoor(kafka, stack.topics))


def _round(stack: Stack, door: KafkaDoor, documents: Sequence[Document], count: int, few: int) -> Round:
    before = stack.cpu_s()["gateway"]
    many = door.run(corpus.repeated(documents, count), in_flight=MANY)
    cpu = stack.cpu_s()["gateway"] - before
    alone = door.run(corpus.repeated(documents, few), in_flight=FEW)
    return Round(many.whole_rate(), tuple(alone.latencies_s()), cpu / count)


def _section(found: Mapping[str, Sequence[Round]], count: int, few: int) -> Section:
    figures = {mode: _figures(rounds) for mode, rounds in found.items()}
    head = [
        "delivery",
        f"documents/s, {MANY} at a time",
        "gateway CPU ms each",
        f"ms, {FEW} at a time",
        "P99 ms",
    ]
    rows = [
        (mode, f"{of['rate']:.1f}", f"{of['cpu_ms']:.1f}", f"{of['median_ms']:.0f}", f"{of['p99_ms']:.0f}")
        for mode, of in figures.items()
    ]
    rounds = len(found[MODES[0]])
    said = (
        f"{rounds} rounds of {count} and {few} documents for each mode, in turn; the median round, and the "
        f"times of all {rounds * few} documents."
    )
    return Section(TITLE, f"{said}\n\n{table(head, rows)}", figures)


def _figures(rounds: Sequence[Round]) -> dict[str, float]:
    times = [seconds * 1000 for one in rounds for seconds in one.latencies_s]
    return {
        "rate": percentile([one.rate for one in rounds], 50),
        "cpu_ms": percentile([one.gateway_cpu_s * 1000 for one in rounds], 50),
        "median_ms": percentile(times, 50),
        "p99_ms": percentile(times, 99),
    }


if __name__ == "__main__":
    cli.main(run)
