"""Sends documents to the gateway through gRPC: at moments that were fixed before, or so many at a time.

Latency counts from the scheduled moment: a sender that falls behind must not make the service look fast.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from loadgen.corpus import Document
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc
from services.common.rpc import channel

MAX_MESSAGE_MB = 64
TIMEOUT_S = 120.0
"""Of calls that shall not expire."""


@dataclass(frozen=True)
class Order:
    """A document to be sent `at` seconds after the start; `timeout_s` is its deadline from then on.

    `trace` names a trace, 32 hexadecimal digits, that the services are asked to record; empty: none.
    """

    at: float
    job: pb.Job
    timeout_s: float = TIMEOUT_S
    trace: str = ""


@dataclass(frozen=True)
class Call:
    """How an order ended. `scheduled` and `done` are seconds of the monotonic clock.

    `expired_at` is the deadline in seconds of the system's clock, which spans use.
    """

    order: Order
    scheduled: float
    done: float
    expired_at: float
    status: grpc.StatusCode
    result: pb.Result | None

    @property
    def latency_ms(self) -> float:
        """From the scheduled moment to the answer."""
        return (self.done - self.scheduled) * 1000


def order_of(document: Document, at: float = 0.0) -> Order:
    """The document as it is sent."""
    return Order(at, pb.Job(file=document.name, content=document.content))


Send = Callable[[Order, float], Awaitable[Call]]
"""Sends an order that was due at a moment of the monotonic clock."""


def texts_of(call: Call) -> list[str]:
    """The text of each line of a document that was read."""
    assert call.result is not None
    return [line.text for line in call.result.lines]


async def on_schedule(send: Send, orders: Iterable[Order]) -> list[Call]:
    """Every order at its moment, whatever became of those before it."""
    start = time.monotonic()
    tasks = []
    for order in orders:
        due = start + order.at
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.ensure_future(send(order, due)))
    return list(await asyncio.gather(*tasks))


async def so_many_at_a_time(send: Send, orders: Iterable[Order], concurrency: int) -> list[Call]:
    """Every order as soon as there is a place for it, in the order of completion."""
    left, calls = iter(orders), list[Call]()

    async def work() -> None:
        for order in left:
            calls.append(await send(order, time.monotonic()))

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return calls


class Door:
    """The gRPC door of a gateway at `target`, used by `async with`; `send` is a `Send`."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def __aenter__(self) -> "Door":
        self._channel = channel(self._target, max_message_mb=MAX_MESSAGE_MB)
        self._stub: Any = ocr_pb2_grpc.OcrStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def send(self, order: Order, due: float) -> Call:
        """Send one document and wait for what becomes of it."""
        expired_at = time.time() + order.timeout_s
        status, result = grpc.StatusCode.OK, None
        try:
            result = await self._stub.Recognize(
                order.job, timeout=order.timeout_s, metadata=trace_headers(order.trace)
            )
        except grpc.aio.AioRpcError as failed:
            status = failed.code()
        return Call(order, due, time.monotonic(), expired_at, status, result)


def trace_headers(trace: str) -> tuple[tuple[str, str], ...]:
    """The W3C header that asks to record a call in this trace; none without one."""
    return (("traceparent", f"00-{trace}-{trace[:16]}-01"),) if trace else ()
