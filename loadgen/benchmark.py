"""Baseline and studies in one report, written part by part: an interrupted run leaves what it had.

Each part can be measured by itself and takes the place of what the report had of it.
"""

import importlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadgen import baseline, baseline_report, cpu_budget, report, wait_study
from loadgen.baseline import Plan
from loadgen.errors import OtherMachine
from loadgen.machine import Machine
from loadgen.report import Part, Section
from loadgen.studies import NAMES
from loadgen.studies.context import Context
from services.common.errors import SetupError

INTRODUCTION = (
    "Written by `make bench`; the same figures for programs are in the JSON file beside it. Ratios carry over"
    " to other machines, seconds do not. A part can be measured by itself (`make bench ONLY=memory`), so each"
    " says when it was measured and how long that took. Which widths lines are padded to is a study of its"
    " own: [ladders](ladders.md)."
)

WAIT_SEED, WAIT_LINES = 1, 2000

PARTS = ("baseline", "cpu", "waiting", *NAMES)
"""In the order in which they are measured and written."""
QUICK_PARTS = ("baseline", "cpu", "classes", "invariance")

Measure = Callable[[], Sequence[Section]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """A document that is written anew with every part. `path` is the Markdown, JSON goes beside it."""

    path: Path
    title: str

    @property
    def data_path(self) -> Path:
        """The JSON file."""
        return self.path.with_suffix(".json")

    def write(self, machine: Section, parts: Sequence[Part]) -> None:
        """Both files, whole or not at all."""
        about = Section("About these figures", f"{INTRODUCTION}\n\n{report.how_long(parts)}")
        sections = [about, machine, *(section for part in parts for section in part.sections)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, report.markdown(self.title, sections))
        replace_text(self.data_path, report.as_json(sections, parts))

    def kept(self, machine: Machine) -> list[Part]:
        """The parts that are there already. Raises OtherMachine: they were measured elsewhere."""
        if not self.data_path.exists():
            return []
        data = json.loads(self.data_path.read_text(encoding="utf-8"))
        before = data["Machine"]
        if (before["cpu"], before["cores"]) != (machine.cpu, machine.cores):
            raise OtherMachine(
                f"{self.path} is about {before['cores']} cores of {before['cpu']}, and this is another"
                " machine: measure all parts, or write elsewhere with --out"
            )
        return in_order(report.read_back(self.path.read_text(encoding="utf-8"), data))

    def collect(self, machine: Section, fresh: Iterable[Part], kept: Sequence[Part] = ()) -> None:
        """Write parts as they come, each in its place among those that are kept."""
        parts = {part.name: part for part in kept}
        for part in fresh:
            parts[part.name] = part
            self.write(machine, in_order(parts.values()))


def in_order(parts: Iterable[Part]) -> list[Part]:
    """As the report has them."""
    return sorted(parts, key=lambda part: PARTS.index(part.name))


def replace_text(path: Path, text: str) -> None:
    """Write a file so that nobody sees half of it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def measures(plan: Plan, context: Context, called: str) -> Mapping[str, Measure]:
    """How each part is measured. A study that cannot run says why in its place."""
    return {
        "baseline": lambda: baseline_report.sections(baseline.run(plan), called),
        "cpu": lambda: [guarded("CPU outside of the models", partial(cpu_budget.run, context))],
        "waiting": lambda: [wait_study.section(WAIT_SEED, WAIT_LINES)],
        **{name: partial(_one, name, context) for name in NAMES},
    }


def _one(name: str, context: Context) -> Sequence[Section]:
    return [study(name, context)]


def measured(
    names: Sequence[str], by_name: Mapping[str, Measure], context: Context, machine: Machine, command: str
) -> Iterator[Part]:
    """These parts, one after the other, in the order of the report."""
    for name in sorted(names, key=PARTS.index):
        log.info("part: %s", name)
        began = time.monotonic()
        sections = tuple(context.marked(section) for section in by_name[name]())
        took = time.monotonic() - began
        log.info("part: %s took %.0f s", name, took)
        yield Part(name, sections, round(took, 1), machine.commit, machine.date, command)


def study(name: str, context: Context) -> Section:
    """The section of one study."""
    run: Callable[[Context], Section] = importlib.import_module(f"loadgen.studies.{name}").run
    return guarded(name.capitalize(), partial(run, context))


def guarded(title: str, measure: Callable[[], Section]) -> Section:
    """What `measure` gives, or in its place why it could not."""
    try:
        return measure()
    except SetupError as error:
        log.warning("%s is left out: %s", title, error)
        return Section(title, f"Not measured: {error}", {"left_out": str(error)})
