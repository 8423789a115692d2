"""What a record gets: its result, or a dead letter with the reason; made into messages and delivered."""

import contextlib
import logging

from opentelemetry.trace import SpanKind

from services.common.errors import ResultTooLarge
from services.common.pb import ocr_pb2 as pb
from services.common.telemetry import METRICS, inject_headers, tracer
from services.gateway import jobs
from services.gateway.delivery import Delivery
from services.gateway.jobs import Failure, Message, Record, ResultFormat
from services.gateway.kafka_ports import KafkaOptions, MessageTooLarge
from services.gateway.offsets import Ticket

log = logging.getLogger(__name__)


class Answers:
    """Writes answers to their topics by way of `delivery`."""

    def __init__(
        self, kafka: KafkaOptions, delivery: Delivery, format_: ResultFormat, max_bytes: int, version: str
    ) -> None:
        self._kafka = kafka
        self._delivery = delivery
        self._format: ResultFormat = format_
        self._max_bytes = max_bytes
        self._version = version

    async def result(self, result: pb.Result, ticket: Ticket) -> None:
        """Return when the result is safe. Raises ResultTooLarge."""
        topic, limit = self._kafka.results_topic, self._max_bytes
        message = jobs.result_message(result, topic, self._format, ())
        size = len(message.value or b"")
        if size > limit:
            raise ResultTooLarge(f"the result has {size} bytes, {topic} takes {limit} (max_result_bytes)")
        try:
            await self._publish(message, ticket)
        except MessageTooLarge as error:
            raise ResultTooLarge(str(error)) from error
        METRICS.documents.add(1, {"door": "kafka", "status": pb.Status.Name(result.status).lower()})

    async def dead_letter(self, record: Record, ticket: Ticket, failure: Failure) -> None:
        """Return when the dead letter is safe, with less of the original if its topic does not take all."""
        facts = {"job_id": failure.job_id or jobs.job_id_of(record), "code": failure.error.code}
        log.warning("dead letter: %s", failure.error, extra={"fields": facts})
        kafka = self._kafka
        letter = jobs.dead_letter(record, failure, kafka.dlq_topic, kafka.group, self._version, _trace())
        slim = jobs.without_value(letter)
        for version_of_it in (letter, slim, jobs.without_original(slim)):
            with contextlib.suppress(MessageTooLarge):
                await self._publish(version_of_it, ticket)
                METRICS.documents.add(1, {"door": "kafka", "status": "failed"})
                METRICS.errors.add(1, {"stage": "gateway", "code": failure.error.code})
                return
        raise MessageTooLarge(
            f"{kafka.dlq_topic} takes not even the headers of a dead letter; raise its limit"
        )

    async def _publish(self, message: Message, ticket: Ticket) -> None:
        """Return when it is safe. Raises MessageTooLarge."""
        facts = {"messaging.system": "kafka", "messaging.destination.name": message.topic}
        with tracer.start_as_current_span(f"send {message.topic}", None, SpanKind.PRODUCER, facts):
            traced = Message(message.topic, message.key, message.value, message.headers + _own_trace(message))
            await self._delivery.deliver(ticket, traced)


def _trace() -> jobs.Headers:
    return tuple(inject_headers())


def _own_trace(message: Message) -> jobs.Headers:
    """The context of the send span, for messages that carry none; a dead letter keeps its record's own."""
    return () if any(name == "traceparent" for name, _ in message.headers) else _trace()
