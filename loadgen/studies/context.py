"""What every study is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.corpus import Document
from loadgen.report import Section
from loadgen.stack import StackConfig

MAX_SIDE, QUICK_MAX_SIDE = 960, 480
FEW_SHAPES: Mapping[str, Mapping[str, object]] = {
    "detector": {"max_side": QUICK_MAX_SIDE},
    "recognizer": {"width_ladder": (160, 320, 640, 1280, 3200)},
}
"""Settings with little to warm up."""

QUICK_NOTE = "**A quick run, with fewer shapes than the product has: no figures to go by.**"


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

    @property
    def max_side(self) -> int:
        """The longest side, in pixels, that the detector looks at."""
        return QUICK_MAX_SIDE if self.quick else MAX_SIDE

    def stack(
        self,
        *,
        both: Mapping[str, object] | None = None,
        kafka: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> StackConfig:
        """The product's defaults and, for detector and recognizer, the settings `both`."""
        few = FEW_SHAPES if self.quick else {}
        detector, recognizer = ({**few.get(name, {}), **(both or {})} for name in ("detector", "recognizer"))
        return StackConfig(detector, recognizer, kafka=(kafka and self.kafka) or "", env=env or {})

    def marked(self, section: Section) -> Section:
        """The section of a study; one of a quick run says that it is."""
        if not self.quick:
            return section
        data = {**section.data, "quick": True}
        return Section(section.title, f"{QUICK_NOTE}\n\n{section.markdown}", data)
