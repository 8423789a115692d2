"""What passes between a batcher, those who submit to it, the runner that it feeds, and who watches it.

Of what exists once for each item there are thousands a second: tuples, which are made in a third of the time.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from services.common.batch_queue import Priority, Reason
from services.common.errors import OcrError

Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)
OutputOut = TypeVar("OutputOut", covariant=True)


@dataclass(frozen=True)
class RunOutput(Generic[OutputOut]):
    """What a runner made of a batch: an output or an error for each item, in order."""

    outputs: Sequence[OutputOut | OcrError]
    model_ms: float
    model_cpu_ms: float = 0.0
    """Processor time of all threads inside the model."""


class BatchRunner(Protocol[ItemIn, OutputOut]):
    """Runs batches of items of one shape. An exception fails every item of the batch, and no other."""

    async def prepare(self, items: Sequence[ItemIn]) -> Any:
        """What `run` needs; done while other batches run.

        One at a time: the next is asked for when `run` has been called with this one, or when this one was
        dropped, since its batch was changed. It is never cancelled but at the end, and what it gave for a
        dropped batch is forgotten without a word: whatever it holds must be free again by the next call.
        """

    async def run(self, prepared: Any) -> RunOutput[OutputOut]:
        """The outputs of one prepared batch; called for at most `concurrency` batches at a time."""


@dataclass(frozen=True)
class BatchFacts:
    """A batch that has ended, for telemetry. The tuples have one element for each item, in order."""

    batch_id: int
    shape: Hashable
    size: int
    pixels: int
    reason: Reason
    queue_ms: tuple[float, ...]
    """From arrival to the run, less `prepare_ms`: in the queue, and prepared but without a free predictor."""
    prepare_ms: float
    model_ms: float
    contexts: tuple[object, ...]
    priorities: tuple[Priority, ...]
    model_cpu_ms: float
    error: str | None
    """Why the batch failed as a whole; None when its items were answered one by one."""


class BatchObserver(Protocol):
    """Is told what happens; what it raises is logged and changes nothing."""

    def on_batch(self, facts: BatchFacts) -> None:
        """A batch has ended, well or not."""

    def on_drop(self, kind: Literal["expired", "cancelled"], count: int) -> None:
        """Items left before a model ran for them: at the door, in the queue, or from a prepared batch."""

    def on_refuse(self, count: int) -> None:
        """Items were refused at the door."""


class Request(NamedTuple, Generic[Item]):
    """One of the items of `submit_all`; `context` comes back in the facts of its batch."""

    item: Item
    shape: Hashable
    pixels: int
    context: object = None


class Completed(NamedTuple, Generic[OutputOut]):
    """The output of one item, and where its time went."""

    output: OutputOut
    queue_ms: float
    model_ms: float
    batch_size: int
    batch_id: int
