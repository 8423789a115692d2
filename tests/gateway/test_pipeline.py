"""A document comes out whole, in part or with the one error that says why; and never disturbs another."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from services.common.errors import (
    CorruptInput,
    DeadlineExceeded,
    EmptyInput,
    ImageTooLarge,
    Internal,
    OcrError,
    Overloaded,
    PredictorFailed,
    Unavailable,
    UriNotAllowed,
    UriUnavailable,
    UriUnreadable,
)
from services.common.images import ImageLimits
from services.common.pb import ocr_pb2 as pb
from services.gateway.clients import NoAnswer
from services.gateway.fetch import WebLimits
from services.gateway.pipeline import MAX_LINE_BYTES, Pipeline, PipelineLimits, line_requests
from services.gateway.places import place
from tests.fakes.backends import FakeDetector, FakeRecognizer, paper, pixels, saved
from tests.fakes.document_host import DocumentHost, document, says_for_ever
from tests.fakes.pdf import laughing_pdf, pdf

FORM = paper((10, 10, 110, 30), (150, 12, 290, 28), (10, 60, 210, 90))
FORM_TEXT = ["100x20", "140x16", "200x30"]
ONE = paper((10, 10, 110, 30))
BLANK = paper()


class Rig:
    """A pipeline over fakes. Call it with a document to get its result."""

    def __init__(self, **limits: Any) -> None:
        self.detector, self.recognizer = FakeDetector(), FakeRecognizer()
        self.pipeline = Pipeline(self.detector, self.recognizer, PipelineLimits(**limits))

    async def __call__(
        self, content: bytes, *, priority: int = pb.ONLINE, deadline: float | None = None, **job: Any
    ) -> pb.Result:
        return await self.pipeline.recognize(
            pb.Job(content=content, **job), priority=priority, deadline=deadline, received=time.monotonic()
        )


@pytest.fixture
async def make_rig() -> AsyncIterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**limits: Any) -> Rig:
        rigs.append(Rig(**limits))
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.pipeline.close()


@pytest.fixture
async def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def texts(result: pb.Result) -> list[str]:
    return [line.text for line in result.lines]


async def test_lines_come_in_reading_order_with_points_in_pixels_of_the_page(rig: Rig) -> None:
    result = await rig(saved(FORM), job_id="7", file="form.png")
    assert (result.job_id, result.file, result.status) == ("7", "form.png", pb.OK)
    assert texts(result) == FORM_TEXT
    assert [(p.x, p.y) for p in result.lines[1].points] == [(150, 12), (290, 12), (290, 28), (150, 28)]
    assert [(p.number, p.width, p.height) for p in result.pages] == [(1, 320, 192)]
    assert (result.detector.model_set, result.recognizer.model_set) == ("fake", "fake")
    assert result.service_version


async def test_a_result_says_which_settings_and_libraries_shaped_its_text(make_rig: Any) -> None:
    rig = make_rig(images=ImageLimits(pdf_dpi=144.5, max_pdf_side=900, max_pixels=1_000_000))
    said = dict((await rig(saved(FORM), options=pb.Options(min_confidence=0.3))).settings)
    libraries = {name: said.pop(name) for name in ("opencv", "pdfium", "pillow")}
    assert all(version[0].isdigit() for version in libraries.values())
    assert said == {
        "pdf_dpi": "144.5",
        "max_pdf_side": "900",
        "max_pixels": "1000000",
        "kept_jpeg_side": "3000",
        "min_confidence": "0.3",
    }


async def test_a_job_without_an_id_is_given_one(rig: Rig) -> None:
    ids = {(await rig(saved(BLANK))).job_id for _ in range(2)}
    assert len(ids) == 2
    assert all(len(i) == 32 for i in ids)


async def test_a_large_page_is_sent_shrunk_and_its_lines_are_cut_out_of_the_whole(rig: Rig) -> None:
    result = await rig(saved(paper((100, 100, 500, 200), size=(1280, 640))))
    (request,) = rig.detector.requests
    assert pixels(request.image).shape == (160, 320, 3)
    assert (request.source_width, request.source_height) == (1280, 640)
    assert texts(result) == ["192x48"]


async def test_a_page_without_text_is_a_good_result_without_lines(rig: Rig) -> None:
    result = await rig(saved(BLANK))
    assert (result.status, texts(result)) == (pb.OK, [])
    assert rig.recognizer.requests == []


async def test_priority_goes_along_to_both_services(rig: Rig) -> None:
    await rig(saved(ONE), priority=pb.BULK)
    assert rig.detector.requests[0].priority == rig.recognizer.requests[0].priority == pb.BULK


async def test_pages_are_numbered_and_in_order_whichever_is_done_first(rig: Rig) -> None:
    later = asyncio.Event()

    async def hold_the_first(request: pb.DetectRequest) -> None:
        if request.source_width == 352:
            await later.wait()
        else:
            later.set()

    rig.detector.gate = hold_the_first
    first = paper((0, 0, 50, 20), size=(352, 192))  # told by its width
    result = await rig(saved(first, ONE, kind="TIFF"))
    assert [(line.text, line.page) for line in result.lines] == [("50x20", 1), ("100x20", 2)]


async def test_a_page_that_cannot_be_read_says_why_and_the_others_are_read(make_rig: Any) -> None:
    rig = make_rig(images=ImageLimits(max_pixels=100_000))
    result = await rig(saved(ONE, paper(size=(1000, 1000)), ONE, kind="TIFF"))
    assert result.status == pb.PARTIAL
    assert [p.error.code for p in result.pages] == [0, pb.IMAGE_TOO_LARGE, 0]
    assert [line.page for line in result.lines] == [1, 3]


async def test_a_document_of_which_no_page_can_be_read_fails_with_the_first_error(make_rig: Any) -> None:
    rig = make_rig(images=ImageLimits(max_pixels=1_000))
    with pytest.raises(ImageTooLarge):
        await rig(saved(ONE, ONE, kind="TIFF"))


async def test_a_page_that_kills_the_detector_is_that_pages_error(rig: Rig) -> None:
    rig.detector.errors = [PredictorFailed("it died")]
    result = await rig(saved(ONE, ONE, kind="TIFF"))
    assert result.status == pb.PARTIAL
    assert sorted(p.error.code for p in result.pages) == [0, pb.PREDICTOR_FAILED]


async def test_a_line_that_cannot_be_read_leaves_the_others_and_says_why(rig: Rig) -> None:
    died = pb.Error(code=pb.PREDICTOR_FAILED, message="it died")
    rig.recognizer.answers["140x16"] = pb.RecognizedLine(error=died)
    result = await rig(saved(FORM))
    assert (result.status, texts(result)) == (pb.PARTIAL, ["100x20", "200x30"])
    assert result.pages[0].error.code == pb.PREDICTOR_FAILED
    assert "1 of 3 lines" in result.pages[0].error.message


async def test_a_document_of_which_no_line_can_be_read_fails(rig: Rig) -> None:
    died = pb.Error(code=pb.PREDICTOR_FAILED, message="it died")
    rig.recognizer.answers["100x20"] = pb.RecognizedLine(error=died)
    with pytest.raises(PredictorFailed):
        await rig(saved(ONE))


@pytest.mark.parametrize("error", [Unavailable("gone"), Overloaded("full"), NoAnswer("none in 120 s")])
async def test_an_error_that_can_pass_fails_the_document_and_not_the_page(rig: Rig, error: OcrError) -> None:
    """Or a bulk document would be kept in part for ever because a backend restarted."""
    rig.detector.errors = [error]
    with pytest.raises(type(error)):
        await rig(saved(ONE, ONE, kind="TIFF"))


async def test_a_line_refused_by_a_full_queue_fails_the_document(rig: Rig) -> None:
    full = pb.Error(code=pb.OVERLOADED, message="full")
    rig.recognizer.answers["140x16"] = pb.RecognizedLine(error=full)
    with pytest.raises(Overloaded):
        await rig(saved(FORM))


async def test_lines_below_the_least_confidence_and_empty_ones_are_left_out(rig: Rig) -> None:
    rig.recognizer.answers["100x20"] = pb.RecognizedLine(text="doubtful", confidence=0.4)
    rig.recognizer.answers["200x30"] = pb.RecognizedLine(text="", confidence=0.0)
    assert texts(await rig(saved(FORM))) == ["doubtful", "140x16"]
    assert texts(await rig(saved(FORM), options=pb.Options(min_confidence=0.5))) == ["140x16"]


async def test_a_region_without_area_is_left_out(rig: Rig) -> None:
    rig.detector.extra = [pb.DetectedLine(quad=pb.Quad(points=[pb.Point(x=5, y=5)] * 4))]
    result = await rig(saved(ONE))
    assert (result.status, texts(result)) == (pb.OK, ["100x20"])


async def test_lines_are_sent_in_several_requests_when_they_are_large(make_rig: Any) -> None:
    rig = make_rig(max_request_bytes=20_000)
    result = await rig(saved(FORM))
    assert texts(result) == FORM_TEXT
    assert [len(r.lines) for r in rig.recognizer.requests] == [2, 1]


async def test_a_job_without_bytes_is_empty(rig: Rig) -> None:
    with pytest.raises(EmptyInput):
        await rig(b"")


async def test_a_damaged_document_does_not_touch_its_neighbours(rig: Rig) -> None:
    good, bad = saved(FORM), saved(FORM)[:200]
    results = await asyncio.gather(*(rig(d) for d in (good, bad, good)), return_exceptions=True)
    assert [type(r) for r in results] == [pb.Result, CorruptInput, pb.Result]


async def test_a_defect_is_an_internal_error_without_its_details(rig: Rig) -> None:
    rig.detector.errors = [ZeroDivisionError("secret")]
    with pytest.raises(Internal) as caught:
        await rig(saved(ONE))
    assert "secret" not in str(caught.value)


async def test_a_deadline_ends_the_work_and_the_calls(rig: Rig) -> None:
    rig.detector.gate = _never
    with pytest.raises(DeadlineExceeded):
        await rig(saved(ONE), deadline=time.monotonic() + 0.05)
    assert rig.detector.cancelled == 1
    assert rig.pipeline.in_flight == 0


async def test_a_cancelled_document_gives_its_places_back(make_rig: Any) -> None:
    rig = make_rig(max_pages_in_flight=1)
    rig.detector.gate = _never
    task = asyncio.create_task(rig(saved(ONE)))
    await rig.detector.arrived.wait()
    assert rig.pipeline.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.detector.gate = None
    assert texts(await rig(saved(ONE))) == ["100x20"]
    assert (rig.detector.cancelled, rig.pipeline.in_flight) == (1, 0)


async def test_pages_of_a_document_go_side_by_side_up_to_its_limit(make_rig: Any) -> None:
    rig = make_rig(max_pages_per_document=2)
    rig.detector.gate = _all_of(rig.detector, 2)
    result = await rig(saved(*[ONE] * 6, kind="TIFF"))
    assert len(result.pages) == 6
    assert rig.detector.most_at_work == 2


async def test_pages_of_all_documents_are_bounded_together(make_rig: Any) -> None:
    rig = make_rig(max_pages_in_flight=3)
    rig.detector.gate = _all_of(rig.detector, 3)
    await asyncio.gather(*(rig(saved(ONE, ONE, kind="TIFF")) for _ in range(6)))
    assert rig.detector.most_at_work == 3


async def test_bulk_work_never_holds_the_places_of_someone_who_waits(make_rig: Any) -> None:
    rig = make_rig(max_pages_in_flight=2, cpu_threads=1)
    free = asyncio.Event()

    async def hold_bulk(request: pb.DetectRequest) -> None:
        if request.priority == pb.BULK:
            await free.wait()

    rig.detector.gate = hold_bulk
    bulk = [asyncio.create_task(rig(saved(ONE), priority=pb.BULK)) for _ in range(5)]
    await rig.detector.arrived.wait()
    assert texts(await rig(saved(FORM))) == FORM_TEXT
    free.set()
    assert all(r.status == pb.OK for r in await asyncio.gather(*bulk))


async def test_pdfs_that_hang_hold_neither_the_threads_nor_the_places_of_images(
    make_rig: Any,
) -> None:
    rig = make_rig(max_pages_in_flight=2, cpu_threads=1)
    hostile = [asyncio.create_task(rig(laughing_pdf())) for _ in range(3)]
    async with asyncio.timeout(30):
        while rig.pipeline._online.pdf.pid is None:
            await asyncio.sleep(0.005)
        assert texts(await rig(saved(FORM, FORM, FORM, kind="TIFF"))) == FORM_TEXT * 3
    assert not any(task.done() for task in hostile)
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)


async def test_a_pdf_named_by_a_uri_waits_with_the_other_pdfs_too(make_rig: Any, tmp_path: Path) -> None:
    rig = make_rig(uri_allow=(str(tmp_path),))
    (tmp_path / "a.pdf").write_bytes(pdf((72, 72)))

    def read() -> asyncio.Task[pb.Result]:
        job = pb.Job(uri=f"file://{tmp_path}/a.pdf")
        work = rig.pipeline.recognize(job, priority=pb.ONLINE, deadline=None, received=time.monotonic())
        return asyncio.create_task(work)

    async with rig.pipeline._online.pdfs.turn:
        waiting = read()
        assert texts(await rig(saved(FORM))) == FORM_TEXT
        assert not waiting.done()
    assert (await waiting).status == pb.OK


@pytest.fixture
def host() -> Iterator[DocumentHost]:
    with DocumentHost(document(saved(FORM))) as running:
        yield running


def web(host: DocumentHost) -> WebLimits:
    return WebLimits((place(host.url("/")),))


async def test_a_document_of_a_host_is_fetched_once_and_read(make_rig: Any, host: DocumentHost) -> None:
    rig = make_rig(web=web(host))
    job = pb.Job(uri=host.url(), job_id="7", file="a.png", size=len(saved(FORM)))
    result = await rig.pipeline.recognize(job, priority=pb.BULK, deadline=None, received=time.monotonic())
    assert (result.job_id, result.file, texts(result)) == ("7", "a.png", FORM_TEXT)
    assert result.timing.decode_ms > 0
    assert len(host.requests) == 1
    assert job.uri, "a second try has to fetch it again"


async def test_a_host_that_is_slow_holds_up_nobody_elses_document(make_rig: Any, host: DocumentHost) -> None:
    rig = make_rig(web=web(host), cpu_threads=1, max_pages_in_flight=2)
    host.answer = says_for_ever(b"", b"", every_s=0.01)

    def read() -> asyncio.Task[pb.Result]:
        job = pb.Job(uri=host.url())
        end = time.monotonic() + 30
        work = rig.pipeline.recognize(job, priority=pb.ONLINE, deadline=end, received=time.monotonic())
        return asyncio.create_task(work)

    waiting = [read() for _ in range(5)]
    async with asyncio.timeout(30):
        while len(host.requests) < 2:
            await asyncio.sleep(0.005)
        assert texts(await rig(saved(FORM))) == FORM_TEXT
    assert not any(task.done() for task in waiting)
    assert host.connections == 2, "no more are fetched than pages may be in memory"
    host.stop()
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, UriUnavailable)


async def test_a_document_that_no_host_gives_is_the_error_of_its_job(
    make_rig: Any, host: DocumentHost
) -> None:
    rig = make_rig(web=web(host))
    host.answer = document(b"", status="404 Gone")
    for uri, error in ((host.url(), UriUnreadable), ("https://elsewhere.test/a", UriNotAllowed)):
        with pytest.raises(error):
            await rig.pipeline.recognize(
                pb.Job(uri=uri), priority=pb.ONLINE, deadline=None, received=time.monotonic()
            )


async def test_timing_says_where_the_time_went(rig: Rig) -> None:
    timing = (await rig(saved(ONE, ONE, kind="TIFF"))).timing
    assert timing.detect == pb.StageTiming(model_ms=6, total_ms=1, batches=2, mean_batch_size=2)
    assert timing.recognize == pb.StageTiming(model_ms=10, total_ms=1, batches=4, mean_batch_size=4)
    assert timing.decode_ms > 0
    assert timing.crop_ms > 0
    assert timing.total_ms > 0
    assert timing.wait_ms < timing.total_ms


async def test_waiting_for_a_place_is_told_apart(make_rig: Any) -> None:
    rig = make_rig(max_pages_in_flight=1)
    free = asyncio.Event()

    async def hold(_: object) -> None:
        await free.wait()

    rig.detector.gate = hold
    first = asyncio.create_task(rig(saved(ONE)))
    await rig.detector.arrived.wait()
    second = asyncio.create_task(rig(saved(ONE)))
    while rig.pipeline.in_flight < 2:
        await asyncio.sleep(0)
    start = time.monotonic()
    while time.monotonic() < start + 0.02:
        await asyncio.sleep(0)
    free.set()
    waited = [(await task).timing.wait_ms for task in (first, second)]
    assert waited[0] < 20 <= waited[1]


def one_line(height: int, width: int) -> pb.Image:
    """What is sent of a page that is one line."""
    page = np.zeros((height, width, 3), np.uint8)
    points = [pb.Point(x=x, y=y) for x, y in ((0, 0), (width, 0), (width, height), (0, height))]
    found = pb.DetectResponse(lines=[pb.DetectedLine(quad=pb.Quad(points=points))])
    (request,) = line_requests(page, (height, width), found, pb.ONLINE, 1_000)
    (line,) = request.message.lines
    return line


def test_a_line_is_sent_no_taller_than_the_recognizer_looks_at() -> None:
    assert (one_line(96, 400).raw.height, one_line(96, 400).raw.width) == (48, 200)
    assert (one_line(40, 400).raw.height, one_line(40, 400).raw.width) == (40, 400)


def test_a_line_larger_than_any_message_is_shrunk() -> None:
    line = one_line(40, 50_000)
    assert len(line.raw.data) <= MAX_LINE_BYTES
    assert line.raw.width > 40_000


async def test_a_turned_photograph_is_read_as_displayed(rig: Rig) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = ONE.transpose(Image.Transpose.ROTATE_90)
    result = await rig(saved(stored, exif=exif))
    assert (result.pages[0].width, result.pages[0].height) == (320, 192)
    assert texts(result) == ["100x20"]


async def test_a_jpeg_that_is_decoded_smaller_has_its_points_in_pixels_of_the_page(rig: Rig) -> None:
    large = paper((160, 160, 1760, 480), (4000, 160, 6400, 480), size=(6400, 640))
    result = await rig(saved(large, kind="JPEG"))
    assert [(page.width, page.height) for page in result.pages] == [(6400, 640)]
    assert len(texts(result)) == 2
    for line, expected in zip(result.lines, ((160, 160, 1760, 480), (4000, 160, 6400, 480)), strict=True):
        found = (line.points[0].x, line.points[0].y, line.points[2].x, line.points[2].y)
        assert found == pytest.approx(expected, abs=40)


async def _never(_: object) -> None:
    await asyncio.Event().wait()


def _all_of(fake: FakeDetector, count: int) -> Callable[[Any], Any]:
    """Lets nobody through before `count` are at work at once."""
    together = asyncio.Event()

    async def gate(_: object) -> None:
        if fake.at_work >= count:
            together.set()
        await together.wait()

    return gate
