"""A collector that keeps what it is sent: the real OTLP service over gRPC, on loopback."""

import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SpanRow:
    """The facts of one span that tests ask about; ids in hexadecimal, an empty parent for a root."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    links: frozenset[str]
    attributes: dict[str, object]
    start_ms: float
    end_ms: float

    def __hash__(self) -> int:
        return hash(self.span)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Started by `with`; `endpoint` goes into OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.spans: list[SpanRow] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "Collector":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def Export(self, request, context):
        rows = [
            _row(_text(group.resource.attributes, "service.name"), span)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self.spans += rows
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_until(self, enough: Callable[[list[SpanRow]], bool], timeout: float = 30.0) -> list[SpanRow]:
        """All spans so far, as soon as `enough` says that they suffice."""
        with self._changed:
            seen = self._changed.wait_for(lambda: enough(self.spans), timeout)
            assert seen, "not all spans came; these did:\n" + "\n".join(sorted(map(str, self.spans)))
            return list(self.spans)


def _text(attributes, key: str) -> str:
    return next(a.value.string_value for a in attributes if a.key == key)


def _value(value) -> object:
    return getattr(value, value.WhichOneof("value"))


def _row(service: str, span) -> SpanRow:
    return SpanRow(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=frozenset(link.span_id.hex() for link in span.links),
        attributes={a.key: _value(a.value) for a in span.attributes},
        start_ms=span.start_time_unix_nano / 1e6,
        end_ms=span.end_time_unix_nano / 1e6,
    )
