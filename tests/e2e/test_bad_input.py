"""Bad input, each kind with its code, through both doors; the next job goes on as if nothing had been."""

import json

import grpc
import pytest

from services.common.pb import ocr_pb2 as pb
from tests.e2e.conftest import pipeline
from tests.fakes.pages import page, png, png_header
from tests.fakes.pdf import encrypted_pdf, pdf
from tests.fakes.topics import Topics

pytestmark = pytest.mark.kafka

GOOD = png(page(["TOTAL 46.62"]))
JSON = ("content-type", b"application/json")


def jpeg(slips) -> bytes:
    return slips["receipt-057.jpg"].read_bytes()


BAD_DOCUMENTS = {
    "empty": (lambda slips: b"", "EMPTY_INPUT"),
    "not an image": (lambda slips: b"Dear Sir or Madam, " * 50, "UNSUPPORTED_FORMAT"),
    "truncated JPEG": (lambda slips: jpeg(slips)[:50_000], "CORRUPT_INPUT"),
    "1x1": (lambda slips: png(page([])[:1, :1]), "IMAGE_TOO_SMALL"),
    "bomb": (lambda slips: png_header(20_000, 20_000), "IMAGE_TOO_LARGE"),
    "over the byte limit": (lambda slips: png(page(["x"])) + bytes(2 << 20), "DOCUMENT_TOO_LARGE"),
    "over the page limit": (lambda slips: pdf(*[(200.0, 200.0)] * 4), "TOO_MANY_PAGES"),
    "password": (lambda slips: encrypted_pdf(), "PASSWORD_PROTECTED"),
}
BAD_JOBS = {
    "missing fields": ({}, "INVALID_JOB"),
    "unknown field": ({"uri": "file:///a", "colour": "red"}, "INVALID_JOB"),
    "scheme": ({"uri": "http://127.0.0.1/a.png"}, "URI_NOT_ALLOWED"),
    "outside": ({"uri": "file:///etc/passwd"}, "URI_NOT_ALLOWED"),
    "nothing there": ({"uri": "file://{allowed}/missing.png"}, "URI_UNREADABLE"),
}
LIMITS = ("--max-document-mb", 1, "--max-pages", 3, "--max-result-bytes", 4_000)


@pytest.fixture(scope="module")
def allowed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allowed")
    (folder / "good.png").write_bytes(GOOD)
    return folder


@pytest.fixture(scope="module")
def running(kafka_topics, allowed):
    bootstrap, topics = kafka_topics
    flags = [word for name, topic in topics.items() for word in (f"--{name}-topic", topic)]
    with pipeline(
        "simulated", kafka=bootstrap, gateway=(*flags, *LIMITS, "--uri-allow", str(allowed))
    ) as started:
        yield started


@pytest.fixture
def client(kafka_topics, running):
    with Topics(*kafka_topics) as opened:
        yield opened


def answer_to(client: Topics, job_id: str):
    """The one record that answers a job."""
    key = job_id.encode()

    def mine(record) -> bool:
        headers = dict(record.headers)
        return key in {headers.get("job-id"), headers.get("dlq-job-id")}

    found = [record for record in client.until(lambda seen: any(map(mine, seen))) if mine(record)]
    assert len(found) == 1
    return found[0]


def assert_dead_letter(client: Topics, record, code: str, value: bytes | None, sent_headers) -> None:
    headers = dict(record.headers)
    assert record.topic == client.topics["dlq"]
    assert headers["dlq-reason"].decode() == code
    assert headers["dlq-message"]
    assert headers["dlq-origin-topic"].decode() == client.topics["jobs"]
    assert record.value == value
    assert record.headers[: len(sent_headers)] == sent_headers


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_a_bad_document_is_refused_through_both_doors_with_its_code(name, client, running, slips) -> None:
    make, code = BAD_DOCUMENTS[name]
    document = make(slips)
    with running.ocr() as ocr, pytest.raises(grpc.RpcError) as caught:
        ocr.Recognize(pb.Job(content=document), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["ocr-error-code"] == code
    sent = [("job-id", name.encode()), ("colour", b"red")]
    client.send(document or None, sent, key=b"key")
    client.send(GOOD, [("job-id", f"after {name}".encode())])
    assert_dead_letter(client, answer_to(client, name), code, document or None, sent)
    assert answer_to(client, f"after {name}").topic == client.topics["results"]


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_is_a_dead_letter_with_its_code(name, client, allowed) -> None:
    job, code = BAD_JOBS[name]
    value = json.dumps(job).replace("{allowed}", str(allowed)).encode()
    sent = [JSON, ("job-id", name.encode())]
    client.send(value, sent)
    assert_dead_letter(client, answer_to(client, name), code, value, sent)


def test_one_stream_carries_bad_and_good_documents(running, slips) -> None:
    documents = {name: make(slips) for name, (make, _) in BAD_DOCUMENTS.items()}
    jobs = [pb.Job(job_id=name, content=document) for name, document in documents.items()]
    jobs.append(pb.Job(job_id="good", content=GOOD))
    with running.ocr() as ocr:
        results = {result.job_id: result for result in ocr.RecognizeStream(iter(jobs), timeout=120)}
    assert results.pop("good").status == pb.OK
    codes = {name: pb.ErrorCode.Name(result.error.code) for name, result in results.items()}
    assert codes == {name: code for name, (_, code) in BAD_DOCUMENTS.items()}
    assert {result.status for result in results.values()} == {pb.FAILED}


def test_a_page_without_text_is_a_good_result_without_lines(running, client) -> None:
    blank = png(page([], width=300))
    with running.ocr() as ocr:
        result = ocr.Recognize(pb.Job(content=blank), timeout=60)
    assert (result.status, len(result.lines), len(result.pages)) == (pb.OK, 0, 1)
    client.send(blank, [("job-id", b"blank")])
    answer = json.loads(answer_to(client, "blank").value)
    assert (answer["status"], answer["lines"], answer["error"]) == ("ok", [], None)


def test_a_uri_inside_the_allowed_folder_is_read(client, allowed) -> None:
    client.send(json.dumps({"uri": f"file://{allowed}/good.png"}).encode(), [JSON, ("job-id", b"uri")])
    assert json.loads(answer_to(client, "uri").value)["status"] == "ok"


def test_a_result_too_large_for_its_topic_is_a_dead_letter(client) -> None:
    crowded = png(page([f"LINE {number}" for number in range(40)]))
    client.send(crowded, [("job-id", b"crowded")])
    assert_dead_letter(
        client, answer_to(client, "crowded"), "RESULT_TOO_LARGE", crowded, [("job-id", b"crowded")]
    )
