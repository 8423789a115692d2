import asyncio
import contextlib
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.common.batch_queue import Priority
from services.common.errors import (
    CorruptInput,
    Overloaded,
    PredictorFailed,
    SetupError,
    ShuttingDown,
    Unavailable,
)
from services.common.pb import ocr_pb2 as pb
from services.gateway import answers as answers_module
from services.gateway import consumer as consumer_module
from services.gateway import serving as serving_module
from services.gateway.consumer import ConsumerOptions, JobConsumer
from services.gateway.jobs import header
from services.gateway.kafka_ports import BrokerUnreachable, KafkaMisconfigured, KafkaOptions
from services.gateway.offsets import FlowLimits
from services.gateway.outbox import OutboxLimits
from services.gateway.retries import Backoff
from tests.fakes.kafka import FakeCluster, FakeSink, FakeSource, FakeTransactor, origin

P0, P1 = ("ocr.jobs", 0), ("ocr.jobs", 1)
KAFKA = KafkaOptions(("broker:9092",))
QUICK = {
    "backoff": Backoff(0.001, 0.004),
    "outbox": OutboxLimits(interval_s=0.0),
    "commit_interval_s": 0.0,
    "progress_interval_s": 0.0,
}


class Pipeline:
    """`recognize` under control of the test: at once, or with `hold` when `let_go` says so."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.outcomes = {}  # by job id: errors to raise, first to last
        self.calls = Counter()
        self.seen = []
        self.running = {}
        self.hold = False
        self.fatal = set()
        self.died = asyncio.Event()

    async def __call__(self, job, *, priority, deadline, received):
        self.calls[job.job_id] += 1
        if job.job_id in self.fatal:
            self.died.set()
            await asyncio.Event().wait()
        self.seen.append((job, priority, deadline, received))
        if self.hold:
            self.running[job.job_id] = asyncio.get_running_loop().create_future()
            self.cluster.changed.set()
            await self.running[job.job_id]
        if errors := self.outcomes.get(job.job_id):
            raise errors.pop(0)
        return pb.Result(job_id=job.job_id, status=pb.OK)

    def let_go(self, *names):
        for name in names or list(self.running):
            waiting = self.running.pop(name)
            if not waiting.done():
                waiting.set_result(None)


@contextlib.asynccontextmanager
async def serving(cluster, *, source=None, sink=None, pipeline=None, kafka=KAFKA, **options):
    pipeline = pipeline or Pipeline(cluster)
    source, sink = source or FakeSource(cluster), sink or FakeSink(cluster)
    consumer = JobConsumer(
        kafka, ConsumerOptions(**{**QUICK, **options}), source, sink, pipeline,
        backends=lambda: consumer.problem,
    )  # fmt: skip
    consumer.pipeline, consumer.source, consumer.sink = pipeline, source, sink
    consumer.problem = None
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.close()


async def test_each_record_becomes_a_result_and_its_offset_is_committed():
    cluster = FakeCluster()
    for n in range(6):
        cluster.append(n % 2)
    async with serving(cluster) as consumer:
        await cluster.until(lambda: cluster.all_done)
        assert consumer.not_ready() is None
    assert Counter(m.key for m in cluster.results()) == Counter(
        f"ocr.jobs-{p}-{n}".encode() for p in (0, 1) for n in range(3)
    )
    assert json.loads(cluster.results()[0].value)["status"] == "ok"


async def test_the_pipeline_is_told_priority_deadline_and_time_of_receipt():
    cluster = FakeCluster()
    job = {"uri": "file:///a.jpg", "options": {"priority": "ONLINE", "deadline_ms": 60_000}}
    json_type = [("content-type", b"application/json")]
    cluster.append(0, json.dumps(job).encode(), headers=json_type, timestamp_ms=1_000_000)
    pipeline = Pipeline(cluster)
    consumer = JobConsumer(
        KAFKA, ConsumerOptions(**QUICK), FakeSource(cluster), FakeSink(cluster), pipeline,
        clock=lambda: 500.0, wall=lambda: 1_010.0,
    )  # fmt: skip
    await consumer.start()
    await cluster.until(lambda: len(cluster.results()) == 1)
    await consumer.close()
    ((seen, priority, deadline, received),) = pipeline.seen
    assert (seen.uri, priority, received) == ("file:///a.jpg", Priority.ONLINE, 500.0)
    assert deadline == pytest.approx(550.0)


async def test_bad_input_is_a_dead_letter_at_once_and_the_next_job_goes_on():
    cluster = FakeCluster()
    cluster.append(0, None, key=b"empty")
    cluster.append(0, b"cut", key=None)
    cluster.append(0, b"good")
    pipeline = Pipeline(cluster)
    pipeline.outcomes["ocr.jobs-0-1"] = [CorruptInput("the JPEG is cut off")]
    async with serving(cluster, pipeline=pipeline):
        await cluster.until(lambda: cluster.all_done)
    by_reason = {header(m.headers, "dlq-reason"): m for m in cluster.dead_letters()}
    assert set(by_reason) == {"EMPTY_INPUT", "CORRUPT_INPUT"}
    assert by_reason["CORRUPT_INPUT"].value == b"cut"
    assert header(by_reason["CORRUPT_INPUT"].headers, "dlq-message") == "the JPEG is cut off"
    assert header(by_reason["EMPTY_INPUT"].headers, "dlq-stage") == "parse"
    assert [m.key for m in cluster.results()] == [b"ocr.jobs-0-2"]
    assert pipeline.calls["ocr.jobs-0-1"] == 1


async def test_a_backend_that_is_away_never_makes_a_dead_letter():
    cluster = FakeCluster()
    cluster.append(0)
    pipeline = Pipeline(cluster)
    away = [Unavailable("detector"), Overloaded("full"), ShuttingDown("draining")]
    pipeline.outcomes["ocr.jobs-0-0"] = away * 10
    async with serving(cluster, pipeline=pipeline):
        await cluster.until(lambda: cluster.all_done)
    assert (len(cluster.results()), cluster.dead_letters()) == (1, [])
    assert pipeline.calls["ocr.jobs-0-0"] == 31


@pytest.mark.parametrize("error", [PredictorFailed("killed it"), ZeroDivisionError("oops")])
async def test_a_record_that_breaks_things_is_given_up_after_a_few_tries(error):
    cluster = FakeCluster()
    cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.outcomes["ocr.jobs-0-0"] = [Unavailable("restart"), error, error, error]
    async with serving(cluster, pipeline=pipeline, max_attempts=3):
        await cluster.until(lambda: cluster.all_done)
    (letter,) = cluster.dead_letters()
    assert header(letter.headers, "dlq-attempts") == "4"
    assert header(letter.headers, "dlq-reason") in {"PREDICTOR_FAILED", "INTERNAL"}


async def test_a_deadline_that_passed_is_a_dead_letter_without_work():
    cluster = FakeCluster()
    value = json.dumps({"uri": "file:///a.jpg", "options": {"deadline_ms": 5}}).encode()
    cluster.append(0, value, headers=[("content-type", b"application/json")], timestamp_ms=1000)
    async with serving(cluster) as consumer:
        await cluster.until(lambda: cluster.all_done)
        assert not consumer.pipeline.calls
    assert header(cluster.dead_letters()[0].headers, "dlq-reason") == "DEADLINE_EXCEEDED"


async def test_the_commit_waits_for_the_lowest_unfinished_record():
    cluster = FakeCluster(partitions=1)
    for _ in range(4):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 4)
        pipeline.let_go("ocr.jobs-0-1", "ocr.jobs-0-3")
        await cluster.until(lambda: len(cluster.results()) == 2)
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 3)
        assert cluster.committed[P0] == 0
        pipeline.let_go("ocr.jobs-0-0")
        await cluster.until(lambda: cluster.committed[P0] == 2)
        pipeline.let_go("ocr.jobs-0-2")
        await cluster.until(lambda: cluster.committed[P0] == 4)


async def test_an_offset_stays_open_until_the_result_is_acknowledged():
    cluster = FakeCluster(partitions=1)
    cluster.append(0)
    sink = FakeSink(cluster)
    sink.gate.clear()
    async with serving(cluster, sink=sink) as consumer:
        await cluster.until(lambda: sink.sent == 1)
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 3)
        assert cluster.committed[P0] == 0
        sink.fail = 3
        sink.gate.set()
        await cluster.until(lambda: cluster.all_done)
        assert (sink.sent, len(cluster.results())) == (4, 1)


async def test_a_refused_commit_is_said_again():
    cluster = FakeCluster(partitions=1)
    cluster.append(0)
    source = FakeSource(cluster)
    source.refuse_commits = 2
    async with serving(cluster, source=source):
        await cluster.until(lambda: cluster.all_done)
    assert source.opens == 1


async def test_intake_stops_when_the_slots_are_full_and_polling_goes_on():
    cluster = FakeCluster()
    for n in range(20):
        cluster.append(n % 2)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline, flow=FlowLimits(3, 10_000, 100)) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 3)
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 5)
        assert len(pipeline.running) == consumer.in_flight == 3
        assert consumer.source.pauses[-1] == {P0, P1}
        pipeline.let_go(next(iter(pipeline.running)))
        await cluster.until(lambda: pipeline.calls.total() == 4)
        pipeline.hold = False
        pipeline.let_go()
        await cluster.until(lambda: cluster.all_done)


async def test_a_partition_that_ran_too_far_ahead_is_paused_alone():
    cluster = FakeCluster()
    for _ in range(8):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline, flow=FlowLimits(4, 10_000, 4)) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 4)
        pipeline.let_go("ocr.jobs-0-1", "ocr.jobs-0-2", "ocr.jobs-0-3")
        await cluster.until(lambda: consumer.source.pauses[-1] == {P0})
        cluster.append(1)
        await cluster.until(lambda: pipeline.calls["ocr.jobs-1-0"] == 1)
        assert pipeline.calls["ocr.jobs-0-4"] == 0
        pipeline.hold = False
        pipeline.let_go()
        await cluster.until(lambda: cluster.all_done)


async def test_a_result_too_large_is_a_dead_letter_with_the_document():
    cluster = FakeCluster(partitions=1)
    cluster.append(0, b"doc")
    async with serving(cluster, max_result_bytes=10):
        await cluster.until(lambda: cluster.all_done)
    (letter,) = cluster.dead_letters()
    assert (header(letter.headers, "dlq-reason"), letter.value) == ("RESULT_TOO_LARGE", b"doc")
    assert header(letter.headers, "dlq-stage") == "publish"


async def test_a_dead_letter_too_large_goes_without_the_value_and_then_without_the_headers():
    cluster = FakeCluster(partitions=1)
    cluster.append(0, None, key=b"big headers", headers=[("x", b"x" * 5000)])
    cluster.append(0, b"x" * 5000, headers=[("content-type", b"text/plain")])
    sink = FakeSink(cluster)
    sink.limits["ocr.jobs.dlq"] = 2000
    async with serving(cluster, sink=sink):
        await cluster.until(lambda: cluster.all_done)
    letters = {header(m.headers, "dlq-reason"): m for m in cluster.dead_letters()}
    assert letters["UNSUPPORTED_FORMAT"].value is None
    assert header(letters["UNSUPPORTED_FORMAT"].headers, "dlq-value-dropped") == "5000"
    assert header(letters["UNSUPPORTED_FORMAT"].headers, "content-type") == "text/plain"
    assert header(letters["EMPTY_INPUT"].headers, "x") == ""


async def test_a_revocation_waits_for_what_is_on_its_way_and_commits_it():
    cluster = FakeCluster()
    cluster.append(0)
    cluster.append(1)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 2)
        consumer.source.rebalance("revoked", [P0])
        await cluster.until(lambda: consumer._leaving)
        pipeline.let_go()
        await cluster.until(lambda: consumer.source.wanted == [P0])
        assert cluster.all_done
        assert pipeline.calls.total() == 2


async def test_what_a_revocation_cannot_wait_for_is_done_again_even_if_the_partition_stays():
    """The client keeps its reading position for a partition that it loses and gets back in one rebalance."""
    cluster = FakeCluster(partitions=1)
    for _ in range(3):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline, revoke_timeout_s=0.01) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 3)
        pipeline.let_go("ocr.jobs-0-1")
        await cluster.until(lambda: len(cluster.results()) == 1)
        pipeline.hold = False
        consumer.source.rebalance("revoked", [P0])
        await cluster.until(lambda: cluster.all_done)
    assert pipeline.calls == {"ocr.jobs-0-0": 2, "ocr.jobs-0-1": 2, "ocr.jobs-0-2": 2}


async def test_a_revocation_does_not_wait_for_a_backend_that_is_away():
    cluster = FakeCluster(partitions=1)
    cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.outcomes["ocr.jobs-0-0"] = [Unavailable("away")] * 3
    async with serving(cluster, pipeline=pipeline, backoff=Backoff(60, 60)) as consumer:
        await cluster.until(lambda: consumer._resting)
        consumer.source.rebalance("revoked", [P0])
        await cluster.until(lambda: pipeline.calls["ocr.jobs-0-0"] == 2)


async def test_a_lost_partition_is_not_committed_and_its_late_results_change_nothing():
    cluster = FakeCluster(partitions=1)
    cluster.append(0)
    sink = FakeSink(cluster)
    sink.gate.clear()
    async with serving(cluster, sink=sink) as consumer:
        await cluster.until(lambda: sink.sent == 1)
        consumer.source.rebalance("lost", [])
        await cluster.until(lambda: consumer.source.wanted == [])
        sink.gate.set()
        assert consumer.in_flight == 0
        assert cluster.committed == {P0: 0}
        consumer.source.rebalance("revoked", [P0])
        await cluster.until(lambda: cluster.all_done)


async def test_a_client_that_breaks_down_is_replaced_and_nothing_is_lost():
    cluster = FakeCluster()
    for n in range(4):
        cluster.append(n % 2)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 4)
        pipeline.hold = False
        consumer.source.break_polls, consumer.source.fail_opens = 1, 2
        await cluster.until(lambda: cluster.all_done)
        assert consumer.source.opens == 4
    assert len(cluster.results()) == 4


async def test_it_is_not_ready_before_kafka_answers():
    cluster = FakeCluster()
    source = FakeSource(cluster)
    source.fail_opens = 10**9
    async with serving(cluster, source=source, backoff=Backoff(0.0)) as consumer:
        while source.opens < 3:
            await asyncio.sleep(0)
        assert "no broker answers" in consumer.not_ready()


class RefusingSource(FakeSource):
    """Raises `errors` at the first opens, one each."""

    def __init__(self, cluster, *errors):
        super().__init__(cluster)
        self.errors = list(errors)

    async def open(self, listener):
        if self.errors:
            self.opens += 1
            self.cluster.changed.set()
            raise self.errors.pop(0)
        await super().open(listener)


async def test_settings_that_kafka_refuses_at_the_first_try_end_the_start():
    cluster = FakeCluster()
    source = RefusingSource(cluster, KafkaMisconfigured("Kafka refuses these settings"))
    consumer = JobConsumer(KAFKA, ConsumerOptions(**QUICK), source, FakeSink(cluster), Pipeline(cluster))
    with pytest.raises(SetupError, match="refuses these settings"):
        await consumer.start()
    await consumer.close()
    assert source.opens == 1


async def test_settings_that_kafka_comes_to_refuse_are_told_and_not_tried_all_the_time():
    cluster = FakeCluster()
    source = RefusingSource(cluster, BrokerUnreachable("away"), KafkaMisconfigured("wrong password"))
    async with serving(cluster, source=source) as consumer:
        await cluster.until(lambda: source.opens == 2)
        await asyncio.wait([consumer._intake], timeout=0.05)
        assert (source.opens, consumer.not_ready()) == (2, "Kafka: wrong password")


async def test_settings_that_are_put_right_are_taken_up():
    cluster = FakeCluster()
    source = RefusingSource(cluster, BrokerUnreachable("away"), KafkaMisconfigured("wrong password"))
    async with serving(cluster, source=source, misconfigured_pause_s=0.001) as consumer:
        await cluster.until(lambda: consumer.not_ready() is None)


@pytest.mark.parametrize("hangs", ["commit", "close"])
async def test_a_broker_that_does_not_answer_does_not_hold_up_the_end(hangs, monkeypatch):
    monkeypatch.setattr(consumer_module, "_LET_GO_S", 0.01)
    cluster = FakeCluster(partitions=1)
    cluster.append(0)
    consumer = JobConsumer(
        KAFKA, ConsumerOptions(**{**QUICK, "commit_interval_s": 60}, close_timeout_s=0.01),
        source := FakeSource(cluster),
        sink := FakeSink(cluster), Pipeline(cluster),
    )  # fmt: skip
    never = asyncio.Event()

    async def hang(*_):
        await never.wait()

    await consumer.start()
    await cluster.until(lambda: len(cluster.results()) == 1)
    setattr(source, hangs, hang)
    monkeypatch.setattr(sink, "close", hang)
    await asyncio.wait_for(consumer.close(), 2)


async def test_it_is_not_ready_when_the_broker_has_gone():
    cluster, now = FakeCluster(), [0.0]
    source = FakeSource(cluster)
    consumer = JobConsumer(
        KAFKA, ConsumerOptions(**QUICK), source, FakeSink(cluster), Pipeline(cluster), clock=lambda: now[0]
    )
    await consumer.start()
    await cluster.until(lambda: source.polls > 2)
    assert consumer.not_ready() is None
    source.connected = False
    polls = source.polls
    await cluster.until(lambda: source.polls > polls + 2)
    assert consumer.not_ready() is None, "a moment without coordinator is no news"
    now[0] = 10.0
    assert "broker:9092" in consumer.not_ready()
    await consumer.close()


async def test_draining_finishes_and_commits_what_is_on_its_way_and_takes_no_more():
    cluster = FakeCluster(partitions=1)
    for _ in range(3):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 3)
        draining = asyncio.create_task(consumer.drain())
        cluster.append(0)
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 3)
        assert not draining.done()
        pipeline.let_go()
        await draining
    assert cluster.committed[P0] == 3
    assert pipeline.calls.total() == 3


async def test_closing_gives_up_what_still_runs_and_leaves_it_for_the_next_owner():
    cluster = FakeCluster(partitions=1)
    for _ in range(3):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline):
        await cluster.until(lambda: len(pipeline.running) == 3)
        pipeline.let_go("ocr.jobs-0-0", "ocr.jobs-0-2")
        await cluster.until(lambda: len(cluster.results()) == 2)
    assert cluster.committed[P0] == 1
    async with serving(cluster):
        await cluster.until(lambda: cluster.all_done)


async def test_lag_counts_what_is_not_finished():
    cluster = FakeCluster()
    for _ in range(5):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, pipeline=pipeline, flow=FlowLimits(2, 10_000, 100)) as consumer:
        await cluster.until(lambda: consumer.lag == {P0: 5, P1: 0} and len(pipeline.running) == 2)
        pipeline.hold = False
        pipeline.let_go()
        await cluster.until(lambda: consumer.lag == {P0: 0, P1: 0})


FAULTS = st.sampled_from(
    ["finish", "finish", "revoke", "lose", "break", "refuse", "publish", "append", "silent", "pause", "stop"]
)


@pytest.mark.parametrize("way", [FakeSink, FakeTransactor])
@settings(max_examples=40, deadline=None)
@given(script=st.lists(st.tuples(FAULTS, st.integers(0, 7)), max_size=25))
def test_whatever_happens_in_whatever_order_nothing_is_lost(way, script):
    """FakeCluster asserts that all below a commit is answered, and that no transaction answers twice.

    Here: all is answered in the end.
    """

    async def scenario():
        cluster = FakeCluster()
        for n in range(6):
            cluster.append(n % 2)
        pipeline = Pipeline(cluster)
        pipeline.hold = True
        options = {"flow": FlowLimits(5, 10_000, 6), "revoke_timeout_s": 0.001}
        for life in lives(script):
            async with serving(cluster, sink=way(cluster), pipeline=pipeline, **options) as consumer:
                for action, number in life:
                    await act(cluster, consumer, action, number)
        async with serving(cluster, sink=way(cluster), pipeline=pipeline, **options) as consumer:
            pipeline.hold = False
            consumer.source.rebalance("revoked", cluster.logs)
            pipeline.let_go()
            await cluster.until(lambda: pipeline.let_go() or cluster.all_done)

    asyncio.run(scenario())


def lives(script):
    """The script in parts; between two of them the consumer is stopped and started again."""
    life = []
    for action, number in script:
        if action == "stop":
            yield life
            life = []
        else:
            life.append((action, number))
    yield life


async def act(cluster, consumer, action, number):
    pipeline, source, sink = consumer.pipeline, consumer.source, consumer.sink
    share = [[], [P0], [P1], [P0, P1]][number % 4]
    if action == "finish" and pipeline.running:
        names = sorted(pipeline.running)
        name = names[number % len(names)]
        if number == 7:
            pipeline.outcomes[name] = [CorruptInput("cut")]
        pipeline.let_go(name)
    faults = {
        "append": lambda: cluster.append(number % 2),
        "revoke": lambda: source.rebalance("revoked", share),
        "lose": lambda: source.rebalance("lost", share),
        "break": lambda: setattr(source, "break_polls", 1),
        "refuse": lambda: setattr(source, "refuse_commits", number),
        "publish": lambda: setattr(sink, "fail", number),
        "silent": lambda: setattr(sink, "silent", [number % 2 == 0]),
        "pause": lambda: setattr(consumer, "problem", "the detector is away" if number % 2 else None),
    }
    faults.get(action, lambda: None)()
    polls = source.polls
    await cluster.until(lambda: source.polls > polls)


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for module in (serving_module, answers_module):
        monkeypatch.setattr(module, "tracer", provider.get_tracer("test"))
    return exporter


async def test_the_trace_goes_on_from_the_producer_to_the_result(spans):
    cluster = FakeCluster(partitions=1)
    trace_id, span_id = "1" * 32, "2" * 16
    cluster.append(0, headers=[("traceparent", f"00-{trace_id}-{span_id}-01".encode())])
    async with serving(cluster):
        await cluster.until(lambda: cluster.all_done)
    by_name = {span.name: span for span in spans.get_finished_spans()}
    process, send = by_name["process ocr.jobs"], by_name["send ocr.results"]
    assert f"{process.parent.span_id:016x}" == span_id
    assert [f"{link.context.span_id:016x}" for link in process.links] == [span_id]
    assert (process.kind, send.kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER)
    assert send.parent.span_id == process.context.span_id
    handed_on = header(cluster.results()[0].headers, "traceparent")
    assert handed_on == f"00-{trace_id}-{send.context.span_id:016x}-01"


async def test_a_dead_letter_keeps_its_own_trace_and_names_the_failed_attempt(spans):
    cluster = FakeCluster(partitions=1)
    theirs = f"00-{'1' * 32}-{'2' * 16}-01"
    cluster.append(0, None, key=b"k", headers=[("traceparent", theirs.encode())])
    async with serving(cluster):
        await cluster.until(lambda: cluster.all_done)
    (letter,) = cluster.dead_letters()
    process = next(span for span in spans.get_finished_spans() if span.name == "process ocr.jobs")
    assert header(letter.headers, "traceparent") == theirs
    assert header(letter.headers, "dlq-traceparent") == f"00-{'1' * 32}-{process.context.span_id:016x}-01"
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == "EMPTY_INPUT"


async def test_a_client_that_never_gets_its_place_in_the_group_is_replaced():
    cluster, now = FakeCluster(), [0.0]
    source = FakeSource(cluster)
    source.joined = False
    options = ConsumerOptions(**QUICK, join_timeout_s=100)
    consumer = JobConsumer(KAFKA, options, source, FakeSink(cluster), Pipeline(cluster), clock=lambda: now[0])
    await consumer.start()
    await cluster.until(lambda: source.polls > 2)
    assert "waiting for the consumer group" in consumer.not_ready()
    now[0] = 101.0
    await cluster.until(lambda: source.opens == 2)
    await consumer.close()


async def test_exactly_once_answers_and_offsets_come_together_and_in_order():
    cluster = FakeCluster(partitions=1)
    for _ in range(4):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, sink=FakeTransactor(cluster), pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 4)
        pipeline.let_go("ocr.jobs-0-1", "ocr.jobs-0-3")
        await cluster.until(lambda: consumer.in_flight == 2)
        assert (cluster.results(), consumer.sink.sizes) == ([], [])
        pipeline.let_go("ocr.jobs-0-0")
        await cluster.until(lambda: cluster.committed[P0] == 2)
        assert [origin(m)[2] for m in cluster.results()] == [0, 1]
        pipeline.let_go("ocr.jobs-0-2")
        await cluster.until(lambda: cluster.all_done)
        assert consumer.sink.sizes == [2, 2]


async def test_exactly_once_a_transaction_that_failed_is_sent_again():
    cluster = FakeCluster()
    for n in range(4):
        cluster.append(n % 2)
    sink = FakeTransactor(cluster)
    sink.fail = 3
    async with serving(cluster, sink=sink):
        await cluster.until(lambda: cluster.all_done)
    assert (sink.opens, len(cluster.results())) == (1, 4)


@pytest.mark.parametrize("committed", [True, False])
async def test_exactly_once_a_transaction_without_an_answer_is_never_sent_again_blindly(committed):
    cluster = FakeCluster(partitions=1)
    for _ in range(3):
        cluster.append(0)
    sink = FakeTransactor(cluster)
    sink.silent = [committed]
    async with serving(cluster, sink=sink) as consumer:
        await cluster.until(lambda: cluster.all_done)
        await cluster.until(lambda: consumer.source.opens == sink.opens == 2)
    assert sorted(origin(m)[2] for m in cluster.results()) == [0, 1, 2]


async def test_exactly_once_a_result_too_large_is_a_dead_letter_and_takes_no_other_with_it():
    cluster = FakeCluster(partitions=1)
    for n in range(5):
        cluster.append(0, key=b"x" * 90 if n == 2 else None)
    sink, pipeline = FakeTransactor(cluster), Pipeline(cluster)
    one = FakeCluster(partitions=1)
    one.append(0)
    async with serving(one, sink=FakeTransactor(one)):
        await one.until(lambda: one.all_done)
    sink.limits["ocr.results"] = one.results()[0].size + 50
    pipeline.hold = True
    async with serving(cluster, sink=sink, pipeline=pipeline):
        await cluster.until(lambda: len(pipeline.running) == 5)
        pipeline.let_go()
        await cluster.until(lambda: cluster.committed[P0] == 5)
    (letter,) = cluster.dead_letters()
    assert header(letter.headers, "dlq-reason") == "RESULT_TOO_LARGE"
    assert len(cluster.results()) == 4


async def test_exactly_once_a_revocation_commits_the_prefix_in_a_last_transaction_and_drops_the_rest():
    cluster = FakeCluster(partitions=1)
    for _ in range(4):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    sink = FakeTransactor(cluster)
    async with serving(cluster, sink=sink, pipeline=pipeline, revoke_timeout_s=0.01) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 4)
        sink.gate.clear()
        pipeline.let_go("ocr.jobs-0-0", "ocr.jobs-0-1", "ocr.jobs-0-3")
        await cluster.until(lambda: sink.sizes)
        pipeline.hold = False
        consumer.source.rebalance("revoked", [P0])
        await cluster.until(lambda: consumer._leaving)
        sink.gate.set()
        await cluster.until(lambda: cluster.all_done)
    assert pipeline.calls == {f"ocr.jobs-0-{n}": 1 + (n > 1) for n in range(4)}


async def test_exactly_once_closing_commits_what_can_go():
    cluster = FakeCluster(partitions=1)
    for _ in range(3):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    pipeline.hold = True
    async with serving(cluster, sink=FakeTransactor(cluster), pipeline=pipeline) as consumer:
        await cluster.until(lambda: len(pipeline.running) == 3)
        pipeline.let_go("ocr.jobs-0-0", "ocr.jobs-0-2")
        await cluster.until(lambda: consumer.in_flight == 1)
    assert cluster.committed[P0] == 1


async def test_a_backend_that_is_not_ready_stops_intake_and_the_consumer_says_so():
    cluster = FakeCluster()
    async with serving(cluster) as consumer:
        await cluster.until(lambda: consumer.source.polls > 2)
        consumer.problem = "the detector is not ready"
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 2)
        cluster.append(0)
        polls = consumer.source.polls
        await cluster.until(lambda: consumer.source.polls > polls + 3)
        assert (consumer.source.pauses[-1], consumer.not_ready()) == ({P0, P1}, "the detector is not ready")
        assert not consumer.pipeline.calls
        consumer.problem = None
        await cluster.until(lambda: cluster.all_done)
    assert cluster.dead_letters() == []


async def test_when_no_backend_answers_no_more_records_are_taken_until_one_does():
    cluster = FakeCluster(partitions=1)
    for _ in range(40):
        cluster.append(0)
    pipeline = Pipeline(cluster)
    away = {f"ocr.jobs-0-{n}": [Unavailable("the detector is away")] * 10**6 for n in range(40)}
    pipeline.outcomes.update(away)
    async with serving(cluster, pipeline=pipeline, flow=FlowLimits(10, 10_000, 100)) as consumer:
        await cluster.until(lambda: consumer.not_ready() is not None)
        assert "the detector is away" in consumer.not_ready()
        await cluster.until(lambda: consumer.source.pauses[-1] == {P0})
        pipeline.outcomes.clear()
        await cluster.until(lambda: cluster.all_done)
        assert consumer.not_ready() is None
    assert (len(cluster.results()), cluster.dead_letters()) == (40, [])


@pytest.mark.parametrize("way", [FakeSink, FakeTransactor])
async def test_a_document_that_ends_the_gateway_is_a_dead_letter_after_its_tries(way):
    """A gateway that dies commits nothing and leaves nothing; the next one finds the group as it was."""
    cluster = FakeCluster()
    for n in range(12):
        cluster.append(n % 2)
    poison = "ocr.jobs-0-3"
    for _ in range(5):
        pipeline = Pipeline(cluster)
        pipeline.fatal = {poison}
        consumer = JobConsumer(
            KAFKA, ConsumerOptions(**QUICK, max_attempts=3), FakeSource(cluster), way(cluster), pipeline
        )
        await consumer.start()
        await asyncio.wait_for(pipeline.died.wait(), 5)
        await kill(consumer)
        assert cluster.dead_letters() == []
    pipeline = Pipeline(cluster)
    async with serving(cluster, sink=way(cluster), pipeline=pipeline, max_attempts=3):
        await cluster.until(lambda: cluster.all_done)
    (letter,) = cluster.dead_letters()
    assert origin(letter)[1:] == (0, 3)
    assert header(letter.headers, "dlq-reason") == "INTERNAL"
    assert "3 times" in header(letter.headers, "dlq-message")
    assert pipeline.calls[poison] == 0, "it is not tried again"
    assert len({origin(m) for m in cluster.results()}) == 11


async def kill(consumer):
    """As SIGKILL would: nothing is said to anybody any more."""
    tasks = [consumer._intake, *consumer._tasks.values(), getattr(consumer._delivery, "_loop", None)]
    consumer._source._listener, consumer._source.positions = None, {}
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.wait([task for task in tasks if task is not None])
