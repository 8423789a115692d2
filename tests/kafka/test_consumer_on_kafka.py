"""The promises of the consumer, on a real broker. Which broker, the `kafka` fixture says."""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace

import pytest

from services.common.errors import CorruptInput, SetupError
from services.gateway.jobs import Message, header
from services.gateway.kafka_io import KafkaSink
from services.gateway.kafka_ports import KafkaOptions, PublishFailed
from services.gateway.offsets import FlowLimits
from services.gateway.retries import Backoff
from tests.kafka.members import Pipeline, member

pytestmark = pytest.mark.kafka

TRACEPARENT = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"


def texts(messages):
    return sorted(m.key.decode() for m in messages)


async def until(condition, timeout=30.0):
    """For what changes without telling; asks again and again."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


async def until_committed(town, wanted, timeout=30.0):
    async with asyncio.timeout(timeout):
        while (found := await town.committed()) != wanted:
            assert all(found[p] <= wanted[p] for p in found if p in wanted), found
    return found


async def test_good_and_bad_records_become_results_and_dead_letters(town):
    await town.send(b"page", key=b"good", headers=[("traceparent", TRACEPARENT)])
    await town.send(b"cut", key=b"bad", headers=[("content-type", b"image/jpeg"), ("mine", b"\xff\x00")])
    await town.send(b"{}", key=b"json", headers=[("content-type", b"application/json")])
    await town.send(None, key=b"empty")
    async with member(town.options, Pipeline(errors={"bad": CorruptInput("the JPEG is cut off")})):
        results = await town.read(town.options.results_topic, lambda found: len(found) == 1)
        letters = await town.read(town.options.dlq_topic, lambda found: len(found) == 3)
    assert json.loads(results[0].value)["lines"][0]["text"] == "read"
    assert dict(results[0].headers)["status"] == b"ok"
    by_key = {m.key: m for m in letters}
    assert {key: header(m.headers, "dlq-reason") for key, m in by_key.items()} == {
        b"bad": "CORRUPT_INPUT",
        b"json": "INVALID_JOB",
        b"empty": "EMPTY_INPUT",
    }
    assert by_key[b"bad"].value == b"cut"
    assert by_key[b"bad"].headers[:2] == (("content-type", b"image/jpeg"), ("mine", b"\xff\x00"))
    assert by_key[b"empty"].value is None


async def test_only_the_finished_prefix_is_committed(make_town):
    town = await make_town(partitions=1)
    for n in range(5):
        await town.send(b"page", key=f"d{n}".encode())
    pipeline = Pipeline(slow=["d2"])
    async with member(town.options, pipeline):
        await town.read(town.options.results_topic, lambda found: len(found) == 4)
        await until_committed(town, {0: 2})
        pipeline.go.set()
        await until_committed(town, {0: 5})


async def test_a_killed_consumer_loses_nothing(make_town):
    town = await make_town(partitions=2)
    for n in range(10):
        await town.send(b"page", key=f"d{n}".encode(), partition=n % 2)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.kafka.members",
        town.broker.bootstrap, town.options.group, "d4", "d5",
        env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    await town.read(town.options.results_topic, lambda found: len(found) == 8)
    await until_committed(town, {0: 2, 1: 2})
    victim.kill()
    await victim.wait()
    pipeline = Pipeline()
    async with member(town.options, pipeline):
        await until_committed(town, {0: 5, 1: 5})
    assert set(pipeline.calls) == {"d4", "d5", "d6", "d7", "d8", "d9"}, "what was committed is not done again"
    results = await town.read(town.options.results_topic, lambda found: len(found) == 14)
    assert set(texts(results)) == {f"d{n}" for n in range(10)}


async def test_back_pressure_keeps_the_membership_while_nothing_is_read(make_town):
    town = await make_town(partitions=1, max_poll_interval_ms=2500)
    for n in range(8):
        await town.send(b"page", key=f"d{n}".encode())
    pipeline = Pipeline(slow=[f"d{n}" for n in range(8)])
    async with member(town.options, pipeline, flow=FlowLimits(2, 1 << 20, 100)) as consumer:
        await pipeline.until(lambda: pipeline.calls.total() == 2)
        client = consumer._source._consumer
        generation, since = client.group_metadata().generation_id, time.monotonic()
        await until(lambda: time.monotonic() - since > 4)  # longer than the group waits for a poll
        assert pipeline.calls.total() == 2
        assert client.group_metadata().generation_id == generation
        await until(
            lambda: town.broker.is_apache is False or consumer.lag.get((town.options.jobs_topic, 0)) == 8
        )
        pipeline.go.set()
        await until_committed(town, {0: 8})
    assert pipeline.calls.total() == 8


@pytest.mark.parametrize("assignment", ["range", "cooperative-sticky"])
async def test_members_that_come_and_go_lose_nothing(make_town, kafka, assignment):
    if assignment == "cooperative-sticky" and not kafka.is_apache:
        pytest.skip("the embedded broker only knows the assignment `range`")
    town = await make_town(partitions=4, partition_assignment=assignment)
    names = [f"d{n}" for n in range(60)]
    first, second = Pipeline(), Pipeline()
    async with member(town.options, first):
        for name in names[:20]:
            await town.send(b"page", key=name.encode())
        await first.until(lambda: first.calls)
        async with member(town.options, second) as newcomer:
            await until(lambda: len(newcomer._ledger.partitions) == 2)
            for name in names[20:40]:
                await town.send(b"page", key=name.encode())
            await second.until(lambda: second.calls)
            await newcomer.drain()
        for name in names[40:]:
            await town.send(b"page", key=name.encode())
        results = await town.read(town.options.results_topic, lambda found: len(set(texts(found))) == 60)
    assert texts(results) == sorted(names), "what is drained and committed is not done twice"


async def test_work_that_a_rebalance_cuts_short_is_done_again_by_whoever_has_the_partition(make_town):
    """With `range` a partition that stays with its member keeps its reading position in the client."""
    town = await make_town(partitions=4)
    for n in range(4):
        await town.send(b"page", key=f"d{n}".encode(), partition=n)
    slow, other = Pipeline(slow=[f"d{n}" for n in range(4)]), Pipeline()
    async with member(town.options, slow, revoke_timeout_s=0.1):
        await slow.until(lambda: slow.calls.total() == 4)
        slow.slow.clear()
        async with member(town.options, other):
            await until_committed(town, dict.fromkeys(range(4), 1))
    assert len(slow.calls) == 4
    assert slow.calls.total() + other.calls.total() == 8
    assert 0 < other.calls.total() < 4, "two partitions stayed and two moved"


@pytest.mark.parametrize("assignment", ["range", "cooperative-sticky"])
async def test_a_rebalance_waits_for_work_that_is_nearly_done(make_town, kafka, assignment):
    if assignment == "cooperative-sticky" and not kafka.is_apache:
        pytest.skip("the embedded broker only knows the assignment `range`")
    town = await make_town(partitions=2, partition_assignment=assignment)
    for n in range(2):
        await town.send(b"page", key=f"d{n}".encode(), partition=n)
    slow, other = Pipeline(slow=["d0", "d1"]), Pipeline()
    async with member(town.options, slow, revoke_timeout_s=20) as old:
        await slow.until(lambda: slow.calls.total() == 2)
        async with member(town.options, other) as newcomer:
            await until(lambda: old._leaving)
            slow.go.set()
            await until(lambda: newcomer._ledger.partitions)
            await until_committed(town, {0: 1, 1: 1})
    assert (slow.calls.total(), other.calls.total()) == (2, 0)


async def test_a_document_of_5_mb_comes_through(make_town):
    town = await make_town(configs={"jobs": {"max.message.bytes": "8000000"}})
    page = os.urandom(5 << 20)
    seen = []

    class Looking(Pipeline):
        async def __call__(self, job, **more):
            seen.append(job.content)
            return await super().__call__(job, **more)

    await town.send(page, key=b"large")
    async with member(town.options, Looking()):
        await town.read(town.options.results_topic, lambda found: len(found) == 1)
    assert seen == [page]


async def test_a_result_that_its_topic_refuses_is_a_dead_letter(make_town, kafka):
    if not kafka.is_apache:
        pytest.skip("the embedded broker takes messages of any size")
    town = await make_town(configs={"results": {"max.message.bytes": "2000"}})
    await town.send(b"page", key=b"long")
    async with member(town.options, Pipeline(text="word " * 1000)):
        (letter,) = await town.read(town.options.dlq_topic, lambda found: len(found) == 1)
    assert (letter.value, header(letter.headers, "dlq-reason")) == (b"page", "RESULT_TOO_LARGE")


async def test_a_refused_result_takes_no_other_result_with_it(make_town, kafka):
    """After a refusal the client fails everything that it has in hand, with the same error."""
    if not kafka.is_apache:
        pytest.skip("the embedded broker takes messages of any size")
    town = await make_town(configs={"results": {"max.message.bytes": "2000"}})
    names = [f"d{n}" for n in range(40)]

    class Uneven(Pipeline):
        async def __call__(self, job, **more):
            result = await super().__call__(job, **more)
            if job.job_id == "d20":
                result.lines[0].text = "word " * 1000
            return result

    for name in names:
        await town.send(b"page", key=name.encode())
    async with member(town.options, Uneven()):
        letters = await town.read(town.options.dlq_topic, lambda found: found)
        results = await town.read(town.options.results_topic, lambda found: len(set(texts(found))) == 39)
        assert sum((await town.committed()).values()) <= 40
    assert [m.key for m in letters] == [b"d20"]
    assert set(texts(results)) == set(names) - {"d20"}


async def test_a_dead_letter_that_its_topic_refuses_goes_without_the_value(make_town, kafka):
    if not kafka.is_apache:
        pytest.skip("the embedded broker takes messages of any size")
    town = await make_town(configs={"dlq": {"max.message.bytes": "3000"}})
    await town.send(b"x" * 10_000, key=b"bad")
    async with member(town.options, Pipeline(errors={"bad": CorruptInput("cut")})):
        (letter,) = await town.read(town.options.dlq_topic, lambda found: len(found) == 1)
    assert (letter.key, letter.value) == (b"bad", None)
    assert header(letter.headers, "dlq-value-dropped") == "10000"


async def test_drained_and_closed_it_leaves_nothing_to_do_again(town):
    for n in range(12):
        await town.send(b"page", key=f"d{n}".encode())
    first, second = Pipeline(slow=["d3"]), Pipeline()
    async with member(town.options, first, commit_interval_s=60) as consumer:
        await first.until(lambda: first.calls.total() == 12)
        draining = asyncio.create_task(consumer.drain())
        first.go.set()
        await draining
    assert sum((await town.committed()).values()) == 12
    await town.send(b"page", key=b"next")
    async with member(town.options, second):
        await second.until(lambda: second.calls)
    assert set(second.calls) == {"next"}


async def test_it_says_why_it_is_not_ready_until_partitions_are_assigned(town):
    async with member(town.options, Pipeline()) as consumer:
        assert "waiting for the consumer group" in consumer.not_ready()
        await until(lambda: consumer.not_ready() is None)


WITHOUT_BROKER = """
import asyncio, threading
from services.gateway.kafka_ports import KafkaOptions
from services.gateway.retries import Backoff
from tests.kafka.members import Pipeline, member

async def main():
    async with member(KafkaOptions(("127.0.0.1:1",)), Pipeline(), backoff=Backoff(0.01, 0.01)) as consumer:
        while "127.0.0.1:1" not in consumer.not_ready():
            await asyncio.sleep(0.01)
        print(consumer.not_ready())

asyncio.run(main())
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(timeout=10)
print("threads left:", threading.active_count() - 1)
"""


async def test_without_a_broker_it_says_so_and_leaves_no_threads_behind():
    """In a process of its own: the client forgets sockets, and pytest would blame a later test."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", WITHOUT_BROKER,
        env={**os.environ, "PYTHONPATH": "."}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert "no Kafka broker answers at 127.0.0.1:1" in said.decode()
    assert said.decode().endswith("threads left: 0\n")


async def test_missing_topics_are_named_and_nothing_is_read_until_they_are_there(make_town):
    town = await make_town(partitions=1)
    await town.send(b"page", key=b"early")
    kafka = replace(
        town.options, results_topic=f"{town.options.group}.late", dlq_topic=f"{town.options.group}.d"
    )
    pipeline = Pipeline()
    async with member(kafka, pipeline, backoff=Backoff(0.1, 0.1)) as consumer:
        assert f"has no topic {kafka.results_topic}, {kafka.dlq_topic};" in consumer.not_ready()
        await town.create(1, {}, (kafka.dlq_topic,))
        await until(lambda: f"has no topic {kafka.results_topic};" in consumer.not_ready())
        assert not pipeline.calls
        await town.create(1, {}, (kafka.results_topic,))
        await town.read(kafka.results_topic, lambda found: texts(found) == ["early"])


async def test_a_topic_that_went_away_holds_up_no_message_to_another(town):
    sink = KafkaSink(town.options)
    await sink.open()
    try:
        lost = [asyncio.create_task(sink.send(Message("no.such.topic", b"k", b"v", ()))) for _ in range(8)]
        began = time.monotonic()
        await sink.send(Message(town.options.results_topic, b"k", b"v", ()))
        assert time.monotonic() - began < 4, "one second for all eight, not for each"
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PublishFailed] * 8
    finally:
        await sink.close()


async def test_settings_that_the_client_refuses_end_the_start(kafka):
    options = KafkaOptions((kafka.bootstrap,), security={"client_dns_lookup": "no-such-mode"})
    with pytest.raises(SetupError, match="no-such-mode"):
        async with member(options, Pipeline()):
            pass
