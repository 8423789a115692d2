"""The studies' hands on real services, with the simulated engine in the place of models."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.corpus import Document
from loadgen.stack import StackConfig, running
from loadgen.studies.classes import STAGES, Bulk, bulk_between
from loadgen.studies.invariance import Scale, Study
from loadgen.studies.online import Door, order_of
from loadgen.studies.spans import TRACE_ASKED, SpanReceiver
from tests.fakes.pages import page, png

SIMULATED = {"engine": "simulated", "simulated_fixed_ms": 1.0, "simulated_ms_per_megapixel": 5.0}
TRACE = "ab" * 16


@pytest.fixture(scope="module")
def documents():
    texts = [[f"line {row} of page {number}" for row in range(number + 2)] for number in range(3)]
    return [Document(Path(f"page-{n}.png"), png(page(lines))) for n, lines in enumerate(texts)]


async def used(stack, documents):
    """The invariance study, after one document that asks for a trace and one that does not."""
    async with Door(stack.address("gateway")) as door:
        for trace in (TRACE, ""):
            await door.send(replace(order_of(documents[0]), trace=trace), time.monotonic())
    return await Study(documents, {}, Scale(slips=None, alone=None, batches=6, setups=())).ways(stack)


def test_lines_agree_in_all_ways_and_only_the_document_that_asked_is_traced(documents):
    with SpanReceiver() as receiver:
        config = StackConfig(SIMULATED, SIMULATED, env=receiver.environment | TRACE_ASKED)
        with running(config) as stack:
            ways = asyncio.run(used(stack, documents))
        runs = receiver.runs()
    assert {run.trace for run in runs} == {TRACE}
    assert {run.stage for run in runs} == set(STAGES)
    assert len(ways) == 4
    for way, found in ways.items():
        assert found.compared >= 2 + 3 + 4, way
        assert (found.flips, found.missing, found.most) == ((), 0, 0.0), way


@pytest.mark.kafka
def test_bulk_goes_on_until_it_is_told_to_stop_and_then_all_of_it_was_answered(documents, kafka):
    with running(StackConfig(SIMULATED, SIMULATED, kafka=kafka.bootstrap)) as stack:
        before = {stage: stack.metrics(stage) for stage in STAGES}
        deadline = time.monotonic() + 60
        with Bulk(kafka.bootstrap, stack, documents) as bulk:
            while bulk_between(before, {s: stack.metrics(s) for s in STAGES})["detector"] <= 2 * len(
                documents
            ):
                assert time.monotonic() < deadline, "bulk does not move"
    assert len(bulk.finished()) > 2 * len(documents)
