"""Baseline and studies in one report, written part by part: an interrupted run leaves what it had."""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadgen import baseline, baseline_report, cpu_budget, report, wait_study
from loadgen.baseline import Plan
from loadgen.machine import Machine
from loadgen.report import Section
from loadgen.studies import NAMES
from loadgen.studies.context import Context
from services.common.errors import SetupError

INTRODUCTION = (
    "Written by `make bench`; the same figures for programs are in benchmarks.json. Ratios carry over to"
    " other machines, seconds do not."
)

WAIT_SEED, WAIT_LINES = 1, 6000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """A document that is written anew with every part. `path` is the Markdown, JSON goes beside it."""

    path: Path
    title: str

    def write(self, parts: Sequence[Section]) -> None:
        """Both files, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, report.markdown(self.title, parts))
        replace_text(self.path.with_suffix(".json"), report.as_json(parts))

    def collect(self, parts: Iterable[Section]) -> list[Section]:
        """Write as they come; all of them."""
        found: list[Section] = []
        for part in parts:
            found.append(part)
            self.write(found)
        return found


def replace_text(path: Path, text: str) -> None:
    """Write a file so that nobody sees half of it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def of_baseline(plan: Plan, machine: Machine, called: str, commands: Sequence[str]) -> Iterator[Section]:
    """The machine, then what the baseline found."""
    yield machine.section(commands)
    yield from baseline_report.sections(baseline.run(plan), called)


def of_everything(
    plan: Plan, context: Context, machine: Machine, called: str, commands: Sequence[str]
) -> Iterator[Section]:
    """The baseline, then all studies. A study that cannot run says why in its place."""
    yield Section("About these figures", INTRODUCTION)
    yield from of_baseline(plan, machine, called, commands)
    log.info("study: processor time beside the models")
    yield guarded("CPU outside of the models", partial(cpu_budget.run, context))
    if not context.quick:
        log.info("study: waiting for company")
        yield wait_study.section(WAIT_SEED, WAIT_LINES)
    for name in NAMES:
        log.info("study: %s", name)
        yield study(name, context)


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
