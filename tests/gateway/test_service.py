"""The gRPC door, over a real server with real servers behind it."""

import asyncio
import struct
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from PIL import Image

from services.common import rpc
from services.common.images import ImageLimits
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.telemetry import METRICS
from services.gateway.clients import Backend, DetectorClient, RecognizerClient, RetryLimits
from services.gateway.fetch import WebLimits
from services.gateway.pipeline import Pipeline, PipelineLimits
from services.gateway.places import place
from services.gateway.retries import Backoff
from services.gateway.service import NAME, GatewayService, OcrServicer
from tests.fakes.backends import Backends, code, paper, saved

FORM = saved(paper((10, 10, 110, 30), (150, 12, 290, 28), (10, 60, 210, 90)))
FORM_TEXT = ["100x20", "140x16", "200x30"]
SLOW = saved(paper((0, 0, 50, 20), size=(352, 192)))
"""A page that `hold_slow` makes wait, known by its width."""


Counted = Counter[tuple[str, str]]


class ErrorCounter:
    """Stands for `METRICS.errors`."""

    def __init__(self) -> None:
        self.counted: Counted = Counter()

    def add(self, count: int, attributes: dict[str, str]) -> None:
        self.counted[attributes["stage"], attributes["code"]] += count


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The errors counted so far, by stage and code."""
    counter = ErrorCounter()
    monkeypatch.setattr(METRICS, "errors", counter)
    return counter.counted


class Door:
    """A running gateway and a client of it."""

    def __init__(self, backends: Backends, folder: Path, *, max_in_flight: int = 8) -> None:
        self.backends = backends
        self.parts = [
            Backend(name, backends.target, max_message_mb=64, period_s=0.01)
            for name in ("detector", "recognizer")
        ]
        tries = RetryLimits(max_attempts=3, backoff=Backoff(0.01, 0.02))
        detector, recognizer = (part.channel for part in self.parts)
        self.pipeline = Pipeline(
            DetectorClient(detector, tries),
            RecognizerClient(recognizer, tries),
            PipelineLimits(
                images=ImageLimits(max_bytes=1_000_000, max_pages=5),
                uri_allow=(str(folder),),
                web=WebLimits((place("http://127.0.0.1:1/docs"),)),
                cpu_threads=2,
            ),
        )
        servicer = OcrServicer(self.pipeline.recognize, max_in_flight=max_in_flight)
        self.service = GatewayService(servicer, [*self.parts, self.pipeline])
        self.server = grpc.aio.server(interceptors=[rpc.CallInterceptor()])
        self.released = asyncio.Event()
        backends.detector.gate = self._hold_slow

    async def _hold_slow(self, request: pb.DetectRequest) -> None:
        if request.source_width == 352:
            await self.released.wait()

    async def open(self) -> None:
        self.service.register(self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        await self.service.start()
        self.channel = rpc.channel(f"127.0.0.1:{port}", max_message_mb=64)
        self.ocr = ocr_pb2_grpc.OcrStub(self.channel)

    async def close(self) -> None:
        self.released.set()
        await self.channel.close()
        await self.server.stop(None)
        await self.service.close()

    async def read(self, content: bytes, **job: Any) -> pb.Result:
        return await self.ocr.Recognize(pb.Job(content=content, **job))

    async def idle(self) -> None:
        async with asyncio.timeout(10):
            while self.pipeline.in_flight or self.backends.detector.at_work:
                await asyncio.sleep(0.001)


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    made = Backends()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def make_door(backends: Backends, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    doors: list[Door] = []

    async def make(**options: Any) -> Door:
        doors.append(Door(backends, tmp_path, **options))
        await doors[-1].open()
        return doors[-1]

    yield make
    for door in doors:
        await door.close()


@pytest.fixture
async def door(make_door: Callable[..., Any]) -> Door:
    return await make_door()


def texts(result: pb.Result) -> list[str]:
    return [line.text for line in result.lines]


def bomb() -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    data = b"IDAT" + zlib.compress(bytes(64))
    return start + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


BAD: dict[str, tuple[pb.Job, str]] = {
    "empty bytes": (pb.Job(content=b""), "EMPTY_INPUT"),
    "no document": (pb.Job(), "INVALID_JOB"),
    "not an image": (pb.Job(content=b"Dear Sir or Madam"), "UNSUPPORTED_FORMAT"),
    "truncated": (pb.Job(content=FORM[:300]), "CORRUPT_INPUT"),
    "1 x 1": (pb.Job(content=saved(Image.new("RGB", (1, 1)))), "IMAGE_TOO_SMALL"),
    "bomb": (pb.Job(content=bomb()), "IMAGE_TOO_LARGE"),
    "bytes": (pb.Job(content=bytes(1_000_001)), "DOCUMENT_TOO_LARGE"),
    "pages": (pb.Job(content=saved(*[Image.new("1", (8, 8))] * 6, kind="TIFF")), "TOO_MANY_PAGES"),
    "uri outside": (pb.Job(uri="file:///etc/passwd"), "URI_NOT_ALLOWED"),
    "scheme": (pb.Job(uri="https://example.com/slip.png"), "URI_NOT_ALLOWED"),
    "place": (pb.Job(uri="http://127.0.0.1:1/docs/%2e%2e/slip.png"), "URI_NOT_ALLOWED"),
    "other bytes": (pb.Job(content=FORM, sha256="0" * 64), "CHECKSUM_MISMATCH"),
    "other size": (pb.Job(content=FORM, size=len(FORM) + 1), "CHECKSUM_MISMATCH"),
    "no sha256": (pb.Job(content=FORM, sha256="0"), "INVALID_JOB"),
    "type": (pb.Job(content=FORM, content_type="text/plain"), "UNSUPPORTED_FORMAT"),
    "confidence": (pb.Job(content=FORM, options=pb.Options(min_confidence=2)), "INVALID_JOB"),
    "no number": (pb.Job(content=FORM, options=pb.Options(min_confidence=float("nan"))), "INVALID_JOB"),
    "priority": (pb.Job(content=FORM, options=pb.Options(priority=7)), "INVALID_JOB"),
}


async def test_a_document_goes_in_and_its_text_comes_out(door: Door) -> None:
    result = await door.read(FORM, job_id="7", file="form.png")
    assert (result.job_id, result.file, result.status, texts(result)) == ("7", "form.png", pb.OK, FORM_TEXT)
    assert result.timing.total_ms > result.timing.transport_ms > 0


async def test_a_file_in_an_allowed_folder_is_read(door: Door, tmp_path: Path) -> None:
    (tmp_path / "form.png").write_bytes(FORM)
    assert texts(await door.ocr.Recognize(pb.Job(uri=f"file://{tmp_path}/form.png"))) == FORM_TEXT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ocr.Recognize(pb.Job(uri=f"file://{tmp_path}/missing.png"))
    assert code(caught.value) == "URI_UNREADABLE"


async def test_a_host_that_does_not_answer_is_unavailable(door: Door) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ocr.Recognize(pb.Job(uri="http://127.0.0.1:1/docs/a.png"))
    assert (caught.value.code(), code(caught.value)) == (grpc.StatusCode.UNAVAILABLE, "URI_UNAVAILABLE")


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_ends_the_call_with_its_code_and_no_other_call(door: Door, name: str) -> None:
    job, expected = BAD[name]
    before, failed, after = await asyncio.gather(
        door.read(FORM), door.ocr.Recognize(job), door.read(FORM), return_exceptions=True
    )
    assert (failed.code(), code(failed)) == (grpc.StatusCode.INVALID_ARGUMENT, expected)
    assert texts(before) == texts(after) == FORM_TEXT


async def test_bad_input_in_a_stream_is_a_failed_result_and_the_stream_goes_on(door: Door) -> None:
    jobs = [pb.Job(job_id="good", content=FORM)]
    for name, (bad, _) in BAD.items():
        jobs += [pb.Job(job_id=name)]
        jobs[-1].MergeFrom(bad)
    jobs += [pb.Job(job_id="also good", content=FORM)]
    results = {r.job_id: r async for r in door.ocr.RecognizeStream(iter(jobs))}
    codes = {i: pb.ErrorCode.Name(r.error.code) for i, r in results.items() if r.status == pb.FAILED}
    assert codes == {name: expected for name, (_, expected) in BAD.items()}
    assert texts(results["good"]) == texts(results["also good"]) == FORM_TEXT
    assert len(results) == len(jobs)


async def test_every_error_is_counted_once_through_either_call(door: Door, counted: Counted) -> None:
    bad = pb.Job(content=b"Dear Sir or Madam")
    with pytest.raises(grpc.aio.AioRpcError):
        await door.ocr.Recognize(bad)
    assert counted == {("gateway", "UNSUPPORTED_FORMAT"): 1}
    assert [r.status async for r in door.ocr.RecognizeStream(iter([bad, bad]))] == [pb.FAILED] * 2
    assert counted == {("gateway", "UNSUPPORTED_FORMAT"): 3}


async def test_unread_lines_and_pages_of_a_document_are_counted_once_each(
    door: Door, counted: Counted
) -> None:
    died = pb.Error(code=pb.PREDICTOR_FAILED, message="it died")
    for text in ("100x20", "140x16"):
        door.backends.recognizer.answers[text] = pb.RecognizedLine(error=died)
    tiny = Image.new("RGB", (1, 1))
    page = paper((10, 10, 110, 30), (150, 12, 290, 28), (10, 60, 210, 90))
    result = await door.read(saved(page, tiny, kind="TIFF"))
    assert (result.status, texts(result)) == (pb.PARTIAL, ["200x30"])
    assert counted == {("recognizer", "PREDICTOR_FAILED"): 2, ("gateway", "IMAGE_TOO_SMALL"): 1}


async def test_a_stream_answers_in_the_order_of_completion(door: Door) -> None:
    jobs = [pb.Job(job_id="slow", content=SLOW), pb.Job(job_id="quick", content=FORM)]
    ids = []
    async for result in door.ocr.RecognizeStream(iter(jobs)):
        ids.append(result.job_id)
        door.released.set()
    assert ids == ["quick", "slow"]


async def test_answers_come_while_the_client_is_still_sending(door: Door) -> None:
    call = door.ocr.RecognizeStream()
    for n in range(3):
        await call.write(pb.Job(job_id=str(n), content=FORM))
        assert (await call.read()).job_id == str(n)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_stream_is_not_read_from_while_its_documents_fill_the_places(make_door: Any) -> None:
    door = await make_door(max_in_flight=2)
    results = []

    async def listen() -> None:
        jobs = [pb.Job(content=SLOW) for _ in range(6)]
        results.extend([r.status async for r in door.ocr.RecognizeStream(iter(jobs))])

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(10):
        while door.backends.detector.at_work < 2:
            await asyncio.sleep(0.001)
    assert texts(await door.read(FORM)) == FORM_TEXT  # a single call has places of its own
    assert door.pipeline.in_flight == 2
    door.released.set()
    await listening
    assert results == [pb.OK] * 6
    assert door.backends.detector.most_at_work <= 3


async def test_a_single_call_beyond_the_limit_is_refused_at_the_door(make_door: Any) -> None:
    door = await make_door(max_in_flight=1)
    first = asyncio.ensure_future(door.read(SLOW))
    await door.backends.detector.arrived.wait()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.read(FORM)
    assert (caught.value.code(), code(caught.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    door.released.set()
    assert (await first).status == pb.OK
    assert texts(await door.read(FORM)) == FORM_TEXT


async def test_a_client_that_goes_away_ends_the_work_of_its_call(door: Door) -> None:
    call = door.ocr.Recognize(pb.Job(content=SLOW))
    await door.backends.detector.arrived.wait()
    call.cancel()
    await door.idle()
    assert door.backends.detector.cancelled == 1


async def test_a_client_that_leaves_a_stream_ends_its_work_and_frees_its_places(make_door: Any) -> None:
    door = await make_door(max_in_flight=2)
    for _ in range(3):
        door.backends.detector.arrived.clear()
        call = door.ocr.RecognizeStream()
        for _ in range(2):
            await call.write(pb.Job(content=SLOW))
        await door.backends.detector.arrived.wait()
        call.cancel()
        await door.idle()
    results = [r async for r in door.ocr.RecognizeStream(iter([pb.Job(content=FORM)] * 4))]
    assert [texts(r) for r in results] == [FORM_TEXT] * 4


async def test_a_deadline_that_passes_is_told_as_such(door: Door) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ocr.Recognize(pb.Job(content=SLOW), timeout=0.1)
    assert code(caught.value) == "DEADLINE_EXCEEDED"
    await door.idle()


async def test_a_backend_that_is_gone_is_unavailable_and_makes_the_gateway_not_ready(door: Door) -> None:
    async with asyncio.timeout(10):
        while door.service.not_ready() is not None:
            await asyncio.sleep(0.001)
        await door.backends.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await door.read(FORM)
        assert (caught.value.code(), code(caught.value)) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
        while "detector" not in (door.service.not_ready() or ""):
            await asyncio.sleep(0.001)


async def test_a_defect_is_internal_and_the_next_document_is_served(door: Door) -> None:
    door.backends.detector.errors = [ZeroDivisionError("a defect")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.read(FORM)
    assert (caught.value.code(), code(caught.value)) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert texts(await door.read(FORM)) == FORM_TEXT


async def test_priority_is_online_unless_said_otherwise(door: Door) -> None:
    await door.read(FORM)
    await door.read(FORM, options=pb.Options(priority=pb.BULK))
    assert [r.priority for r in door.backends.detector.requests] == [pb.ONLINE, pb.BULK]


async def test_draining_finishes_what_was_begun_and_refuses_the_rest(door: Door) -> None:
    single = asyncio.ensure_future(door.read(SLOW))
    stream = door.ocr.RecognizeStream()
    await stream.write(pb.Job(job_id="begun", content=SLOW))
    async with asyncio.timeout(10):
        while door.backends.detector.at_work < 2:
            await asyncio.sleep(0.001)
    draining = asyncio.create_task(door.service.drain())
    await asyncio.sleep(0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await door.read(FORM)
    assert (refused.value.code(), code(refused.value)) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    assert not draining.done()
    door.released.set()
    assert (await single).status == pb.OK
    assert (await stream.read()).job_id == "begun"
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stream.read()
    assert code(ended.value) == "SHUTTING_DOWN"
    await draining


async def test_draining_ends_a_stream_on_which_nothing_is_at_work(door: Door) -> None:
    stream = door.ocr.RecognizeStream()
    await stream.write(pb.Job(content=FORM))
    assert texts(await stream.read()) == FORM_TEXT
    await asyncio.wait_for(door.service.drain(), 10)
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()


def test_the_service_has_the_name_of_the_contract() -> None:
    assert NAME == "ocr.v1.Ocr"
