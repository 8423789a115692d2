import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.deaths import DeathGuard, Note, read

P0, P1 = ("ocr.jobs", 0), ("ocr.jobs", 1)
REACH = 10


class Group:
    """What the group keeps of one partition, and gateways that work on it one after the other.

    Each life reads `ahead` records at once; one of `poison` ends it, or somebody from outside.
    """

    def __init__(self, length, poison=(), ahead=4, tries=3):
        self.length, self.poison, self.ahead, self.tries = length, set(poison), ahead, tries
        self.offset, self.note = 0, ""
        self.begun, self.given_up, self.alone = [], [], []

    def life(self, most=None):
        """True when the end is reached, False when it died; it is killed after `most` records."""
        guard = DeathGuard(self.tries, REACH)
        at = self.offset
        while at < self.length:
            batch = range(at, min(at + self.ahead, self.length))
            if guard.unknown([P0]):
                guard.learned(P0, at, self.note)
                self.note = guard.note(P0)
            for offset in batch:
                if guard.begins(P0, offset):
                    self.note = guard.note(P0)
            if not guard.is_careful(P0) and self.poison & set(batch):
                return False
            for offset in batch:
                most = None if most is None else most - 1
                if not self.one(guard, offset, killed=most == -1):
                    return False
            at = batch[-1] + 1
        self.note = guard.parting_note(P0)
        return True

    def one(self, guard, offset, *, killed=False):
        if guard.is_careful(P0):
            if not guard.begins_alone(P0, offset):
                self.given_up.append(offset)
                return self.done(guard, offset)
            self.note = guard.note(P0)
            self.alone.append(offset)
        if killed or offset in self.poison:
            return False
        self.begun.append(offset)
        return self.done(guard, offset)

    def done(self, guard, offset):
        guard.survived(P0, offset)
        guard.reached(P0, offset + 1)
        self.offset, self.note = offset + 1, guard.note(P0)
        return True

    def lives(self, limit=60):
        for number in range(1, limit + 1):
            if self.life():
                return number
        raise AssertionError(f"still dying after {limit} lives at {self.offset}: {self.note}")


def test_one_document_that_kills_is_given_up_after_its_tries_and_its_neighbours_are_read():
    group = Group(12, poison=[5])
    assert group.lives() == 2 + 3 + 1, "two deaths in company, three alone, then it goes on"
    assert group.given_up == [5]
    assert set(group.begun) == set(range(12)) - {5}


def test_two_that_kill_are_both_given_up():
    group = Group(20, poison=[3, 4, 15])
    group.lives()
    assert group.given_up == [3, 4, 15]
    assert set(group.begun) == set(range(20)) - {3, 4, 15}


@given(
    length=st.integers(1, 40),
    poison=st.sets(st.integers(0, 39), max_size=4),
    ahead=st.integers(1, REACH),
    tries=st.integers(1, 4),
)
def test_given_up_is_exactly_what_kills(length, poison, ahead, tries):
    group = Group(length, poison, ahead, tries)
    group.lives()
    assert group.given_up == sorted(offset for offset in poison if offset < length)
    assert set(group.begun) | set(group.given_up) == set(range(length))


@given(kills=st.lists(st.integers(0, 12), max_size=30))
def test_a_gateway_that_is_killed_again_and_again_gives_up_nothing_that_gets_further(kills):
    """Whoever kills does not care what is read: in one life of three at the latest, something gets done."""
    group = Group(60)
    for number, most in enumerate(kills):
        group.life(max(1, most) if number % 3 == 2 else most)
    assert group.life()
    assert group.given_up == []


def test_in_normal_running_nothing_is_read_with_care_and_nothing_is_said_before_records_begin():
    guard = DeathGuard(3, REACH)
    guard.learned(P0, 7, "")
    assert not any(guard.begins(P0, offset) for offset in range(7, 100))
    assert (guard.note(P0), guard.parting_note(P0)) == ('{"v":1,"open":true}', '{"v":1}')


def test_who_leaves_in_order_is_no_death_and_what_is_known_is_handed_on():
    before, after = DeathGuard(3, REACH), DeathGuard(3, REACH)
    before.learned(P0, 5, Note(open=True, deaths=1, begun=9).written())
    assert before.careful == {P0}
    assert before.begins_alone(P0, 5)
    after.learned(P0, 5, before.parting_note(P0))
    assert after.careful == {P0}
    assert read(after.note(P0)) == Note(open=True, deaths=2, begun=9), "a try that was broken off is none"


def test_a_partition_is_watched_until_all_is_done_that_could_have_been_the_reason():
    guard = DeathGuard(3, REACH)
    guard.learned(P0, 5, Note(open=True).written())
    assert [guard.begins(P0, 5), guard.begins(P0, 6), guard.begins(P0, 6)] == [True, True, False]
    guard.reached(P0, 5 + REACH - 1)
    assert guard.begins(P0, 14)
    guard.reached(P0, 5 + REACH)
    assert not guard.begins(P0, 15)


def test_a_partition_that_was_read_to_its_end_is_watched_no_more():
    guard = DeathGuard(3, REACH)
    guard.learned(P0, 5, Note(open=True).written())
    guard.reached(P0, 6, end=8)
    assert guard.begins(P0, 7)
    guard.reached(P0, 8, end=8)
    assert not guard.begins(P0, 8)


@pytest.mark.parametrize(
    "text",
    [
        "", "not json", "7", "[]", "null", '{"v":2,"open":true}', '{"open":true}', '{"v":1,"deaths":"many"}',
        '{"v":1,"open":1}', '{"v":1,"more":3}', "[" * 4000, '{"v":1,"deaths":9',
    ],
)  # fmt: skip
def test_a_note_that_cannot_be_read_says_nothing(text):
    assert read(text) == Note()


@given(st.builds(Note, st.booleans(), *[st.integers(-1, 2**63 - 1)] * 4))
def test_a_note_is_read_as_it_was_written_and_is_small(note):
    assert read(note.written()) == note
    assert len(note.written()) < 200


def test_what_left_is_not_remembered():
    guard = DeathGuard(3, REACH)
    guard.learned(P0, 5, Note(open=True, deaths=3, begun=9).written())
    guard.forget([P0])
    assert (guard.careful, guard.unknown([P1, P0])) == (frozenset(), [P0, P1])
