"""Gives one document to the product's own code, in a process with limits, and says what came of it.

    python -m tests.fuzz.judge SEED FIRST LAST STEP     judges documents FIRST, FIRST + STEP, ... < LAST
    python -m tests.fuzz.judge FILE...                  judges files as they are

For each one a line before (`? name`) and a line after (`= name, outcome, seconds, megabytes`), as JSON: when
the process dies or hangs, whoever started it knows at which.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from services.common.errors import InvalidJob, OcrError
from services.common.images import DecodedPage, ImageLimits, decode_document
from services.common.pb import ocr_pb2 as pb
from services.common.records import check_job
from services.gateway import jobs, source
from services.gateway.pdf_process import PdfProcess
from services.gateway.pipeline import KEPT_JPEG_SIDE
from tests.fuzz.mutate import document

ADDRESS_SPACE = 2 * 2**30
"""Bytes; the libraries alone reserve a good part of it. What is judged is the memory in use."""
PDF_TIMEOUT_S = 4.0
"""Less than the product's default, so that a document with two endless pages ends within ten seconds."""
PDF_MEMORY_MB = 1024


def job_of(kind: str, data: bytes) -> pb.Job:
    """The job that a door makes of these bytes; `kind` is `json`, `protobuf` or that of a bare document."""
    if kind == "protobuf":
        try:
            return check_job(pb.Job.FromString(data))
        except DecodeError as error:  # gRPC refuses such a message before anything of ours sees it
            raise InvalidJob("not a message of this contract") from error
    content_type = {"json": b"application/json"}.get(kind, b"")
    record = jobs.Record("ocr.jobs", 0, 0, 1, value=data, headers=(("content-type", content_type),))
    return jobs.parse(record).job


def outcome(kind: str, data: bytes, drawer: PdfProcess) -> str:
    """`read`, the code of the document's error, or `page:` and the code of the first page's error.

    Anything else that is raised is what the fuzzer looks for, and leaves.
    """
    try:
        job = job_of(kind, data)
        if source.on_network(job):
            return "fetched"  # no byte of it is here yet
        limits = replace(ImageLimits(), kept_jpeg_side=KEPT_JPEG_SIDE)
        found = source.read(job, (), limits.max_bytes)
        return _first_error(decode_document(found, limits, drawer.pages)) or "read"
    except OcrError as error:
        return error.code


def _first_error(pages: Iterator[DecodedPage]) -> str:
    first = ""
    for page in pages:
        if isinstance(page.image, OcrError):
            first = first or f"page:{page.image.code}"
        elif page.image.dtype != np.uint8 or page.image.ndim != 3 or page.image.shape[2] != 3:
            raise TypeError(f"a page is {page.image.dtype} {page.image.shape}")
    return first


def _judge(name: str, kind: str, data: bytes, drawer: PdfProcess) -> None:
    print(json.dumps(["?", name]), flush=True)
    start = time.perf_counter()
    try:
        found = outcome(kind, data, drawer)
    except Exception as error:  # that is what is looked for
        found = f"untyped:{type(error).__name__}: {error}"
    print(json.dumps(["=", name, found, time.perf_counter() - start, _most_megabytes()]), flush=True)


def _most_megabytes() -> int:
    """The most that this process ever held. Not `ru_maxrss`: that begins with what its parent held."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def _named(arguments: list[str]) -> Iterator[tuple[str, str, bytes]]:
    if not arguments[0].isdigit():
        for path in map(Path, arguments):
            yield path.name, path.suffix[1:], path.read_bytes()
        return
    seed, first, last, step = map(int, arguments)
    for index in range(first, last, step):
        yield str(index), *document(seed, index)


def main() -> None:
    """What the head of this file says."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.closing(PdfProcess(timeout_s=PDF_TIMEOUT_S, memory_mb=PDF_MEMORY_MB)) as drawer:
        for name, kind, data in _named(sys.argv[1:]):
            _judge(name, kind, data, drawer)


if __name__ == "__main__":
    main()
