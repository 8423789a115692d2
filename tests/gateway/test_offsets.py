from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.gateway.offsets import Commit, FlowLimits, OffsetLedger, PartitionOffsets

P0, P1 = ("ocr.jobs", 0), ("ocr.jobs", 1)


def test_nothing_is_committable_before_the_first_record():
    assert PartitionOffsets().committable() is None


@pytest.mark.parametrize(
    ("finished", "committable", "why"),
    [
        ([], 10, "nothing is done"),
        ([10], 11, "the lowest is done"),
        ([11, 13], 10, "the lowest is open, whatever is done above it"),
        ([11, 10], 13, "11 was waiting for 10; offset 12 does not exist"),
        ([10, 11, 13], 14, "all done: the one after the last"),
        ([10, 10], 11, "twice means nothing"),
    ],
)
def test_the_lowest_unfinished_offset_is_committable(finished, committable, why):
    offsets = PartitionOffsets()
    for offset in (10, 11, 13):
        offsets.started(offset)
    for offset in finished:
        offsets.finished(offset)
    assert offsets.committable() == committable, why


@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    order=st.randoms(use_true_random=False),
)
def test_never_past_an_unfinished_record_and_always_to_the_end(gaps, order):
    started = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    offsets = PartitionOffsets()
    for offset in started:
        offsets.started(offset)
    left = list(started)
    order.shuffle(left)
    while left:
        offsets.finished(left.pop())
        assert offsets.committable() == (min(left) if left else started[-1] + 1)
    assert offsets.span == 0


def test_the_commit_carries_the_leader_epoch_of_the_record_before_it():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0])
    tickets = [ledger.started(P0, offset, 1, leader_epoch=offset // 2) for offset in range(6)]
    for ticket in tickets[:3]:
        assert ledger.finished(ticket)
    assert ledger.to_commit() == {P0: Commit(epoch=1, offset=3, leader_epoch=1)}


def test_only_what_advanced_is_committed_again():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0, P1])
    first, second = ledger.started(P0, 5, 1), ledger.started(P1, 7, 1)
    assert ledger.to_commit() == {}
    ledger.finished(first)
    ledger.committed(ledger.to_commit())
    assert ledger.to_commit() == {}
    ledger.finished(second)
    assert set(ledger.to_commit()) == {P1}


def test_results_of_an_old_epoch_are_ignored_but_free_their_slot():
    ledger = OffsetLedger(FlowLimits(max_bytes=200))
    ledger.assign([P0])
    old = ledger.started(P0, 5, 100)
    ledger.assign([P0])
    new = ledger.started(P0, 5, 100)
    assert (ledger.in_flight, ledger.room()) == (2, 0)
    assert not ledger.finished(old)
    assert (ledger.position(P0), ledger.room()) == (5, 63)
    assert ledger.finished(new)
    assert (ledger.position(P0), ledger.in_flight, ledger.room()) == (6, 0, 64)


def test_a_commit_of_an_old_epoch_does_not_hide_what_the_new_one_has_to_say():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0])
    ledger.finished(ledger.started(P0, 5, 1))
    late = ledger.to_commit()
    ledger.assign([P0])
    ledger.finished(ledger.started(P0, 5, 1))
    ledger.committed(late)
    assert ledger.to_commit()[P0].offset == 6


def test_records_of_partitions_that_are_not_ours_are_not_taken():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0])
    ledger.forget([P0])
    assert ledger.started(P0, 1, 1) is None
    assert ledger.in_flight == 0


def test_an_abandoned_record_frees_its_slot_and_holds_back_the_commit():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0])
    first, second = ledger.started(P0, 0, 9), ledger.started(P0, 1, 9)
    ledger.abandoned(first)
    ledger.finished(second)
    assert (ledger.in_flight, ledger.room()) == (0, 64)
    assert ledger.position(P0) == 0


def test_offsets_that_go_backwards_begin_a_new_epoch():
    ledger = OffsetLedger(FlowLimits())
    ledger.assign([P0])
    before = ledger.started(P0, 100, 1)
    again = ledger.started(P0, 40, 1)
    assert not ledger.finished(before)
    assert ledger.finished(again)
    assert ledger.position(P0) == 41


@pytest.mark.parametrize(
    ("limits", "sizes", "room", "blocked", "why"),
    [
        (FlowLimits(3, 1000, 10), [1, 1], 1, set(), "one slot left"),
        (FlowLimits(2, 1000, 10), [1, 1], 0, {P0, P1}, "no slot left: nobody is read"),
        (FlowLimits(9, 1000, 10), [600, 400], 0, {P0, P1}, "no bytes left"),
        (FlowLimits(9, 1000, 2), [1, 1], 7, {P0}, "one partition ran too far ahead"),
    ],
)
def test_intake_stops_when_a_bound_is_met(limits, sizes, room, blocked, why):
    ledger = OffsetLedger(limits)
    ledger.assign([P0, P1])
    for offset, size in enumerate(sizes):
        ledger.started(P0, offset, size)
    assert (ledger.room(), ledger.blocked()) == (room, blocked), why


class Ledger(RuleBasedStateMachine):
    """Any order of taking, finishing, abandoning, committing and reassigning."""

    def __init__(self):
        super().__init__()
        self.limits = FlowLimits(8, 500, 6)
        self.ledger = OffsetLedger(self.limits)
        self.log_end = Counter()
        self.position = {}
        self.open = {}
        self.durable = {P0: set(), P1: set()}  # offsets whose result is acknowledged, in any epoch
        self.broker = {P0: 0, P1: 0}  # what the group has committed

    @rule(partition=st.sampled_from([P0, P1]))
    def assign(self, partition):
        self.ledger.assign([partition])
        self.position[partition] = self.broker[partition]

    @rule(partition=st.sampled_from([P0, P1]))
    def forget(self, partition):
        self.ledger.forget([partition])
        self.position.pop(partition, None)

    @precondition(lambda self: self.position)
    @rule(data=st.data(), size=st.integers(0, 200), gap=st.integers(0, 2))
    def start(self, data, size, gap):
        partition = data.draw(st.sampled_from(sorted(self.position)))
        if partition in self.ledger.blocked():
            return
        offset = self.position[partition]
        ticket = self.ledger.started(partition, offset, size)
        self.open[ticket] = size
        self.durable[partition] |= set(range(offset + 1, offset + 1 + gap))  # no records there
        self.position[partition] = offset + 1 + gap

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.open, key=lambda t: (t.partition, t.epoch, t.offset))))
        del self.open[ticket]
        self.durable[ticket.partition].add(ticket.offset)
        assert self.ledger.finished(ticket) == self.ledger.is_current(ticket)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abandon(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.open, key=lambda t: (t.partition, t.epoch, t.offset))))
        del self.open[ticket]
        self.ledger.abandoned(ticket)

    @rule(refused=st.booleans())
    def commit(self, refused):
        commits = self.ledger.to_commit()
        if not refused:
            self.broker.update({partition: commit.offset for partition, commit in commits.items()})
            self.ledger.committed(commits)

    @invariant()
    def nothing_below_a_commit_is_lost(self):
        for partition, offset in self.broker.items():
            assert self.durable[partition] >= set(range(offset))

    @invariant()
    def slots_and_bytes_are_those_of_the_open_records(self):
        assert self.ledger.in_flight == len(self.open) <= self.limits.max_in_flight
        full = sum(self.open.values()) >= self.limits.max_bytes
        assert self.ledger.room() == (0 if full else self.limits.max_in_flight - len(self.open))

    @invariant()
    def the_span_is_bounded(self):
        for partition in self.position:
            lowest = self.ledger.position(partition)
            span = 0 if lowest is None else self.position[partition] - lowest
            assert span <= self.limits.max_span + 2 + 2, "and a gap after the last record"


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = Ledger.TestCase
