"""The detector as its callers see it: a real server on loopback, the simulated engine in its own process."""

from functools import partial

import grpc
import numpy as np
import pytest
import pytest_asyncio

from services.common.engines import simulated
from services.common.model_service import ServedModel, batch_limits, plan
from services.common.page_size import shrink
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.wire import raw_image
from services.detector.model import serve_model
from services.detector.preprocess import canvas
from services.detector.service import DetectorService
from services.detector.settings import DetectorSettings
from tests.fakes.model_server import FakeHost, drawn, failure, png, serving, until

SETTINGS = DetectorSettings(
    engine="simulated", simulated_fixed_ms=0, simulated_ms_per_megapixel=0, max_side=320
)


def page(*lines, height=600, width=800):
    image = np.full((height, width, 3), 255, np.uint8)
    for index, text in enumerate(lines):
        line = drawn(text)
        image[40 + index * 100 : 100 + index * 100, 50 : 50 + line.shape[1]] = line
    return image


PAGE = page("first line", "and a second one", "3.50")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def detector():
    service = DetectorService(serve_model(plan(SETTINGS, "det"), SETTINGS), SETTINGS)
    async with serving(service) as channel:
        yield ocr_pb2_grpc.DetectorStub(channel)


def boxes(response):
    points = [[(p.x, p.y) for p in line.quad.points] for line in response.lines]
    return sorted([*np.min(quad, axis=0), *np.max(quad, axis=0)] for quad in points)


@pytest.mark.asyncio(loop_scope="module")
class TestWithAPredictor:
    async def test_each_line_gets_a_quad_in_pixels_of_the_page(self, detector):
        found = sorted(
            boxes(await detector.Detect(pb.DetectRequest(image=raw_image(PAGE)))), key=lambda box: box[1]
        )
        assert len(found) == 3
        for index, (left, top, right, bottom) in enumerate(found):
            ink = np.argwhere(PAGE[40 + index * 100 : 100 + index * 100].min(axis=2) < 128)
            assert left < 50 + 15
            assert right > ink[:, 1].max() - 5
            assert top < 40 + index * 100 + ink[:, 0].min() + 5
            assert bottom > 40 + index * 100 + ink[:, 0].max() - 5

    async def test_both_forms_of_an_image_give_the_same(self, detector):
        raw = await detector.Detect(pb.DetectRequest(image=raw_image(PAGE)))
        encoded = await detector.Detect(pb.DetectRequest(image=pb.Image(encoded=png(PAGE))))
        assert encoded.lines == raw.lines

    async def test_a_page_that_the_caller_shrank_gives_the_quads_of_the_whole_page(self, detector):
        whole = await detector.Detect(pb.DetectRequest(image=raw_image(PAGE)))
        info = await detector.Describe(pb.DescribeRequest())
        small = raw_image(shrink(PAGE, info.max_side))
        shrunk = await detector.Detect(pb.DetectRequest(image=small, source_width=800, source_height=600))
        assert shrunk.lines == whole.lines

    async def test_a_blank_page_is_a_good_answer_without_lines(self, detector):
        assert len((await detector.Detect(pb.DetectRequest(image=raw_image(page())))).lines) == 0

    async def test_the_answer_says_where_its_time_went_and_which_model_it_was(self, detector):
        response = await detector.Detect(pb.DetectRequest(image=raw_image(PAGE)))
        assert response.timing.batches == response.timing.mean_batch_size == 1
        parts = response.timing.queue_ms + response.timing.model_ms + response.timing.process_ms
        assert 0 < parts <= response.timing.total_ms
        assert response.model == await detector.Describe(pb.DescribeRequest())
        assert response.model.max_side == 320
        assert response.model.settings["box_threshold"] == "0.6"

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (pb.DetectRequest(), "EMPTY_INPUT"),
            (pb.DetectRequest(image=pb.Image(encoded=b"")), "EMPTY_INPUT"),
            (pb.DetectRequest(image=pb.Image(encoded=b"hello, this is no image")), "UNSUPPORTED_FORMAT"),
            (pb.DetectRequest(image=pb.Image(encoded=png(PAGE)[:300])), "CORRUPT_INPUT"),
            (pb.DetectRequest(image=pb.Image(encoded=png(PAGE[:1, :1]))), "IMAGE_TOO_SMALL"),
            (pb.DetectRequest(image=raw_image(PAGE[:1, :1])), "IMAGE_TOO_SMALL"),
            (
                pb.DetectRequest(image=pb.Image(raw=pb.RawImage(height=9, width=9, data=b"123"))),
                "INVALID_JOB",
            ),
            (pb.DetectRequest(image=raw_image(PAGE), source_width=10), "INVALID_JOB"),
            (pb.DetectRequest(image=raw_image(PAGE), source_height=10), "INVALID_JOB"),
            (
                pb.DetectRequest(image=raw_image(PAGE), source_width=4_294_967_295, source_height=1),
                "INVALID_JOB",
            ),
            (
                pb.DetectRequest(image=raw_image(PAGE), source_width=100_000, source_height=100_000),
                "INVALID_JOB",
            ),
            (pb.DetectRequest(image=raw_image(PAGE), priority=9), "INVALID_JOB"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_bad_input_ends_with_its_code_and_nobody_else_is_affected(self, detector, request_, code):
        good = [detector.Detect(pb.DetectRequest(image=raw_image(PAGE))) for _ in range(2)]
        status, got, words = await failure(detector.Detect(request_))
        assert (status, got) == ("INVALID_ARGUMENT", code)
        assert words
        for answer in good:
            assert len((await answer).lines) == 3

    async def test_many_callers_of_all_shapes_get_their_own_answer(self, detector):
        pages = [page(*["text"] * (n % 4), height=500 + 40 * n, width=300 + 70 * n) for n in range(12)]
        calls = [
            detector.Detect(pb.DetectRequest(image=raw_image(image), priority=1 + n % 2))
            for n, image in enumerate(pages)
        ]
        counts = [len((await call).lines) for call in calls]
        assert counts == [n % 4 for n in range(12)]


@pytest_asyncio.fixture
async def gated():
    """A detector whose predictor waits: stub, host, model."""
    settings = SETTINGS.model_copy(update={"queue_capacity": 3})
    host = FakeHost(simulated.probability_map)
    host.gate.clear()
    rule = partial(canvas, max_side=settings.max_side)
    model = ServedModel("detector", pb.ModelInfo(), [host], rule, batch_limits(settings))
    async with serving(DetectorService(model, settings)) as channel:
        yield ocr_pb2_grpc.DetectorStub(channel), host, model


async def fill(stub, host, model, waiting):
    """One page runs, one is prepared and still waits, `waiting` more wait behind it."""
    calls = []
    for sent in range(1, 3 + waiting):
        calls.append(stub.Detect(pb.DetectRequest(image=raw_image(PAGE))))
        await until(lambda sent=sent: model.in_flight + model.depth == sent)
    await host.entered.wait()
    assert (model.in_flight, model.depth) == (1, 1 + waiting)
    return calls


async def test_a_full_queue_refuses_at_the_door(gated):
    stub, host, model = gated
    calls = await fill(stub, host, model, waiting=2)
    refused = await failure(stub.Detect(pb.DetectRequest(image=raw_image(PAGE))))
    assert refused[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    host.gate.set()
    assert [len((await call).lines) for call in calls] == [3] * 4


async def test_a_full_queue_refuses_before_an_image_is_decoded(gated):
    stub, host, model = gated
    await fill(stub, host, model, waiting=2)
    refused = await failure(stub.Detect(pb.DetectRequest(image=pb.Image(encoded=b"no image"))))
    assert refused[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    host.gate.set()


async def test_a_page_whose_deadline_passes_in_the_queue_never_reaches_the_model(gated):
    stub, host, model = gated
    calls = await fill(stub, host, model, waiting=0)
    late = stub.Detect(pb.DetectRequest(image=raw_image(PAGE)), timeout=0.3)
    assert (await failure(late))[0] == "DEADLINE_EXCEEDED"
    await until(lambda: model.depth == 1)
    host.gate.set()
    for call in calls:
        await call
    await model.drain()
    assert len(host.batches) == len(calls)


async def test_a_page_whose_caller_went_away_never_reaches_the_model(gated):
    stub, host, model = gated
    calls = await fill(stub, host, model, waiting=1)
    calls[-1].cancel()
    await until(lambda: model.depth == 1)
    host.gate.set()
    for call in calls[:-1]:
        await call
    await model.drain()
    assert len(host.batches) == 2


async def test_before_the_start_has_ended_and_while_draining_callers_are_sent_away(gated):
    stub, host, model = gated
    host.gate.set()
    await model.drain()
    assert (await failure(stub.Detect(pb.DetectRequest(image=raw_image(PAGE)))))[:2] == (
        "UNAVAILABLE",
        "SHUTTING_DOWN",
    )


async def test_an_unexpected_failure_of_a_batch_is_an_internal_error_of_its_callers_only(gated):
    stub, host, model = gated
    calls = await fill(stub, host, model, waiting=0)
    host.answer = lambda pixels, sizes: 1 / 0
    host.gate.set()
    for call in calls:
        assert (await failure(call))[:2] == (grpc.StatusCode.INTERNAL.name, "INTERNAL")
    host.answer = simulated.probability_map
    assert len((await stub.Detect(pb.DetectRequest(image=raw_image(PAGE)))).lines) == 3
