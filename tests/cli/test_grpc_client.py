"""The stream of `ocrctl recognize` against a real server: every file is answered, and with its own reason."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.cli import grpc_client
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
    return GatewayStream(
        address, files, [str(n) for n in range(len(files))], max_in_flight=4, timeout_s=timeout_s
    )


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


async def test_a_name_that_is_no_utf8_stops_nothing(gateway: Gateway, tmp_path: Path) -> None:
    bad, missing = (tmp_path / os.fsdecode(name) for name in (b"bad\xff.jpg", b"none\xfe.jpg"))
    bad.touch()
    seen: dict[int, str] = {}
    await codes(stream(gateway, [bad, missing]), seen)
    assert seen == {0: "OK", 1: "URI_UNREADABLE"}


NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Health(health.aio.HealthServicer):
    """Becomes ready when it is asked for the third time, if it may."""

    def __init__(self, service: str, *, ever: bool) -> None:
        super().__init__()
        self.asked = 0
        self._name = service
        self._ever = ever

    async def Check(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await self.set(self._name, SERVING if self._ever and self.asked > 2 else NOT_SERVING)
        return await super().Check(request, context)


async def served(health_servicer: Health, *, gateway: bool) -> AsyncIterator[Any]:
    server, servicer = grpc.aio.server(), Gateway()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if gateway:
        ocr_pb2_grpc.add_OcrServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer
    await server.stop(None)


async def test_documents_wait_until_the_gateway_is_warm(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_client, "READY_PERIOD_S", 0.01)
    warming, seen = Health("ocr.v1.Ocr", ever=True), {}
    async for gateway in served(warming, gateway=True):
        await codes(stream(gateway, files), seen)
    assert (warming.asked, seen[0]) == (3, "OK")


async def test_a_gateway_that_never_becomes_ready_cannot_be_used(files: list[Path]) -> None:
    async for gateway in served(Health("ocr.v1.Ocr", ever=False), gateway=True):
        with pytest.raises(Unreachable, match=r"did not become ready within 0\.3 s"):
            await codes(stream(gateway, files, timeout_s=0.3), {})


async def test_another_server_is_said_to_be_no_gateway(files: list[Path]) -> None:
    async for detector in served(Health("ocr.v1.Detector", ever=True), gateway=False):
        with pytest.raises(Unreachable, match=f"127.0.0.1:{detector.port} .*is not a gateway"):
            await codes(stream(detector, files), {})


async def test_a_server_without_our_service_is_said_to_be_no_gateway(
    gateway: Gateway, files: list[Path]
) -> None:
    async def unknown(jobs: AsyncIterator[pb.Job], context: Any) -> AsyncIterator[pb.Result]:
        async for _job in jobs:
            pass
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        yield pb.Result()

    gateway.answers = unknown
    with pytest.raises(Unreachable, match="is not a gateway"):
        await codes(stream(gateway, files), {})
