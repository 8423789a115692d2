"""`python -m services.gateway`: the gateway as a process."""

import sys
from collections.abc import Sequence

from services.common.process import run
from services.common.rpc import run_service
from services.common.telemetry import observe
from services.gateway.clients import Backend, DetectorClient, RecognizerClient, RetryLimits
from services.gateway.pipeline import Pipeline, PipelineLimits
from services.gateway.results import SERVICE_VERSION
from services.gateway.service import GatewayService, OcrServicer, Part
from services.gateway.settings import GatewaySettings


def build(settings: GatewaySettings) -> GatewayService:
    """The gateway with all its parts, not started. Call it inside the event loop that will run it."""
    detector, recognizer = (
        Backend(name, target, max_message_mb=settings.max_message_mb)
        for name, target in (("detector", settings.detector), ("recognizer", settings.recognizer))
    )
    tries = RetryLimits(settings.backend_max_attempts, timeout_s=settings.backend_timeout_s)
    pipeline = Pipeline(
        DetectorClient(detector.channel, tries),
        RecognizerClient(recognizer.channel, tries),
        pipeline_limits(settings),
    )
    observe(
        "ocr.gateway.in_flight",
        "{document}",
        "Documents being worked on, through either door.",
        lambda: [(float(pipeline.in_flight), {})],
    )
    parts: list[Part] = [detector, recognizer, pipeline]
    if settings.kafka:
        parts.append(kafka_part(settings, pipeline, (detector, recognizer)))
    return GatewayService(OcrServicer(pipeline.recognize, max_in_flight=settings.max_in_flight), parts)


def pipeline_limits(settings: GatewaySettings) -> PipelineLimits:
    """What the pipeline takes on."""
    return PipelineLimits(
        images=settings.image_limits,
        max_pages_in_flight=settings.max_pages_in_flight,
        max_pages_per_document=settings.max_pages_per_document,
        max_request_bytes=settings.max_request_mb * 2**20,
        cpu_threads=settings.cpu_threads,
        uri_allow=settings.allowed_folders,
        web=settings.web_limits,
        pdf_timeout_s=settings.pdf_timeout_s,
        pdf_memory_mb=settings.pdf_memory_mb,
    )


def kafka_part(settings: GatewaySettings, pipeline: Pipeline, backends: Sequence[Backend] = ()) -> Part:
    """The Kafka side of the gateway, which takes no jobs while one of the `backends` is away."""
    # Imported here, so that a gateway without Kafka needs no Kafka client.
    from services.gateway.consumer import ConsumerOptions, JobConsumer
    from services.gateway.kafka_io import KafkaSink, KafkaSource
    from services.gateway.kafka_ports import KafkaOptions
    from services.gateway.kafka_txn import KafkaTransactor
    from services.gateway.offsets import FlowLimits

    kafka = KafkaOptions(
        bootstrap=settings.kafka,
        jobs_topic=settings.jobs_topic,
        results_topic=settings.results_topic,
        dlq_topic=settings.dlq_topic,
        group=settings.group,
        partition_assignment=settings.kafka_assignment,
        group_instance_id=settings.kafka_group_instance_id,
        session_timeout_ms=settings.kafka_session_timeout_ms,
        security=settings.kafka_client_options,
    )
    options = ConsumerOptions(
        flow=FlowLimits(
            max_in_flight=settings.kafka_max_in_flight,
            max_bytes=settings.kafka_max_in_flight_mb * 2**20,
            max_span=settings.kafka_max_span,
        ),
        result_format=settings.result_format,
        max_result_bytes=settings.max_result_bytes,
        max_attempts=settings.kafka_max_attempts,
        service_version=SERVICE_VERSION,
    )
    sink = KafkaTransactor(kafka) if settings.delivery == "exactly_once" else KafkaSink(kafka)

    def away() -> str | None:
        return next((why for backend in backends if (why := backend.not_ready()) is not None), None)

    return JobConsumer(kafka, options, KafkaSource(kafka), sink, pipeline.recognize, backends=away)


async def serve(settings: GatewaySettings) -> int:
    """Run until a signal comes; the exit status."""
    return await run_service(
        build(settings), settings, name="gateway", max_concurrent_calls=settings.concurrent_calls
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings and serve."""
    return run(GatewaySettings, serve, argv, prog="ocr-gateway")


if __name__ == "__main__":
    sys.exit(main())
