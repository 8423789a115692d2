"""Reads the text that services show to Prometheus. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

_ROW = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Row:
    """One number of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """All numbers of a page."""

    rows: tuple[Row, ...]

    @classmethod
    def parse(cls, page: str) -> Self:
        """Read a page; lines that are no row are passed over."""
        found = (_ROW.match(line) for line in page.splitlines() if not line.startswith("#"))
        return cls(
            tuple(
                Row(row["name"], dict(_LABEL.findall(row["labels"] or "")), float(row["value"]))
                for row in found
                if row
            )
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of the rows of that name that carry these labels; 0 when there are none."""
        return sum(
            row.value for row in self.rows if row.name == name and labels.items() <= row.labels.items()
        )


def difference(before: Metrics, after: Metrics, name: str, **labels: str) -> float:
    """How much a counter rose."""
    return after.total(name, **labels) - before.total(name, **labels)
