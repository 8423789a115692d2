"""The promise of the width ladder, on real models: a line reads the same alone and in any company."""

import random

import pytest
import pytest_asyncio

from services.common.model_service import plan
from services.common.models import fetch
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.wire import raw_image
from services.recognizer.model import serve_model
from services.recognizer.service import RecognizerService
from services.recognizer.settings import RecognizerSettings
from tests.fakes.model_server import drawn, serving

TEXTS = (
    "TOTAL 12.50",
    "RM",
    "GST 6% INCLUDED",
    "Invoice 000417",
    "x",
    "cash sale",
    "21/03/2018",
    "Thank you",
)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v4-mobile")],
    ids=lambda param: "-".join(param),
)
async def recognizer(request):
    engine, models = request.param
    fetch(models)
    settings = RecognizerSettings(
        engine=engine,
        models=models,
        threads=1,
        width_ladder=(160, 320),
        max_batch_size=4,
        max_queue_delay_ms=20,
    )
    chosen = plan(settings, "rec")
    service = RecognizerService(serve_model(chosen, settings), chosen.files.charset, settings)
    async with serving(service) as channel:
        yield ocr_pb2_grpc.RecognizerStub(channel)


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="module")
async def test_a_line_reads_the_same_alone_and_in_any_batch(recognizer):
    images = [raw_image(drawn(text)) for text in TEXTS]
    alone = [
        (await recognizer.Recognize(pb.RecognizeLinesRequest(lines=[image]))).lines[0] for image in images
    ]
    assert [line.text for line in alone][:2] == ["TOTAL 12.50", "RM"]
    order, sizes = list(range(len(images))), []
    for seed in range(6):
        random.Random(seed).shuffle(order)
        request = pb.RecognizeLinesRequest(lines=[images[index] for index in order])
        response = await recognizer.Recognize(request)
        sizes.append(response.timing.mean_batch_size)
        for index, line in zip(order, response.lines, strict=True):
            assert line.text == alone[index].text
            assert line.confidence == pytest.approx(alone[index].confidence, abs=1e-5)
    assert max(sizes) > 1
