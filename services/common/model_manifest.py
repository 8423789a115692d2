"""What is written beside a model set that was made on this machine: its hashes, and what it was made from.

A fetched set has its hashes in `models.py`. A made one cannot: its last bits depend on the versions of the
tools and on the processor. So its hashes are written down when it is made, and checked whenever it is read.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILENAME = "manifest.json"


class ManifestUnfit(ValueError):
    """It is missing, cannot be read, or speaks of other files than it should."""


@dataclass(frozen=True)
class Recipe:
    """How a set was made. `calibration`: sha256 of the inputs, by role. `versions`: of the tools, by name."""

    calibration: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """What a made set is, and where it comes from.

    `files` and `made_from`: sha256 of its files, and of those of the set it was made from, by their paths
    below the folders of these sets. For the rest see `Recipe`.
    """

    files: Mapping[str, str]
    made_from: Mapping[str, str]
    calibration: Mapping[str, str]
    versions: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Put it beside the files of the set."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True)
        (folder / FILENAME).write_text(f"{text}\n", encoding="utf-8")


def read(folder: Path) -> Manifest:
    """The manifest of the set in this folder. Raises `ManifestUnfit`."""
    path = folder / FILENAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(*(_texts(found[name]) for name in Manifest.__dataclass_fields__))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestUnfit(f"{path} is missing or cannot be read ({type(error).__name__})") from error


def _texts(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("not a mapping to text")
    return value
