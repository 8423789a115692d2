"""Documents through gRPC, a fixed number at a time."""

import asyncio
import time
from collections.abc import Sequence
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
                sample = await self.ask(document)
                samples.append(sample)

        await asyncio.gather(*(caller() for _ in range(concurrency)))
        return Run(tuple(samples))

    async def ask(self, document: Document) -> Sample:
        """One document."""
        sent_s = time.monotonic()
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
