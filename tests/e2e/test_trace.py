"""One trace leads from the producer to the result, and from there to the batches that did the work."""

import pytest

from services.common.pb import ocr_pb2 as pb
from tests.e2e.conftest import pipeline
from tests.fakes.otlp_collector import Collector, SpanRow
from tests.fakes.pages import page, png

DOCUMENT = png(page(["ONE", "TWO", "THREE"]))
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"

CHAIN = [
    ("gateway", "document"),
    ("gateway", "decode"),
    ("gateway", "detect"),
    ("detector", "ocr.v1.Detector/Detect"),
    ("detector", "queue"),
    ("detector", "model"),
    ("gateway", "crop"),
    ("gateway", "recognize"),
    ("recognizer", "ocr.v1.Recognizer/Recognize"),
    ("recognizer", "queue"),
    ("recognizer", "model"),
]
"""Spans that every document has, whichever door it came through."""

EDGES = [
    (("gateway", "document"), ("gateway", "decode")),
    (("gateway", "document"), ("gateway", "detect")),
    (("gateway", "document"), ("gateway", "crop")),
    (("gateway", "document"), ("gateway", "recognize")),
    (("detector", "ocr.v1.Detector/Detect"), ("detector", "queue")),
    (("detector", "ocr.v1.Detector/Detect"), ("detector", "model")),
    (("recognizer", "ocr.v1.Recognizer/Recognize"), ("recognizer", "queue")),
    (("recognizer", "ocr.v1.Recognizer/Recognize"), ("recognizer", "model")),
]
"""Parent and child."""


def of_trace(spans: list[SpanRow]) -> dict[tuple[str, str], SpanRow]:
    return {(row.service, row.name): row for row in spans if row.trace == TRACE}


def ancestors(row: SpanRow, spans: list[SpanRow]) -> list[str]:
    """Ids of the parents, up to the root."""
    by_id = {other.span: other for other in spans}
    found = []
    while row.parent:
        found.append(row.parent)
        if row.parent not in by_id:
            break
        row = by_id[row.parent]
    return found


def assert_tree(spans: list[SpanRow], root: tuple[str, str]) -> None:
    mine = of_trace(spans)
    assert mine[root].parent == SPAN
    for parent, child in EDGES:
        assert mine[child].parent == mine[parent].span, f"{child} is not a child of {parent}"
    for key in CHAIN:
        assert mine[root].span in ancestors(mine[key], spans), f"{key} does not hang below {root}"
    for stage, method in (
        ("detector", "ocr.v1.Detector/Detect"),
        ("recognizer", "ocr.v1.Recognizer/Recognize"),
    ):
        served = mine[stage, method]
        # The lines of a page have several widths, so they ride in several batches.
        batches = {row for row in spans if row.name == f"{stage} batch" and served.span in row.links}
        assert batches
        assert TRACE not in {batch.trace for batch in batches}
        queues = [row for row in spans if (row.service, row.name, row.trace) == (stage, "queue", TRACE)]
        # The clocks of wait and call are read apart, so a little may lie outside.
        assert all(served.start_ms - 5 <= row.start_ms <= row.end_ms <= served.end_ms for row in queues)
        models = [row for row in spans if (row.service, row.name, row.trace) == (stage, "model", TRACE)]
        assert {link for model in models for link in model.links} == {batch.span for batch in batches}


def complete(root: tuple[str, str]):
    def enough(spans: list[SpanRow]) -> bool:
        batches = {row.name for row in spans if row.name.endswith(" batch")}
        return set(CHAIN) | {root} <= set(of_trace(spans)) and len(batches) == 2

    return enough


def test_a_call_is_one_trace_from_the_caller_to_the_batches() -> None:
    root = ("gateway", "ocr.v1.Ocr/Recognize")
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_METRICS_EXPORTER": "none"}
        with pipeline("simulated", env=env) as running, running.ocr() as ocr:
            result = ocr.Recognize(
                pb.Job(content=DOCUMENT), metadata=[("traceparent", TRACEPARENT)], timeout=60
            )
            assert len(result.lines) == 3
            spans = collector.wait_until(complete(root))
    assert_tree(spans, root)


@pytest.mark.kafka
def test_a_kafka_job_is_one_trace_from_the_producer_to_the_result(kafka_topics) -> None:
    bootstrap, topics = kafka_topics
    root = ("gateway", f"process {topics['jobs']}")
    sent = ("gateway", f"send {topics['results']}")
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_METRICS_EXPORTER": "none"}
        flags = tuple(word for name, topic in topics.items() for word in (f"--{name}-topic", topic))
        with pipeline("simulated", kafka=bootstrap, gateway=flags, env=env):
            from tests.fakes.topics import Topics

            with Topics(bootstrap, topics) as client:
                client.send(DOCUMENT, [("traceparent", TRACEPARENT.encode()), ("job-id", b"traced")])
                [record] = client.answers(1)
            spans = collector.wait_until(lambda rows: complete(root)(rows) and sent in of_trace(rows))
    assert_tree(spans, root)
    assert of_trace(spans)[sent].parent == of_trace(spans)[root].span
    headers = dict(record.headers)
    assert headers["traceparent"].decode().split("-")[1] == TRACE
