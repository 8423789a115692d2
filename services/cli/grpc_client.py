"""The command's gRPC client: many documents on one call, a bounded number of them on their way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import trace

from services.cli import documents
from services.cli.documents import MAX_MESSAGE_BYTES, display_name
from services.cli.errors import Unreachable
from services.cli.formats import failure, not_readable
from services.cli.state import Address
from services.common import rpc, telemetry
from services.common.errors import DocumentTooLarge, OcrError, Unavailable
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc

MAX_MESSAGE_MB = MAX_MESSAGE_BYTES >> 20
CONNECT_TIMEOUT_S = 5.0
READY_PERIOD_S = 0.2
GATEWAY = "ocr.v1.Ocr"
Numbered = tuple[int, pb.Result]
Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.Job, pb.Result]"


class GatewayStream:
    """One `RecognizeStream` call for `files`. Iterate `results` once."""

    def __init__(
        self,
        address: Address,
        files: Sequence[Path],
        job_ids: Sequence[str],
        *,
        max_in_flight: int,
        timeout_s: float,
        priority: pb.Priority = pb.PRIORITY_UNSPECIFIED,
    ) -> None:
        self._address = address
        self._files = files
        self._job_ids = job_ids
        self._timeout_s = timeout_s
        self._priority = priority
        self._open = {job_id: index for index, job_id in enumerate(job_ids)}
        self._slots = asyncio.Semaphore(max_in_flight)
        self._refused: list[Numbered] = []

    async def results(self) -> AsyncIterator[Numbered]:
        """Each file's number and result, as they come.

        After `timeout_s` without any answer the files still open have failed. When the call itself fails they
        have, too, and if the reason is that nobody answers, `Unreachable` is raised after the last of them.
        """
        async with rpc.channel(self._address.target, max_message_mb=MAX_MESSAGE_MB) as channel:
            await self._connect(channel)
            await self._until_ready(channel)
            # Not the current span for longer: a generator may be resumed and closed in other contexts.
            span = telemetry.tracer.start_span("ocrctl recognize")
            with trace.use_span(span):
                metadata = telemetry.inject_metadata()
            stub: Any = ocr_pb2_grpc.OcrStub(channel)  # type: ignore[no-untyped-call]
            call = stub.RecognizeStream(self._jobs(), metadata=metadata)
            try:
                async for numbered in self._answers(call):
                    yield numbered
            except TimeoutError:
                why = f"no answer within {self._timeout_s:g} s; give more with --timeout"
                for numbered in self._fail_open("DEADLINE_EXCEEDED", why):
                    yield numbered
            except grpc.aio.AioRpcError as lost:
                if lost.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise self._no_gateway() from None
                error = rpc.error_from(lost)
                for numbered in self._fail_open(error.code, str(error)):
                    yield numbered
                self._raise_if_gone(error)
            finally:
                call.cancel()
                span.end()

    async def _connect(self, channel: grpc.aio.Channel) -> None:
        try:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise Unreachable(
                f"No gateway answers at {self._address.target} (from {self._address.origin}): start one with "
                "`ocrctl up`, or say where it is with --gateway HOST:PORT or OCR_GATEWAY."
            ) from None

    async def _until_ready(self, channel: grpc.aio.Channel) -> None:
        """Wait while the gateway warms up, as long as for an answer; it refuses documents until then."""
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            async with asyncio.timeout(self._timeout_s):
                if await self._is_ready(stub):
                    return
                typer.echo(f"waiting for the gateway at {self._address.target} to become ready", err=True)
                while not await self._is_ready(stub):  # noqa: ASYNC110  # the event is in another process
                    await asyncio.sleep(READY_PERIOD_S)
        except TimeoutError:
            raise Unreachable(
                f"The gateway at {self._address.target} did not become ready within {self._timeout_s:g} s: "
                "look at its log, or give it more with --timeout."
            ) from None

    async def _is_ready(self, stub: Any) -> bool:
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=GATEWAY))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise self._no_gateway() from None
            # Any other answer, as that it has no health service, comes from a server that can be asked.
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _no_gateway(self) -> Unreachable:
        return Unreachable(
            f"{self._address.target} (from {self._address.origin}) is not a gateway: say where one is with "
            "--gateway HOST:PORT or OCR_GATEWAY."
        )

    async def _jobs(self) -> AsyncIterator[pb.Job]:
        for index, path in enumerate(self._files):
            await self._slots.acquire()
            job_id = self._job_ids[index]
            try:
                content = await asyncio.to_thread(documents.read, path)
            except (OSError, DocumentTooLarge) as error:
                self._refused.append((index, not_readable(path, job_id, error)))
                self._slots.release()
                continue
            options = pb.Options(priority=self._priority)
            yield pb.Job(job_id=job_id, file=display_name(path), content=content, options=options)

    async def _answers(self, call: Call) -> AsyncIterator[Numbered]:
        while (answer := await asyncio.wait_for(call.read(), self._timeout_s)) is not grpc.aio.EOF:
            self._slots.release()
            assert isinstance(answer, pb.Result)
            if (index := self._open.pop(answer.job_id, None)) is not None:
                yield index, answer
        for numbered in self._fail_open("INTERNAL", "the gateway ended the call without an answer"):
            yield numbered

    def _fail_open(self, code: str, why: str) -> list[Numbered]:
        """What is still open, as failures: of this kind, or of its own for a file that was not sent."""
        left, self._open = self._open, {}
        refused = dict(self._refused)
        return [
            (index, refused.get(index) or failure(display_name(self._files[index]), job_id, code, why))
            for job_id, index in left.items()
        ]

    def _raise_if_gone(self, error: OcrError) -> None:
        if isinstance(error, Unavailable):
            raise Unreachable(f"The gateway at {self._address.target} cannot be used now: {error}")


async def until_serving(address: str, *, period_s: float = 0.1) -> None:
    """Wait until the server at `address` says that it is ready; for ever if it never does."""
    serving = health_pb2.HealthCheckResponse.SERVING
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True)
                if answer.status == serving:
                    return
            await asyncio.sleep(period_s)
