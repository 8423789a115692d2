"""What the records of the results topic and of the dead letters say, as results of the contract."""

import json

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from services.cli.formats import failure
from services.common.pb import ocr_pb2 as pb


def result_from(value: bytes, key: str, headers: dict[str, bytes]) -> pb.Result:
    """A record of the results topic, in JSON or protobuf; what cannot be read is a failure of job `key`."""
    try:
        if b"protobuf" in headers.get("content-type", b""):
            return pb.Result.FromString(value)
        return result_from_json(value)
    except (ValueError, DecodeError) as error:
        return failure("", key, "INTERNAL", f"the result cannot be read ({error}); is it of another version?")


def result_from_json(value: bytes) -> pb.Result:
    """The inverse of `records.result_to_json`. Raises `ValueError` for anything else."""
    fields = json.loads(value)
    if not isinstance(fields, dict):
        raise ValueError("a result is a JSON object")  # noqa: TRY004  # the data is wrong, not the program
    try:
        fields["status"] = pb.Status.Value(fields["status"].upper())
        for line in fields.get("lines", ()):
            line["points"] = [{"x": x, "y": y} for x, y in line["points"]]
        return json_format.ParseDict(fields, pb.Result(), ignore_unknown_fields=True)
    except (json_format.ParseError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a result: {error}") from None


def dead_letter(key: str, headers: dict[str, bytes]) -> pb.Result:
    """A record of the dead letters as a failed result; its headers say why."""
    said = {name: value.decode(errors="replace") for name, value in headers.items()}
    code = said.get("dlq-reason", "INTERNAL")
    known = code if code in pb.ErrorCode.keys() else "INTERNAL"  # noqa: SIM118  # an enum, not a dict
    why = said.get("dlq-message", "no reason was given")
    return failure(said.get("file", ""), said.get("dlq-job-id", key), known, why)
