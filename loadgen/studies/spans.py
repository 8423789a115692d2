"""Which batches the models ran, as the services' traces tell it: an OTLP receiver on loopback.

Only spans called `model` are kept. A batch writes one into the trace of each of its riders, with the times
of the run itself, so they answer both which batches there were and which request rode in which.
"""

import threading
from collections.abc import Iterable
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

TRACE_ALL = {"OTEL_TRACES_SAMPLER": "parentbased_always_on"}
"""Environment of a service that shall record every document."""

TRACE_ASKED = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}
"""The same, but only of documents whose sender says so: no cost for the others."""


@dataclass(frozen=True)
class ModelRun:
    """One batch as one of its riders saw it. Times in seconds of the system's clock, `ms` in milliseconds."""

    stage: str
    batch: int
    shape: str
    size: int
    trace: str
    start: float
    ms: float


class SpanReceiver(otlp_grpc.TraceServiceServicer):
    """Started by `with`; `environment` makes a service send its spans here.

    What a service has not sent yet comes when it ends: read `runs` after that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[ModelRun] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2, "spans"))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true",
        }

    def __enter__(self) -> "SpanReceiver":
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, _context: Any) -> Any:
        """Take what a service sends."""
        runs = model_runs(request)
        with self._lock:
            self._runs += runs
        return otlp.ExportTraceServiceResponse()

    def runs(self) -> list[ModelRun]:
        """All so far, in the order in which the models began."""
        with self._lock:
            return sorted(self._runs, key=lambda run: run.start)


def model_runs(request: Any) -> list[ModelRun]:
    """The `model` spans of an export request."""
    return [
        _run(_value_of(group.resource.attributes, "service.name"), span)
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
        if span.name == "model"
    ]


def batches(runs: Iterable[ModelRun]) -> list[ModelRun]:
    """One of the runs of each batch, in the order of `runs`."""
    return list({(run.stage, run.batch): run for run in reversed(list(runs))}.values())[::-1]


def _run(stage: str, span: Any) -> ModelRun:
    return ModelRun(
        stage=stage,
        batch=int(_value_of(span.attributes, "ocr.batch.id")),
        shape=_value_of(span.attributes, "ocr.batch.shape"),
        size=int(_value_of(span.attributes, "ocr.batch.size")),
        trace=span.trace_id.hex(),
        start=span.start_time_unix_nano / 1e9,
        ms=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
    )


def _value_of(attributes: Iterable[Any], key: str) -> str:
    value = next(attribute.value for attribute in attributes if attribute.key == key)
    return str(getattr(value, value.WhichOneof("value")))
