"""Exactly-once delivery, owners that die, and owners that come back, on Apache Kafka."""

import asyncio
import os
import sys
from collections import Counter
from dataclasses import replace

import pytest

from services.common.errors import CorruptInput
from services.gateway.jobs import Message, header
from services.gateway.kafka_io import KafkaSource
from services.gateway.kafka_ports import OutcomeUnknown, TransactionFailed
from services.gateway.kafka_txn import KafkaTransactor
from services.gateway.offsets import Commit
from tests.kafka.members import Pipeline, member
from tests.kafka.test_consumer_on_kafka import texts, until, until_committed

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def _apache(kafka):
    if not kafka.is_apache:
        pytest.skip("the embedded broker has no transactions, no static membership and no notes")


async def start(town, *arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.kafka.members",
        town.broker.bootstrap, town.options.group, *arguments, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip


def names(count):
    return [f"d{n}" for n in range(count)]


async def send(town, count, partitions=1):
    for number, name in enumerate(names(count)):
        await town.send(b"page", key=name.encode(), partition=number % partitions)


async def test_results_dead_letters_and_offsets_are_committed_together(make_town):
    town = await make_town(partitions=2)
    await send(town, 20, 2)
    pipeline = Pipeline(slow=["d4"], errors={"d6": CorruptInput("cut")})
    async with member(town.options, pipeline, exactly_once=True):
        await town.read(town.options.results_topic, lambda found: len(found) == 12)
        assert await until_committed(town, {0: 2, 1: 10}) == {0: 2, 1: 10}
        pipeline.go.set()
        results = await town.read(town.options.results_topic, lambda found: len(found) == 19)
        (letter,) = await town.read(town.options.dlq_topic, lambda found: found)
        await until_committed(town, {0: 10, 1: 10})
    assert texts(results) == sorted(set(names(20)) - {"d6"})
    assert letter.key == b"d6"


async def test_gateways_killed_in_the_middle_leave_no_result_twice(make_town):
    town = await make_town(partitions=2)
    everybody = names(300)

    async def feed():
        for number, name in enumerate(everybody):
            await town.send(b"page", key=name.encode(), partition=number % 2)

    feeding = asyncio.create_task(feed())
    for seen in (40, 110, 190):
        victim = await start(town, "--exactly-once", "--instance-id", "one")
        await town.read(town.options.results_topic, lambda found, seen=seen: len(found) >= seen, 60)
        victim.kill()
        await victim.wait()
    await feeding
    async with member(replace(town.options, group_instance_id="one"), Pipeline(), exactly_once=True):
        await until_committed_at_least(town, 2 * 150)
        results = await town.read(
            town.options.results_topic, lambda found: set(texts(found)) == set(everybody)
        )
    twice = {name for name, times in Counter(texts(results)).items() if times > 1}
    assert twice == set()


async def until_committed_at_least(town, wanted):
    """Offsets of a topic that is written without transactions count its records."""
    async with asyncio.timeout(60):
        while sum((await town.committed()).values()) < wanted:
            await asyncio.sleep(0.05)


async def test_members_that_come_and_go_answer_each_job_once(make_town):
    for assignment in ("range", "cooperative-sticky"):
        town = await make_town(partitions=4, partition_assignment=assignment)
        first, second = Pipeline(), Pipeline()
        async with member(town.options, first, exactly_once=True, revoke_timeout_s=0.2):
            for number, name in enumerate(names(60)):
                await town.send(b"page", key=name.encode(), partition=number % 4)
                if number == 20:
                    async with member(town.options, second, exactly_once=True) as newcomer:
                        await until(lambda: len(newcomer._ledger.partitions) == 2)
            results = await town.read(
                town.options.results_topic, lambda found: set(texts(found)) == set(names(60))
            )
        assert len(results) == 60, assignment


async def test_a_result_that_its_topic_refuses_is_a_dead_letter_and_takes_no_other_with_it(make_town):
    town = await make_town(partitions=1, configs={"results": {"max.message.bytes": "2000"}})

    class Long(Pipeline):
        async def __call__(self, job, **more):
            result = await super().__call__(job, **more)
            if job.job_id == "d7":
                result.lines[0].text = "word " * 2000
            return result

    await send(town, 12)
    pipeline = Long(slow=["d0"])
    async with member(town.options, pipeline, exactly_once=True) as consumer:
        await until(lambda: consumer.in_flight == 1 and pipeline.calls.total() == 12)
        pipeline.go.set()
        (letter,) = await town.read(town.options.dlq_topic, lambda found: found)
        results = await town.read(town.options.results_topic, lambda found: len(found) == 11)
        await until_committed(town, {0: 12})
    assert (letter.key, header(letter.headers, "dlq-reason")) == (b"d7", "RESULT_TOO_LARGE")
    assert "d7" not in texts(results)


async def test_a_member_of_an_older_generation_commits_nothing(make_town):
    town = await make_town(partitions=1)
    await send(town, 1)
    transactor = KafkaTransactor(town.options)
    async with member(town.options, Pipeline(slow=["d0"])) as consumer:
        await until(lambda: consumer.in_flight == 1)
        stale = consumer._source.membership()
        where = (town.options.jobs_topic, 0)
        await transactor.open()
        try:
            # Whoever of the two gets the partition does not answer it meanwhile.
            async with member(town.options, Pipeline(slow=["d0"])):
                await until(lambda: consumer._source.membership().generation_id > stale.generation_id)
                late = Message(town.options.results_topic, b"late", b"{}", ())
                with pytest.raises(TransactionFailed):
                    await transactor.transact([late], {where: Commit(0, 1)}, stale)
            fresh = Message(town.options.results_topic, b"fresh", b"{}", ())
            await until(lambda: consumer._source.membership() is not None)
            await transactor.transact([fresh], {where: Commit(0, 0)}, consumer._source.membership())
        finally:
            await transactor.close()
    results = await town.read(town.options.results_topic, lambda found: found)
    assert texts(results) == ["fresh"]


async def test_a_second_gateway_of_the_same_name_fences_the_first(make_town):
    town = await make_town(partitions=1, group_instance_id="same")
    source = KafkaSource(town.options)
    first, second = KafkaTransactor(town.options), KafkaTransactor(town.options)
    async with member(town.options, Pipeline()) as consumer:
        await until(lambda: consumer.not_ready() is None)
        place, where = consumer._source.membership(), (town.options.jobs_topic, 0)
        await first.open()
        await second.open()
        try:
            message = Message(town.options.results_topic, b"first", b"{}", ())
            with pytest.raises((TransactionFailed, OutcomeUnknown)):
                await first.transact([message], {where: Commit(0, 0)}, place)
        finally:
            await first.close()
            await second.close()
            await source.close()


@pytest.mark.parametrize(
    "delivery", [(), ("--exactly-once", "--instance-id", "one")], ids=["at-least-once", "exactly-once"]
)
async def test_a_document_that_ends_the_gateway_is_a_dead_letter_and_its_neighbours_get_results(
    make_town, delivery
):
    town = await make_town(partitions=2)
    await send(town, 20, 2)
    for _ in range(5):  # twice in company, three times alone
        victim = await start(town, "--poison", "d7", *delivery)
        assert await asyncio.wait_for(victim.wait(), 60) == 9
    pipeline = Pipeline()
    options = replace(town.options, group_instance_id="one" if delivery else None)
    async with member(options, pipeline, exactly_once=bool(delivery)):
        (letter,) = await town.read(town.options.dlq_topic, lambda found: found, 60)
        await until_committed_at_least(town, 20)
        results = await town.read(town.options.results_topic, lambda found: len(set(texts(found))) == 19)
    assert (letter.key, letter.value) == (b"d7", b"page")
    assert header(letter.headers, "dlq-reason") == "INTERNAL"
    assert "d7" not in texts(results)
    assert "d7" not in pipeline.calls
    if delivery:
        assert len(results) == 19


async def test_a_quick_restart_of_a_member_with_a_fixed_name_moves_no_partitions(make_town):
    town = await make_town(partitions=4, group_instance_id="one", session_timeout_ms=20_000)
    other = Pipeline()
    async with member(replace(town.options, group_instance_id="two"), other) as stays:
        for _ in range(2):
            async with member(town.options, Pipeline()) as comes:
                await until(lambda: comes.not_ready() is None and len(stays._ledger.partitions) == 2, 60)
                mine, his = stays._ledger.partitions, comes._ledger.partitions
                generation = stays._source.membership().generation_id
        async with member(town.options, Pipeline()) as comes:
            await until(lambda: comes._ledger.partitions == his, 60)
            assert stays._ledger.partitions == mine
            assert stays._source.membership().generation_id == generation
