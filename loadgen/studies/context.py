"""What every study is given."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.corpus import Document


@dataclass(frozen=True)
class Context:
    """The user's pages, and how much time there is.

    `kafka` is HOST:PORT of a broker, None leaves out what needs one. `quick` takes a few seconds a study
    instead of minutes, `full` takes every line and many minutes where a study takes a sample otherwise.
    `lines` is a folder with more lines to read, one an image.
    """

    documents: tuple[Document, ...]
    kafka: str | None
    quick: bool = False
    full: bool = False
    lines: Path | None = None
