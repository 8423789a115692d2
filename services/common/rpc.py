"""The life of a gRPC server, and the one place where errors become statuses and statuses errors.

Health (`grpc.health.v1`): the empty name and each service's name tell readiness; `liveness` tells that the
event loop turns, whatever the models do. Reflection is on. Stopping has two stages: the first SIGTERM or
SIGINT turns readiness off, finishes the accepted work and exits with 0; a second one leaves at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from services.common import telemetry
from services.common.errors import (
    BY_CODE,
    Cancelled,
    DeadlineExceeded,
    DocumentTooLarge,
    InputError,
    Internal,
    InvalidJob,
    OcrError,
    Overloaded,
    SetupError,
    ShuttingDown,
    Unavailable,
    UriUnavailable,
)
from services.common.settings import ServerSettings
from services.common.telemetry import METRICS, tracer

log = logging.getLogger(__name__)

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

ERROR_CODE_KEY = "ocr-error-code"
LIVENESS = "liveness"
_HEALTH_PERIOD_S = 0.2
_SECOND_SIGNAL_EXIT = 130
_TRACED = "/ocr.v1."
_STAGES = {"Detector": "detector", "Recognizer": "recognizer", "Ocr": "gateway"}

_STATUS: tuple[tuple[type[OcrError], grpc.StatusCode], ...] = (
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ShuttingDown, grpc.StatusCode.UNAVAILABLE),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (UriUnavailable, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Cancelled, grpc.StatusCode.CANCELLED),
    (OcrError, grpc.StatusCode.INTERNAL),
)
_ERROR: dict[grpc.StatusCode, type[OcrError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidJob,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}
_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
_TOO_LARGE = "larger than max"
"""What gRPC itself says about a message above the limit, with the status that a full queue has too."""


class Service(Protocol):
    """One of the three services, as `run_service` sees it."""

    @property
    def names(self) -> Sequence[str]:
        """Full names of its gRPC services, such as `ocr.v1.Detector`."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add its servicers."""

    async def start(self) -> None:
        """Load and warm up; until this returns the service is not ready."""

    def not_ready(self) -> str | None:
        """Why it cannot serve now, in words; None when it can. Must not block."""

    async def drain(self) -> None:
        """Refuse new work and finish what was accepted."""

    async def close(self) -> None:
        """Let go of everything; called once, after `drain`."""


def status_of(error: OcrError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


async def abort(context: Context, error: OcrError) -> NoReturn:
    """End the call with the status of `error` and its code in the trailing metadata."""
    await context.abort(status_of(error), str(error), ((ERROR_CODE_KEY, error.code),))
    raise AssertionError("abort returned: this is a bug in grpc")


def error_from(failed: grpc.aio.AioRpcError) -> OcrError:
    """The error that a server meant, from its code in the metadata or else from the status."""
    details = failed.details() or ""
    code = dict(failed.trailing_metadata() or ()).get(ERROR_CODE_KEY)
    if isinstance(code, str) and code in BY_CODE:
        return BY_CODE[code](details)
    if failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return DocumentTooLarge(f"{details}; raise max_message_mb on both sides or send less")
    return _ERROR.get(failed.code(), Internal)(f"{failed.code().name}: {details}")


def stage_of(method: str) -> str:
    """The stage that a method of the contract, such as `/ocr.v1.Ocr/Recognize`, counts under in metrics."""
    return _STAGES[method.split("/")[1].rpartition(".")[2]]


def deadline_of(context: Context) -> float | None:
    """The caller's deadline on the monotonic clock, in seconds; None when there is none."""
    remaining = context.time_remaining()
    # gRPC gives a time in the far future when the caller set no deadline.
    return None if remaining is None or remaining > 10**8 else time.monotonic() + remaining


def channel(target: str, *, max_message_mb: int) -> grpc.aio.Channel:
    """A channel that spreads calls over all addresses behind `target` and notices dead connections.

    Retries are left to the caller, who knows the deadline and the class of the work.
    """
    return grpc.aio.insecure_channel(
        target,
        options=[
            *_message_limits(max_message_mb),
            ("grpc.service_config", _ROUND_ROBIN),
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ],
    )


def _message_limits(megabytes: int) -> list[tuple[str, int]]:
    limit = megabytes * 2**20
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Gives each call its span and its duration metric, and turns errors into statuses."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler":
        """Wrap the handlers of our own services; health and reflection stay as they are."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_TRACED):
            return cast(
                "grpc.RpcMethodHandler[Any, Any]", handler
            )  # None, for an unknown method, is wanted too
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, method), **coders)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream, method), **coders)
        raise NotImplementedError(f"{method}: no wrapper for this kind of call")


def _unary(inner: Any, method: str) -> Any:
    async def call(request: Any, context: Context) -> Any:
        async with _served(method, context):
            return await inner(request, context)

    return call


def _stream(inner: Any, method: str) -> Any:
    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        async with _served(method, context):
            async for answer in inner(requests, context):
                yield answer

    return call


@contextlib.asynccontextmanager
async def _served(method: str, context: Context) -> AsyncIterator[None]:
    start = time.monotonic()
    code = "OK"
    parent = telemetry.extract(context.invocation_metadata() or ())
    attributes = {"rpc.system.name": "grpc", "rpc.method": method[1:]}
    span = tracer.start_span(method[1:], parent, SpanKind.SERVER, attributes)
    token = otel_context.attach(trace.set_span_in_context(span, parent))
    try:
        yield
    except asyncio.CancelledError:
        code = "CANCELLED"
        raise
    except OcrError as error:
        code = status_of(error).name
        METRICS.errors.add(1, {"stage": stage_of(method), "code": error.code})
        await abort(context, error)
    except Exception as error:
        if context.code():  # the servicer ended the call by itself
            code = grpc.StatusCode(context.code()).name if not isinstance(context.code(), int) else "ABORTED"
            raise
        code = "INTERNAL"
        log.exception("%s failed", method)
        METRICS.errors.add(1, {"stage": stage_of(method), "code": Internal.code})
        await abort(
            context, Internal(f"{type(error).__name__}: a defect of the service; its log has the trace")
        )
    finally:
        span.set_attribute("rpc.response.status_code", code)
        if code in {"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            span.set_status(trace.StatusCode.ERROR, code)
        span.end()
        with contextlib.suppress(ValueError):  # a cancelled stream is closed in another context
            otel_context.detach(token)
        METRICS.call.record(
            time.monotonic() - start, {"rpc.method": method[1:], "rpc.response.status_code": code}
        )


class _Health:
    """Keeps the health service in step with what the service says of itself."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._servicer = health.aio.HealthServicer()
        self._reason: str | None = None

    async def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._tell("starting")

    async def _tell(self, reason: str | None) -> None:
        if reason == self._reason:
            return
        self._reason = reason
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._service.names):
            await self._servicer.set(name, status.NOT_SERVING if reason else status.SERVING)
        log.warning("not ready: %s", reason) if reason else log.info("ready")

    async def watch(self) -> None:
        while True:
            await self._tell(self._service.not_ready())
            await asyncio.sleep(_HEALTH_PERIOD_S)

    async def drain(self) -> None:
        await self._tell("draining")


def _stop_event() -> asyncio.Event:
    """Set at the first signal; the second ends the process at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: leaving at once")
            os._exit(_SECOND_SIGNAL_EXIT)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


async def run_service(
    service: Service, settings: ServerSettings, *, name: str, max_concurrent_calls: int | None = None
) -> int:
    """Serve until a signal comes; the exit status of the process.

    A call beyond `max_concurrent_calls` is refused before its message is received. gRPC counts all calls,
    those of health checks too, so it bounds memory and is no measure of the work; None: no bound.
    """
    stop = _stop_event()
    try:
        running = telemetry.setup(name, settings)
    except OSError as error:
        where = f"{settings.host}:{settings.metrics_port}"
        log.error("cannot serve metrics on %s: %s; is the port taken?", where, error)  # noqa: TRY400
        return 1
    server = grpc.aio.server(
        interceptors=[CallInterceptor()],
        options=[*_message_limits(settings.max_message_mb), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=max_concurrent_calls,
    )
    state = _Health(service)
    await state.register(server)
    service.register(server)
    reflection.enable_server_reflection(
        (*service.names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        port = server.add_insecure_port(f"{settings.host}:{settings.port}")
    except RuntimeError as error:
        log.error("cannot listen on %s:%s: %s; is the port taken?", settings.host, settings.port, error)  # noqa: TRY400
        return 1
    await server.start()
    log.info("listening", extra={"fields": {"port": port, "metrics_port": running.metrics_port}})
    try:
        return await _serve(service, server, state, stop, settings)
    finally:
        running.shutdown()


async def _serve(
    service: Service, server: grpc.aio.Server, state: _Health, stop: asyncio.Event, settings: ServerSettings
) -> int:
    status = 0
    try:
        await _until(stop, service.start())
        await _until(stop, state.watch())
    except (OcrError, SetupError) as error:
        log.error("cannot start: %s", error)  # noqa: TRY400  # written for the operator, a trace adds nothing
        status = 1
    await state.drain()
    await _stop(service, server, settings.drain_timeout_s)
    return status


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end or until `stop`; what it raises is raised."""
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    elif not task.cancelled():
        task.result()


async def _stop(service: Service, server: grpc.aio.Server, drain_timeout_s: float) -> None:
    log.info("draining")
    try:
        await asyncio.wait_for(service.drain(), drain_timeout_s)
    except TimeoutError:
        log.warning("work left after %s s is given up", drain_timeout_s)
    await server.stop(grace=1.0)
    await service.close()
    log.info("stopped")
