"""Which files a command line means, what a file's name says of its kind, and how one is read."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.cli.errors import UsageError, printable
from services.common.errors import DocumentTooLarge

MAX_MESSAGE_BYTES = 64 << 20  # through gRPC and through Kafka
MAX_DOCUMENT_BYTES = MAX_MESSAGE_BYTES - (64 << 10)  # beside it the names and headers, with room to spare

CONTENT_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".pdf": "application/pdf",
}
"""Media type by suffix. Only names with one of these suffixes are taken out of a folder."""

UNKNOWN_CONTENT_TYPE = "application/octet-stream"


def content_type(path: Path) -> str:
    """Media type for the `content-type` header; the gateway looks at the bytes when it is the unknown one."""
    return CONTENT_TYPES.get(path.suffix.lower(), UNKNOWN_CONTENT_TYPE)


def display_name(path: Path) -> str:
    """The name as text that every message can carry; bytes that are no UTF-8 become the replacement sign."""
    return os.fsencode(path).decode("utf-8", "replace")


def expand(paths: Iterable[Path]) -> list[Path]:
    """Files in the order given, each folder replaced by the documents below it in order of name.

    A file that is named is taken whatever its suffix. What cannot be looked at, a folder too, stays in the
    list: reading it says why, and fails it alone. Raises `UsageError` for what does not exist, for a folder
    without documents, and when nothing is left.
    """
    files = [file for path in paths for file in _expand(path)]
    if not files:
        raise UsageError("No files were given: name documents, or folders that hold some.")
    return files


def _expand(path: Path) -> list[Path]:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{printable(display_name(path))}: no such file or folder.") from None
    except OSError:
        return [path]
    return _documents_below(path) if stat.S_ISDIR(mode) else [path]


def _documents_below(folder: Path) -> list[Path]:
    found = sorted(_walk(folder))
    if not found:
        raise UsageError(
            f"{printable(display_name(folder))}: no documents in this folder; "
            f"looked for {' '.join(CONTENT_TYPES)}."
        )
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Documents below the folder, hidden ones left out, and the folders that could not be listed."""
    refused: list[OSError] = []
    for below, folders, names in os.walk(folder, onerror=refused.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(below, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.suffix.lower() in CONTENT_TYPES and _may_be_a_file(path))
    yield from (Path(error.filename) for error in refused if not isinstance(error, FileNotFoundError))


def _may_be_a_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # it is there, and whoever reads it will say why it cannot be
        return True


def read(path: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The bytes of a file or pipe, never many more than `max_bytes`.

    Raises `OSError` for what cannot be read or is a device, `DocumentTooLarge` for what is too large, by its
    size where it has one.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "neither a file nor a pipe")
    if stat.S_ISREG(status.st_mode) and status.st_size > max_bytes:
        raise _too_large(path, f"has {status.st_size} bytes", max_bytes)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(path, f"has more than {max_bytes} bytes", max_bytes)
    return content


def _too_large(path: Path, size: str, max_bytes: int) -> DocumentTooLarge:
    return DocumentTooLarge(
        f"{display_name(path)} {size}; a gateway takes documents of up to 32 MiB, unless its max_document_mb "
        f"is set otherwise, and no message holds more than {max_bytes} bytes"
    )
