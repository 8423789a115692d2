"""A document on its way: decode, detect, crop, recognize, assemble.

Pages of a document go side by side, and so do documents. Two bounds hold the memory: `max_pages_in_flight`
counts decoded pages over all documents, `max_pages_per_document` keeps one long document from taking them
all. Online and bulk work are counted apart and have threads of their own, so that someone who waits never
stands behind a thousand pages of bulk.

What fails alone fails alone: a damaged page, or a line that kills the model. An error that can pass, such as
a full queue or a backend without an answer, ends the whole document instead: half a result would be kept for
ever, a second try gives all.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import cv2
import numpy as np

from services.common import line_size
from services.common.errors import Cancelled, DeadlineExceeded, Internal, OcrError
from services.common.images import DecodedPage, ImageLimits, decode_document, decoder_versions, sniff
from services.common.page_size import shrink
from services.common.pb import ocr_pb2 as pb
from services.common.telemetry import METRICS, tracer
from services.common.threads import Threads
from services.common.wire import put_pixels
from services.gateway import source
from services.gateway.clients import NoAnswer
from services.gateway.crops import crops
from services.gateway.fetch import Fetcher, WebLimits
from services.gateway.pdf_process import PdfProcess
from services.gateway.reading_order import reading_order
from services.gateway.results import PageRead, assemble, from_error

log = logging.getLogger(__name__)

Bgr = np.ndarray[Any, np.dtype[np.uint8]]
T = TypeVar("T")

MAX_LINE_BYTES = 4 * 2**20
"""A larger line, so one that is extremely long, is shrunk to this before it is sent."""

KEPT_JPEG_SIDE = 3000
"""Pixels of the longer side that are enough to read a page: of A4 at 250 dots per inch; scanners give 600."""

_LINE_OVERHEAD = 32
"""Bytes of a message that are not pixels, a line; generous."""


class Detector(Protocol):
    """Finds the regions of a page. `deadline` is in seconds of the monotonic clock."""

    async def max_side(self, *, deadline: float | None) -> int:
        """The longest side, in pixels, that it looks at; 0 for any."""

    async def detect(self, request: pb.DetectRequest, *, deadline: float | None) -> pb.DetectResponse:
        """The regions of one page."""


class Recognizer(Protocol):
    """Reads lines. `deadline` is in seconds of the monotonic clock."""

    async def recognize(
        self, request: pb.RecognizeLinesRequest, *, deadline: float | None
    ) -> pb.RecognizeLinesResponse:
        """The text of each line of the request."""


@dataclass(frozen=True)
class PipelineLimits:
    """What a pipeline takes on. Sizes in bytes."""

    images: ImageLimits = field(default_factory=ImageLimits)
    max_pages_in_flight: int = 16
    max_pages_per_document: int = 4
    max_request_bytes: int = 32 * 2**20
    cpu_threads: int = 0
    uri_allow: tuple[str, ...] = ()
    web: WebLimits = field(default_factory=WebLimits)
    pdf_timeout_s: float = 30.0
    pdf_memory_mb: int = 2048


class _Threads:
    """Threads to decode and cut in, and turns: so many may be at work or wait for a thread."""

    def __init__(self, name: str, count: int, turns: int) -> None:
        self._threads = Threads(f"ocr-{name}", count)
        self.turn = asyncio.Semaphore(turns)

    async def run(self, work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """What `work` returns, done in a thread, and the milliseconds that it took there."""
        return await self._threads.run(_measured, work, *arguments)

    def let_go(self, pages: Iterator[DecodedPage]) -> None:
        """Close the file behind `pages`, in a thread: closing a PDF waits for others that are being drawn."""
        with contextlib.suppress(RuntimeError):  # at shutdown the threads are gone
            self._threads.submit(functools.partial(_close, pages))

    def close(self) -> None:
        """Let the threads go. What still runs in them runs to its end."""
        self._threads.close()


class _Lane:
    """Threads and places for pages of one class of priority.

    PDFs are drawn one at a time, by a process that a hostile one keeps busy until it is killed. So they have
    one thread of their own, and one of them at most holds a place for a page while it waits for that thread:
    images go on meanwhile.
    """

    def __init__(self, name: str, limits: PipelineLimits) -> None:
        self.places = asyncio.Semaphore(limits.max_pages_in_flight)
        self.images = _Threads(
            name, limits.cpu_threads or os.cpu_count() or 1, turns=limits.max_pages_in_flight
        )
        self.pdfs = _Threads(f"{name}-pdf", 1, turns=1)
        # A slow host keeps a thread waiting; and what was fetched is in memory until it is read.
        self.fetches = _Threads(f"{name}-fetch", limits.max_pages_in_flight, turns=limits.max_pages_in_flight)
        self.pdf = PdfProcess(timeout_s=limits.pdf_timeout_s, memory_mb=limits.pdf_memory_mb)

    def close(self) -> None:
        """Let go of the threads and of the process."""
        for threads in (self.images, self.pdfs, self.fetches):
            threads.close()
        self.pdf.close()


def _measured(work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    start = time.perf_counter()
    return work(*arguments), (time.perf_counter() - start) * 1000


def _close(pages: Any) -> None:
    with contextlib.suppress(ValueError):  # still running after a cancelled call: closed when it returns
        pages.close()


@dataclass
class _Order:
    """One document as its steps see it."""

    job: pb.Job
    priority: int
    deadline: float | None
    lane: _Lane
    pages: Iterator[DecodedPage]
    threads: _Threads
    """That decode it."""
    own_places: asyncio.Semaphore
    wait_ms: float = 0.0
    fetch_ms: float = 0.0
    reads: list[PageRead] = field(default_factory=list)


class Pipeline:
    """Reads documents. Safe to use from many tasks of one event loop at once."""

    def __init__(self, detector: Detector, recognizer: Recognizer, limits: PipelineLimits) -> None:
        self._detector = detector
        self._recognizer = recognizer
        self._limits = limits
        self._online, self._bulk = _Lane("online", limits), _Lane("bulk", limits)
        self._fetcher = Fetcher(limits.web)
        self._versions = decoder_versions()
        self.in_flight = 0
        """Documents being worked on."""

    async def recognize(
        self, job: pb.Job, *, priority: int, deadline: float | None, received: float
    ) -> pb.Result:
        """The text of a document, whole or in part; raises an `OcrError` when nothing of it could be read.

        `job` has passed `records.check_job` at its door. `deadline` and `received` are seconds of the
        monotonic clock. Cancelling the task ends the work.
        """
        job_id = job.job_id or uuid.uuid4().hex
        order = self._order(job, priority, deadline)
        start = time.monotonic()
        with self._counted(), _span("document", {"ocr.job_id": job_id, "ocr.file": job.file}):
            await self._read(order)
        _count_errors("recognizer", (error for read in order.reads for error in read.unread))
        result = assemble(job_id, job.file, order.reads, self._shaped_by(job.options))
        _count_errors("gateway", (read.error for read in order.reads if read.error))  # others failed it whole
        result.timing.decode_ms += order.fetch_ms
        result.timing.wait_ms = (start - received) * 1000 + order.wait_ms
        result.timing.total_ms = (time.monotonic() - received) * 1000
        return result

    async def start(self) -> None:
        """Nothing to begin."""

    def not_ready(self) -> str | None:
        """Always ready; its backends may not be."""
        return None

    async def drain(self) -> None:
        """Nothing: the doors know their documents."""

    async def close(self) -> None:
        """Let the threads go. What still runs in them runs to its end."""
        for lane in (self._online, self._bulk):
            lane.close()

    def _shaped_by(self, options: pb.Options) -> dict[str, str]:
        """What determines the text beside the document and the models, by name."""
        images = self._limits.images
        return {
            "pdf_dpi": f"{images.pdf_dpi:g}",
            "max_pdf_side": str(images.max_pdf_side),
            "max_pixels": str(images.max_pixels),
            "kept_jpeg_side": str(KEPT_JPEG_SIDE),
            "min_confidence": f"{options.min_confidence:g}",
            **self._versions,
        }

    def _order(self, job: pb.Job, priority: int, deadline: float | None) -> _Order:
        lane = self._bulk if priority == pb.BULK else self._online
        return _Order(
            job,
            priority,
            deadline,
            lane,
            pages=_decoded(job, self._limits, lane.pdf),
            threads=lane.images,
            own_places=asyncio.Semaphore(self._limits.max_pages_per_document),
        )

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def _read(self, order: _Order) -> None:
        """All pages, into `order.reads`. Only `OcrError` leaves, and cancellation."""
        try:
            async with asyncio.timeout_at(order.deadline), self._at_hand(order), asyncio.TaskGroup() as group:
                if await self._is_pdf(order):
                    order.threads = order.lane.pdfs
                await self._turn(order, group)
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the document was read") from error
        except ExceptionGroup as failed:
            raise _as_ocr_error(failed) from failed
        finally:
            order.threads.let_go(order.pages)

    @contextlib.asynccontextmanager
    async def _at_hand(self, order: _Order) -> AsyncIterator[None]:
        """A document that a host has is in memory while it is read, and holds a place for such."""
        if not source.on_network(order.job):
            yield
            return
        asked = time.monotonic()
        async with order.lane.fetches.turn:
            order.wait_ms = (time.monotonic() - asked) * 1000
            with _span("fetch"):
                order.job, order.fetch_ms = await order.lane.fetches.run(
                    source.fetched, order.job, self._fetcher, order.deadline
                )
            order.pages = _decoded(order.job, self._limits, order.lane.pdf)
            yield

    async def _is_pdf(self, order: _Order) -> bool:
        """What the first bytes say. Of a file only they are read now, the whole when it has a place."""
        limits = self._limits
        if order.job.WhichOneof("source") != "uri":
            return sniff(order.job.content) == "PDF"
        head, _ = await order.lane.images.run(
            source.head, order.job, limits.uri_allow, limits.images.max_bytes
        )
        return sniff(head) == "PDF"

    async def _turn(self, order: _Order, group: asyncio.TaskGroup) -> None:
        """Decode the next page, leave the one after it to a new task, and read this one.

        So pages are decoded one after the other, as their formats need it, and read side by side.
        """
        asked = time.monotonic()
        async with contextlib.AsyncExitStack() as places:
            await places.enter_async_context(order.own_places)
            async with order.threads.turn:
                await places.enter_async_context(order.lane.places)
                if not order.reads:
                    order.wait_ms += (time.monotonic() - asked) * 1000
                with _span("decode"):
                    decoded, decode_ms = await order.threads.run(next, order.pages)
            read = PageRead(decoded.number)
            read.spent.decode_ms = decode_ms
            order.reads.append(read)
            if decoded.number < decoded.of:
                group.create_task(self._turn(order, group))
            await self._page(order, decoded, read)

    async def _page(self, order: _Order, decoded: DecodedPage, read: PageRead) -> None:
        """Read one page into `read`. An error that can pass is raised; any other is this page's own."""
        image = decoded.image
        try:
            if isinstance(image, OcrError):
                raise image
            read.height, read.width = decoded.displayed or image.shape[:2]
            found = await self._detect(order, image, read)
            requests = await self._cut(order, image, found, read)
            await self._recognize(order, requests, read)
        except OcrError as error:
            if error.retryable or isinstance(error, DeadlineExceeded | Cancelled | NoAnswer):
                raise
            read.error = error

    async def _detect(self, order: _Order, image: Bgr, read: PageRead) -> pb.DetectResponse:
        with _span("detect"):
            max_side = await self._detector.max_side(deadline=order.deadline)
            request, shrink_ms = await order.lane.images.run(
                detect_request, image, (read.height, read.width), max_side, order.priority
            )
            found, seen_ms = await _timed(self._detector.detect(request, deadline=order.deadline))
        read.detector = found.model
        read.spent.decode_ms += shrink_ms
        read.spent.transport_ms += max(seen_ms - found.timing.total_ms, 0.0)
        read.spent.detect.append(found.timing)
        return found

    async def _cut(
        self, order: _Order, image: Bgr, found: pb.DetectResponse, read: PageRead
    ) -> list["LineRequest"]:
        with _span("crop", {"ocr.lines": len(found.lines)}):
            requests, read.spent.crop_ms = await order.lane.images.run(
                line_requests,
                image,
                (read.height, read.width),
                found,
                order.priority,
                self._limits.max_request_bytes,
            )
        return requests

    async def _recognize(self, order: _Order, requests: list["LineRequest"], read: PageRead) -> None:
        if not requests:
            return
        with _span("recognize", {"ocr.lines": sum(len(r.quads) for r in requests)}):
            asked = [_timed(self._recognizer.recognize(r.message, deadline=order.deadline)) for r in requests]
            answers = await _together(asked)
        for request, (answer, seen_ms) in zip(requests, answers, strict=True):
            read.recognizer = answer.model
            read.spent.transport_ms += max(seen_ms - answer.timing.total_ms, 0.0)
            read.spent.recognize.append(answer.timing)
            _take_lines(read, request, answer, order.job.options.min_confidence)


# -- the pure steps of a page ---------------------------------------------------------------------


@dataclass(frozen=True)
class LineRequest:
    """Lines of one page that go to the recognizer together, and where each of them lies."""

    message: pb.RecognizeLinesRequest
    quads: list[pb.Quad]


def detect_request(image: Bgr, displayed: tuple[int, int], max_side: int, priority: int) -> pb.DetectRequest:
    """A page as the detector wants it: no larger than it looks at, in raw pixels.

    The regions come back in pixels of the page as `displayed`, height and width.
    """
    height, width = displayed
    request = pb.DetectRequest(priority=pb.Priority.Name(priority), source_width=width, source_height=height)
    put_pixels(request.image, shrink(image, max_side) if max_side else image)
    return request


def line_requests(
    image: Bgr, displayed: tuple[int, int], found: pb.DetectResponse, priority: int, max_bytes: int
) -> list[LineRequest]:
    """The lines of a page in reading order, cut out, in requests of at most `max_bytes` or of one line.

    A region without area is left out: no text can be missed in it.
    """
    requests: list[LineRequest] = []
    room = 0
    for quad, line in _lines(image, displayed, found):
        if line.nbytes > room:
            message = pb.RecognizeLinesRequest(priority=pb.Priority.Name(priority))
            requests.append(LineRequest(message, []))
            room = max_bytes
        room -= line.nbytes + _LINE_OVERHEAD
        put_pixels(requests[-1].message.lines.add(), line)
        requests[-1].quads.append(quad)
    return requests


def _lines(image: Bgr, displayed: tuple[int, int], found: pb.DetectResponse) -> Iterator[tuple[pb.Quad, Bgr]]:
    quads = [line.quad for line in found.lines]
    corners = np.array([[(p.x, p.y) for p in quad.points] for quad in quads], np.float32).reshape(-1, 4, 2)
    order = reading_order(corners)
    scale = np.array((image.shape[1] / displayed[1], image.shape[0] / displayed[0]), np.float32)
    for index, line in zip(order, crops(image, corners[order] * scale), strict=True):
        if line is not None:
            yield quads[index], _fitted(line)


def _fitted(line: Bgr) -> Bgr:
    """The line no taller than the recognizer looks at, and shrunk to `MAX_LINE_BYTES` if it is larger yet."""
    line = line_size.shrink(line)
    if line.nbytes <= MAX_LINE_BYTES:
        return line
    ratio = (MAX_LINE_BYTES / line.nbytes) ** 0.5
    size = [max(int(side * ratio), 1) for side in (line.shape[1], line.shape[0])]
    return np.asarray(cv2.resize(line, size, interpolation=cv2.INTER_AREA), np.uint8)


def _take_lines(
    read: PageRead, request: LineRequest, answer: pb.RecognizeLinesResponse, min_confidence: float
) -> None:
    """Add what was read to the page. Lines of no text are left out: the detector was wrong about them."""
    if len(answer.lines) != len(request.quads):
        raise Internal(f"the recognizer answered {len(answer.lines)} lines of {len(request.quads)}")
    for quad, line in zip(request.quads, answer.lines, strict=True):
        read.found += 1
        if line.HasField("error"):
            read.unread.append(_own_error(line.error))
        elif line.text and line.confidence >= min_confidence:
            read.lines.append(
                pb.Line(text=line.text, confidence=line.confidence, points=quad.points, page=read.number)
            )


def _own_error(message: pb.Error) -> OcrError:
    """The error of a line, raised at once if trying the document again can help."""
    error = from_error(message)
    if error.retryable:
        raise error
    return error


def _decoded(job: pb.Job, limits: PipelineLimits, pdf: PdfProcess) -> Iterator[DecodedPage]:
    """The pages of a job; the disk is read at the first `next`, in a thread like the rest."""
    data = source.read(job, limits.uri_allow, limits.images.max_bytes)
    yield from decode_document(data, replace(limits.images, kept_jpeg_side=KEPT_JPEG_SIDE), pdf.pages)


def _count_errors(stage: str, errors: Iterable[OcrError]) -> None:
    for error in errors:
        METRICS.errors.add(1, {"stage": stage, "code": error.code})


# -- waiting --------------------------------------------------------------------------------------


def _span(name: str, attributes: dict[str, str | int] | None = None) -> Any:
    return tracer.start_as_current_span(name, attributes=attributes, record_exception=False)


async def _timed(call: Awaitable[T]) -> tuple[T, float]:
    """What the call gives, and the milliseconds until it did."""
    start = time.monotonic()
    return await call, (time.monotonic() - start) * 1000


async def _together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """All of them side by side; the first error cancels the others and is raised."""

    async def wait(call: Awaitable[T]) -> T:
        return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(call)) for call in calls]
    except ExceptionGroup as failed:
        raise _as_ocr_error(failed) from failed
    return [task.result() for task in tasks]


def _as_ocr_error(error: Exception) -> OcrError:
    """The error that decides: the first `OcrError` of a group, and a defect of ours before any of them."""
    leaves = list(_leaves(error))
    defect = next((leaf for leaf in leaves if not isinstance(leaf, OcrError)), None)
    if defect is not None:
        log.error("a document failed by a defect", exc_info=defect)
        return Internal(f"{type(defect).__name__}: a defect of the gateway; its log has the trace")
    return next(leaf for leaf in leaves if isinstance(leaf, OcrError))


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
