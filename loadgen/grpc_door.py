"""Documents through gRPC: a fixed number at a time, or at the times of a schedule."""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from loadgen.corpus import Document
from loadgen.samples import Answer, Run, Sample
from services.common import records, rpc
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc

ONLINE, BULK = pb.ONLINE, pb.BULK
_MESSAGE_MB = 64


class GrpcDoor:
    """A client of one gateway. Use as `async with`."""

    def __init__(self, address: str, *, priority: pb.Priority = ONLINE, timeout_s: float = 120.0) -> None:
        self._channel = rpc.channel(address, max_message_mb=_MESSAGE_MB)
        self._stub: Any = ocr_pb2_grpc.OcrStub(self._channel)  # type: ignore[no-untyped-call]
        self._priority = priority
        self._timeout_s = timeout_s

    async def __aenter__(self) -> "GrpcDoor":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def closed_loop(self, documents: Sequence[Document], *, concurrency: int) -> Run:
        """Each of `concurrency` callers sends its next document when the last one is answered."""
        left = iter(documents)
        samples: list[Sample] = []

        async def caller() -> None:
            for document in left:
                sample = await self.ask(document, time.monotonic())
                samples.append(sample)

        await asyncio.gather(*(caller() for _ in range(concurrency)))
        return _ordered(samples)

    async def open_loop(self, documents: Sequence[Document], schedule: Sequence[float]) -> Run:
        """Send document i at `schedule[i]` seconds from now, whatever became of those before it.

        Latency counts from the time of the schedule, so a late sender does not look like a fast server.
        """
        start = time.monotonic()

        async def sent(document: Document, offset: float) -> Sample:
            await asyncio.sleep(start + offset - time.monotonic())
            return await self.ask(document, start + offset)

        return _ordered(await asyncio.gather(*map(sent, documents, schedule)))

    async def ask(self, document: Document, sent_s: float) -> Sample:
        """One document; `sent_s` is when its time began, on the monotonic clock."""
        options = pb.Options(priority=self._priority)
        job = pb.Job(file=document.name, content=document.content, options=options)
        try:
            answer: pb.Result = await self._stub.Recognize(job, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as failed:
            error = rpc.error_from(failed)
            said = Answer("failed", error=f"{error.code}: {error}")
            return Sample(document.name, sent_s, time.monotonic(), said)
        return Sample(document.name, sent_s, time.monotonic(), read(answer))


def read(result: pb.Result) -> Answer:
    """The answer in the same form as through Kafka."""
    found = records.to_dict(result)
    return Answer(found["status"], tuple(found["lines"]), "", found["timing"])


def _ordered(samples: Sequence[Sample]) -> Run:
    return Run(tuple(sorted(samples, key=lambda sample: sample.done_s)))


def poisson_schedule(uniform: Iterator[float], rate: float, count: int) -> list[float]:
    """Times in seconds of `count` arrivals at `rate` a second, from numbers drawn evenly from [0, 1)."""
    now, times = 0.0, []
    for _ in range(count):
        now -= math.log(1 - next(uniform)) / rate
        times.append(now)
    return times
