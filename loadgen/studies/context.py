"""What every study is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.corpus import Document
from loadgen.report import Section
from loadgen.stack import StackConfig

SMALL_SIDE = 480
"""Pixels of the longest side of small documents."""
SMALL_PAGES: Mapping[str, object] = {"max_side": SMALL_SIDE}
"""What the detector is told where no document is larger: it finds the same, with a quarter to warm up."""
FEW_WIDTHS: Mapping[str, object] = {"width_ladder": (160, 320, 640, 1280, 3200)}
"""What the recognizer is told in a quick run, for little to warm up."""

QUICK_NOTE = "**A quick run, on less and with fewer shapes than the product has: no figures to go by.**"


@dataclass(frozen=True)
class Context:
    """The user's pages, and how much time there is.

    `kafka` is HOST:PORT of a broker, None leaves out what needs one. `quick` takes seconds a study instead of
    minutes, with fewer shapes than the product has; `full` takes every line and many minutes where a study
    takes a sample otherwise. `lines` is a folder with more lines to read, one an image.
    """

    documents: tuple[Document, ...]
    kafka: str | None
    quick: bool = False
    full: bool = False
    lines: Path | None = None

    def stack(
        self,
        *,
        small: bool = False,
        both: Mapping[str, object] | None = None,
        kafka: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> StackConfig:
        """The product's defaults and, for detector and recognizer, the settings `both`.

        `small`: all documents are small, so the detector has no canvas for larger ones.
        """
        detector = {**(SMALL_PAGES if small or self.quick else {}), **(both or {})}
        recognizer = {**(FEW_WIDTHS if self.quick else {}), **(both or {})}
        return StackConfig(detector, recognizer, kafka=(kafka and self.kafka) or "", env=env or {})

    def marked(self, section: Section) -> Section:
        """The section of a study; one of a quick run says that it is."""
        if not self.quick or section.data.get("quick"):
            return section
        data = {**section.data, "quick": True}
        return Section(section.title, f"{QUICK_NOTE}\n\n{section.markdown}", data)
