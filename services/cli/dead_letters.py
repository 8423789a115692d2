"""What a dead letter says, which ones are meant, and what is sent back of them. Pure.

A dead letter is a record of the jobs topic with headers added: first those of the record, then `dlq-reason`
and more of ours. So the record's own headers are those before the last `dlq-reason`.

What was sent back cannot be told from the letter itself, for a log does not change. So each letter that was
sent back is noted in a topic of its own, `redriven_topic`, one small record a letter.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from services.cli.errors import UsageError
from services.common.pb import ocr_pb2 as pb

Headers = tuple[tuple[str, bytes], ...]

_REASON = "dlq-reason"
_REDRIVE_COUNT = "redrive-count"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class RawRecord:
    """One Kafka record. `timestamp_ms` counts from 1970, UTC."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> str:
        """Partition and offset, as an operator names a letter."""
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True)
class Letter:
    """What the headers of a dead letter say. `time` is when it was written, `size` the bytes of its value.

    `dropped`: bytes of a value that was too large for the topic and lies at the origin only; 0 if it is here.
    """

    place: str
    mark: str
    time: datetime
    reason: str
    message: str
    stage: str
    attempts: str
    job_id: str
    file: str
    origin_topic: str
    origin_partition: int
    origin_offset: int
    redrives: int
    size: int
    dropped: int


def letter(record: RawRecord) -> Letter:
    """Read a record of the dead letters. One that another program wrote there has empty fields."""
    said = {name: value.decode("utf-8", "replace") for name, value in record.headers}
    return Letter(
        place=record.place,
        mark=mark(record),
        time=datetime.fromtimestamp(max(record.timestamp_ms, 0) / 1000, UTC),
        reason=said.get(_REASON, ""),
        message=said.get("dlq-message", ""),
        stage=said.get("dlq-stage", ""),
        attempts=said.get("dlq-attempts", ""),
        job_id=said.get("dlq-job-id", ""),
        file=said.get("file", ""),
        origin_topic=said.get("dlq-origin-topic", ""),
        origin_partition=_number(said.get("dlq-origin-partition", ""), -1),
        origin_offset=_number(said.get("dlq-origin-offset", ""), -1),
        redrives=_number(said.get("dlq-redrive-count", "0"), 0),
        size=len(record.value or b""),
        dropped=_number(said.get("dlq-value-dropped", "0"), 0),
    )


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise


def mark(record: RawRecord) -> str:
    """What a letter is noted by: where it lies, and when it came, for a topic may be made anew."""
    return f"{record.topic}/{record.place}@{record.timestamp_ms}"


def redriven_topic(dead_letters: str) -> str:
    """The topic that notes which letters were sent back."""
    return f"{dead_letters}.redriven"


# -- which ones


@dataclass(frozen=True)
class Filter:
    """Which letters are meant; what is empty or None restricts nothing. `until` itself is not in."""

    places: Collection[str] = ()
    reasons: Collection[str] = ()
    job_ids: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, found: Letter) -> bool:
        """Whether this letter is meant."""
        return (
            (not self.places or found.place in self.places)
            and (not self.reasons or found.reason in self.reasons)
            and (not self.job_ids or found.job_id in self.job_ids)
            and (self.since is None or found.time >= self.since)
            and (self.until is None or found.time < self.until)
        )


def checked_filter(
    places: Iterable[str],
    reasons: Iterable[str],
    job_ids: Iterable[str],
    since: str | None,
    until: str | None,
    now: datetime,
) -> Filter:
    """The filter that the options ask for. Raises `UsageError` for a word that cannot be meant."""
    named = [place_of(place) for place in places]
    wanted = [reason.upper() for reason in reasons]
    known = pb.ErrorCode.keys()
    if unknown := [reason for reason in wanted if reason not in known]:
        raise UsageError(f"No letter has the reason {unknown[0]}; there are {', '.join(known[1:])}.")
    return Filter(
        frozenset(f"{partition}:{offset}" for partition, offset in named),
        frozenset(wanted),
        frozenset(job_ids),
        moment(since, now) if since else None,
        moment(until, now) if until else None,
    )


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset of `3:41`. Raises `UsageError`."""
    partition, _, offset = text.partition(":")
    found = _number(partition, -1), _number(offset, -1)
    if min(found) < 0:
        raise UsageError(
            f"{text!r} names no letter: write PARTITION:OFFSET, such as 0:41, as `dlq list` does."
        )
    return found


def moment(text: str, now: datetime) -> datetime:
    """`2h` (s, m, h, d) before `now`, or a date and time in ISO 8601, UTC unless it says otherwise.

    Raises `UsageError`.
    """
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS and number.isascii() and number.isdigit():
            return now - timedelta(**{_UNITS[unit]: int(number)})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is no time: write how long ago (90s, 30m, 2h, 7d), or ISO 8601 (2026-01-31T09:30Z)."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def chosen(letters: Iterable[Letter], limit: int | None) -> list[Letter]:
    """The letters by age, the oldest first, and no more than `limit`."""
    return sorted(letters, key=lambda found: (found.time, found.place))[:limit]


# -- sending back


def why_not(found: Letter, jobs_topic: str, max_redrives: int) -> str | None:
    """Why a letter is not sent back; None when it is."""
    if found.origin_topic != jobs_topic:
        return f"it came from topic {found.origin_topic or '(none)'}, not from {jobs_topic}"
    if found.redrives >= max_redrives:
        return f"it was sent back {found.redrives} times and came again; --max-redrives allows {max_redrives}"
    return None


def own_headers(headers: Headers) -> Headers:
    """The headers that the record had before it became a dead letter."""
    ours = [index for index, (name, _) in enumerate(headers) if name == _REASON]
    return headers[: ours[-1]] if ours else headers


def job_of(found: Letter, original: RawRecord) -> Headers:
    """The headers that a job is sent back with: its own, the count raised, and its id if it lay in the place.

    `original` is the record as it was on the jobs topic. An id made from where a record lies would change
    with a new place; any other stands in the header, the value or the key, which stay.
    """
    kept = tuple((name, value) for name, value in original.headers if name.lower() != _REDRIVE_COUNT)
    place = f"{found.origin_topic}-{found.origin_partition}-{found.origin_offset}"
    named = ((("job-id", found.job_id.encode()),)) if found.job_id == place else ()
    return (*kept, *named, (_REDRIVE_COUNT, str(found.redrives + 1).encode()))


# -- showing


def as_record(found: Letter, redriven: str | None) -> dict[str, Any]:
    """The JSON object of a letter. `redriven`: when it was sent back, if it was."""
    return {
        "letter": found.place,
        "time": _utc(found.time),
        "reason": found.reason,
        "message": found.message,
        "stage": found.stage,
        "attempts": _number(found.attempts, 0),
        "job_id": found.job_id,
        "file": found.file,
        "origin": {
            "topic": found.origin_topic,
            "partition": found.origin_partition,
            "offset": found.origin_offset,
        },
        "size": found.dropped or found.size,
        "value_dropped": bool(found.dropped),
        "redrives": found.redrives,
        "redriven": redriven,
    }


def _utc(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_row(found: Letter, redriven: str | None) -> list[str]:
    """The columns of a letter: place, time, reason, job, size, how often sent back, state, message."""
    state = "sent back" if redriven else ""
    size = f"{found.dropped} (not here)" if found.dropped else str(found.size)
    time = found.time.strftime("%Y-%m-%d %H:%M:%S")
    return [found.place, time, found.reason, found.job_id, size, str(found.redrives), state, found.message]


def note_of(found: Letter, now: datetime) -> tuple[bytes, bytes]:
    """Key and value of the record that notes that a letter was sent back."""
    return found.mark.encode(), json.dumps({"job_id": found.job_id, "time": _utc(now)}).encode()


def notes_from(records: Iterable[RawRecord]) -> dict[str, str]:
    """When each letter was sent back, by its mark."""
    return {(record.key or b"").decode("utf-8", "replace"): _noted(record.value) for record in records}


def _noted(value: bytes | None) -> str:
    try:
        return str(json.loads(value or b"")["time"])
    except (ValueError, LookupError, TypeError):
        return "at an unknown time"


def beginning(value: bytes, most: int = 64) -> str:
    """The first bytes of a document, as text where they are printable, else in hexadecimal."""
    head = value[:most]
    readable = head.isascii() and head.decode("ascii").isprintable()
    text = head.decode("ascii") if readable else head.hex(" ")
    return f"{text} …" if len(value) > most else text


def reasons(letters: Sequence[Letter]) -> str:
    """How many letters there are of each reason, the most frequent first."""
    counts: dict[str, int] = {}
    for found in letters:
        counts[found.reason] = counts.get(found.reason, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda c: -c[1]))
