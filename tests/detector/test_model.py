"""Real models find the lines of a page that was drawn, where they were drawn, alone and in a batch."""

import asyncio
from pathlib import Path

import cv2
import numpy as np
import pytest

from services.common.engines.base import EngineSpec, Head, create_engine
from services.common.model_service import plan
from services.common.models import fetch, resolve
from services.common.page_size import shrink
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.predictor import Batch
from services.common.wire import raw_image
from services.detector.model import serve_model
from services.detector.postprocess import BoxRules, find_lines
from services.detector.preprocess import canvas
from services.detector.service import DetectorService
from services.detector.settings import DetectorSettings
from tests.fakes.model_server import drawn, laid, serving

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


SLIPS = Path(__file__).parents[1] / "data" / "slips"


def same_canvas():
    """Real pages whose sizes differ by a little, so that they share a canvas."""
    whole = cv2.imread(str(SLIPS / "receipt-057.jpg"))
    small = cv2.resize(whole, (430, 620), interpolation=cv2.INTER_AREA)
    return [small, small[:580], np.ascontiguousarray(small[:, :390]), 255 - small]


@pytest.mark.model
@pytest.mark.parametrize(
    ("engine", "models"), [("openvino", "ppocr-v6-small"), ("paddle", "ppocr-v5-mobile")]
)
def test_the_quads_of_real_pages_do_not_move_by_a_pixel_in_a_batch(engine, models):
    fetch(models)
    spec = EngineSpec(engine=engine, model=resolve(models, "det"), head=Head.RAW, threads=1)
    runner = create_engine(spec)
    pages = [shrink(page, 960) for page in same_canvas()]
    assert len({page.shape for page in pages}) == 3
    assert {canvas(*page.shape[:2], 960) for page in pages} == {(640, 640)}
    pixels, sizes = laid(Batch(pages, (640, 640)))
    (together,) = [output.copy() for output in runner.run(pixels, sizes)]
    for index, page in enumerate(pages):
        alone = quads(runner.run(pixels[index : index + 1], sizes[index : index + 1])[0][0], page)
        assert len(alone) > 5
        np.testing.assert_allclose(quads(together[index], page), alone, atol=1)


def quads(probability, page):
    height, width = page.shape[:2]
    found = find_lines(np.ascontiguousarray(probability[0, :height, :width]), (height, width), BoxRules())
    return [line.points for line in found]
