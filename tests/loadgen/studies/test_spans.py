import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from loadgen.studies.spans import ModelRun, SpanReceiver, batches


def exported(stage: str, *spans: tuple[str, int, float]):
    """An export request with spans of a name, a batch and a start in seconds, each 20 ms long."""
    request = otlp.ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = stage
    scope = group.scope_spans.add()
    for name, batch, start in spans:
        span = scope.spans.add(name=name, trace_id=bytes([batch] * 16), start_time_unix_nano=int(start * 1e9))
        span.end_time_unix_nano = span.start_time_unix_nano + 20_000_000
        span.attributes.add(key="ocr.batch.id").value.int_value = batch
        span.attributes.add(key="ocr.batch.size").value.int_value = 4
        span.attributes.add(key="ocr.batch.shape").value.string_value = "(48, 320)"
    return request


def send(receiver, *requests):
    [endpoint] = [value for name, value in receiver.environment.items() if name.endswith("_ENDPOINT")]
    with grpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        stub = otlp_grpc.TraceServiceStub(channel)
        for request in requests:
            stub.Export(request, timeout=10)


def test_model_spans_are_kept_in_the_order_of_their_start_and_others_are_not():
    with SpanReceiver() as receiver:
        send(
            receiver,
            exported("recognizer", ("queue", 1, 0.5), ("model", 2, 3.0)),
            exported("detector", ("model", 1, 1.0)),
        )
        runs = receiver.runs()
    assert [(run.stage, run.batch) for run in runs] == [("detector", 1), ("recognizer", 2)]
    assert runs[1] == ModelRun("recognizer", 2, "(48, 320)", 4, "02" * 16, 3.0, pytest.approx(20.0))


def test_a_batch_with_many_riders_counts_once():
    def run(stage, batch, start):
        return ModelRun(stage, batch, "(48, 320)", 4, "", start, 1.0)

    first, rider, other, elsewhere = run("a", 1, 0.0), run("a", 1, 0.1), run("a", 2, 1.0), run("b", 1, 2.0)
    assert batches([first, rider, other, elsewhere]) == [first, other, elsewhere]
