"""What the commands print: a result as one JSON object, or as text to be read by a person.

A result is the contract's `Result` message whichever door it came through; a failure that never reached a
server (a file that cannot be read, no answer in time) is made into one here, so that nothing downstream
has to tell the two apart.
"""

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from services.cli.documents import display_name
from services.cli.errors import printable
from services.common import records
from services.common.errors import DocumentTooLarge
from services.common.pb import ocr_pb2 as pb


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSONL = "jsonl"


def failure(file: str, job_id: str, code: str, message: str) -> pb.Result:
    """A document that was not read; `code` is a name of `ErrorCode`."""
    error = pb.Error(code=code, message=message)
    return pb.Result(job_id=job_id, file=file, status=pb.FAILED, error=error)


def not_readable(path: Path, job_id: str, error: OSError | DocumentTooLarge) -> pb.Result:
    """A document that `documents.read` did not give."""
    name = display_name(path)
    if isinstance(error, DocumentTooLarge):
        return failure(name, job_id, error.code, str(error))
    return failure(name, job_id, "URI_UNREADABLE", f"{name}: {error.strerror or error}")


def first_error(result: pb.Result) -> pb.Error | None:
    """Why the document failed; of a partial one, why its first unread page was not read."""
    if result.HasField("error"):
        return result.error
    return next((page.error for page in result.pages if page.HasField("error")), None)


def as_record(result: pb.Result) -> dict[str, Any]:
    """The JSON object of one file, with points in pixels of the page as displayed."""
    whole, error = records.to_dict(result), first_error(result)
    shown = {name: whole[name] for name in ("file", "job_id", "status", "lines")}
    return {**shown, "error": None if error is None else records.to_dict(error)}


def as_jsonl(result: pb.Result) -> str:
    """One line of JSON, without its line end."""
    return as_line(as_record(result))


def as_line(record: dict[str, Any]) -> str:
    """A JSON object on one line, without its line end."""
    return json.dumps(record, ensure_ascii=False)


def as_text(result: pb.Result, *, heading: bool) -> str:
    """The text in reading order, a line each, pages set apart; `heading` puts the file's name first."""
    blocks = [f"== {printable(result.file or result.job_id)} =="] if heading else []
    page = result.lines[0].page if result.lines else 0
    for line in result.lines:
        if line.page != page:
            blocks.append("")
            page = line.page
        blocks.append(line.text)
    return "\n".join(blocks)


def complaint(result: pb.Result) -> str | None:
    """One line for the error output when a document was not read, or not wholly; else None."""
    if result.status == pb.OK:
        return None
    error = first_error(result)
    what = "not read" if result.status != pb.PARTIAL else "read in part"
    why = f"{pb.ErrorCode.Name(error.code)}: {error.message}" if error is not None else "no reason was given"
    return printable(f"{result.file or result.job_id}: {what}: {why}")


class InOrder:
    """Gives results back in the order of the files, each as soon as all before it are there."""

    def __init__(self, total: int) -> None:
        self._waiting: dict[int, pb.Result] = {}
        self._next = 0
        self._total = total

    def add(self, index: int, result: pb.Result) -> Iterator[pb.Result]:
        """Take the result of file number `index`; yield those whose turn has come."""
        if not 0 <= index < self._total or index < self._next or index in self._waiting:
            raise ValueError(f"result {index} of {self._total} is not expected")
        self._waiting[index] = result
        while self._next in self._waiting:
            yield self._waiting.pop(self._next)
            self._next += 1


def sent_as_jsonl(file: str, job_id: str) -> str:
    """What is known of a document that was sent and not waited for."""
    return as_line({"file": file, "job_id": job_id})
