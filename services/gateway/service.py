"""The gRPC door: one document a call, or many documents on one call.

A single call that finds `max_in_flight` others at work is refused; whoever sends a stream waits instead, by
not being read from. The two are counted apart, so that streams never use up the places of single calls.
"""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, Protocol

import grpc

from services.common import rpc
from services.common.errors import OcrError, Overloaded, ShuttingDown
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.records import check_job
from services.common.telemetry import METRICS
from services.gateway.results import failed_result

NAME = pb.DESCRIPTOR.services_by_name["Ocr"].full_name


class Recognize(Protocol):
    """`Pipeline.recognize`."""

    def __call__(
        self, job: pb.Job, *, priority: int, deadline: float | None, received: float
    ) -> Awaitable[pb.Result]:
        """The result of a document, or an `OcrError`. Times are seconds of the monotonic clock."""


class Part(Protocol):
    """Something that the gateway is made of: the backends behind it, the Kafka side beside it."""

    async def start(self) -> None:
        """Begin."""

    def not_ready(self) -> str | None:
        """Why it keeps the gateway from serving; None when it does not."""

    async def drain(self) -> None:
        """Take no new work and finish what was taken."""

    async def close(self) -> None:
        """Let go of everything."""


class OcrServicer(ocr_pb2_grpc.OcrServicer):
    """`ocr.v1.Ocr`. Errors leave as `OcrError`; the interceptor of `rpc` makes statuses of them."""

    def __init__(self, recognize: Recognize, *, max_in_flight: int) -> None:
        self._recognize = recognize
        self._max_in_flight = max_in_flight
        self._stream_places = asyncio.Semaphore(max_in_flight)
        self._draining = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._single = 0
        self._calls = 0

    async def Recognize(self, request: pb.Job, context: rpc.Context) -> pb.Result:
        """One document."""
        received = time.monotonic()
        with self._call(), self._place():
            return await self._answer(request, rpc.deadline_of(context), received)

    async def RecognizeStream(
        self, request_iterator: AsyncIterator[pb.Job], context: rpc.Context
    ) -> AsyncIterator[pb.Result]:
        """Many documents; each answer as soon as it is there. Ends early, and says so, when draining."""
        with self._call():
            answers = _Answers(self._stream_places)
            reader = asyncio.create_task(self._read(request_iterator, rpc.deadline_of(context), answers))
            try:
                async for result in answers:
                    yield result
                await reader
            finally:
                reader.cancel()
                answers.cancel()
            if self._draining.is_set():
                raise ShuttingDown("the gateway is draining; documents without an answer were not begun")

    async def _read(
        self, requests: AsyncIterator[pb.Job], deadline: float | None, answers: "_Answers"
    ) -> None:
        """Begin work on each document as places become free."""
        try:
            while (job := await self._next(requests)) is not None:
                await answers.add(self._result(job, deadline, time.monotonic()))
        finally:
            answers.no_more()

    async def _next(self, requests: AsyncIterator[pb.Job]) -> pb.Job | None:
        """The next document; None at the end of the stream or when draining begins."""
        reading = asyncio.ensure_future(anext(requests, None))
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({reading, draining}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            draining.cancel()

    async def _result(self, job: pb.Job, deadline: float | None, received: float) -> pb.Result:
        job.job_id = job.job_id or uuid.uuid4().hex
        try:
            return await self._answer(job, deadline, received)
        except OcrError as error:
            METRICS.errors.add(1, {"stage": "gateway", "code": error.code})
            return failed_result(job, error)

    async def _answer(self, job: pb.Job, deadline: float | None, received: float) -> pb.Result:
        status = "failed"
        try:
            check_job(job)
            result = await self._recognize(
                job, priority=job.options.priority or pb.ONLINE, deadline=deadline, received=received
            )
            status = pb.Status.Name(result.status).lower()
        finally:
            METRICS.documents.add(1, {"door": "grpc", "status": status})
            METRICS.document.record(time.monotonic() - received, {"door": "grpc"})
        return result

    async def drain(self) -> None:
        """Refuse new documents and wait for those at work."""
        self._draining.set()
        await self._idle.wait()

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        if self._draining.is_set():
            raise ShuttingDown("the gateway is draining; ask another replica")
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._single >= self._max_in_flight:
            raise Overloaded(f"{self._max_in_flight} documents are at work already; try again later")
        self._single += 1
        try:
            yield
        finally:
            self._single -= 1


class _Answers:
    """The documents of one stream at work, and their results in the order in which they finish.

    A place is held from the beginning of a document until its result was taken, so a client that does not
    read its answers gets no further documents read either.
    """

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._tasks: set[asyncio.Task[pb.Result]] = set()
        self._changed = asyncio.Event()
        self._finished: deque[asyncio.Task[pb.Result]] = deque()
        self._no_more = False

    async def add(self, work: Any) -> None:
        """Begin `work`, a coroutine that gives a result, when there is a place."""
        try:
            await self._places.acquire()
        except asyncio.CancelledError:
            work.close()
            raise
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def no_more(self) -> None:
        """No work will be added."""
        self._no_more = True
        self._changed.set()

    def cancel(self) -> None:
        """Give up whatever is left: the client went away."""
        for _ in range(len(self._tasks)):
            self._places.release()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def __aiter__(self) -> AsyncIterator[pb.Result]:
        while self._tasks or not self._no_more:
            self._changed.clear()
            while self._finished:
                task = self._finished.popleft()
                yield task.result()
                self._tasks.discard(task)
                self._places.release()
            if self._tasks or not self._no_more:
                await self._changed.wait()

    def _on_done(self, task: asyncio.Task[pb.Result]) -> None:
        if task in self._tasks:
            self._finished.append(task)
            self._changed.set()


class GatewayService:
    """The gateway as `rpc.run_service` wants it: the gRPC door and the parts behind and beside it."""

    names: Sequence[str] = (NAME,)

    def __init__(self, servicer: OcrServicer, parts: Sequence[Part]) -> None:
        self._servicer = servicer
        self._parts = parts

    def register(self, server: grpc.aio.Server) -> None:
        """Add the door to a server."""
        ocr_pb2_grpc.add_OcrServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]

    async def start(self) -> None:
        """Start all parts, in their order."""
        for part in self._parts:
            await part.start()

    def not_ready(self) -> str | None:
        """The first reason of any part."""
        return next((reason for part in self._parts if (reason := part.not_ready()) is not None), None)

    async def drain(self) -> None:
        """Both doors at once: neither has to wait for the other's documents."""
        await asyncio.gather(self._servicer.drain(), *(part.drain() for part in self._parts))

    async def close(self) -> None:
        """Close the parts, the last one first."""
        for part in reversed(self._parts):
            await part.close()
