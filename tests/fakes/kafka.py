"""Kafka in memory, behind the gateway's two ports, with the faults that a real one has."""

import asyncio
from collections import defaultdict

from services.gateway.jobs import DeadLetterHeader, Message, Record, header
from services.gateway.kafka_ports import (
    BrokerUnreachable,
    CommitRefused,
    MessageTooLarge,
    OutcomeUnknown,
    Polled,
    Progress,
    PublishFailed,
    Standing,
    TransactionFailed,
)


class FakeCluster:
    """Logs, the offsets of one group, and what was produced. One event loop, no threads."""

    def __init__(self, topic="ocr.jobs", partitions=2):
        self.logs = {(topic, number): [] for number in range(partitions)}
        self.committed = dict.fromkeys(self.logs, 0)
        self.notes = dict.fromkeys(self.logs, "")
        self.generation = 0
        self.commits = []
        self.produced = defaultdict(list)
        self.acknowledged = set()  # (topic, partition, offset) of the records that were answered
        self.changed = asyncio.Event()

    def append(self, partition, value=b"doc", key=None, headers=(), timestamp_ms=0):
        where = ("ocr.jobs", partition)
        record = Record(*where, len(self.logs[where]), timestamp_ms, key, value, tuple(headers))
        self.logs[where].append(record)
        self.changed.set()
        return record

    def commit(self, commits):
        """Holds the promise of the whole consumer: nothing below a committed offset is unanswered."""
        offsets = {where: at.offset for where, at in commits.items()}
        self.notes.update({where: at.note for where, at in commits.items()})
        for where, offset in offsets.items():
            open_below = [n for n in range(offset) if (*where, n) not in self.acknowledged]
            assert not open_below, f"{where}: committed {offset}, but {open_below} are not answered"
            self.committed[where] = offset
        self.commits.append(dict(offsets))
        self.changed.set()

    def transaction(self, messages, commits, generation):
        """All of it, or nothing when another member has spoken since; exactly once, so never twice."""
        if generation != self.generation:
            raise TransactionFailed("the group is of another generation")
        for message in messages:
            assert origin(message) not in self.acknowledged, f"{origin(message)} is answered twice"
            self.produce(message)
        for where, at in commits.items():
            assert at.offset >= self.committed[where], f"{where} goes back to {at.offset}"
        self.commit(commits)

    def produce(self, message: Message):
        self.produced[message.topic].append(message)
        self.acknowledged.add(origin(message))
        self.changed.set()

    async def until(self, condition, timeout=5.0):
        """Wait for something to happen, not for time to pass."""

        async def wait():
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        await asyncio.wait_for(wait(), timeout)

    @property
    def all_done(self):
        return all(self.committed[where] == len(log) for where, log in self.logs.items())

    def results(self):
        return self.produced["ocr.results"]

    def dead_letters(self):
        return self.produced["ocr.jobs.dlq"]


def origin(message: Message):
    """Which record a message answers: dead letters say so, results by the derived name of the job."""
    topic = header(message.headers, DeadLetterHeader.ORIGIN_TOPIC)
    if topic:
        return (
            topic,
            int(header(message.headers, DeadLetterHeader.ORIGIN_PARTITION)),
            int(header(message.headers, DeadLetterHeader.ORIGIN_OFFSET)),
        )
    name, partition, offset = header(message.headers, "job-id").rsplit("-", 2)
    return (name, int(partition), int(offset))


class FakeSource:
    """A group member. `rebalance` is carried out at the next poll, as by the client."""

    def __init__(self, cluster: FakeCluster, assigned=None):
        self.cluster = cluster
        self.wanted = sorted(cluster.logs if assigned is None else assigned)
        self.positions = {}
        self.polls = 0
        self.pauses = []
        self.opens = 0
        self.refuse_commits = 0
        self.break_polls = 0
        self.fail_opens = 0
        self.connected = True
        self.joined = True
        self._rebalances = []
        self._listener = None

    def rebalance(self, kind, assigned):
        """`kind`: revoked or lost, of all partitions; then `assigned` are ours."""
        self._rebalances.append((kind, sorted(assigned)))

    async def open(self, listener):
        self.opens += 1
        if self.fail_opens:
            self.fail_opens -= 1
            raise BrokerUnreachable("no broker answers")
        self._listener = listener
        self._rebalances.insert(0, (None, self.wanted))

    async def poll(self, max_records, paused):
        self.polls += 1
        self.pauses.append(paused)
        self.cluster.changed.set()
        await self._rebalance()
        if self.break_polls:
            self.break_polls -= 1
            raise BrokerUnreachable("the consumer broke down")
        records = self._take(max(1, max_records), paused)
        if not records:
            await asyncio.sleep(0.001)  # as a poll that finds nothing
        return Polled(records, joined=self.joined, connected=self.connected)

    async def _rebalance(self):
        while self._rebalances:
            kind, assigned = self._rebalances.pop(0)
            if kind == "lost":
                self.cluster.generation += 1  # others went on without us
            stood_at = {}
            if kind == "lost":
                await self._listener.lost(sorted(self.positions))
                self.positions = {}
            elif kind == "revoked":
                stood_at = await self._listener.revoked(sorted(self.positions))
                self._commit(stood_at)
            self.cluster.generation += 1
            self._assign(assigned, stood_at)
            await self._listener.assigned(assigned)

    def _assign(self, assigned, stood_at):
        """A partition that stays keeps its position, as in kafka-python, unless it is told where it stood."""
        kept = {p: stood_at[p].offset if p in stood_at else at for p, at in self.positions.items()}
        self.wanted = assigned
        self.positions = {p: kept.get(p, self.cluster.committed[p]) for p in assigned}

    def _take(self, max_records, paused):
        records = []
        for where in self.positions:
            if where not in paused:
                log, at = self.cluster.logs[where], self.positions[where]
                found = log[at : at + max_records - len(records)]
                self.positions[where] += len(found)
                records += found
        return records

    async def commit(self, commits):
        if self.refuse_commits:
            self.refuse_commits -= 1
            raise CommitRefused("the group rebalances")
        self._commit(commits)

    def _commit(self, commits):
        if commits:
            self.cluster.commit(commits)

    async def standing(self, partitions):
        return {p: Standing(self.cluster.committed[p], self.cluster.notes[p]) for p in partitions}

    def membership(self):
        return None if self._listener is None else self.cluster.generation

    async def progress(self, partitions):
        return {p: Progress(self.positions[p], len(self.cluster.logs[p])) for p in partitions}

    async def close(self):
        if self._listener is not None and self.positions:
            self._commit(await self._listener.revoked(sorted(self.positions)))
        self._listener, self.positions = None, {}


class FakeTransactor:
    """Transactions that fail, or whose outcome nobody is told, when a test says so."""

    def __init__(self, cluster: FakeCluster):
        self.cluster = cluster
        self.fail = 0
        self.silent = []  # of the next transactions: True commits and False drops, and neither is told
        self.limits = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.opens = 0
        self.sizes = []

    async def open(self):
        self.opens += 1

    async def transact(self, messages, commits, membership):
        self.sizes.append(len(messages))
        self.cluster.changed.set()
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.fail:
            self.fail -= 1
            raise TransactionFailed("not acknowledged in time")
        if any(message.size > self.limits.get(message.topic, message.size) for message in messages):
            raise MessageTooLarge("one of them is too large")
        silent = self.silent.pop(0) if self.silent else None
        if silent is not False:
            self.cluster.transaction(messages, commits, membership)
        if silent is not None:
            raise OutcomeUnknown("no answer")

    async def close(self):
        pass


class FakeSink:
    """Acknowledges at once, unless told otherwise."""

    def __init__(self, cluster: FakeCluster):
        self.cluster = cluster
        self.fail = 0
        self.limits = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent = 0

    async def open(self):
        pass

    async def send(self, message):
        self.sent += 1
        self.cluster.changed.set()
        await self.gate.wait()
        if self.fail:
            self.fail -= 1
            raise PublishFailed("not acknowledged in time")
        size = len(message.value or b"") + sum(len(name) + len(value) for name, value in message.headers)
        if size > self.limits.get(message.topic, size):
            raise MessageTooLarge(f"{size} bytes")
        self.cluster.produce(message)

    async def close(self):
        pass
