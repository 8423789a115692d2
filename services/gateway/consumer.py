"""Jobs from Kafka: each becomes a result or a dead letter, and only then is its offset done.

The rules, in the order in which they matter:

1. An offset is finished when the brokers have acknowledged its result or its dead letter. A publish that
   fails is tried again; meanwhile the offset stays open and nothing above it is committed.
2. A record is never given up because a backend is away. Errors that pass are retried with the slot held;
   when all slots are held the partitions are paused, and the topic keeps what we cannot serve.
3. A record whose input is at fault is a dead letter at once; one that kills the predictor, or shows a defect
   of ours, after `max_attempts`.
4. Polling goes on whatever happens, or the group would take us for dead.
5. What a rebalance takes away is finished within `revoke_timeout_s` if it can be, then committed, then given
   up: its next owner does it again.

The decisions are in `offsets.py`, `jobs.py` and `next_step`; what is here waits.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from services.common.batch_queue import Priority
from services.common.errors import DeadlineExceeded, InputError, Internal, OcrError, ResultTooLarge
from services.common.pb import ocr_pb2 as pb
from services.common.telemetry import METRICS, extract, inject_headers, observe, tracer
from services.gateway import jobs
from services.gateway.jobs import Failure, Message, Order, Record, ResultFormat, Stage
from services.gateway.kafka_ports import (
    CommitRefused,
    KafkaMisconfigured,
    KafkaOptions,
    MessageTooLarge,
    Polled,
    Progress,
    PublishFailed,
    RecordSink,
    RecordSource,
)
from services.gateway.offsets import Commit, FlowLimits, OffsetLedger, Partition, Ticket

log = logging.getLogger(__name__)

_DISCONNECTED_GRACE_S = 5.0
"""The coordinator changes now and then without anybody noticing; longer, and the broker is gone."""
_LET_GO_S = 2.5
"""For a client to close; one that takes longer hangs, and ends with the process."""


class Recognize(Protocol):
    """The pipeline. `deadline` and `received` are on the monotonic clock, in seconds; raises OcrError."""

    async def __call__(
        self, job: pb.Job, *, priority: Priority, deadline: float | None, received: float
    ) -> pb.Result:
        """Read one document."""


@dataclass(frozen=True)
class ConsumerOptions:
    """How the consumer works; times in seconds."""

    flow: FlowLimits = field(default_factory=FlowLimits)
    result_format: ResultFormat = "json"
    max_result_bytes: int = 1_000_000
    max_attempts: int = 3
    """Tries of a record that kills the predictor or shows a defect; errors that pass are not counted."""
    retry_base_s: float = 0.1
    retry_cap_s: float = 10.0
    commit_interval_s: float = 1.0
    revoke_timeout_s: float = 20.0
    progress_interval_s: float = 10.0
    stall_timeout_s: float = 120.0
    """A partition with records to read from which none come for so long is stuck; the client is replaced."""
    join_timeout_s: float = 120.0
    """A client that has been without its place in the group for so long is replaced."""
    close_timeout_s: float = 4.0
    """To commit and leave the group at the end; a broker that is away must not hold it up."""
    misconfigured_pause_s: float = 60.0
    """Between looks at a Kafka that came to refuse our settings; only somebody who changes it can help."""
    service_version: str = ""


Step = Literal["retry", "dead-letter"]


def next_step(error: OcrError, attempts: int, max_attempts: int) -> Step:
    """What becomes of a record that failed with `error` on its try number `attempts`."""
    if error.retryable:
        return "retry"
    if isinstance(error, InputError | DeadlineExceeded):
        return "dead-letter"
    return "retry" if attempts < max_attempts else "dead-letter"


def backoff(attempt: int, base_s: float, cap_s: float, draw: float) -> float:
    """Seconds to wait after try number `attempt`: full jitter, so that many waiters spread out.

    `draw` is a random number from 0 to 1.
    """
    return draw * min(cap_s, base_s * 2.0 ** min(attempt, 30))


class Stalled(RuntimeError):
    """The client reads nothing although there is something to read."""


class StallWatch:
    """Notices partitions whose reading position stands still before the end. Told the time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: dict[Partition, tuple[int, float]] = {}

    def stuck(
        self, progress: Mapping[Partition, Progress], paused: frozenset[Partition], now: float
    ) -> list[Partition]:
        """Partitions that had something to read, were not paused, and have not moved for the timeout."""
        for partition in paused | (self._seen.keys() - progress.keys()):
            self._seen.pop(partition, None)
        found = []
        for partition, at in progress.items():
            position, since = self._seen.get(partition, (-1, now))
            if partition in paused:
                continue
            if at.position != position or at.position >= at.end:
                self._seen[partition] = (at.position, now)
            elif now - since >= self._timeout_s:
                found.append(partition)
        return found


class JobConsumer:
    """One member of the consumer group.

    `recognize` is the pipeline. `clock` is monotonic, `wall` counts from 1970, both in seconds;
    `draw` gives random numbers from 0 to 1.
    """

    def __init__(
        self,
        kafka: KafkaOptions,
        options: ConsumerOptions,
        source: RecordSource,
        sink: RecordSink,
        recognize: Recognize,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._kafka = kafka
        self._options = options
        self._source = source
        self._sink = sink
        self._recognize = recognize
        self._clock = clock
        self._wall = wall
        self._draw = draw
        self._ledger = OffsetLedger(options.flow)
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._intake: asyncio.Task[None] | None = None
        self._draining = False
        self._leaving: set[Partition] = set()
        self._resting: dict[Ticket, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()
        self._joined = False
        self._state = Polled(joined=False, connected=False)
        self._connected_at = self._joined_at = clock()
        self._fault = "connecting to Kafka"
        self._tried = asyncio.Event()
        self._misconfigured: KafkaMisconfigured | None = None
        self._lag: dict[Partition, int] = {}
        self._stalls = StallWatch(options.stall_timeout_s)
        self._next_commit = self._next_progress = clock()

    # ---- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Try to connect, and go on trying in the background; `not_ready` tells when it works.

        Raises:
            KafkaMisconfigured: the first try has shown that it can never work.
        """
        observe("ocr.kafka.lag", "{record}", "Records not finished, by topic and partition.", self._read_lag)
        observe("ocr.kafka.in_flight", "{record}", "Records on their way.", self._read_in_flight)
        self._intake = asyncio.create_task(self._run(), name="kafka-intake")
        await self._tried.wait()
        if self._misconfigured is not None:
            raise self._misconfigured

    def not_ready(self) -> str | None:
        """Why no job is taken from Kafka now; None when they are, or could be."""
        if self._fault:
            return self._fault
        if not self._state.connected and self._clock() - self._connected_at > _DISCONNECTED_GRACE_S:
            return f"the Kafka group coordinator at {', '.join(self._kafka.bootstrap)} does not answer"
        if not self._joined:
            return f"waiting for the consumer group {self._kafka.group} to assign partitions"
        return None

    async def drain(self) -> None:
        """Take no more records and finish those on their way, but for those that wait for a backend.

        Polling and commits go on meanwhile.
        """
        self._draining = True
        await self._cancel(list(self._resting))
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Give up what is left, commit what is done, leave the group; takes a few seconds at most."""
        self._draining = True
        self._closing.set()
        await self._cancel(list(self._tasks))
        if self._intake is not None:
            await self._end_intake(self._intake)
        await self._let_go(self._sink)

    async def _end_intake(self, intake: asyncio.Task[None]) -> None:
        """The loop ends by itself after its poll; one that waits to connect, or is stuck, is cancelled."""
        _, pending = await asyncio.wait([intake], timeout=self._options.close_timeout_s)
        if pending:
            intake.cancel()
            await asyncio.wait([intake])
            await self._let_go(self._source)

    async def _let_go(self, client: RecordSource | RecordSink) -> None:
        try:
            await asyncio.wait_for(client.close(), _LET_GO_S)
        except TimeoutError:
            log.warning("the Kafka client did not close in %s s and is left behind", _LET_GO_S)

    async def _run(self) -> None:
        """Connect and consume; begin anew when the client breaks down."""
        attempt = 0
        while not self._closing.is_set():
            attempt += 1
            try:
                await self._source.open(self)
                await self._sink.open()
                self._fault, attempt = "", 0
                self._joined_at = self._clock()
                self._tried.set()
                await self._consume()
            except Exception as error:  # noqa: BLE001  # whatever it is, the answer is a new client
                await self._broke_down(error, trace=not attempt)
            with contextlib.suppress(Exception):
                await self._source.close()
            wait = self._backoff(attempt + 1)
            if self._misconfigured is not None:
                wait = self._options.misconfigured_pause_s
            self._tried.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait)

    async def _broke_down(self, error: Exception, *, trace: bool) -> None:
        self._fault = f"Kafka: {error}"
        self._misconfigured = error if isinstance(error, KafkaMisconfigured) else None
        if self._misconfigured is None or self._tried.is_set():  # else it ends the start, which says so
            log.warning("the Kafka consumer begins anew: %s", error, exc_info=trace)
        await self.lost(sorted(self._ledger.partitions))

    async def _consume(self) -> None:
        while not self._closing.is_set():
            paused = self._paused()
            self._state = await self._source.poll(self._ledger.room(), paused)
            self._watch_membership()
            for record in self._state.records:
                self._admit(record)
            await self._commit_when_due()
            await self._look_around_when_due(paused)
        await self._commit()

    def _watch_membership(self) -> None:
        now = self._clock()
        if self._state.connected:
            self._connected_at = now
        if self._state.joined or not self._state.connected:
            self._joined_at = now
            self._joined = self._joined or self._state.joined
        elif now - self._joined_at > self._options.join_timeout_s:
            raise Stalled(f"the group {self._kafka.group} gave us no place for {now - self._joined_at:.0f} s")

    def _paused(self) -> frozenset[Partition]:
        return self._ledger.partitions if self._draining else self._ledger.blocked()

    def _admit(self, record: Record) -> None:
        if self._draining:
            return  # of a partition that came while we leave; never started, so never committed
        where = (record.topic, record.partition)
        ticket = self._ledger.started(where, record.offset, record.size, record.leader_epoch)
        if ticket is None:
            # To pass over it would let a later commit skip it.
            raise RuntimeError(f"a record of {record.topic}-{record.partition} came, which is not ours")
        task = asyncio.create_task(self._process(record, ticket))
        self._tasks[ticket] = task
        task.add_done_callback(lambda done: self._ended(ticket, done))

    def _ended(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(ticket, None)
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("offset %s stays open, since: %s", ticket, defect, exc_info=defect)

    async def _commit_when_due(self) -> None:
        if self._clock() >= self._next_commit:
            await self._commit()
            self._next_commit = self._clock() + self._options.commit_interval_s

    async def _commit(self) -> None:
        commits = self._ledger.to_commit()
        if not commits:
            return
        try:
            await self._source.commit(commits)
        except CommitRefused as error:
            log.warning("%s", error)
        else:
            self._ledger.committed(commits)

    async def _look_around_when_due(self, paused: frozenset[Partition]) -> None:
        """How far behind we are; the broker must be asked, since a paused partition is not fetched."""
        if self._clock() < self._next_progress:
            return
        progress = await self._source.progress(sorted(self._ledger.partitions))
        self._lag = {p: self._behind(p, at) for p, at in progress.items()}
        if stuck := self._stalls.stuck(progress, paused, self._clock()):
            raise Stalled(f"no records come from {stuck}, although there are some")
        self._next_progress = self._clock() + self._options.progress_interval_s

    def _behind(self, partition: Partition, at: Progress) -> int:
        done = self._ledger.position(partition)
        return max(0, at.end - (at.position if done is None else done))

    # ---- the group -----------------------------------------------------------------------------

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        """These are ours now."""
        log.info("assigned %s", _names(partitions))
        self._leaving.difference_update(partitions)
        self._ledger.assign(partitions)

    async def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Commit]:
        """Finish what can be finished in time, give up the rest, and say where each partition stands."""
        log.info("revoked %s", _names(partitions))
        self._leaving.update(partitions)
        await self._cancel(ticket for ticket in self._tickets(partitions) if ticket in self._resting)
        tickets = self._tickets(partitions)
        if tickets and not self._closing.is_set():
            await asyncio.wait([self._tasks[t] for t in tickets], timeout=self._options.revoke_timeout_s)
        await self._cancel(tickets)
        stood_at = self._ledger.positions(partitions)
        self._ledger.forget(partitions)
        return stood_at

    async def lost(self, partitions: Sequence[Partition]) -> None:
        """Somebody else has these; nothing may be committed for them."""
        if partitions:
            log.warning("lost %s; their documents are done again", _names(partitions))
        await self._cancel(self._tickets(partitions))
        self._ledger.forget(partitions)

    def _tickets(self, partitions: Iterable[Partition]) -> list[Ticket]:
        wanted = set(partitions)
        return [ticket for ticket in self._tasks if ticket.partition in wanted]

    async def _cancel(self, tickets: Iterable[Ticket]) -> None:
        tasks = [self._tasks[ticket] for ticket in tickets if ticket in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- one record ----------------------------------------------------------------------------

    async def _process(self, record: Record, ticket: Ticket) -> None:
        try:
            await self._serve(record, ticket)
        except BaseException:
            self._ledger.abandoned(ticket)
            raise
        self._ledger.finished(ticket)

    async def _serve(self, record: Record, ticket: Ticket) -> None:
        """Turn a record into a published result or dead letter, inside the span of its consumer."""
        producer = extract(record.headers)
        remote = trace.get_current_span(producer).get_span_context()
        links = [Link(remote)] if remote.is_valid else []
        received = self._clock()
        name, facts = f"process {record.topic}", self._attributes(record)
        with tracer.start_as_current_span(name, producer, SpanKind.CONSUMER, facts, links) as span:
            failure = await self._answer(record, ticket, received)
            if failure is not None:
                _mark(span, failure.error)
                await self._bury(record, failure)
            METRICS.document.record(self._clock() - received, {"door": "kafka"})

    def _attributes(self, record: Record) -> dict[str, str | int]:
        return {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.consumer.group.name": self._kafka.group,
            "ocr.job.id": jobs.job_id_of(record),
        }

    async def _answer(self, record: Record, ticket: Ticket, received: float) -> Failure | None:
        """Publish the result; a Failure when there is none to publish, or its topic does not take it."""
        try:
            order = jobs.parse(record)
        except OcrError as error:
            return self._failure(error, "parse")
        outcome = await self._recognized(order, ticket, received)
        if isinstance(outcome, Failure):
            return outcome
        try:
            await self._publish_result(outcome)
        except ResultTooLarge as error:
            return self._failure(error, "publish", job_id=order.job.job_id)
        METRICS.documents.add(1, {"door": "kafka", "status": pb.Status.Name(outcome.status).lower()})
        return None

    async def _recognized(self, order: Order, ticket: Ticket, received: float) -> pb.Result | Failure:
        """Try until there is a result or a reason to give up."""
        deadline = self._deadline(order.expires_ms)
        first_ms, attempts, defects = 0, 0, 0
        while True:
            attempts += 1
            outcome = await self._attempt(order, deadline, received)
            if isinstance(outcome, pb.Result):
                return outcome
            first_ms = first_ms or self._now_ms()
            defects += not outcome.retryable
            if next_step(outcome, defects, self._options.max_attempts) == "dead-letter":
                return self._failure(outcome, "recognize", attempts, first_ms, order.job.job_id)
            log.log(logging.DEBUG if outcome.retryable else logging.WARNING, "tried again: %s", outcome)
            await self._rest(ticket, attempts, deadline)

    async def _rest(self, ticket: Ticket, attempts: int, deadline: float | None) -> None:
        """Wait between two tries; on the way out there is no second one here, the next owner has it."""
        task = self._tasks[ticket]
        if self._draining or ticket.partition in self._leaving:
            task.cancel()
        self._resting[ticket] = task
        try:
            await self._pause(attempts, deadline)
        finally:
            del self._resting[ticket]

    async def _attempt(self, order: Order, deadline: float | None, received: float) -> pb.Result | OcrError:
        if deadline is not None and self._clock() >= deadline:
            late_ms = (self._clock() - deadline) * 1000
            return DeadlineExceeded(
                f"the job's deadline passed {late_ms:.0f} ms before work on it could begin"
            )
        try:
            return await self._recognize(
                order.job, priority=order.priority, deadline=deadline, received=received
            )
        except OcrError as error:
            return error
        except Exception as error:
            log.exception("a defect while serving job %s", order.job.job_id)
            return Internal(f"{type(error).__name__}: {error}")

    def _deadline(self, expires_ms: int | None) -> float | None:
        return None if expires_ms is None else self._clock() + expires_ms / 1000 - self._wall()

    def _failure(
        self, error: OcrError, stage: Stage, attempts: int = 1, first_ms: int = 0, job_id: str = ""
    ) -> Failure:
        now = self._now_ms()
        return Failure(error, stage, attempts, first_ms or now, now, job_id)

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)

    def _backoff(self, attempt: int) -> float:
        return backoff(attempt, self._options.retry_base_s, self._options.retry_cap_s, self._draw())

    async def _pause(self, attempt: int, until: float | None = None) -> None:
        wait = self._backoff(attempt)
        await asyncio.sleep(wait if until is None else min(wait, max(0.0, until - self._clock())))

    # ---- publishing ----------------------------------------------------------------------------

    async def _publish_result(self, result: pb.Result) -> None:
        topic, limit = self._kafka.results_topic, self._options.max_result_bytes
        message = jobs.result_message(result, topic, self._options.result_format, ())
        size = len(message.value or b"")
        if size > limit:
            raise ResultTooLarge(f"the result has {size} bytes, {topic} takes {limit} (max_result_bytes)")
        try:
            await self._publish(message)
        except MessageTooLarge as error:
            raise ResultTooLarge(str(error)) from error

    async def _bury(self, record: Record, failure: Failure) -> None:
        """Publish the dead letter, with less of the original if its topic does not take all."""
        log.warning(
            "dead letter: %s",
            failure.error,
            extra={
                "fields": {"job_id": failure.job_id or jobs.job_id_of(record), "code": failure.error.code}
            },
        )
        kafka = self._kafka
        version = self._options.service_version
        letter = jobs.dead_letter(record, failure, kafka.dlq_topic, kafka.group, version, _trace())
        slim = jobs.without_value(letter)
        for version_of_it in (letter, slim, jobs.without_original(slim)):
            with contextlib.suppress(MessageTooLarge):
                await self._publish(version_of_it)
                METRICS.documents.add(1, {"door": "kafka", "status": "failed"})
                METRICS.errors.add(1, {"stage": "gateway", "code": failure.error.code})
                return
        raise MessageTooLarge(
            f"{kafka.dlq_topic} takes not even the headers of a dead letter; raise its limit"
        )

    async def _publish(self, message: Message) -> None:
        """Send until it is acknowledged. Raises MessageTooLarge."""
        attempt = 0
        facts = {"messaging.system": "kafka", "messaging.destination.name": message.topic}
        with tracer.start_as_current_span(f"send {message.topic}", None, SpanKind.PRODUCER, facts):
            traced = Message(message.topic, message.key, message.value, message.headers + _own_trace(message))
            while True:
                attempt += 1
                try:
                    return await self._sink.send(traced)
                except PublishFailed as error:
                    log.warning("sent again: %s", error)
                await self._pause(attempt)

    # ---- metrics -------------------------------------------------------------------------------

    @property
    def lag(self) -> Mapping[Partition, int]:
        """Records not finished by partition, as of the last look at the broker."""
        return {p: lag for p, lag in self._lag.items() if p in self._ledger.partitions}

    @property
    def in_flight(self) -> int:
        """Records on their way."""
        return self._ledger.in_flight

    def _read_lag(self) -> list[tuple[float, dict[str, str]]]:
        return [(lag, {"topic": p[0], "partition": str(p[1])}) for p, lag in self.lag.items()]

    def _read_in_flight(self) -> list[tuple[float, dict[str, str]]]:
        return [(self.in_flight, {})]


def _trace() -> jobs.Headers:
    return tuple(inject_headers())


def _own_trace(message: Message) -> jobs.Headers:
    """The context of the send span, for messages that carry none; a dead letter keeps its record's own."""
    return () if any(name == "traceparent" for name, _ in message.headers) else _trace()


def _mark(span: Span, error: OcrError) -> None:
    span.set_status(StatusCode.ERROR, str(error))
    span.set_attribute("error.type", error.code)


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions) or "nothing"
