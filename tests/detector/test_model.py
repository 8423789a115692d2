"""Real models find the lines of a page that was drawn, where they were drawn, alone and in a batch."""

import asyncio

import numpy as np
import pytest

from services.common.model_service import plan
from services.common.models import fetch
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.wire import raw_image
from services.detector.model import serve_model
from services.detector.service import DetectorService
from services.detector.settings import DetectorSettings
from tests.fakes.model_server import drawn, serving

TEXTS = ("TOTAL 12.50", "GST 6% INCLUDED", "Invoice 000417")


def page():
    image = np.full((320, 320, 3), 255, np.uint8)
    for index, text in enumerate(TEXTS):
        line = drawn(text)[:, :300]
        image[20 + index * 100 : 80 + index * 100, 10 : 10 + line.shape[1]] = line
    return image


def middles(response):
    return sorted(float(np.mean([point.y for point in line.quad.points])) for line in response.lines)


@pytest.mark.model
@pytest.mark.parametrize(
    ("engine", "models"), [("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v5-mobile")]
)
async def test_drawn_lines_are_found_and_neighbours_do_not_move_them(engine, models):
    fetch(models)
    settings = DetectorSettings(
        engine=engine, models=models, threads=1, max_side=320, max_batch_size=2, max_queue_delay_ms=50
    )
    service = DetectorService(serve_model(plan(settings, "det"), settings), settings)
    async with serving(service) as channel:
        stub = ocr_pb2_grpc.DetectorStub(channel)
        request = pb.DetectRequest(image=raw_image(page()))
        alone = await stub.Detect(request)
        other = pb.DetectRequest(image=raw_image(255 - page()))
        together, _ = await asyncio.gather(stub.Detect(request), stub.Detect(other))
    assert middles(alone) == pytest.approx([50, 150, 250], abs=12)
    assert middles(together) == pytest.approx(middles(alone), abs=0.5)
