"""The JSON form of the contract: jobs that come in and results that go out through Kafka.

One set of rules turns the messages of `ocr.proto` into JSON, and the same rules, applied to the
definitions, give the JSON Schemas (`protos/schemas.py`). They follow the protobuf JSON mapping but for
three things made for people who read results with ordinary tools:

1. A `Point` is `[x, y]`.
2. Enum values that label a result are words in lower case (`"ok"`); error codes and priorities keep
   their names (`"EMPTY_INPUT"`, `"BULK"`).
3. Numbers and lists are always present; a message that is absent is `null`.
"""

import base64
import json
import re
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from services.common.errors import InvalidJob, UnsupportedFormat
from services.common.pb import ocr_pb2 as pb

LOWER_CASE_ENUMS = frozenset({"ocr.v1.Status"})
_JSON_TYPES: dict[int, type | tuple[type, ...]] = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: str,
    FieldDescriptor.TYPE_ENUM: str,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_FLOAT: (int, float),
}
_SHA256 = re.compile("[0-9a-fA-F]{64}")
_DOCUMENT_TYPES = ("", "application/pdf", "application/octet-stream", "binary/octet-stream")
FLOAT_DIGITS = 7
"""Significant digits of a 32-bit float that are worth printing; json would print 17 of a double."""


def to_dict(message: Message) -> dict[str, Any]:
    """The JSON form of `message` as plain Python values."""
    return {
        name: read(message)
        for name, in_oneof, read in _plan(cast("Descriptor", message.DESCRIPTOR))
        if not in_oneof or message.HasField(name)  # a member of a `oneof` appears only when it is set
    }


_Read = Callable[[Message], Any]
"""From a message to the JSON form of one of its fields."""


@cache
def _plan(kind: Descriptor) -> tuple[tuple[str, bool, _Read], ...]:
    """For each field of a kind of message: its name, whether it is in a `oneof`, and how it is read.

    A result has hundreds of fields; to ask the definitions about each of them again took most of the time.
    """
    fields = cast("list[FieldDescriptor]", kind.fields)
    return tuple((field.name, field.containing_oneof is not None, _reader(field)) for field in fields)


def _reader(field: FieldDescriptor) -> _Read:
    get, form, name = attrgetter(field.name), _form(field), field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda message: dict(sorted(get(message).items()))
    if field.is_repeated:
        return lambda message: [form(item) for item in get(message)]
    if field.message_type is not None:
        return lambda message: form(get(message)) if message.HasField(name) else None
    return lambda message: form(get(message))


def _form(field: FieldDescriptor) -> Callable[[Any], Any]:
    """What makes the JSON form of one value of a field."""
    if field.message_type is not None:
        return _point if field.message_type.full_name == pb.Point.DESCRIPTOR.full_name else to_dict
    if field.enum_type is not None:
        return partial(enum_word, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        raise TypeError(f"{field.full_name}: bytes are not part of any result")
    return _number if field.type == FieldDescriptor.TYPE_FLOAT else _as_it_is


def _point(point: pb.Point) -> list[float]:
    return [_number(point.x), _number(point.y)]


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: float) -> float:
    return float(f"{value:.{FLOAT_DIGITS}g}")


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """The word that stands for an enum value in JSON."""
    name: str = enum.values_by_number[number].name
    return name.lower() if enum.full_name in LOWER_CASE_ENUMS else name


def result_to_json(result: pb.Result) -> bytes:
    """One JSON object in UTF-8, without a line break."""
    return json.dumps(to_dict(result), ensure_ascii=False, separators=(",", ":")).encode()


def job_from_json(value: bytes) -> pb.Job:
    """Read a job; strict, since a misspelt option that is passed over is a wrong answer later.

    Raises:
        InvalidJob: not JSON, an unknown field, a wrong type, or not exactly one of `content` and `uri`.
        UnsupportedFormat: see `check_job`.
    """
    try:
        found = json.loads(value.decode())
        _check_fields(found, cast("Descriptor", pb.Job.DESCRIPTOR), "the job")
        job = json_format.ParseDict(found, pb.Job())
    except UnicodeDecodeError as error:
        raise InvalidJob(f"the job is not UTF-8: {error}; send it as JSON in UTF-8") from None
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise InvalidJob(f"the job does not follow job.schema.json: {error}") from None
    return check_job(job)


def _check_fields(found: Any, message: Descriptor, where: str) -> None:
    """Refuse what protobuf's parser would let pass: other spellings, null, text for a number, poor base64.

    Raises:
        InvalidJob: with the name of the field.
    """
    if not isinstance(found, dict):
        raise InvalidJob(f"{where} must be a JSON object, not {type(found).__name__}")
    for name, value in found.items():
        field = message.fields_by_name.get(name)
        if field is None:
            known = ", ".join(message.fields_by_name)
            raise InvalidJob(f"{where} has no field {name!r}; known are {known}")
        if field.message_type is not None:
            _check_fields(value, field.message_type, name)
        else:
            _check_value(value, field)


def _check_value(value: Any, field: FieldDescriptor) -> None:
    if isinstance(value, bool) or not isinstance(value, _JSON_TYPES[field.type]):
        raise InvalidJob(f"{field.name} has a {type(value).__name__}, which is not what job.schema.json says")
    if field.type == FieldDescriptor.TYPE_BYTES:
        try:
            base64.b64decode(str(value), validate=True)
        except ValueError as error:
            raise InvalidJob(f"{field.name} is not base64: {error}") from None


def check_job(job: pb.Job) -> pb.Job:
    """The rules of a job that types alone cannot express, the same at both doors; gives the job back.

    A source without bytes passes: that is an empty document, not a wrong job.

    Raises:
        InvalidJob: no source, an option out of range, or a sha256 that is none.
        UnsupportedFormat: the job says that its document is of a type that is not read here.
    """
    if job.WhichOneof("source") is None:
        raise InvalidJob("the job has neither `content` nor `uri`; give exactly one")
    if not 0 <= job.options.min_confidence <= 1:
        raise InvalidJob(f"options.min_confidence is {job.options.min_confidence}; it must lie in 0 to 1")
    if job.options.priority not in pb.Priority.values():
        raise InvalidJob(f"options.priority is {job.options.priority}; known are {pb.Priority.keys()}")
    if job.sha256 and not _SHA256.fullmatch(job.sha256):
        raise InvalidJob(f"sha256 is {job.sha256[:80]!r}; it must have 64 hexadecimal digits")
    check_document_type(job.content_type)
    return job


def check_document_type(content_type: str) -> None:
    """Raise `UnsupportedFormat` for a media type that is not read here; with none said the bytes decide."""
    kind = media_type(content_type)
    if kind not in _DOCUMENT_TYPES and not kind.startswith("image/"):
        raise UnsupportedFormat(
            f"content-type {content_type[:80]!r} is not read here; send image/*, application/pdf, "
            "application/octet-stream, or a job as application/json"
        )


def media_type(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.split(";")[0].strip().lower()
