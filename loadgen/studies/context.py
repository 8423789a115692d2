"""What every study is given."""

from dataclasses import dataclass
from pathlib import Path

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"})
"""Of the files of a folder that are taken for pages."""


class NoPages(ValueError):
    """The folder holds no image."""


@dataclass(frozen=True)
class Context:
    """The user's pages, and how much time there is.

    `kafka` is HOST:PORT of a broker, None leaves out what needs one. `quick` takes a few seconds a study
    instead of minutes. `scratch` is a folder to write to. `lines` is a folder with more lines to read, one an image.
    """

    documents: tuple[Path, ...]
    kafka: str | None
    quick: bool
    scratch: Path
    lines: Path | None = None


def pages_in(folder: Path) -> tuple[Path, ...]:
    """The images of a folder by name. Raises `NoPages`."""
    found = tuple(path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES)
    if not found:
        raise NoPages(f"{folder} holds no image; name a folder with some of {', '.join(sorted(SUFFIXES))}")
    return found
