"""The documents of a measurement, and what is known to stand on them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from loadgen.errors import NoDocuments

CONTENT_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
}
"""Images only: the floor and the peers read pages, and a PDF's pages depend on who draws them."""

LABELS = ("labels.jsonl", "expected.jsonl")
"""Files of labels, one JSON object a line: `{"file", "lines": [{"text"}]}`, `{"file", "strings"}` or, for an
image of one line, `{"file", "text"}`."""


@dataclass(frozen=True)
class Document:
    """One image file."""

    path: Path
    content: bytes

    @property
    def name(self) -> str:
        """The file's name, which is also its name in labels and results."""
        return self.path.name

    @property
    def content_type(self) -> str:
        """Its media type, by the suffix."""
        return CONTENT_TYPES[self.path.suffix.lower()]


@dataclass(frozen=True)
class Corpus:
    """Documents by name, and the strings that stand on those that have labels."""

    folder: Path
    documents: tuple[Document, ...]
    labels: dict[str, tuple[str, ...]]

    def first(self, count: int) -> "Corpus":
        """The same with no more than `count` documents."""
        return Corpus(self.folder, self.documents[:count], self.labels)


def load(folder: Path) -> Corpus:
    """The images right below a folder, in order of name.

    Raises:
        NoDocuments: no folder, nothing in it that is an image by its suffix, or labels that cannot be read.
    """
    paths = sorted(p for p in folder.glob("*") if p.suffix.lower() in CONTENT_TYPES and p.is_file())
    if not paths:
        kinds = " ".join(CONTENT_TYPES)
        raise NoDocuments(f"{folder}: no such folder, or no images right below it; looked for {kinds}")
    return Corpus(folder, tuple(Document(path, path.read_bytes()) for path in paths), _labels(folder))


def _labels(folder: Path) -> dict[str, tuple[str, ...]]:
    return {name: strings_of(row) for name, row in label_rows(folder).items()}


def label_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The labels of a folder as they stand in its file, by name of the document; none without a file.

    Raises:
        NoDocuments: the file cannot be read as labels.
    """
    file = next((folder / name for name in LABELS if (folder / name).is_file()), None)
    if file is None:
        return {}
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        for row in rows:
            strings_of(row)
        return {Path(row["file"]).name: row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise NoDocuments(f"{file} cannot be read as labels, one JSON object a line: {error!r}") from None


def strings_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The labelled strings of a document in one of the three forms."""
    if "text" in row:
        return (row["text"],)
    return tuple(line["text"] for line in row["lines"]) if "lines" in row else tuple(row["strings"])


def repeated(documents: Sequence[Document], count: int) -> Iterator[Document]:
    """`count` documents: all in order, again and again."""
    return islice(cycle(documents), count)


def mixed(first: Sequence[Document], second: Sequence[Document], count: int) -> Iterator[Document]:
    """`count` documents, one of each in turn, again and again."""
    pairs = zip(cycle(first), cycle(second), strict=False)
    return islice(chain.from_iterable(pairs), count)
