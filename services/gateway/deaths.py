"""Documents that end the gateway itself, found across restarts and owners. Decides only; knows no Kafka.

A gateway that dies leaves no dead letter, and whoever has its partitions next reads the same document and
dies of it too. What we know of a partition is therefore kept where the next owner looks anyway: in the note
that the group keeps with each committed offset.

- While somebody works on a partition its note is open; who leaves in order closes it. Who finds an open
  note counts a death.
- After a death the partition is watched: before records are begun, the note says up to which offset.
- After another death, if one of the records that had been begun is still not done, it is read with care:
  one record of such partitions at a time and nothing beside it. Before each one the note names it as the
  suspect and counts its tries. A suspect with `max_tries` of them is given up without another one.
- All is forgotten when the offsets have passed what had been begun.

A gateway may be killed for reasons that no document has, and two in a row go far: so only tries that a
document had for itself are held against it. In normal running all this costs a commit when records of a
partition first come. A note that cannot be read, such as one of somebody else's, says nothing.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from services.gateway.offsets import Partition

VERSION = 1
CAREFUL_AFTER = 2
"""Deaths, from which on we read with care."""


@dataclass(frozen=True)
class Note:
    """What is known of a partition.

    open: somebody works on it. deaths: how often somebody died at it. begun: no record from this offset on
    was begun before the last death. suspect: the record that was begun alone, -1 for none; tries: how often.
    """

    open: bool = False
    deaths: int = 0
    begun: int = 0
    suspect: int = -1
    tries: int = 0

    def written(self) -> str:
        """As it is kept by the group: what differs from an empty note, in JSON."""
        empty = asdict(Note())
        told = {name: value for name, value in asdict(self).items() if value != empty[name]}
        return json.dumps({"v": VERSION, **told}, separators=(",", ":"))


def read(text: str) -> Note:
    """The note that was kept; an empty one if this is none of ours."""
    try:
        found = json.loads(text)
        known = found.pop("v") == VERSION and all(
            type(value) is type(getattr(Note(), name)) for name, value in found.items()
        )
        return Note(**found) if known else Note()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Note()


@dataclass
class _Case:
    """A partition of ours. `until`: when our offset has come so far, its deaths are forgotten."""

    note: Note
    until: int
    careful: bool = False


class DeathGuard:
    """What is known of our partitions. `reach`: how many offsets beyond a commit may have been begun."""

    def __init__(self, max_tries: int, reach: int) -> None:
        self._max_tries = max_tries
        self._reach = reach
        self._cases: dict[Partition, _Case] = {}

    def unknown(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Of which the group's note was not read yet."""
        return sorted(set(partitions) - self._cases.keys())

    def learned(self, partition: Partition, offset: int, text: str) -> None:
        """The group's note says `text`, and reading begins at `offset`. To be committed before it begins."""
        note = read(text)
        if note.open:
            passed = 0 < note.begun <= offset
            note = Note(deaths=1) if passed else replace(note, deaths=note.deaths + 1)
        if note.suspect < offset:
            note = replace(note, suspect=-1, tries=0)
        careful = note.deaths >= CAREFUL_AFTER and note.begun > offset
        until = note.begun if careful else offset + self._reach
        self._cases[partition] = _Case(replace(note, open=True), until, careful)

    def begins(self, partition: Partition, offset: int) -> bool:
        """A record is about to be begun; True when the note changed and must be committed first."""
        case = self._cases.get(partition)
        if case is None or case.careful or not case.note.deaths or offset < case.note.begun:
            return False
        case.note = replace(case.note, begun=offset + 1)
        return True

    def reached(self, partition: Partition, offset: int, end: int | None = None) -> None:
        """All below `offset` is done; `end` is where the log ends, if that is known."""
        case = self._cases.get(partition)
        if case is not None and case.note.deaths and (offset >= case.until or offset == end):
            case.note, case.careful = Note(open=True), False

    def begins_alone(self, partition: Partition, offset: int) -> bool:
        """The suspect is about to be begun, to be committed first; False: it had its tries."""
        case = self._cases[partition]
        tries = case.note.tries if case.note.suspect == offset else 0
        if tries >= self._max_tries:
            return False
        case.note = replace(case.note, suspect=offset, tries=tries + 1)
        return True

    def survived(self, partition: Partition, offset: int) -> None:
        """The suspect is done, and we are alive."""
        case = self._cases.get(partition)
        if case is not None and case.note.suspect == offset:
            case.note = replace(case.note, suspect=-1, tries=0)

    def note(self, partition: Partition) -> str:
        """What is to be kept with an offset while we work on the partition."""
        case = self._cases.get(partition)
        return (Note(open=True) if case is None else case.note).written()

    def parting_note(self, partition: Partition) -> str:
        """What is to be kept when we leave it in order: a try that we gave up does not count."""
        case = self._cases.get(partition)
        note = Note() if case is None else case.note
        tries = max(0, note.tries - 1)
        return replace(note, open=False, tries=tries, suspect=note.suspect if tries else -1).written()

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These are ours no more."""
        for partition in partitions:
            self._cases.pop(partition, None)

    def is_careful(self, partition: Partition) -> bool:
        """Whether its records are begun one at a time."""
        return partition in self._cases and self._cases[partition].careful

    @property
    def careful(self) -> frozenset[Partition]:
        """Partitions that are read with care; while there are any, the others must wait."""
        return frozenset(partition for partition, case in self._cases.items() if case.careful)
