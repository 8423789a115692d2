"""The detector and the recognizer as seen from the gateway: calls that outlive a restart, and their health.

A replica that goes away or restarts is not the caller's trouble: `Unavailable` and `ShuttingDown` are tried
again, with exponential back-off and full jitter, until the deadline or the limit of tries. `Overloaded` is
tried again only for bulk work; someone who waits is better told at once. All calls to a backend share a
budget of second tries, so that a backend in trouble is not asked several times as often as before.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc, telemetry
from services.common.errors import (
    DeadlineExceeded,
    OcrError,
    Overloaded,
    PredictorFailed,
    ShuttingDown,
    Unavailable,
)
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.gateway.retries import Backoff, RetryBudget


@dataclass(frozen=True)
class RetryLimits:
    """How long a call is tried. The defaults wait some 4 seconds in all, 8 at most."""

    max_attempts: int = 6
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=0.2, cap_s=4.0))
    timeout_s: float = 120.0
    """Seconds for one try, when the caller's deadline leaves as much."""


def retry_delay(
    error: OcrError,
    attempt: int,
    *,
    priority: int,
    remaining_s: float | None,
    limits: RetryLimits,
    jitter: float,
) -> float | None:
    """Seconds to wait before trying again after the `attempt`-th try (from 1), or None to give up. Pure.

    `jitter` is a random number from 0 to 1; `remaining_s` the time to the deadline, None without one.
    """
    passing = isinstance(error, Unavailable | ShuttingDown)
    busy = isinstance(error, Overloaded) and priority == pb.BULK
    if not (passing or busy) or attempt >= limits.max_attempts:
        return None
    delay = limits.backoff.wait(attempt, jitter)
    return None if remaining_s is not None and delay >= remaining_s else delay


class _Client:
    """Calls with deadline, trace context and tries; shared by the two clients."""

    def __init__(self, name: str, channel: grpc.aio.Channel, limits: RetryLimits) -> None:
        self._name = name
        self._channel = channel
        self._limits = limits
        self._budget = RetryBudget()

    async def _call(
        self, method: Callable[..., Any], request: Any, *, priority: int, deadline: float | None
    ) -> Any:
        attempt = 0
        self._budget.first_try()
        while True:
            attempt += 1
            try:
                return await self._once(method, request, deadline)
            except OcrError as error:
                delay = retry_delay(
                    error,
                    attempt,
                    priority=priority,
                    remaining_s=None if deadline is None else deadline - time.monotonic(),
                    limits=self._limits,
                    jitter=random.random(),
                )
                if delay is None or not self._budget.spend():
                    raise
            await asyncio.sleep(delay)

    async def _once(self, method: Callable[..., Any], request: Any, deadline: float | None) -> Any:
        remaining = float("inf") if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise DeadlineExceeded(f"the deadline passed before the {self._name} was asked")
        try:
            return await method(
                request,
                timeout=min(remaining, self._limits.timeout_s),
                metadata=telemetry.inject_metadata(),
            )
        except grpc.aio.AioRpcError as failed:
            raise self._meant(failed, remaining) from failed

    def _meant(self, failed: grpc.aio.AioRpcError, remaining: float) -> OcrError:
        error = rpc.error_from(failed)
        if isinstance(error, DeadlineExceeded) and remaining > self._limits.timeout_s:
            return NoAnswer(f"the {self._name} gave no answer in {self._limits.timeout_s:g} s")
        return type(error)(f"{self._name}: {error}")


class NoAnswer(PredictorFailed):
    """A backend that can be reached took a call and never answered.

    Not `Unavailable`: it may be this very document that it hangs on, and Kafka would try that one for ever.
    """


class DetectorClient(_Client):
    """Calls `ocr.v1.Detector`."""

    def __init__(self, channel: grpc.aio.Channel, limits: RetryLimits) -> None:
        super().__init__("detector", channel, limits)
        self._stub: Any = ocr_pb2_grpc.DetectorStub(channel)  # type: ignore[no-untyped-call]
        self._max_side: int | None = None

    async def max_side(self, *, deadline: float | None) -> int:
        """The longest side, in pixels, that the detector looks at; asked once, then read off its answers."""
        if self._max_side is None:
            described = await self._call(
                self._stub.Describe, pb.DescribeRequest(), priority=pb.BULK, deadline=deadline
            )
            self._max_side = described.max_side
        return self._max_side

    async def detect(self, request: pb.DetectRequest, *, deadline: float | None) -> pb.DetectResponse:
        """The regions of one page. `deadline` in seconds of the monotonic clock."""
        answer: pb.DetectResponse = await self._call(
            self._stub.Detect, request, priority=request.priority, deadline=deadline
        )
        self._max_side = answer.model.max_side or self._max_side
        return answer


class RecognizerClient(_Client):
    """Calls `ocr.v1.Recognizer`."""

    def __init__(self, channel: grpc.aio.Channel, limits: RetryLimits) -> None:
        super().__init__("recognizer", channel, limits)
        self._stub: Any = ocr_pb2_grpc.RecognizerStub(channel)  # type: ignore[no-untyped-call]

    async def recognize(
        self, request: pb.RecognizeLinesRequest, *, deadline: float | None
    ) -> pb.RecognizeLinesResponse:
        """The text of lines, in their order. `deadline` in seconds of the monotonic clock."""
        answer: pb.RecognizeLinesResponse = await self._call(
            self._stub.Recognize, request, priority=request.priority, deadline=deadline
        )
        return answer


@dataclass
class Health:
    """What the last checks of a backend say. Pure.

    One bad check after good ones is forgiven: behind one address some replica may just be going.
    """

    name: str
    reason: str | None = "not asked yet"
    _misses: int = 1

    def saw(self, problem: str | None) -> None:
        """Note the outcome of a check; None is good."""
        self._misses = 0 if problem is None else self._misses + 1
        if problem is None or self._misses >= 2:
            self.reason = problem

    def not_ready(self) -> str | None:
        """Why the backend cannot be used, None when it can."""
        return None if self.reason is None else f"the {self.name} is not ready: {self.reason}"


Check = Callable[[], Awaitable[str | None]]
"""Asks a backend once: None when it serves, else what is wrong. Must not take long."""


def health_check(channel: grpc.aio.Channel, *, timeout_s: float = 1.0) -> Check:
    """A check of readiness by `grpc.health.v1`."""
    stub: Any = health_pb2_grpc.HealthStub(channel)

    async def check() -> str | None:
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as failed:
            return f"{failed.code().name}: {failed.details()}"
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return None if serving else "it says NOT_SERVING"

    return check


class Backend:
    """The connection to a backend, and a check of its health every `period_s` seconds."""

    def __init__(self, name: str, target: str, *, max_message_mb: int, period_s: float = 0.5) -> None:
        self.channel = rpc.channel(target, max_message_mb=max_message_mb)
        self._health = Health(f"{name} at {target}")
        self._check = health_check(self.channel)
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None

    def not_ready(self) -> str | None:
        """Why the backend cannot be used, None when it can."""
        return self._health.not_ready()

    async def start(self) -> None:
        """Begin to check."""
        self._task = asyncio.create_task(self._watch())

    async def drain(self) -> None:
        """Nothing: others decide when the last call was made."""

    async def close(self) -> None:
        """Stop checking and let go of the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.channel.close()

    async def _watch(self) -> None:
        while True:
            self._health.saw(await self._check())
            await asyncio.sleep(self._period_s)
