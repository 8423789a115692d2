"""Logs, spans and metrics, and that they cost nothing when nobody asked for them."""

import json
import logging
import subprocess
import sys

from opentelemetry import trace
from opentelemetry.context import Context

from services.common import telemetry
from services.common.batch_queue import Priority
from services.common.batcher import BatchFacts

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


THREE = {
    "contexts": (telemetry.Rider(None, 100),) * 3,
    "queue_ms": (1.0, 2.0, 2.0),
    "priorities": (Priority.ONLINE, Priority.BULK, Priority.BULK),
}
KINDS = ("valid", "padding", "expired", "refused", "online", "bulk")


def facts(**changes) -> BatchFacts:
    known = {
        "batch_id": 1,
        "shape": (48, 320),
        "size": 2,
        "pixels": 2 * 48 * 320,
        "reason": "full",
        "queue_ms": (1.0, 2.0),
        "prepare_ms": 1.0,
        "model_ms": 5.0,
        "contexts": (telemetry.Rider(None, 100), telemetry.Rider(None, 200)),
        "priorities": (Priority.ONLINE, Priority.BULK),
        "model_cpu_ms": 8.0,
        "error": None,
    }
    return BatchFacts(**known | changes)


def test_without_a_collector_no_span_is_recorded() -> None:
    with telemetry.tracer.start_as_current_span("anything") as span:
        assert not span.is_recording()
        assert telemetry.recorded_span() is None


def test_a_trace_context_survives_kafka_headers_and_grpc_metadata() -> None:
    for pairs in ([("traceparent", TRACEPARENT.encode())], [("Traceparent", TRACEPARENT)]):
        context = telemetry.extract(pairs)
        span = trace.get_current_span(context).get_span_context()
        assert f"{span.trace_id:032x}" in TRACEPARENT
        with trace.use_span(trace.NonRecordingSpan(span)):
            assert telemetry.inject_metadata() == (("traceparent", TRACEPARENT),)
            assert telemetry.inject_headers() == [("traceparent", TRACEPARENT.encode())]


def test_headers_that_are_no_text_or_no_trace_give_an_empty_context() -> None:
    for value in (b"\xff\xfe", b"garbage", b""):
        context = telemetry.extract([("traceparent", value)])
        assert not trace.get_current_span(context).get_span_context().is_valid
    assert telemetry.extract([]) == Context()


def test_a_log_line_is_one_json_object_with_the_ids_of_the_current_trace() -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "read %d", (3,), None)
    record.fields = {"port": 7}
    span = trace.get_current_span(telemetry.extract([("traceparent", TRACEPARENT)]))
    with trace.use_span(span):
        line = json.loads(telemetry.JsonFormatter("gateway").format(record))
    assert line["message"] == "read 3"
    assert (line["service"], line["level"], line["port"]) == ("gateway", "info", 7)
    assert line["trace_id"] == TRACEPARENT.split("-")[1]
    assert line["span_id"] == TRACEPARENT.split("-")[2]


def test_the_facts_of_a_batch_become_metrics() -> None:
    """In a process of its own: the provider of metrics is global and set once."""
    code = """
import urllib.request
from types import SimpleNamespace
from services.common import telemetry
from tests.common.test_telemetry import THREE, facts
settings = SimpleNamespace(host="127.0.0.1", metrics_port=0, log_level="info", log_format="json")
running = telemetry.setup("recognizer", settings)
observer = telemetry.BatchTelemetry("recognizer")
observer.on_batch(facts(**THREE))
observer.on_drop("expired", 3)
observer.on_refuse(4)
telemetry.observe("ocr.queue.depth", "{item}", "Items that wait.", lambda: [(5, {"stage": "recognizer"})])
print(urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics").read().decode())
running.shutdown()
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    rows = {}
    for line in shown.splitlines():
        if line.startswith("ocr_"):
            name, value = line.rsplit(" ", 1)
            rows[
                name.split("{")[0],
                *(w for w in KINDS if w in name),
            ] = float(value)
    assert rows["ocr_batch_size_sum",] == 2
    assert rows["ocr_batches_total",] == 1
    assert (rows["ocr_batch_items_total", "online"], rows["ocr_batch_items_total", "bulk"]) == (1, 2)
    assert rows["ocr_queue_wait_seconds_count", "bulk"] == 1, "two that came together"
    assert rows["ocr_queue_wait_seconds_sum", "bulk"] == 0.002
    assert rows["ocr_batch_pixels_total", "valid"] == 300
    assert rows["ocr_batch_pixels_total", "padding"] == 2 * 48 * 320 - 300
    assert rows["ocr_items_dropped_total", "expired"] == 3
    assert rows["ocr_items_dropped_total", "refused"] == 4
    assert rows["ocr_queue_depth",] == 5
    assert rows["ocr_model_duration_seconds_sum",] == 0.005
    assert rows["ocr_model_cpu_seconds_total",] == 0.008
    assert 'reason="full"' in shown
    assert 'priority="bulk"' in shown
