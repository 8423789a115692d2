"""What a measurement says: sections of text, each with its figures as data beside it, in parts. Pure.

A part is what is measured by itself: it can be measured again without the others, so it says when that was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PARTS = "parts"
_STAMP = ("seconds", "commit", "date", "command")


@dataclass(frozen=True)
class Section:
    """One part of a report: a heading, Markdown below it, and the same figures for programs (JSON values)."""

    title: str
    markdown: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """The sections of one measurement; how many seconds it took, at which commit, when and by which command.

    `date` is the day, YYYY-MM-DD, in UTC.
    """

    name: str
    sections: tuple[Section, ...]
    seconds: float
    commit: str
    date: str
    command: str


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; figures that were rounded before stay as they are."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    parts = [f"# {title}", *(f"## {section.title}\n\n{section.markdown.strip()}" for section in sections)]
    return "\n\n".join(parts) + "\n"


def as_json(sections: Sequence[Section], parts: Sequence[Part]) -> str:
    """The data of all sections by title, and what there is to say of each part below `PARTS`."""
    data: dict[str, Any] = {section.title: section.data for section in sections}
    data[PARTS] = {
        part.name: {
            "titles": [section.title for section in part.sections],
            **{name: getattr(part, name) for name in _STAMP},
        }
        for part in parts
    }
    return json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def read_back(text: str, data: Mapping[str, Any]) -> list[Part]:
    """The parts of a document from its Markdown and its data; none of a document that has no parts."""
    bodies = dict(_sections(text))
    return [
        Part(
            name=name,
            sections=tuple(Section(title, bodies[title], data[title]) for title in said["titles"]),
            **{field: said[field] for field in _STAMP},
        )
        for name, said in data.get(PARTS, {}).items()
    ]


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for piece in text.split("\n## ")[1:]:
        title, _, body = piece.partition("\n\n")
        yield title, body.strip()


def how_long(parts: Sequence[Part]) -> str:
    """Of each part: how long it took, when, and at which commit it was measured."""
    rows = [(part.name, f"{part.seconds:.0f}", part.date, part.commit) for part in parts]
    whole = sum(part.seconds for part in parts)
    return table(["part", "seconds", "date", "commit"], [*rows, ("all parts", f"{whole:.0f}", "", "")])
