"""The promise of the ladder, on real models and lines: a line reads the same alone and in any company."""

import asyncio
import random
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio

from services.common.engines.base import EngineSpec, Head, create_engine
from services.common.model_service import plan
from services.common.models import fetch, resolve
from services.common.page_size import shrink
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.wire import raw_image
from services.detector.postprocess import BoxRules, find_lines
from services.gateway.crops import crop
from services.recognizer.model import serve_model
from services.recognizer.preprocess import WIDTH_LADDER, resize
from services.recognizer.service import RecognizerService
from services.recognizer.settings import RecognizerSettings
from tests.fakes.model_server import serving

SLIPS = Path(__file__).parents[1] / "data" / "slips"
LADDER = tuple(rung for rung in WIDTH_LADDER if rung <= 288)
"""Lines that are wider are left out, so that 200 batches take seconds."""
BATCHES = 200
MOST_COMPANY = 8
AT_ONCE = (1, 5)
ENGINES = [
    *(("openvino", "ppocr-v6-small", predictors) for predictors in (1, 2)),
    *(("paddle", "ppocr-v5-mobile", predictors) for predictors in (1, 2)),
]


@pytest.fixture(scope="module")
def lines():
    """Lines of the slips, as the product finds and cuts them."""
    fetch("ppocr-v6-small")
    model = resolve("ppocr-v6-small", "det")
    detector = create_engine(EngineSpec(engine="openvino", model=model, head=Head.RAW, threads=1))
    found = []
    for name in ("receipt-057.jpg", "lab-table.jpg", "bank-loan-rates.jpeg"):
        page = cv2.imread(str(SLIPS / name))
        seen = shrink(page, 640)
        [maps] = detector.run(seen[None], np.array([seen.shape[:2]], np.int32))
        quads = find_lines(np.ascontiguousarray(maps[0, 0]), page.shape[:2], BoxRules())
        found += [resize(crop(page, quad.points)) for quad in quads]
    kept = [raw_image(line) for line in found if line.shape[1] <= LADDER[-1]]
    assert len(kept) > 30
    return kept


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES, ids=lambda p: f"{p[0]}-{p[2]}")
async def recognizer(request):
    engine, models, predictors = request.param
    fetch(models)
    settings = RecognizerSettings(
        engine=engine, models=models, predictors=predictors, threads=1, width_ladder=LADDER
    )
    chosen = plan(settings, "rec")
    service = RecognizerService(serve_model(chosen, settings), chosen.files.charset, settings)
    async with serving(service) as channel:
        yield ocr_pb2_grpc.RecognizerStub(channel)


async def read(recognizer, lines):
    answer = await recognizer.Recognize(pb.RecognizeLinesRequest(lines=lines))
    return answer.lines, answer.timing.mean_batch_size


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="module")
async def test_a_line_reads_the_same_alone_and_in_any_batch_at_any_load(recognizer, lines):
    alone = [(await read(recognizer, [line]))[0][0] for line in lines]
    assert sum(bool(line.text) for line in alone) > 30
    draw, sizes = random.Random(20), []

    async def in_company(count):
        for _ in range(count):
            chosen = draw.sample(range(len(lines)), draw.randint(1, MOST_COMPANY))
            found, size = await read(recognizer, [lines[index] for index in chosen])
            sizes.append(size)
            for index, line in zip(chosen, found, strict=True):
                assert line.text == alone[index].text
                assert line.confidence == pytest.approx(alone[index].confidence, abs=1e-5)

    for callers in AT_ONCE:
        share = BATCHES // len(AT_ONCE) // callers
        await asyncio.gather(*(in_company(share) for _ in range(callers)))
    assert len(sizes) == BATCHES
    assert max(sizes) > 1
