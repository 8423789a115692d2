"""One record from Kafka: tried until there is an answer, a result or a dead letter, which is delivered."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from services.common.batch_queue import Priority
from services.common.errors import (
    DeadlineExceeded,
    Internal,
    OcrError,
    PredictorFailed,
    ResultTooLarge,
    ShuttingDown,
    Unavailable,
)
from services.common.pb import ocr_pb2 as pb
from services.common.telemetry import METRICS, extract, tracer
from services.gateway import jobs
from services.gateway.answers import Answers
from services.gateway.intake import Breaker
from services.gateway.jobs import Failure, Order, Record, Stage
from services.gateway.offsets import Ticket
from services.gateway.retries import next_step

log = logging.getLogger(__name__)


class Recognize(Protocol):
    """The pipeline. `deadline` and `received` are on the monotonic clock, in seconds; raises OcrError."""

    async def __call__(
        self, job: pb.Job, *, priority: Priority, deadline: float | None, received: float
    ) -> pb.Result:
        """Read one document."""


Rest = Callable[[Ticket, int, float | None], Awaitable[None]]
"""Waits after try number so much of a record, until its deadline at most; may end the work on it."""


class Serving:
    """What is done for one record. `clock` is monotonic, `wall` counts from 1970, both in seconds."""

    def __init__(
        self,
        recognize: Recognize,
        answers: Answers,
        breaker: Breaker,
        rest: Rest,
        *,
        group: str,
        max_attempts: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._recognize = recognize
        self._answers = answers
        self._breaker = breaker
        self._rest = rest
        self._group = group
        self._max_attempts = max_attempts
        self._clock = clock
        self._wall = wall

    async def serve(self, record: Record, ticket: Ticket, failure: Failure | None = None) -> None:
        """Turn a record into a published result or dead letter, inside the span of its consumer.

        With a `failure` it is not tried.
        """
        producer = extract(record.headers)
        remote = trace.get_current_span(producer).get_span_context()
        links = [Link(remote)] if remote.is_valid else []
        received = self._clock()
        name, facts = f"process {record.topic}", self._attributes(record)
        with tracer.start_as_current_span(name, producer, SpanKind.CONSUMER, facts, links) as span:
            failure = failure or await self._answer(record, ticket, received)
            if failure is not None:
                _mark(span, failure.error)
                await self._answers.dead_letter(record, ticket, failure)
            METRICS.document.record(self._clock() - received, {"door": "kafka"})

    def _attributes(self, record: Record) -> dict[str, str | int]:
        return {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.consumer.group.name": self._group,
            "ocr.job.id": jobs.job_id_of(record),
        }

    async def _answer(self, record: Record, ticket: Ticket, received: float) -> Failure | None:
        """Publish the result; a Failure when there is none to publish, or its topic does not take it."""
        try:
            order = jobs.parse(record)
        except OcrError as error:
            return self.failure(error, "parse")
        outcome = await self._recognized(order, ticket, received)
        if isinstance(outcome, Failure):
            return outcome
        try:
            await self._answers.result(outcome, ticket)
        except ResultTooLarge as error:
            return self.failure(error, "publish", job_id=order.job.job_id)
        return None

    async def _recognized(self, order: Order, ticket: Ticket, received: float) -> pb.Result | Failure:
        """Try until there is a result or a reason to give up."""
        deadline = self._deadline(order.expires_ms)
        first_ms, attempts, defects = 0, 0, 0
        while True:
            attempts += 1
            outcome = await self._attempt(order, deadline, received)
            self._tell_breaker(outcome)
            if isinstance(outcome, pb.Result):
                return outcome
            first_ms = first_ms or self._now_ms()
            defects += not outcome.retryable
            if next_step(outcome, defects, self._max_attempts) == "dead-letter":
                return self.failure(outcome, "recognize", attempts, first_ms, order.job.job_id)
            log.log(logging.DEBUG if outcome.retryable else logging.WARNING, "tried again: %s", outcome)
            await self._rest(ticket, attempts, deadline)

    def _tell_breaker(self, outcome: pb.Result | OcrError) -> None:
        if isinstance(outcome, Unavailable | ShuttingDown):
            self._breaker.failed(str(outcome), self._clock())
        elif isinstance(outcome, pb.Result | PredictorFailed):
            self._breaker.answered()

    async def _attempt(self, order: Order, deadline: float | None, received: float) -> pb.Result | OcrError:
        if deadline is not None and self._clock() >= deadline:
            late_ms = (self._clock() - deadline) * 1000
            return DeadlineExceeded(
                f"the job's deadline passed {late_ms:.0f} ms before work on it could begin"
            )
        try:
            return await self._recognize(
                order.job, priority=order.priority, deadline=deadline, received=received
            )
        except OcrError as error:
            return error
        except Exception as error:
            log.exception("a defect while serving job %s", order.job.job_id)
            return Internal(f"{type(error).__name__}: {error}")

    def _deadline(self, expires_ms: int | None) -> float | None:
        return None if expires_ms is None else self._clock() + expires_ms / 1000 - self._wall()

    def failure(
        self, error: OcrError, stage: Stage, attempts: int = 1, first_ms: int = 0, job_id: str = ""
    ) -> Failure:
        """Why a record is given up now, after so many tries, the first of which failed at `first_ms`."""
        now = self._now_ms()
        return Failure(error, stage, attempts, first_ms or now, now, job_id)

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _mark(span: Span, error: OcrError) -> None:
    span.set_status(StatusCode.ERROR, str(error))
    span.set_attribute("error.type", error.code)
