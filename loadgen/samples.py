"""What a run gives: one row a document, and the rates and percentiles of rows. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What was said about one document.

    `lines` are as in the JSON form of a result: text, confidence, points, page. `error` is empty, or the code
    and the message. Where times are known, `timing` is that of the result.
    """

    status: str
    lines: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    timing: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the whole document was read."""
        return self.status == "ok"


@dataclass(frozen=True)
class Sample:
    """One document of a run; times in seconds on one clock.

    `sent_s` is when it was sent, or when it should have been where a schedule said so.
    """

    name: str
    sent_s: float
    done_s: float
    answer: Answer

    @property
    def latency_s(self) -> float:
        """From sending to the answer."""
        return self.done_s - self.sent_s


@dataclass(frozen=True)
class Run:
    """Samples in the order in which the answers came."""

    samples: tuple[Sample, ...]

    def whole_rate(self) -> float:
        """Documents a second from the first sent to the last answered: filling and emptying are in it."""
        start = min(sample.sent_s for sample in self.samples)
        return len(self.samples) / (self.samples[-1].done_s - start)

    def steady_rate(self, edge: int) -> float:
        """Documents a second between the answer number `edge` and the answer `edge` before the last.

        So the pipeline was full at both ends. Raises ValueError when nothing lies between them.
        """
        first, last = self.samples[edge - 1], self.samples[len(self.samples) - edge - 1]
        if edge < 1 or last.done_s <= first.done_s:
            raise ValueError(f"{len(self.samples)} samples leave nothing between two edges of {edge}")
        return (len(self.samples) - 2 * edge) / (last.done_s - first.done_s)

    def latencies_s(self) -> list[float]:
        """Of the documents that were read."""
        return [sample.latency_s for sample in self.samples if sample.answer.ok]

    def failures(self) -> list[Sample]:
        """The documents that were not read, or not wholly."""
        return [sample for sample in self.samples if not sample.answer.ok]

    def lines_by_name(self) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """The lines of each document; of its last answer, where it was sent again and again."""
        return {sample.name: sample.answer.lines for sample in self.samples}


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the least value that `percent` per cent do not exceed; NaN for none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
