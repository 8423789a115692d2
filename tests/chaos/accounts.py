"""The books of a run: what was sent against what came out. Pure.

A job is accounted for when it has a result or a dead letter. At least once it may have several, which are
counted; exactly once it has one. Whatever dies, the dead letters are those of the poison, each with its
reason, and a healthy document reads as it reads when nothing goes wrong.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Delivery = Literal["at_least_once", "exactly_once"]


@dataclass(frozen=True)
class Sent:
    """A job. `document` names its content; `reason` is that of its dead letter, None for a healthy one."""

    job_id: str
    document: str
    reason: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A result or a dead letter. `text` says what a result reads, `reason` why a letter was written."""

    job_id: str
    text: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What the books say; jobs by their ids. Nothing but `repeated`, at least once, may be there."""

    jobs: int
    poison: int
    results: int
    letters: int
    repeated: int
    """Outcomes above one for each job."""
    lost: tuple[str, ...]
    """Neither result nor dead letter."""
    wronged: tuple[str, ...]
    """Healthy, and yet a dead letter; with its reason."""
    spared: tuple[str, ...]
    """Poison with a result."""
    misjudged: tuple[str, ...]
    """Poison with another reason than its own."""
    differing: tuple[str, ...]
    """Results that do not read as the same document does without faults."""
    strange: tuple[str, ...]
    """Outcomes of jobs that nobody sent."""

    def failures(self, delivery: Delivery) -> list[str]:
        """What must not be, in words; empty when the run is good."""
        wrong = {
            "lost: neither a result nor a dead letter": self.lost,
            "healthy, but dead letters": self.wronged,
            "poison, but results": self.spared,
            "dead letters with the wrong reason": self.misjudged,
            "results that read differently": self.differing,
            "outcomes of unknown jobs": self.strange,
        }
        found = [f"{len(jobs)} {what}: {_some(jobs)}" for what, jobs in wrong.items() if jobs]
        if delivery == "exactly_once" and self.repeated:
            found.append(f"{self.repeated} outcomes too many for exactly once")
        return found


def settle(sent: Iterable[Sent], outcomes: Iterable[Outcome], readings: Mapping[str, str]) -> Verdict:
    """Compare. `readings` is the text of each healthy document, by its name, when nothing goes wrong."""
    jobs = {job.job_id: job for job in sent}
    counted: Counter[str] = Counter()
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    kinds: Counter[str] = Counter()
    for outcome in outcomes:
        counted[outcome.job_id] += 1
        kinds["result" if outcome.reason is None else "letter"] += 1
        if kind := _fault(jobs.get(outcome.job_id), outcome, readings):
            found[kind].append(_named(outcome))
    return Verdict(
        jobs=len(jobs),
        poison=sum(job.reason is not None for job in jobs.values()),
        results=kinds["result"],
        letters=kinds["letter"],
        repeated=sum(counted.values()) - len(counted),
        lost=tuple(job_id for job_id in jobs if job_id not in counted),
        **{kind: tuple(dict.fromkeys(names)) for kind, names in found.items()},
    )


_KINDS = ("wronged", "spared", "misjudged", "differing", "strange")


def _fault(job: Sent | None, outcome: Outcome, readings: Mapping[str, str]) -> str:
    """Where an outcome belongs that must not be; empty for a good one."""
    if job is None:
        return "strange"
    if job.reason is None:
        if outcome.reason is not None:
            return "wronged"
        return "" if outcome.text == readings[job.document] else "differing"
    if outcome.reason is None:
        return "spared"
    return "" if outcome.reason == job.reason else "misjudged"


def _named(outcome: Outcome) -> str:
    return outcome.job_id if outcome.reason is None else f"{outcome.job_id} ({outcome.reason})"


def _some(names: tuple[str, ...], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
