"""One readable log of several processes: their JSON lines become short lines that begin with who speaks."""

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

COLOURS = {"gateway": "green", "detector": "blue", "recognizer": "magenta", "broker": "cyan", "up": "bold"}
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim"}
# Said once for each line already, or only of use to machines.
HIDDEN = frozenset({"time", "timestamp", "ts", "level", "severity", "logger", "service", "message", "msg",
                    "trace_id", "span_id", "pid", "process", "thread"})  # fmt: skip
NO_REASON = "it gave no reason"
NAME_WIDTH = max(len(name) for name in COLOURS)


def render(name: str, line: str) -> Text:
    """One line that the process `name` wrote, ready to be printed; what is no JSON log line stays as is."""
    record = parse(line)
    if record is None:
        return _line(name, Text(line.rstrip("\r\n"), style="dim"))
    level = level_of(record)
    body = Text(message_of(record), style=LEVEL_COLOURS.get(level, ""))
    for key, value in record.items():
        if key not in HIDDEN and value not in (None, ""):
            body.append(f"  {key}=", style="dim")
            body.append(_short(value))
    return _line(name, body)


def _line(name: str, body: Text) -> Text:
    return Text(f"{name:<{NAME_WIDTH}}  ", style=COLOURS.get(name, "")).append_text(body)


def parse(line: str) -> Mapping[str, Any] | None:
    """The fields of a JSON log line, or None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and message_of(record) else None


def message_of(record: Mapping[str, Any]) -> str:
    """The sentence of a log record."""
    return str(record.get("message") or record.get("msg") or "")


def level_of(record: Mapping[str, Any]) -> str:
    """The level in lower case; `info` when there is none."""
    return str(record.get("level") or record.get("severity") or "info").lower()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def reason(lines: list[str]) -> str:
    """Why a process died, out of its last lines: a plain one at the end (of a stack trace), else an error.

    Else a warning. What was said in the ordinary course of things is no reason.
    """
    written = [(line.strip(), parse(line)) for line in lines if line.strip()]
    if written and written[-1][1] is None:
        return written[-1][0]
    records = [record for _, record in written if record is not None]
    for levels in (("error", "critical"), ("warning",)):
        if said := [message_of(record) for record in records if level_of(record) in levels]:
            return said[-1]
    return NO_REASON


def heading(name: str, message: str) -> Text:
    """A line of our own."""
    return _line(name, Text(message, style="bold"))
