"""The stream of `ocrctl recognize` against a real server: every file is answered, and with its own reason."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.cli.errors import Unreachable
from services.cli.grpc_client import GatewayStream
from services.cli.state import Address
from services.common import telemetry
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc

Answers = Callable[[AsyncIterator[pb.Job], Any], AsyncIterator[pb.Result]]


async def answer_all(jobs: AsyncIterator[pb.Job], _: Any) -> AsyncIterator[pb.Result]:
    async for job in jobs:
        yield pb.Result(job_id=job.job_id, file=job.file, status=pb.OK)


async def answer_none(jobs: AsyncIterator[pb.Job], _: Any) -> AsyncIterator[pb.Result]:
    async for _job in jobs:
        pass
    await asyncio.Event().wait()
    yield pb.Result()


async def break_down(jobs: AsyncIterator[pb.Job], context: Any) -> AsyncIterator[pb.Result]:
    async for _job in jobs:
        pass
    await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
    yield pb.Result()


class Gateway(ocr_pb2_grpc.OcrServicer):
    """Answers the stream as told."""

    def __init__(self) -> None:
        self.answers: Answers = answer_all
        self.traceparents: list[str] = []

    async def RecognizeStream(
        self, request_iterator: AsyncIterator[pb.Job], context: Any
    ) -> AsyncIterator[pb.Result]:
        self.traceparents += [str(v) for k, v in context.invocation_metadata() if k == "traceparent"]
        async for result in self.answers(request_iterator, context):
            yield result


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    server, servicer = grpc.aio.server(), Gateway()
    ocr_pb2_grpc.add_OcrServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer
    await server.stop(None)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """One that can be read, one that is missing, one more that can be read."""
    for name in ("a", "c"):
        (tmp_path / f"{name}.png").write_bytes(b"image")
    return [tmp_path / f"{name}.png" for name in ("a", "b", "c")]


def stream(gateway: Gateway, files: list[Path], *, timeout_s: float = 30.0) -> GatewayStream:
    address = Address(f"127.0.0.1:{gateway.port}", "a test")
    return GatewayStream(address, files, ["0", "1", "2"], max_in_flight=4, timeout_s=timeout_s)


async def codes(opened: GatewayStream, into: dict[int, str]) -> None:
    async for index, result in opened.results():
        assert index not in into
        into[index] = pb.ErrorCode.Name(result.error.code) if result.HasField("error") else "OK"


async def test_a_file_that_cannot_be_read_fails_alone(gateway: Gateway, files: list[Path]) -> None:
    seen: dict[int, str] = {}
    await codes(stream(gateway, files), seen)
    assert seen == {0: "OK", 1: "URI_UNREADABLE", 2: "OK"}


async def test_after_a_timeout_an_unreadable_file_keeps_its_own_reason(
    gateway: Gateway, files: list[Path]
) -> None:
    gateway.answers, seen = answer_none, {}
    await codes(stream(gateway, files, timeout_s=0.3), seen)
    assert seen == {0: "DEADLINE_EXCEEDED", 1: "URI_UNREADABLE", 2: "DEADLINE_EXCEEDED"}


async def test_after_a_lost_call_an_unreadable_file_keeps_its_own_reason(
    gateway: Gateway, files: list[Path]
) -> None:
    gateway.answers, seen = break_down, {}
    with pytest.raises(Unreachable, match="going away"):
        await codes(stream(gateway, files), seen)
    assert seen == {0: "UNAVAILABLE", 1: "URI_UNREADABLE", 2: "UNAVAILABLE"}


async def test_the_span_of_the_command_lasts_until_the_last_answer_and_is_its_parent(
    gateway: Gateway, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("test"))
    ended: list[tuple[ReadableSpan, ...]] = []
    async for _ in stream(gateway, files).results():
        ended.append(exporter.get_finished_spans())
    [span] = exporter.get_finished_spans()
    assert ended == [()] * 3
    assert f"{span.context.span_id:016x}" in gateway.traceparents[0]
