"""Two designs of the field, built small: how they gather work, and no more.

* `OneLock`: a process that has one document at a time. It finds the lines, sorts them by width and reads six
  at a time, each padded to the widest of its six, at least to 320: PaddleOCR's rule.
* `Fifo`: the lines of all callers wait in one queue; the next four run together, padded to the widest.

Both run in the process that measures them, without gRPC: what that spares them is theirs to keep.
"""

import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

Line = NDArray[np.uint8]
"""A line at 48 rows and its own proportions, `(48, width, 3)`."""

PADDLE_BATCH, PADDLE_LEAST = 6, 320
FIFO_BATCH, FIFO_STEP = 4, 32
"""Four lines: on a CPU more of them only bring more padding."""


# ---------------------------------------------------------------- what runs together, and how wide


@dataclass(frozen=True)
class Together:
    """Lines, by number, that run in one batch, all padded to `width`."""

    lines: tuple[int, ...]
    width: int


def one_document(widths: Sequence[int]) -> list[Together]:
    """PaddleOCR's batches of the lines of one document: by rising width, six at a time."""
    order = sorted(range(len(widths)), key=lambda index: widths[index])
    parts = [tuple(order[at : at + PADDLE_BATCH]) for at in range(0, len(order), PADDLE_BATCH)]
    return [Together(part, max(PADDLE_LEAST, *(widths[index] for index in part))) for part in parts]


def fifo_width(widths: Iterable[int]) -> int:
    """The widest, on a grid: no engine likes a new shape for every batch."""
    return ceil(max(widths) / FIFO_STEP) * FIFO_STEP


# ---------------------------------------------------------------- the two servers


class Finder(Protocol):
    """The detector's model and what is around it. Used by one thread at a time."""

    def __call__(self, page: NDArray[np.uint8]) -> list[Line]:
        """The lines of a page."""


class Reader(Protocol):
    """The recognizer's model. Used by one thread at a time."""

    def __call__(self, lines: Sequence[Line], width: int) -> list[str]:
        """The text of lines that run together, padded to `width`."""


class Server(Protocol):
    """A design at work. `close` waits for what it has begun."""

    def submit(self, document: bytes) -> "Future[list[str]]":
        """The text of each line of a document."""

    def close(self) -> None:
        """End its threads."""


class OneLock:
    """One document at a time, from decoding to text."""

    def __init__(self, find: Finder, read: Reader) -> None:
        self._find, self._read = find, read
        self._only = ThreadPoolExecutor(1, "one-lock")

    def submit(self, document: bytes) -> "Future[list[str]]":
        """See `Server`."""
        return self._only.submit(self._work, document)

    def _work(self, document: bytes) -> list[str]:
        return read_together(self._find(decoded(document)), self._read)

    def close(self) -> None:
        """See `Server`."""
        self._only.shutdown()


def read_together(lines: Sequence[Line], read: Reader) -> list[str]:
    """The text of the lines of one document, in their order, by PaddleOCR's rule."""
    texts = [""] * len(lines)
    for batch in one_document([line.shape[1] for line in lines]):
        answers = read([lines[index] for index in batch.lines], batch.width)
        for index, text in zip(batch.lines, answers, strict=True):
            texts[index] = text
    return texts


@dataclass(frozen=True)
class _Waiting:
    line: Line
    text: "Future[str]"


class Fifo:
    """Documents side by side, a thread for each finder; their lines in one queue before the readers."""

    def __init__(self, finders: Sequence[Finder], readers: Sequence[Reader]) -> None:
        self._lines: queue.Queue[_Waiting | None] = queue.Queue()
        self._idle_finders: queue.Queue[Finder] = queue.Queue()
        for find in finders:
            self._idle_finders.put(find)
        self._pages = ThreadPoolExecutor(len(finders), "fifo-page")
        self._readers = [threading.Thread(target=self._serve, args=(read,)) for read in readers]
        for thread in self._readers:
            thread.start()

    def submit(self, document: bytes) -> "Future[list[str]]":
        """See `Server`."""
        answer: Future[list[str]] = Future()
        self._pages.submit(self._page, document, answer)
        return answer

    def _page(self, document: bytes, answer: "Future[list[str]]") -> None:
        """Find the lines and queue them; whoever reads the last one gives the answer."""
        find = self._idle_finders.get()
        try:
            waiting = [_Waiting(line, Future()) for line in find(decoded(document))]
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            answer.set_exception(error)
            return
        finally:
            self._idle_finders.put(find)
        _when_all(waiting, answer)
        for line in waiting:
            self._lines.put(line)

    def _serve(self, read: Reader) -> None:
        while (batch := self._next()) is not None:
            lines = [waiting.line for waiting in batch]
            try:
                texts = read(lines, fifo_width(line.shape[1] for line in lines))
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                for waiting in batch:
                    waiting.text.set_exception(error)
            else:
                for waiting, text in zip(batch, texts, strict=True):
                    waiting.text.set_result(text)

    def _next(self) -> list[_Waiting] | None:
        """The oldest lines there are, whosesoever they are; None at the end."""
        batch = [self._lines.get()]
        while len(batch) < FIFO_BATCH and not self._lines.empty() and batch[-1] is not None:
            try:
                batch.append(self._lines.get_nowait())
            except queue.Empty:  # another reader was faster
                break
        if batch[-1] is None:
            self._lines.put(None)  # for the other readers, and for this one if it has lines still
            batch.pop()
        return [waiting for waiting in batch if waiting is not None] or None

    def close(self) -> None:
        """See `Server`."""
        self._pages.shutdown()
        self._lines.put(None)
        for thread in self._readers:
            thread.join()


def _when_all(waiting: Sequence[_Waiting], answer: "Future[list[str]]") -> None:
    """Answer with all texts once the last of them is there, or with the first error."""
    left, lock = len(waiting), threading.Lock()

    def one_less(_done: "Future[str]") -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        errors = [line.text.exception() for line in waiting if line.text.exception()]
        if errors:
            answer.set_exception(errors[0])
        else:
            answer.set_result([line.text.result() for line in waiting])

    if not waiting:
        answer.set_result([])
    for line in waiting:
        line.text.add_done_callback(one_less)


def decoded(document: bytes) -> NDArray[np.uint8]:
    """The pixels of an encoded page."""
    return np.asarray(cv2.imdecode(np.frombuffer(document, np.uint8), cv2.IMREAD_COLOR), np.uint8)
