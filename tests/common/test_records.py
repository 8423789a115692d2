"""The JSON form of jobs and results, and the schemas that describe it."""

import base64
import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import records
from services.common.errors import InvalidJob
from services.common.pb import ocr_pb2 as pb

SCHEMAS = Path(__file__).parents[2] / "protos" / "schemas"


def schema(name: str):
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def full_result() -> pb.Result:
    return pb.Result(
        job_id="j1",
        file="a.png",
        status=pb.PARTIAL,
        lines=[pb.Line(text="金額", confidence=0.987654, points=[pb.Point(x=1.5, y=2)] * 4, page=1)],
        pages=[
            pb.Page(number=1, width=10, height=20),
            pb.Page(number=2, error=pb.Error(code=pb.CORRUPT_INPUT, message="cut")),
        ],
        detector=pb.ModelInfo(model_set="m", settings={"b": "2", "a": "1"}),
        settings={"pdf_dpi": "200", "opencv": "4.0"},
    )


def test_a_result_reads_as_documented() -> None:
    read = json.loads(records.result_to_json(full_result()))
    assert read["status"] == "partial"
    assert read["lines"] == [{"text": "金額", "confidence": 0.987654, "points": [[1.5, 2.0]] * 4, "page": 1}]
    assert read["error"] is None
    assert read["pages"][1]["error"] == {"code": "CORRUPT_INPUT", "message": "cut"}
    assert read["detector"]["settings"] == {"a": "1", "b": "2"}
    assert read["recognizer"] is None
    assert list(read["settings"].items()) == [("opencv", "4.0"), ("pdf_dpi", "200")]


def test_the_schema_says_what_the_settings_of_a_result_are() -> None:
    said = schema("result")["properties"]["settings"]
    assert (said["type"], said["additionalProperties"]) == ("object", {"type": "string"})
    assert "shapes the text" in said["description"]


@pytest.mark.parametrize(
    "result", [full_result(), pb.Result(), pb.Result(status=pb.FAILED, error=pb.Error())]
)
def test_every_result_follows_its_schema(result) -> None:
    jsonschema.validate(json.loads(records.result_to_json(result)), schema("result"))


@pytest.mark.parametrize(
    "job",
    [
        {"uri": "file:///a"},
        {"content": base64.b64encode(b"x").decode(), "job_id": "1", "file": "a", "options": {}},
        {"uri": "u", "options": {"priority": "ONLINE", "min_confidence": 0.5, "deadline_ms": 1000}},
        {"uri": "u", "sha256": "aB" * 32, "size": 2**32 - 1, "content_type": "Image/JPEG; q=1"},
        {"uri": "u", "sha256": "", "size": 0, "content_type": ""},
    ],
)
def test_a_good_job_is_read_and_follows_its_schema(job) -> None:
    jsonschema.validate(job, schema("job"))
    read = records.job_from_json(json.dumps(job).encode())
    assert read.job_id == job.get("job_id", "")
    assert read.content == base64.b64decode(job.get("content", ""))


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({}, "neither"),
        ({"uri": "a", "content": "eA=="}, "source"),
        ({"uri": "a", "colour": "red"}, "colour"),
        ({"uri": "a", "options": {"min_confidance": 1}}, "min_confidance"),
        ({"uri": 3}, "uri"),
        ({"uri": "a", "options": {"priority": "URGENT"}}, "URGENT"),
        ({"uri": "a", "options": {"min_confidence": 1.5}}, "0 to 1"),
        ([], "object"),
        ({"uri": "a", "jobId": "x"}, "jobId"),
        ({"uri": "a", "file": None}, "file"),
        ({"uri": "a", "options": None}, "options"),
        ({"uri": "a", "options": {"deadline_ms": "60000"}}, "deadline_ms"),
        ({"uri": "a", "options": {"deadline_ms": -1}}, "deadline_ms"),
        ({"uri": "a", "options": {"deadline_ms": True}}, "deadline_ms"),
        ({"uri": "a", "options": {"priority": 1}}, "priority"),
        ({"uri": "a", "sha256": "ab" * 31}, "sha256"),
        ({"uri": "a", "sha256": "xy" * 32}, "sha256"),
        ({"uri": "a", "size": 2**32}, "size"),
        ({"uri": "a", "size": -1}, "size"),
        ({"uri": "a", "size": "5"}, "size"),
    ],
)
def test_a_bad_job_is_refused_with_the_reason_and_by_the_schema_too(job, word) -> None:
    with pytest.raises(InvalidJob, match=word):
        records.job_from_json(json.dumps(job).encode())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, schema("job"))


@pytest.mark.parametrize(
    "content", ["###", "eA", "eA==!!!!", "data:image/png;base64,eA==", "eA ==", "\u00e9"]
)
def test_content_that_is_not_clean_base64_is_an_invalid_job_and_no_other_document(content) -> None:
    with pytest.raises(InvalidJob, match="base64"):
        records.job_from_json(json.dumps({"content": content}).encode())


@given(st.binary(max_size=200))
def test_no_bytes_whatever_give_anything_but_a_job_or_invalid_job(value) -> None:
    try:
        assert isinstance(records.job_from_json(value), pb.Job)
    except InvalidJob as error:
        assert str(error)


def test_deep_nesting_is_an_invalid_job() -> None:
    with pytest.raises(InvalidJob):
        records.job_from_json(b'{"options":' * 5000)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_confidence_comes_back_as_the_same_32_bit_float_to_seven_digits(value) -> None:
    line = pb.Line(confidence=value)
    assert records.to_dict(line)["confidence"] == pytest.approx(line.confidence, rel=1e-6)
