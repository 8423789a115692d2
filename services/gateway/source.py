"""From a job to the bytes of its document: what it carries, or what lies where the operator allowed it.

That is a file in a folder, or what a host gives (`fetch.py`). Where the job says size or sha256, they hold.

A `uri` comes from a stranger. Its text is checked before the disk is touched. Then its links are resolved,
which only looks at them, and what comes out must lie inside an allowed folder before anything is opened; it
is compared again when it is open, for whoever may write into an allowed folder could swap a link in between.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from services.common.errors import ChecksumMismatch, DocumentTooLarge, UriNotAllowed, UriUnreadable
from services.common.pb import ocr_pb2 as pb
from services.gateway.fetch import Fetcher
from services.gateway.places import is_web

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPENED = Path("/proc/self/fd")


HEAD_BYTES = 1024
"""Enough to tell the format of a document by."""


def read(job: pb.Job, allowed: Sequence[str], max_bytes: int) -> bytes:
    """The bytes of a document that is carried or a file. Blocks on the disk: call it in a thread.

    Raises `UriNotAllowed`, `UriUnreadable`, `DocumentTooLarge`, `ChecksumMismatch`.
    """
    return _checked(job, _read(job, allowed, max_bytes, max_bytes + 1))


def head(job: pb.Job, allowed: Sequence[str], max_bytes: int) -> bytes:
    """The first `HEAD_BYTES` of what `read` would give; raises the same, but checks no sha256."""
    return _read(job, allowed, max_bytes, HEAD_BYTES)[:HEAD_BYTES]


def on_network(job: pb.Job) -> bool:
    """Whether the document must be fetched first."""
    return job.WhichOneof("source") == "uri" and is_web(job.uri)


def fetched(job: pb.Job, fetcher: Fetcher, deadline: float | None) -> pb.Job:
    """The job with its document in place of the `uri`. Blocks on the network: call it in a thread.

    Raises what `Fetcher.fetch` does, and `ChecksumMismatch`.
    """
    content = _checked(job, fetcher.fetch(job.uri, size=job.size, deadline=deadline))
    return pb.Job(content=content, options=job.options)


def _checked(job: pb.Job, content: bytes) -> bytes:
    """The bytes, if they are those that the job describes."""
    what = job.uri.partition("?")[0] or "the document"
    if job.size and len(content) != job.size:
        raise ChecksumMismatch(f"{what} has {len(content)} bytes; the job says {job.size}")
    if job.sha256 and (found := hashlib.sha256(content).hexdigest()) != job.sha256.lower():
        raise ChecksumMismatch(f"{what} has the sha256 {found}; the job says {job.sha256.lower()}")
    return content


def _read(job: pb.Job, allowed: Sequence[str], max_bytes: int, wanted: int) -> bytes:
    if job.WhichOneof("source") != "uri":
        return job.content
    path = allowed_path(job.uri, allowed)
    try:
        return _read_file(path, job.uri, allowed, max_bytes, wanted)
    except OSError as error:
        raise UriUnreadable(f"{job.uri}: {error.strerror or error}") from error


def allowed_path(uri: str, allowed: Sequence[str]) -> Path:
    """The real path that `uri` names, if it lies inside one of the allowed folders; else `UriNotAllowed`."""
    path = Path(os.path.realpath(local_path(uri)))
    if not _inside(path, allowed):
        raise UriNotAllowed(f"{uri!r} lies outside the allowed folders; they are set by uri_allow")
    return path


def local_path(uri: str) -> str:
    """The absolute path in a `file:` URI, or `UriNotAllowed`. Looks at the text alone."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UriNotAllowed(f"{uri!r} is not a URI: {error}") from error
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise UriNotAllowed(f"{uri!r}: only file:///… on this machine is read")
    if parts.query or parts.fragment:
        raise UriNotAllowed(f"{uri!r} has a query or a fragment; write ? as %3F and # as %23")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UriNotAllowed(f"{uri!r} must hold an absolute path without `..` or NUL")
    return path


def _inside(path: Path, allowed: Sequence[str]) -> bool:
    return any(path.is_relative_to(os.path.realpath(folder)) for folder in allowed)


def _read_file(path: Path, uri: str, allowed: Sequence[str], max_bytes: int, wanted: int) -> bytes:
    _check_file(path.lstat(), uri, max_bytes)  # before opening: that alone sets some devices to work
    handle = os.open(path, _OPEN)
    with os.fdopen(handle, "rb") as file:
        _check_file(os.fstat(handle), uri, max_bytes)
        opened = _OPENED / str(handle)
        if _OPENED.is_dir() and not _inside(opened.readlink(), allowed):
            raise UriNotAllowed(f"{uri!r} lies outside the allowed folders")
        data = file.read(wanted)
    if len(data) > max_bytes:
        raise DocumentTooLarge(f"{uri} has grown over the limit of {max_bytes} bytes")
    return data


def _check_file(found: os.stat_result, uri: str, max_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UriUnreadable(f"{uri} is not a regular file")
    if found.st_size > max_bytes:
        raise DocumentTooLarge(f"{uri} has {found.st_size} bytes; the limit is {max_bytes}")
