"""What a measurement says: sections of text, each with its figures as data beside it. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """One part of a report: a heading, Markdown below it, and the same figures for programs (JSON values)."""

    title: str
    markdown: str
    data: Mapping[str, Any] = field(default_factory=dict)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; figures that were rounded before stay as they are."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    parts = [f"# {title}", *(f"## {section.title}\n\n{section.markdown.strip()}" for section in sections)]
    return "\n\n".join(parts) + "\n"


def as_json(sections: Sequence[Section]) -> str:
    """The data of all sections by title."""
    data = {section.title: section.data for section in sections}
    return json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
