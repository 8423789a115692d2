from hypothesis import given
from hypothesis import strategies as st

from services.gateway.jobs import Message
from services.gateway.offsets import Commit, FlowLimits, OffsetLedger
from services.gateway.outbox import Outbox, OutboxLimits

P0, P1 = ("ocr.jobs", 0), ("ocr.jobs", 1)


def message(size=10):
    return Message("ocr.results", None, b"x" * size, ())


class Desk:
    """An outbox over two partitions, and a ticket for each offset."""

    def __init__(self, count=5, limits=None, flow=None):
        self.ledger = OffsetLedger(flow or FlowLimits())
        self.ledger.assign([P0, P1])
        self.outbox = Outbox(self.ledger, limits or OutboxLimits())
        self.tickets = {
            (p, n): self.ledger.started(p, n, 100, leader_epoch=n) for p in (P0, P1) for n in range(count)
        }

    def put(self, partition, *offsets, size=10):
        for offset in offsets:
            self.outbox.put(self.tickets[partition, offset], message(size))

    def commit(self, batch):
        for ticket, _ in batch.answers:
            self.outbox.withdraw(ticket)
            self.ledger.finished(ticket)
        self.ledger.committed(batch.commits)


def offsets(batch):
    return [(ticket.partition[1], ticket.offset) for ticket, _ in batch.answers]


def test_nothing_goes_while_the_lowest_record_has_no_answer():
    desk = Desk()
    desk.put(P0, 1, 2, 3)
    assert (desk.outbox.wait(0.0), desk.outbox.take(0.0), len(desk.outbox)) == (None, None, 3)


def test_a_transaction_takes_what_lies_below_the_first_gap_of_each_partition():
    desk = Desk()
    desk.put(P0, 1, 0, 3)
    desk.put(P1, 0)
    batch = desk.outbox.take(0.0)
    assert offsets(batch) == [(0, 0), (0, 1), (1, 0)]
    assert batch.commits == {P0: Commit(1, 2, leader_epoch=1), P1: Commit(2, 1, leader_epoch=0)}


def test_what_was_not_committed_is_taken_again_with_what_came_meanwhile():
    desk = Desk()
    desk.put(P0, 0)
    desk.outbox.take(0.0)
    desk.put(P0, 1)
    assert offsets(desk.outbox.take(1.0)) == [(0, 0), (0, 1)]


def test_an_answer_does_not_wait_when_there_was_no_transaction_just_before():
    desk = Desk(limits=OutboxLimits(interval_s=0.1))
    desk.put(P0, 0)
    assert desk.outbox.wait(5.0) == 0.0
    desk.commit(desk.outbox.take(5.0))
    desk.put(P0, 1)
    assert abs(desk.outbox.wait(5.04) - 0.06) < 1e-9
    assert desk.outbox.wait(5.2) == 0.0


def test_many_or_large_answers_do_not_wait_for_the_interval():
    desk = Desk(limits=OutboxLimits(interval_s=0.1, max_messages=2, max_bytes=100))
    desk.put(P0, 0)
    desk.commit(desk.outbox.take(0.0))
    desk.put(P0, 1, 2, 3)
    assert desk.outbox.wait(0.0) == 0.0
    batch = desk.outbox.take(0.0)
    assert (offsets(batch), batch.commits[P0].offset) == ([(0, 1), (0, 2)], 3)
    desk.commit(batch)
    desk.put(P0, 4, size=95)
    assert desk.outbox.wait(0.0) == 0.0, "two that are too large together"
    assert offsets(desk.outbox.take(0.0)) == [(0, 3)]


def test_an_answer_larger_than_a_transaction_goes_by_itself():
    desk = Desk(limits=OutboxLimits(max_bytes=50))
    desk.put(P0, 0, 1, size=80)
    assert offsets(desk.outbox.take(0.0)) == [(0, 0)]


def test_no_partition_waits_for_another_that_always_has_answers():
    desk = Desk(limits=OutboxLimits(max_messages=1))
    desk.put(P0, 0, 1)
    desk.put(P1, 0)
    first = desk.outbox.take(0.0)
    desk.commit(first)
    assert offsets(first) + offsets(desk.outbox.take(0.0)) == [(0, 0), (1, 0)]


def test_the_answers_of_a_refused_transaction_go_one_by_one():
    desk = Desk()
    desk.put(P0, 0, 1)
    desk.outbox.refused(desk.outbox.take(0.0))
    desk.put(P0, 2, 3)
    gone = []
    while (batch := desk.outbox.take(0.0)) is not None:
        gone.append(offsets(batch))
        desk.commit(batch)
    assert gone == [[(0, 0)], [(0, 1)], [(0, 2), (0, 3)]]


def test_answers_to_records_of_a_partition_that_has_left_stay_here():
    desk = Desk()
    desk.put(P0, 0)
    desk.ledger.forget([P0])
    assert desk.outbox.take(0.0) is None
    desk.ledger.assign([P0])
    desk.ledger.started(P0, 0, 1)
    assert desk.outbox.take(0.0) is None, "the answer is one of an earlier assignment"


def test_held_answers_need_memory_and_no_slot():
    desk = Desk(count=2, flow=FlowLimits(max_in_flight=4, max_bytes=10_000))
    assert desk.ledger.room() == 0
    desk.put(P0, 1, size=5000)
    assert desk.ledger.room() == 1
    desk.put(P0, 0, size=5000)
    assert desk.ledger.room() == 0, "all bytes are used"
    desk.commit(desk.outbox.take(0.0))
    assert (desk.ledger.room(), desk.ledger.in_flight) == (2, 2)


@given(
    order=st.permutations([(p, n) for p in (P0, P1) for n in range(6)]),
    script=st.lists(st.sampled_from(["put", "put", "commit", "fail", "refuse", "reassign"]), max_size=40),
    most=st.integers(1, 4),
)
def test_whatever_happens_each_answer_is_committed_once_and_in_order(order, script, most):
    """The broker's view: answers and offsets move together, never over a gap, never twice."""
    desk = Desk(count=6, limits=OutboxLimits(max_messages=most))
    written, committed, left = [], {P0: 0, P1: 0}, list(order)

    def begin_anew():
        desk.ledger.assign([P0, P1])
        for old in desk.tickets.values():
            desk.outbox.withdraw(old)
        left[:] = [(p, n) for p, n in order if n >= committed[p]]
        desk.tickets = {(p, n): desk.ledger.started(p, n, 100) for p, n in sorted(left)}

    for step in [*script, *["put"] * 12, *["commit"] * 12]:
        if step == "put" and left:
            desk.put(*left.pop())
        elif step == "reassign":
            begin_anew()
        elif step in ("commit", "fail", "refuse") and (batch := desk.outbox.take(0.0)) is not None:
            if step == "refuse":
                desk.outbox.refused(batch)
            elif step == "commit":
                for ticket, _ in batch.answers:
                    assert ticket.offset == committed[ticket.partition]
                    committed[ticket.partition] += 1
                    written.append((ticket.partition, ticket.offset))
                assert {p: c.offset for p, c in batch.commits.items()}.items() <= committed.items()
                desk.commit(batch)
    assert sorted(written) == sorted(order)
