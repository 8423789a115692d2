"""Traces, metrics and logs: set up once for each process, all names in one place.

The only file that imports the OpenTelemetry SDK; other shells use its API through the names here.
Tracing is on when a standard variable asks for it (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_TRACES_EXPORTER=otlp|console`); otherwise no provider exists
and spans cost nothing. Metrics are on when `--metrics-port` is, or when OTLP asks for them.

A batch carries work of many traces, and a span has one parent only. So a batch is a span of its own,
the root of a trace of its own, with links to its riders; each rider's trace gets a `queue` and a `model`
span that repeat the times and link back.
"""

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import prometheus_client
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind

from services.common.batcher import BatchFacts, Priority

SCOPE = "ocr-serving"
tracer = trace.get_tracer(SCOPE)
_meter = metrics.get_meter(SCOPE)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_SHUTDOWN_S = 3.0
_SPAN_QUEUE = "65536"
"""Spans that may wait for the exporter; the SDK's 2,048 fill in a second of load and the oldest are lost."""


def _seconds(name: str, text: str) -> metrics.Histogram:
    return _meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=_SECONDS)


class _Tally:
    """A counter for what is counted at each batch: to count is an addition, and the SDK asks for the totals.

    Telling the SDK of every one of them costs more than to queue the items of the batch.
    """

    def __init__(self, name: str, unit: str, text: str) -> None:
        self._totals: dict[tuple[tuple[str, str], ...], float] = {}
        _meter.create_observable_counter(name, [self._read], unit, text)

    def add(self, amount: float, attributes: Mapping[str, str]) -> None:
        """Count. From one thread only; the totals may be read from any."""
        key = tuple(attributes.items())
        self._totals[key] = self._totals.get(key, 0) + amount

    def _read(self, _options: metrics.CallbackOptions) -> list[metrics.Observation]:
        return [metrics.Observation(total, dict(key)) for key, total in list(self._totals.items())]


class METRICS:
    """Every metric of the pipeline, a sentence each. `stage` is gateway, detector or recognizer."""

    queue_wait = _seconds(
        "ocr.queue.wait",
        "Time in the batch queue, by stage and priority: of the items of a batch that came together once.",
    )
    items = _Tally("ocr.batch.items", "{item}", "Items in batches, by stage and priority.")
    batch_size = _meter.create_histogram(
        "ocr.batch.size", "{item}", "Items in a batch, by stage.", explicit_bucket_boundaries_advisory=_SIZES
    )
    batches = _Tally("ocr.batches", "{batch}", "Batches by stage and the reason they left.")
    pixels = _Tally(
        "ocr.batch.pixels", "{pixel}", "Pixels sent to the model by stage and kind: valid or padding."
    )
    prepare = _seconds("ocr.batch.prepare.duration", "Time of preparing a batch, by stage.")
    model = _seconds("ocr.model.duration", "Time of the model for a batch, by stage.")
    model_cpu = _Tally("ocr.model.cpu", "s", "Processor time of all threads inside the model, by stage.")
    dropped = _meter.create_counter(
        "ocr.items.dropped",
        "{item}",
        "Items that left before the model, by stage and kind: expired, cancelled, refused.",
    )
    errors = _meter.create_counter("ocr.errors", "{error}", "Errors by stage and error code.")
    restarts = _meter.create_counter(
        "ocr.predictor.restarts", "{restart}", "Predictor processes replaced, by stage."
    )
    documents = _meter.create_counter(
        "ocr.documents", "{document}", "Documents finished, by door and status."
    )
    document = _seconds("ocr.document.duration", "Time of a document in the gateway, by door.")
    call = _seconds("rpc.server.call.duration", "Time of a gRPC call, by method and status.")


def observe(
    name: str, unit: str, text: str, read: Callable[[], Iterable[tuple[float, dict[str, str]]]]
) -> None:
    """A gauge that is read when the metrics are: queue depth, documents in flight, Kafka lag, readiness.

    `read` gives (value, attributes) pairs and must not block.
    """

    def callback(_options: metrics.CallbackOptions) -> list[metrics.Observation]:
        return [metrics.Observation(value, attributes) for value, attributes in read()]

    _meter.create_observable_gauge(name, [callback], unit, text)


class TelemetrySettings(Protocol):
    """The settings that this file needs."""

    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def metrics_port(self) -> int: ...  # noqa: D102
    @property
    def log_level(self) -> str: ...  # noqa: D102
    @property
    def log_format(self) -> Literal["json", "text"]: ...  # noqa: D102


class Telemetry:
    """What `setup` started, to be stopped at the end."""

    def __init__(self) -> None:
        self.metrics_port: int | None = None
        self._stops: list[Callable[[], object]] = []

    def shutdown(self) -> None:
        """Send what is waiting and stop, without waiting for long for a collector that does not answer."""
        stops = [threading.Thread(target=stop, daemon=True) for stop in reversed(self._stops)]
        for thread in stops:
            thread.start()
        end = time.monotonic() + _SHUTDOWN_S
        for thread in stops:
            thread.join(max(end - time.monotonic(), 0))

    def on_shutdown(self, stop: Callable[[], object]) -> None:
        """Remember to call `stop`."""
        self._stops.append(stop)


def setup(service: str, settings: TelemetrySettings) -> Telemetry:
    """Start logs, and traces and metrics where they are asked for, for the process called `service`."""
    telemetry = Telemetry()
    setup_logs(service, settings.log_level, settings.log_format)
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return telemetry
    resource = Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", service), "process.pid": os.getpid()}
    )
    _setup_traces(telemetry, resource)
    _setup_metrics(telemetry, resource, settings)
    return telemetry


def setup_traces(service: str) -> Telemetry:
    """Traces only: for commands that are not servers."""
    telemetry = Telemetry()
    _setup_traces(telemetry, Resource.create({"service.name": service}))
    return telemetry


def _exporter(signal: str) -> str:
    """otlp, console or none, for TRACES or METRICS, from the standard variables."""
    asked = os.environ.get(f"OTEL_{signal}_EXPORTER")
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(
        f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    )
    return asked or ("otlp" if endpoint else "none")


def _setup_traces(telemetry: Telemetry, resource: Resource) -> None:
    asked = _exporter("TRACES")
    if asked == "none":
        return
    exporter: SpanExporter = ConsoleSpanExporter(out=sys.stderr) if asked == "console" else OTLPSpanExporter()
    os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", _SPAN_QUEUE)
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", "500")
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    telemetry.on_shutdown(provider.shutdown)


def _setup_metrics(telemetry: Telemetry, resource: Resource, settings: TelemetrySettings) -> None:
    readers: list[MetricReader] = []
    if settings.metrics_port >= 0:
        readers.append(PrometheusMetricReader())
        server, _ = prometheus_client.start_http_server(settings.metrics_port, settings.host)
        telemetry.metrics_port = server.server_port
        telemetry.on_shutdown(server.shutdown)
    if _exporter("METRICS") == "otlp":
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if readers:
        provider = MeterProvider(readers, resource)
        metrics.set_meter_provider(provider)
        telemetry.on_shutdown(provider.shutdown)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the ids of the trace that was current."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The line for `record`; fields given by `extra={"fields": {...}}` are added."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def setup_logs(service: str, level: str, form: Literal["json", "text"]) -> None:
    """Send the logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(service) if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for chatty in ("kafka", "PIL", "grpc"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


def inject_metadata() -> tuple[tuple[str, str], ...]:
    """The current trace context as gRPC metadata."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())


def inject_headers() -> list[tuple[str, bytes]]:
    """The current trace context as Kafka headers."""
    return [(key, value.encode()) for key, value in inject_metadata()]


def extract(pairs: Iterable[tuple[str, str | bytes]]) -> Context:
    """The trace context in gRPC metadata or Kafka headers; an empty context when there is none."""
    carrier: Mapping[str, str] = {
        key.lower(): value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in pairs
    }
    return propagate.extract(carrier)


class Rider(NamedTuple):
    """What a queued item carries for telemetry: its request's span, if recorded, and its true pixels."""

    span: SpanContext | None
    valid_pixels: int


def recorded_span() -> SpanContext | None:
    """The current span for the `Rider`s of a call; None when it is not recorded."""
    span = trace.get_current_span()
    return span.get_span_context() if span.is_recording() else None


def _waits(facts: BatchFacts) -> list[tuple[SpanContext, float]]:
    """Each recorded request with items in the batch, and the longest wait of these."""
    waits: dict[int, tuple[SpanContext, float]] = {}
    for context, queue_ms in zip(facts.contexts, facts.queue_ms, strict=True):
        if isinstance(context, Rider) and context.span is not None:
            _, longest = waits.get(context.span.span_id, (context.span, 0.0))
            waits[context.span.span_id] = (context.span, max(longest, queue_ms))
    return list(waits.values())


class BatchTelemetry:
    """Turns the facts of each batch into metrics and spans; the observer of a `Batcher`."""

    def __init__(self, stage: str) -> None:
        self._stage = {"stage": stage}
        self._of_class = {
            priority: self._stage | {"priority": priority.name.lower()} for priority in Priority
        }
        self._name = f"{stage} batch"

    def on_drop(self, kind: Literal["expired", "cancelled"], count: int = 1) -> None:
        """Items left before a model ran for them."""
        METRICS.dropped.add(count, self._stage | {"kind": kind})

    def on_refuse(self, count: int = 1) -> None:
        """Items were refused at the door."""
        METRICS.dropped.add(count, self._stage | {"kind": "refused"})

    def on_batch(self, facts: BatchFacts) -> None:
        """A batch has ended, well or not."""
        riders = [context for context in facts.contexts if isinstance(context, Rider)]
        self._count(facts, riders)
        if waits := _waits(facts):
            self._trace(facts, waits)

    def _count(self, facts: BatchFacts, riders: Sequence[Rider]) -> None:
        """A record costs as much as to queue an item, so there is one for what several items share."""
        METRICS.batches.add(1, self._stage | {"reason": facts.reason})
        METRICS.batch_size.record(facts.size, self._stage)
        METRICS.model.record(facts.model_ms / 1000, self._stage)
        METRICS.model_cpu.add(facts.model_cpu_ms / 1000, self._stage)
        METRICS.prepare.record(facts.prepare_ms / 1000, self._stage)
        for priority, wait in set(zip(facts.priorities, facts.queue_ms, strict=True)):
            METRICS.queue_wait.record(wait / 1000, self._of_class[priority])
        for priority, items in Counter(facts.priorities).items():
            METRICS.items.add(items, self._of_class[priority])
        valid = sum([rider.valid_pixels for rider in riders])
        METRICS.pixels.add(valid, self._stage | {"kind": "valid"})
        METRICS.pixels.add(max(facts.pixels - valid, 0), self._stage | {"kind": "padding"})

    def _trace(self, facts: BatchFacts, riders: Sequence[tuple[SpanContext, float]]) -> None:
        """A span for the batch, and two for each rider: its own wait, and the model that all share."""
        end = time.time_ns()
        run = end - int(facts.model_ms * 1e6)
        start = run - int(facts.prepare_ms * 1e6)
        attributes: dict[str, str | int] = {
            "ocr.batch.size": facts.size,
            "ocr.batch.shape": str(facts.shape),
            "ocr.batch.reason": facts.reason,
            "ocr.batch.id": facts.batch_id,
        }
        batch = tracer.start_span(
            self._name,
            Context(),
            SpanKind.INTERNAL,
            attributes,
            [Link(span) for span, _ in riders],
            start_time=start,
        )
        if facts.error is not None:
            batch.set_status(trace.StatusCode.ERROR, facts.error)
        batch.end(end)
        link = [Link(batch.get_span_context())]
        for span, queue_ms in riders:
            queued = start - int(queue_ms * 1e6)
            parent = trace.set_span_in_context(trace.NonRecordingSpan(span), Context())
            tracer.start_span("queue", parent, SpanKind.INTERNAL, start_time=queued).end(start)
            tracer.start_span("model", parent, SpanKind.INTERNAL, attributes, link, start_time=run).end(end)
