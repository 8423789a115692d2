"""Real slips through both doors: the text comes out, the same text, and the result says how it was made."""

import base64
import json
import unicodedata
from pathlib import Path

import jsonschema
import pytest

from services.common import records
from services.common.models import MODEL_SETS
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from tests.fakes.topics import Topics

pytestmark = [pytest.mark.model, pytest.mark.kafka]

SCHEMA = Path(__file__).parents[2] / "protos" / "schemas" / "result.schema.json"
SHARE = 0.9
"""Of the strings read off a slip by hand, how many must be in its text; no reader gets all."""


def plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


@pytest.fixture(scope="module")
def through_grpc(real, slips) -> dict[str, pb.Result]:
    running, _, _ = real
    jobs = [pb.Job(job_id=name, file=name, content=path.read_bytes()) for name, path in slips.items()]
    with running.ocr() as ocr:
        return {result.job_id: result for result in ocr.RecognizeStream(iter(jobs), timeout=300)}


@pytest.fixture(scope="module")
def through_kafka(real, slips) -> dict[str, dict]:
    _, bootstrap, topics = real
    with Topics(bootstrap, topics) as client:
        for name, path in slips.items():
            client.send(path.read_bytes(), [("job-id", name.encode()), ("file", name.encode())])
        answers = client.answers(len(slips), timeout=300)
    assert {record.topic for record in answers} == {topics["results"]}
    return {record.key.decode(): json.loads(record.value) for record in answers}


def test_the_strings_on_each_slip_are_in_its_text(through_grpc, expected) -> None:
    assert set(through_grpc) == set(expected)
    for name, strings in expected.items():
        text = plain("".join(line.text for line in through_grpc[name].lines))
        missed = [string for string in strings if plain(string) not in text]
        assert len(strings) - len(missed) >= SHARE * len(strings), f"{name}: {missed} not in {text}"


def test_the_same_document_gives_the_same_text_through_both_doors(through_grpc, through_kafka) -> None:
    for name, result in through_grpc.items():
        one, other = records.to_dict(result), through_kafka[name]
        assert [line["text"] for line in one["lines"]] == [line["text"] for line in other["lines"]]
        assert [line["points"] for line in one["lines"]] == [line["points"] for line in other["lines"]]
        for a, b in zip(one["lines"], other["lines"], strict=True):
            assert a["confidence"] == pytest.approx(b["confidence"], abs=1e-5)


def test_a_result_follows_its_schema_and_names_what_made_it(through_kafka, real, slips) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name, result in through_kafka.items():
        jsonschema.validate(result, schema)
        assert (result["job_id"], result["file"], result["status"]) == (name, name, "ok")
        for role in ("detector", "recognizer"):
            model = result[role]
            pinned = {file.sha256 for file in MODEL_SETS[model["model_set"]].files}
            assert model["weights_sha256"] in pinned
            assert model["engine"] in {"openvino", "paddle"}
            assert model["engine_version"]
            assert model["settings"]
        assert result["timing"]["total_ms"] > 0
        assert result["timing"]["recognize"]["model_ms"] > 0


def test_a_job_in_json_gives_the_same_as_the_document_itself(real, slips, through_kafka) -> None:
    _, bootstrap, topics = real
    name, path = next(iter(slips.items()))
    job = {"job_id": "json", "content": base64.b64encode(path.read_bytes()).decode()}
    with Topics(bootstrap, topics) as client:
        client.send(json.dumps(job).encode(), [("content-type", b"application/json")])
        found = client.until(lambda seen: any(record.key == b"json" for record in seen))
    [record] = [record for record in found if record.key == b"json"]
    assert json.loads(record.value)["lines"] == through_kafka[name]["lines"]


def test_detector_and_recognizer_take_plain_image_bytes(real, slips, through_grpc) -> None:
    running, _, _ = real
    name, path = "receipt-057.jpg", slips["receipt-057.jpg"]
    image = pb.Image(encoded=path.read_bytes())
    with running.channel("detector") as channel:
        found = ocr_pb2_grpc.DetectorStub(channel).Detect(pb.DetectRequest(image=image), timeout=60)
    assert len(found.lines) >= len(through_grpc[name].lines)
    with running.channel("recognizer") as channel:
        stub = ocr_pb2_grpc.RecognizerStub(channel)
        answer = stub.Recognize(pb.RecognizeLinesRequest(lines=[image, image]), timeout=60)
    assert len(answer.lines) == 2
    assert answer.lines[0].text == answer.lines[1].text
