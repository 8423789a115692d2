"""The recognizer as its callers see it: a real server on loopback, the simulated engine in its process."""

import os
import signal

import pytest
import pytest_asyncio

from services.common.engines import simulated
from services.common.errors import Unavailable
from services.common.model_service import ServedModel, batch_limits, plan
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.wire import raw_image
from services.recognizer.model import serve_model
from services.recognizer.preprocess import HEIGHT, padded_width
from services.recognizer.service import RecognizerService
from services.recognizer.settings import RecognizerSettings
from tests.fakes.model_server import FakeHost, drawn, failure, png, serving, until

SETTINGS = RecognizerSettings(
    engine="simulated", simulated_fixed_ms=0, simulated_ms_per_megapixel=0, width_ladder=(160, 320, 640)
)
TEXTS = (
    "total",
    "a somewhat longer line",
    "12.50",
    "x",
    "an even longer line of text that is wide",
    "GST 6%",
)


def request(*images, **fields):
    return pb.RecognizeLinesRequest(lines=images, **fields)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recognizer():
    chosen = plan(SETTINGS, "rec")
    service = RecognizerService(serve_model(chosen, SETTINGS), chosen.files.charset, SETTINGS)
    async with serving(service) as channel:
        yield ocr_pb2_grpc.RecognizerStub(channel)


@pytest.mark.asyncio(loop_scope="module")
class TestWithAPredictor:
    async def test_lines_come_back_in_order_and_read_the_same_alone_and_together(self, recognizer):
        images = [raw_image(drawn(text)) for text in TEXTS]
        together = await recognizer.Recognize(request(*images))
        alone = [(await recognizer.Recognize(request(image))).lines[0] for image in images]
        assert list(together.lines) == alone
        texts = [line.text for line in alone]
        assert all(texts)
        assert len(set(texts)) == len(texts)

    async def test_both_forms_of_an_image_give_the_same(self, recognizer):
        raw, encoded = raw_image(drawn("total")), pb.Image(encoded=png(drawn("total")))
        first, second = (await recognizer.Recognize(request(raw, encoded))).lines
        assert first == second

    async def test_a_blank_line_is_an_empty_text_without_confidence(self, recognizer):
        [line] = (await recognizer.Recognize(request(raw_image(drawn(""))))).lines
        assert line == pb.RecognizedLine()

    async def test_no_lines_give_no_lines(self, recognizer):
        response = await recognizer.Recognize(request())
        assert len(response.lines) == 0
        assert response.timing.batches == 0
        assert response.model.engine == "simulated"

    @pytest.mark.parametrize(
        ("image", "code"),
        [
            (pb.Image(), "EMPTY_INPUT"),
            (pb.Image(encoded=b"not an image at all"), "UNSUPPORTED_FORMAT"),
            (pb.Image(encoded=png(drawn("cut"))[:80]), "CORRUPT_INPUT"),
            (raw_image(drawn("x")[:1]), "IMAGE_TOO_SMALL"),
            (raw_image(drawn("x")[:, :1]), "IMAGE_TOO_SMALL"),
            (pb.Image(raw=pb.RawImage(height=48, width=100, data=b"short")), "INVALID_JOB"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_a_bad_line_has_its_own_error_and_its_neighbours_are_read(self, recognizer, image, code):
        good = raw_image(drawn("total"))
        before, bad, after = (await recognizer.Recognize(request(good, image, good))).lines
        assert pb.ErrorCode.Name(bad.error.code) == code
        assert bad.error.message
        assert bad.text == ""
        assert before == after
        assert before.text
        assert not before.HasField("error")

    async def test_an_unknown_priority_ends_the_call(self, recognizer):
        assert (await failure(recognizer.Recognize(request(priority=7))))[:2] == (
            "INVALID_ARGUMENT",
            "INVALID_JOB",
        )

    async def test_the_answer_says_where_its_time_went_and_which_model_it_was(self, recognizer):
        response = await recognizer.Recognize(request(*[raw_image(drawn("total"))] * 4))
        assert response.timing.batches == 1
        assert response.timing.mean_batch_size == 4
        assert 0 < response.timing.process_ms < response.timing.total_ms
        assert response.model == await recognizer.Describe(pb.DescribeRequest())
        assert response.model.settings["width_ladder"] == "160 320 640"


async def test_a_killed_predictor_costs_no_caller_an_answer():
    settings = SETTINGS.model_copy(update={"simulated_fixed_ms": 20.0, "max_batch_size": 1})
    chosen = plan(settings, "rec")
    model = serve_model(chosen, settings)
    host = model.hosts[0]
    async with serving(RecognizerService(model, chosen.files.charset, settings)) as channel:
        stub = ocr_pb2_grpc.RecognizerStub(channel)
        images = [raw_image(drawn(text)) for text in TEXTS]
        expected = list((await stub.Recognize(request(*images))).lines)
        killed = host.worker_pid
        calls = [stub.Recognize(request(*images)) for _ in range(4)]
        await until(lambda: model.in_flight > 0)
        os.kill(killed, signal.SIGKILL)
        for call in calls:
            assert list((await call).lines) == expected
    assert host.restarts == 1


@pytest_asyncio.fixture
async def gated():
    """A recognizer whose predictor obeys the test: stub, host, model."""
    settings = SETTINGS.model_copy(update={"queue_capacity": 3, "max_queue_delay_ms": 0.0})
    host = FakeHost(simulated.classes)

    def canvas(_height, width):
        return HEIGHT, padded_width(width, settings.width_ladder)

    model = ServedModel("recognizer", pb.ModelInfo(), [host], canvas, batch_limits(settings))
    async with serving(RecognizerService(model, simulated.CHARSET, settings)) as channel:
        yield ocr_pb2_grpc.RecognizerStub(channel), host, model


async def test_only_the_line_that_kills_the_predictor_has_an_error(gated):
    stub, host, _ = gated
    host.kills = lambda line: (line < 115).any(axis=(0, 2)).sum() > 50  # columns with ink
    lines = (await stub.Recognize(request(*[raw_image(drawn(text)) for text in ("i", "MMMMM", "i")]))).lines
    codes = [pb.ErrorCode.Name(line.error.code) for line in lines]
    assert codes == ["ERROR_CODE_UNSPECIFIED", "PREDICTOR_FAILED", "ERROR_CODE_UNSPECIFIED"]
    assert lines[0].text == lines[2].text != ""


async def test_what_another_try_can_mend_is_an_error_of_the_whole_call(gated):
    stub, host, _ = gated
    host.error = Unavailable("the predictor process could not be started again")
    assert (await failure(stub.Recognize(request(raw_image(drawn("x"))))))[:2] == (
        "UNAVAILABLE",
        "UNAVAILABLE",
    )


async def test_when_the_queue_is_full_all_lines_of_the_call_are_refused(gated):
    stub, host, model = gated
    host.gate.clear()
    running = stub.Recognize(request(raw_image(drawn("x"))))
    await host.entered.wait()
    waiting = stub.Recognize(request(*[raw_image(drawn("two wide lines"))] * 2))
    await until(lambda: model.depth == 2)
    refused = await failure(stub.Recognize(request(*[raw_image(drawn(text)) for text in TEXTS[:3]])))
    assert refused[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    host.gate.set()
    assert (await running).lines[0].text
    assert all(line.text for line in (await waiting).lines)


async def test_more_lines_than_the_queue_can_ever_hold_are_refused_as_such(gated):
    stub, _, _ = gated
    refused = await failure(stub.Recognize(request(*[raw_image(drawn("x"))] * 4)))
    assert refused[:2] == ("INVALID_ARGUMENT", "INVALID_JOB")


async def test_the_lines_of_one_call_share_batches(gated):
    stub, host, _ = gated
    await stub.Recognize(request(*[raw_image(drawn("same width"))] * 2))
    assert [len(batch) for batch in host.batches] == [2]
