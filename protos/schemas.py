"""Write the JSON Schemas of job and result, and the AsyncAPI document, from the definitions in ocr.proto.

Reads a `FileDescriptorSet` with source information on standard input, so that the comments of the
contract become the descriptions of the schemas. Run by `make protos`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from services.common.records import LOWER_CASE_ENUMS
from services.gateway.jobs import REDRIVE_COUNT, DeadLetterHeader

_F = FieldDescriptorProto
_SCALARS: dict[int, dict[str, Any]] = {
    _F.TYPE_STRING: {"type": "string"},
    _F.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    _F.TYPE_FLOAT: {"type": "number"},
    _F.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    _F.TYPE_BOOL: {"type": "boolean"},
}
_RANGES: dict[str, dict[str, Any]] = {
    "min_confidence": {"minimum": 0, "maximum": 1},
    "sha256": {"pattern": "^([0-9a-fA-F]{64})?$"},
}
"""Limits of a job that the definitions cannot express; `records.check_job` keeps them."""
_POINT = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


class Contract:
    """The definitions of one file and their comments."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.package = file.package
        self.messages = {f".{file.package}.{m.name}": m for m in file.message_type}
        self.enums = {f".{file.package}.{e.name}": e for e in file.enum_type}
        self.comments = {
            tuple(place.path): " ".join(place.leading_comments.split())
            for place in file.source_code_info.location
            if place.leading_comments
        }
        self._paths = {f".{file.package}.{m.name}": (4, i) for i, m in enumerate(file.message_type)}

    def schema(self, name: str, *, job: bool) -> dict[str, Any]:
        """The schema of one message, everything it refers to written in place.

        A job is read: enum names as they are, nothing required but one source, unknown fields refused.
        A result is written: every field is there.
        """
        full = f".{self.package}.{name}"
        body = self._message(full, job=job)
        title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
        return title | body

    def _message(self, full: str, *, job: bool) -> dict[str, Any]:
        message, path = self.messages[full], self._paths[full]
        fields = {
            f.name: self._field(f, (*path, 2, i), message, job=job) for i, f in enumerate(message.field)
        }
        body: dict[str, Any] = {
            "type": "object",
            "description": self.comments.get(path, ""),
            "properties": fields,
            "additionalProperties": False,
        }
        members = [f.name for f in message.field if f.HasField("oneof_index")]
        if members:
            body["oneOf"] = [{"required": [name]} for name in members]
        if not job:
            body["required"] = [f.name for f in message.field if not f.HasField("oneof_index")]
        return body

    def _field(
        self, field: _F, path: tuple[int, ...], owner: DescriptorProto, *, job: bool
    ) -> dict[str, Any]:
        kind = self._kind(field, owner, job=job)
        if field.label == _F.LABEL_REPEATED and "additionalProperties" not in kind.get("x-map", {}):
            kind = {"type": "array", "items": kind}
        kind = kind.get("x-map", kind)
        absent = field.type == _F.TYPE_MESSAGE and field.label != _F.LABEL_REPEATED and not job
        body = {"anyOf": [kind, {"type": "null"}]} if absent else kind
        return {"description": self.comments.get(path, "")} | body

    def _kind(self, field: _F, owner: DescriptorProto, *, job: bool) -> dict[str, Any]:
        if field.type == _F.TYPE_ENUM:
            return {"enum": self._words(self.enums[field.type_name], field.type_name)}
        if field.type != _F.TYPE_MESSAGE:
            return _SCALARS[field.type] | (_RANGES.get(field.name, {}) if job else {})
        entry = next(
            (n for n in owner.nested_type if field.type_name.endswith(f".{owner.name}.{n.name}")), None
        )
        if entry is not None:  # a map field: protoc writes it as a repeated message of key and value
            return {"x-map": {"type": "object", "additionalProperties": dict(_SCALARS[entry.field[1].type])}}
        if field.type_name == f".{self.package}.Point":
            return dict(_POINT)
        return self._message(field.type_name, job=job)

    @staticmethod
    def _words(enum: EnumDescriptorProto, full: str) -> list[str]:
        names = [value.name for value in enum.value]
        return [name.lower() for name in names] if full[1:] in LOWER_CASE_ENUMS else names


def asyncapi(job: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The topics, as an AsyncAPI 3 document."""
    headers = {
        "job-id": {"type": "string"},
        "content-type": {"type": "string"},
        "traceparent": {"type": "string"},
    }
    redriven = {REDRIVE_COUNT: {"type": "string"}}
    document = {"type": "string", "description": "The document itself; content-type says which format."}
    reason = {str(name): {"type": "string"} for name in DeadLetterHeader}

    def message(payload: dict[str, Any], extra: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"headers": {"type": "object", "properties": headers | (extra or {})}, "payload": payload}

    def channel(topic: str, names: list[str], text: str) -> dict[str, Any]:
        refs = {name: {"$ref": f"#/components/messages/{name}"} for name in names}
        return {"address": topic, "description": text, "messages": refs}

    return {
        "asyncapi": "3.0.0",
        "info": {"title": "ocr-serving", "version": "1.0.0", "description": "Documents in, text out."},
        "channels": {
            "jobs": channel("ocr.jobs", ["jobDocument", "jobJson"], "Documents to be read."),
            "results": channel("ocr.results", ["result"], "What was read; key = job id."),
            "deadLetters": channel(
                "ocr.jobs.dlq", ["deadLetter"], "Jobs that failed, as they came, and why."
            ),
        },
        "operations": {
            "readJobs": {"action": "receive", "channel": {"$ref": "#/channels/jobs"}},
            "sendResults": {"action": "send", "channel": {"$ref": "#/channels/results"}},
            "sendDeadLetters": {"action": "send", "channel": {"$ref": "#/channels/deadLetters"}},
        },
        "components": {
            "messages": {
                "jobDocument": message(document, redriven),
                "jobJson": message(job, redriven),
                "result": message(result),
                "deadLetter": message(document, redriven | reason),
            }
        },
    }


def main() -> None:
    """Write the three documents into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    files = FileDescriptorSet.FromString(sys.stdin.buffer.read()).file
    contract = Contract(files[0])
    job, result = contract.schema("Job", job=True), contract.schema("Result", job=False)
    written = {"job.schema.json": job, "result.schema.json": result, "asyncapi.json": asyncapi(job, result)}
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
