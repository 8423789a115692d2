"""Which files a command line means, and what a file's name says of its kind."""

from collections.abc import Iterable
from pathlib import Path

from services.cli.errors import UsageError

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


def expand(paths: Iterable[Path]) -> list[Path]:
    """Files in the order given, each folder replaced by the documents below it in order of name.

    A file that is named is taken whatever its suffix. Raises `UsageError` for what does not exist, for a
    folder without documents, and when nothing is left.
    """
    files = [file for path in paths for file in _expand(path)]
    if not files:
        raise UsageError("No files were given: name documents, or folders that hold some.")
    return files


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        return _documents_below(path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder.")
    return [path]


def _documents_below(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if _is_document(path, folder))
    if not found:
        raise UsageError(f"{folder}: no documents in this folder; looked for {' '.join(CONTENT_TYPES)}.")
    return found


def _is_document(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in CONTENT_TYPES and path.is_file() and not hidden
