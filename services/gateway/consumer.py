"""Jobs from Kafka: each becomes a result or a dead letter, and only then is its offset done.

The rules, in the order in which they matter:

1. An offset is finished when the brokers have acknowledged its result or its dead letter. A publish that
   fails is tried again; meanwhile the offset stays open and nothing above it is committed.
2. A record is never given up because a backend is away. Errors that pass are retried with the slot held;
   when all slots are held, or backends are down, the partitions are paused, and the topic keeps what we
   cannot serve.
3. A record whose input is at fault is a dead letter at once; one that kills the predictor, or shows a defect
   of ours, after `max_attempts`; one that ends the gateway itself, after so many deaths.
4. Polling goes on whatever happens, or the group would take us for dead.
5. What a rebalance takes away is finished within `revoke_timeout_s` if it can be, then committed, then given
   up: its next owner does it again.

The decisions are in `offsets.py`, `outbox.py`, `deaths.py`, `intake.py` and `retries.py`; what is here waits.
`serving.py` does what is done for one record, `delivery.py` brings the answer to its topic.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.common.errors import Internal
from services.common.telemetry import observe
from services.gateway.answers import Answers
from services.gateway.deaths import DeathGuard
from services.gateway.delivery import AtLeastOnce, Delivery, ExactlyOnce
from services.gateway.intake import Breaker
from services.gateway.jobs import Record, ResultFormat
from services.gateway.kafka_ports import (
    CommitRefused,
    KafkaMisconfigured,
    KafkaOptions,
    Polled,
    Progress,
    RecordSink,
    RecordSource,
    Transactor,
)
from services.gateway.offsets import Commit, FlowLimits, OffsetLedger, Partition, Ticket
from services.gateway.outbox import Outbox, OutboxLimits
from services.gateway.retries import Backoff
from services.gateway.serving import Recognize, Serving
from services.gateway.stall import Stalled, StallWatch

log = logging.getLogger(__name__)

_DISCONNECTED_GRACE_S = 5.0
"""The coordinator changes now and then without anybody noticing; longer, and the broker is gone."""
_LET_GO_S = 2.5
"""For a client to close; one that takes longer hangs, and ends with the process."""


@dataclass(frozen=True)
class ConsumerOptions:
    """How the consumer works; times in seconds."""

    flow: FlowLimits = field(default_factory=FlowLimits)
    result_format: ResultFormat = "json"
    max_result_bytes: int = 1_000_000
    max_attempts: int = 3
    """Tries of a record that kills the predictor or shows a defect; errors that pass are not counted."""
    backoff: Backoff = field(default_factory=Backoff)
    outbox: OutboxLimits = field(default_factory=OutboxLimits)
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


class JobConsumer:
    """One member of the consumer group.

    `sink` decides on the delivery: a Transactor makes it exactly-once. `recognize` is the pipeline, and
    `backends` says why it cannot work now. `clock` is monotonic, `wall` counts from 1970, both in seconds;
    `draw` gives random numbers from 0 to 1.
    """

    def __init__(
        self,
        kafka: KafkaOptions,
        options: ConsumerOptions,
        source: RecordSource,
        sink: RecordSink | Transactor,
        recognize: Recognize,
        *,
        backends: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._kafka = kafka
        self._options = options
        self._source = source
        self._clock = clock
        self._draw = draw
        self._ledger = OffsetLedger(options.flow)
        self._delivery = self._delivery_by(sink)
        self._breaker = Breaker()
        self._serving = self._serving_by(recognize, wall)
        self._guard = DeathGuard(options.max_attempts, options.flow.max_span + options.flow.max_in_flight)
        self._turn = asyncio.Lock()
        self._in_line: set[Ticket] = set()
        self._backends = backends
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

    def _delivery_by(self, sink: RecordSink | Transactor) -> Delivery:
        if not isinstance(sink, Transactor):
            return AtLeastOnce(sink, self._pause)
        outbox = Outbox(self._ledger, self._options.outbox)
        return ExactlyOnce(
            sink, outbox, self._ledger, self._source.membership, self._noted, self._pause, self._clock
        )

    def _serving_by(self, recognize: Recognize, wall: Callable[[], float]) -> Serving:
        options, kafka = self._options, self._kafka
        answers = Answers(
            kafka, self._delivery, options.result_format, options.max_result_bytes, options.service_version
        )
        return Serving(
            recognize, answers, self._breaker, self._rest,
            group=kafka.group, max_attempts=options.max_attempts, clock=self._clock, wall=wall,
        )  # fmt: skip

    # ---- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Try to connect, and go on trying in the background; `not_ready` tells when it works.

        Raises:
            KafkaMisconfigured: the first try has shown that it can never work.
        """
        observe("ocr.kafka.lag", "{record}", "Records not finished, by topic and partition.", self._read_lag)
        observe("ocr.kafka.in_flight", "{record}", "Records on their way.", self._read_in_flight)
        observe(
            "ocr.kafka.interrupted", "1", "1 while backends are down and no job is taken.", self._read_why
        )
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
        return self._breaker.why()

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
        await self._flush(self._options.close_timeout_s)
        self._closing.set()
        await self._cancel(list(self._tasks))
        if self._intake is not None:
            await self._end_intake(self._intake)
        await self._let_go(self._delivery)

    async def _end_intake(self, intake: asyncio.Task[None]) -> None:
        """The loop ends by itself after its poll; one that waits to connect, or is stuck, is cancelled."""
        _, pending = await asyncio.wait([intake], timeout=self._options.close_timeout_s)
        if pending:
            intake.cancel()
            await asyncio.wait([intake])
            await self._let_go(self._source)

    async def _let_go(self, client: RecordSource | Delivery) -> None:
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
                await self._delivery.open()
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
            self._breaker.health(self._backends())
            paused = self._paused()
            self._state = await self._source.poll(self._room(), paused)
            self._watch_membership()
            if self._delivery.broken is not None:
                raise self._delivery.broken
            if self._state.records and not self._draining:
                await self._before_they_begin(self._state.records)
            for record in self._state.records:
                self._admit(record)
            await self._commit_when_due()
            await self._look_around_when_due(paused)
        await self._commit()

    def _room(self) -> int:
        room, allowance = self._ledger.room(), self._breaker.allowance(self._clock())
        return room if allowance is None else min(room, allowance - self._ledger.in_flight)

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
        """Nothing is read while we leave or have no room, and nothing beside what must be read with care."""
        if self._draining or self._room() <= 0:
            return self._ledger.partitions
        careful = self._guard.careful
        return self._ledger.blocked() | (self._ledger.partitions - careful if careful else frozenset())

    def _admit(self, record: Record) -> None:
        if self._draining:
            return  # of a partition that came while we leave; never started, so never committed
        ticket = self._ledger.started(record.where, record.offset, record.size, record.leader_epoch)
        if ticket is None:
            # To pass over it would let a later commit skip it.
            raise RuntimeError(f"a record of {record.topic}-{record.partition} came, which is not ours")
        if self._guard.careful:
            self._in_line.add(ticket)
        task = asyncio.create_task(self._process(record, ticket))
        self._tasks[ticket] = task
        task.add_done_callback(lambda done: self._ended(ticket, done))

    def _ended(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(ticket, None)
        self._in_line.discard(ticket)
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("offset %s stays open, since: %s", ticket, defect, exc_info=defect)

    async def _commit_when_due(self) -> None:
        if self._clock() >= self._next_commit:
            await self._commit()
            self._next_commit = self._clock() + self._options.commit_interval_s

    async def _commit(self) -> None:
        if not self._ledger.to_commit():
            return
        async with self._delivery.quiet:
            if self._delivery.certain:
                await self._commit_these(self._ledger.to_commit())

    async def _commit_these(self, commits: Mapping[Partition, Commit]) -> None:
        try:
            await self._source.commit(self._noted(commits))
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
        for partition, at in progress.items():
            if (done := self._ledger.position(partition)) is not None:
                self._guard.reached(partition, done, at.end)
        if stuck := self._stalls.stuck(progress, paused, self._clock()):
            raise Stalled(f"no records come from {stuck}, although there are some")
        self._next_progress = self._clock() + self._options.progress_interval_s

    def _noted(self, commits: Mapping[Partition, Commit]) -> Mapping[Partition, Commit]:
        for partition, commit in commits.items():
            self._guard.reached(partition, commit.offset)
        return {p: replace(commit, note=self._guard.note(p)) for p, commit in commits.items()}

    def _behind(self, partition: Partition, at: Progress) -> int:
        done = self._ledger.position(partition)
        return max(0, at.end - (at.position if done is None else done))

    # ---- the group -----------------------------------------------------------------------------

    async def assigned(self, partitions: Sequence[Partition]) -> None:
        """These are ours now."""
        log.info("assigned %s", _names(partitions))
        self._leaving.difference_update(partitions)
        self._guard.forget(partitions)
        self._ledger.assign(partitions)

    async def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Commit]:
        """Finish what can be finished in time, give up the rest, and say where each partition stands.

        Nothing is said when a transaction ended nobody knows how: the group knows.
        """
        log.info("revoked %s", _names(partitions))
        self._leaving.update(partitions)
        await self._cancel(ticket for ticket in self._tickets(partitions) if ticket in self._resting)
        tickets = self._tickets(partitions)
        if tickets and not self._closing.is_set():
            await asyncio.wait([self._tasks[t] for t in tickets], timeout=self._options.revoke_timeout_s)
            await self._flush(self._options.close_timeout_s)
        async with self._delivery.quiet:
            await self._cancel(tickets)
            stood_at = self._ledger.positions(partitions) if self._delivery.certain else {}
            parting = {p: replace(at, note=self._guard.parting_note(p)) for p, at in stood_at.items()}
            self._ledger.forget(partitions)
            self._guard.forget(partitions)
        return parting

    async def lost(self, partitions: Sequence[Partition]) -> None:
        """Somebody else has these; nothing may be committed for them."""
        if partitions:
            log.warning("lost %s; their documents are done again", _names(partitions))
        await self._cancel(self._tickets(partitions))
        self._ledger.forget(partitions)
        self._guard.forget(partitions)

    async def _flush(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._delivery.flush(), timeout_s)

    def _tickets(self, partitions: Iterable[Partition]) -> list[Ticket]:
        wanted = set(partitions)
        return [ticket for ticket in self._tasks if ticket.partition in wanted]

    async def _cancel(self, tickets: Iterable[Ticket]) -> None:
        tasks = [self._tasks[ticket] for ticket in tickets if ticket in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- what ended those before us --------------------------------------------------------------

    async def _before_they_begin(self, records: Sequence[Record]) -> None:
        """Learn what happened to earlier owners of these partitions, and let later ones know of us."""
        firsts: dict[Partition, int] = {}
        for record in records:
            firsts.setdefault(record.where, record.offset)
        changed = set(await self._learn(firsts))
        changed.update(
            [record.where for record in records if self._guard.begins(record.where, record.offset)]
        )
        if changed:
            await self._commit_notes(changed, firsts)

    async def _learn(self, firsts: Mapping[Partition, int]) -> list[Partition]:
        unknown = self._guard.unknown(firsts)
        if not unknown:
            return []
        try:
            standing = await self._source.standing(unknown)
        except CommitRefused as error:
            log.warning("%s", error)  # asked again when more records come
            return []
        for partition in unknown:
            self._guard.learned(partition, firsts[partition], standing[partition].note)
        if self._guard.careful:
            log.warning("read with care, since gateways died at it: %s", _names(sorted(self._guard.careful)))
        return unknown

    async def _commit_notes(
        self, partitions: Iterable[Partition], firsts: Mapping[Partition, int] | None = None
    ) -> None:
        """Commit where these stand, for the sake of the note; `firsts`: where, if nothing has begun."""
        async with self._delivery.quiet:
            if self._delivery.certain:
                begin = {p: Commit(0, offset) for p, offset in (firsts or {}).items() if p in partitions}
                await self._commit_these({**begin, **self._ledger.positions(partitions)})

    async def _with_care(self, record: Record, ticket: Ticket) -> None:
        """Wait until nothing else runs, as long as there is reason for care."""
        await self._own_turn(ticket)
        try:
            if suspected := bool(self._guard.careful):
                await self._as_suspect(record, ticket)
        finally:
            self._in_line.discard(ticket)
            self._turn.release()
        if not suspected:
            await self._serving.serve(record, ticket)

    async def _own_turn(self, ticket: Ticket) -> None:
        """Take the lock, and wait for those that began without it."""
        with self._in_rest(ticket):
            await self._turn.acquire()
            try:
                while self._guard.careful and (others := self._not_in_line()):
                    await asyncio.wait(others)
            except BaseException:
                self._turn.release()
                raise

    def _not_in_line(self) -> list[asyncio.Task[None]]:
        return [task for ticket, task in self._tasks.items() if ticket not in self._in_line]

    async def _as_suspect(self, record: Record, ticket: Ticket) -> None:
        if not self._guard.is_careful(ticket.partition):
            await self._serving.serve(record, ticket)
        elif self._guard.begins_alone(ticket.partition, ticket.offset):
            with self._in_rest(ticket):  # a rebalance in the poll that it waits for must not wait for it
                await self._commit_notes(self._guard.careful)
            await self._serving.serve(record, ticket)
            self._guard.survived(ticket.partition, ticket.offset)
        else:
            times = self._options.max_attempts
            error = Internal(f"a gateway ended {times} times while it worked on this document alone")
            await self._serving.serve(record, ticket, self._serving.failure(error, "recognize", times))

    @contextlib.contextmanager
    def _in_rest(self, ticket: Ticket) -> Iterator[None]:
        """Meanwhile its task works on nothing, and whoever takes the partition away need not wait for it."""
        self._resting[ticket] = self._tasks[ticket]
        try:
            yield
        finally:
            del self._resting[ticket]

    # ---- one record ----------------------------------------------------------------------------

    async def _process(self, record: Record, ticket: Ticket) -> None:
        try:
            await (self._with_care if ticket in self._in_line else self._serving.serve)(record, ticket)
        except BaseException:
            self._ledger.abandoned(ticket)
            raise
        self._ledger.finished(ticket)

    async def _rest(self, ticket: Ticket, attempts: int, deadline: float | None) -> None:
        """Wait between two tries; on the way out there is no second one here, the next owner has it."""
        if self._draining or ticket.partition in self._leaving:
            self._tasks[ticket].cancel()
        with self._in_rest(ticket):
            await self._pause(attempts, deadline)

    def _backoff(self, attempt: int) -> float:
        return self._options.backoff.wait(attempt, self._draw())

    async def _pause(self, attempt: int, until: float | None = None) -> None:
        wait = self._backoff(attempt)
        await asyncio.sleep(wait if until is None else min(wait, max(0.0, until - self._clock())))

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

    def _read_why(self) -> list[tuple[float, dict[str, str]]]:
        return [(float(self._breaker.why() is not None), {})]


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions) or "nothing"
