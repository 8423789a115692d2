"""`ocrctl dlq`: look at dead letters, and send them back to where they came from.

What was sent back is noted, letter by letter, in a topic beside the dead letters, after the broker has the
job and before the next one is sent. A command that is killed between the two will send that one letter again;
its result has the same key both times.
"""

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.cells import cell_len

from services.cli import dead_letters
from services.cli.dead_letters import Filter, Letter, RawRecord
from services.cli.errors import CliError, ExitCode, UsageError, printable
from services.cli.formats import Format, as_line
from services.cli.kafka_client import Kafka, Topics, create_notes
from services.cli.output import complain, echo, require_output
from services.cli.state import Address

COLUMNS = ("letter", "time (UTC)", "reason", "job", "bytes", "redrives", "", "message")


@dataclass(frozen=True)
class Pace:
    """How many a second; None: as many as go. Told the time, in seconds of any clock."""

    per_s: float | None
    began: float

    def wait(self, sent: int, now: float) -> float:
        """Seconds to wait before the one after `sent`."""
        return 0.0 if self.per_s is None else max(0.0, self.began + sent / self.per_s - now)


class Box:
    """The dead letters of one topic, and the notes of what was sent back."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka = kafka
        self.topic = topic
        self.notes_topic = dead_letters.redriven_topic(topic)
        has_notes = kafka.has_topic(self.notes_topic)
        self.redriven = dead_letters.notes_from(kafka.records(self.notes_topic)) if has_notes else {}

    def letters(self, wanted: Filter, limit: int | None = None) -> list[Letter]:
        """Those that are meant, the oldest first."""
        since_ms = None if wanted.since is None else int(wanted.since.timestamp() * 1000)
        found = map(dead_letters.letter, self._kafka.records(self.topic, since_ms=since_ms))
        return dead_letters.chosen(filter(wanted.takes, found), limit)

    def originals(self, letters: Sequence[Letter]) -> Iterator[tuple[Letter, RawRecord | None]]:
        """Each letter with its record as it was on the jobs topic; None where its value is gone."""
        by_place = {found.place: found for found in letters}
        starts: dict[int, int] = {}
        for partition, offset in map(dead_letters.place_of, by_place):
            starts[partition] = min(offset, starts.get(partition, offset))
        records = self._kafka.records(self.topic, starts=starts) if by_place else iter(())
        for record in records:
            if (found := by_place.pop(record.place, None)) is not None:
                yield found, self.original(found, record)
            if not by_place:
                return
        yield from ((found, None) for found in by_place.values())

    def original(self, found: Letter, record: RawRecord) -> RawRecord | None:
        """The record as it was on the jobs topic, fetched from there when its value did not fit here."""
        if not found.dropped:
            headers = dead_letters.own_headers(record.headers)
            return RawRecord(
                found.origin_topic, found.origin_partition, found.origin_offset, record.timestamp_ms,
                record.key, record.value, headers,
            )  # fmt: skip
        return self._kafka.record_at(found.origin_topic, found.origin_partition, found.origin_offset)


def show_list(kafka: Kafka, topic: str, wanted: Filter, limit: int | None, form: Format) -> None:
    """Print the letters that are meant."""
    require_output()
    box = Box(kafka, topic)
    letters = box.letters(wanted, limit)
    if form is Format.JSONL:
        for found in letters:
            echo(as_line(dead_letters.as_record(found, box.redriven.get(found.mark))))
        return
    _print_table(letters, box)
    complain(printable(f"{len(letters)} dead letters: {dead_letters.reasons(letters) or 'none'}"))


def _print_table(letters: Sequence[Letter], box: Box) -> None:
    """A letter a line; the last column is as long as it is, so that lines can be searched and cut."""
    rows = [list(COLUMNS)] if letters else []
    rows += [dead_letters.as_row(found, box.redriven.get(found.mark)) for found in letters]
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        echo("  ".join((*padded[:-1], row[-1])))


def show_one(kafka: Kafka, topic: str, place: str, form: Format, save: Path | None) -> None:
    """Print one letter with all its headers; `save` takes the bytes of its document."""
    require_output()
    partition, offset = dead_letters.place_of(place)
    record = kafka.record_at(topic, partition, offset)
    if record is None:
        raise CliError(f"There is no letter {place} in {topic}, or no longer; `ocrctl dlq list` shows them.")
    found, box = dead_letters.letter(record), Box(kafka, topic)
    original = box.original(found, record)
    said = dead_letters.as_record(found, box.redriven.get(found.mark))
    if form is Format.JSONL:
        echo(as_line({**said, "headers": {name: _text(value) for name, value in record.headers}}))
    else:
        _print_one(found, record, original, box)
    if save is not None:
        _save(save, place, original)


def _print_one(found: Letter, record: RawRecord, original: RawRecord | None, box: Box) -> None:
    key = "none" if record.key is None else _text(record.key)
    facts = {
        "letter": f"{box.topic} {found.place}",
        "written": found.time.isoformat(),
        "reason": f"{found.reason}: {found.message}",
        "from": f"{found.origin_topic} {found.origin_partition}:{found.origin_offset}",
        "job": found.job_id,
        "key": key,
        "sent back": f"{found.redrives} times before; this letter {box.redriven.get(found.mark, 'not yet')}",
        "value": _value(found, original),
    }
    for name, fact in facts.items():
        echo(f"{name:10} {printable(fact)}")
    for header, value in record.headers:
        echo(f"  {printable(header)}: {printable(_text(value))}")


def _value(found: Letter, original: RawRecord | None) -> str:
    from services.common.images import sniff

    if original is None or original.value is None:
        gone = "and it is no longer at its origin" if found.dropped else ""
        return f"none here {gone}".strip()
    kind = sniff(original.value) or "no known format"
    where = " (at the origin; it did not fit here)" if found.dropped else ""
    return f"{len(original.value)} bytes{where}, {kind}: {dead_letters.beginning(original.value)}"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _save(path: Path, place: str, original: RawRecord | None) -> None:
    if original is None or original.value is None:
        raise CliError(f"Letter {place} has no value, so there is nothing to save.")
    try:
        with path.open("xb") as file:
            file.write(original.value)
    except FileExistsError:
        raise UsageError(f"{path} is there already; name another file.") from None
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from None


# -- sending back


@dataclass(frozen=True)
class Redrive:
    """What to send back, and how."""

    wanted: Filter
    limit: int | None = None
    max_redrives: int = 3
    per_s: float | None = None
    dry_run: bool = False
    sure: bool = False
    """Do not ask."""


def redrive(kafka: Kafka, address: Address, topics: Topics, asked: Redrive) -> ExitCode:
    """Send letters back to the jobs topic; letters that were sent back before are passed over."""
    box = Box(kafka, topics.dead_letters)
    found = box.letters(asked.wanted)
    fresh = [one for one in found if one.mark not in box.redriven]
    refused = {one.place: why for one in fresh if (why := _why_not(one, topics, asked))}
    going = [one for one in fresh if one.place not in refused][: asked.limit]
    for place, why in refused.items():
        complain(printable(f"letter {place} stays: {why}"))
    what = printable(dead_letters.reasons(going) or "none")
    complain(
        f"{len(going)} dead letters to send back to {topics.jobs} ({what}); "
        f"{len(found) - len(fresh)} were sent back before, {len(refused)} stay"
    )
    if asked.dry_run or not going:
        _tell(going if asked.dry_run else (), topics)
        return ExitCode.SOME_FAILED if refused else ExitCode.OK
    if not asked.sure:
        typer.confirm("Send them back?", abort=True, err=True)
    create_notes(address, box.notes_topic)
    gone = _send_all(box, going, kafka.sender(), topics, asked)
    return ExitCode.SOME_FAILED if refused or gone else ExitCode.OK


def _why_not(found: Letter, topics: Topics, asked: Redrive) -> str | None:
    return dead_letters.why_not(found, topics.jobs, asked.max_redrives)


def _tell(going: Sequence[Letter], topics: Topics) -> None:
    for found in going:
        echo(printable(f"would send {found.place} to {topics.jobs}: {found.reason} {found.job_id}"))


def _send_all(
    box: Box,
    going: Sequence[Letter],
    send: Callable[[str, bytes | None, bytes | None, dead_letters.Headers], None],
    topics: Topics,
    asked: Redrive,
) -> int:
    """Send them; the number of those whose value is gone."""
    pace, sent, gone = Pace(asked.per_s, time.monotonic()), 0, 0
    for found, original in box.originals(going):
        if original is None:
            gone += 1
            complain(
                f"letter {found.place} stays: it is gone, or its value did not fit and its origin is gone"
            )
            continue
        time.sleep(pace.wait(sent, time.monotonic()))
        send(topics.jobs, original.key, original.value, dead_letters.job_of(found, original))
        send(box.notes_topic, *dead_letters.note_of(found, dt.datetime.now(dt.UTC)), ())
        sent += 1
        echo(printable(f"sent {found.place} to {topics.jobs}: {found.reason} {found.job_id}"))
    return gone
