import asyncio
import time

import grpc
import pytest

from loadgen.studies.online import Call, Door, Order, on_schedule, so_many_at_a_time, trace_headers
from services.common.pb import ocr_pb2 as pb
from services.common.pb import ocr_pb2_grpc


def order(at=0.0, **fields):
    return Order(at, pb.Job(file=str(at)), **fields)


class Sender:
    """Answers an order when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Order] = []
        self.released = asyncio.Event()
        self.changed = asyncio.Condition()

    async def send(self, order, due):
        async with self.changed:
            self.begun.append(order)
            self.changed.notify_all()
        await self.released.wait()
        return Call(order, due, time.monotonic(), 0.0, grpc.StatusCode.OK, None)

    async def wait_for(self, count):
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.begun) == count)


async def test_orders_leave_on_schedule_though_none_before_them_was_answered():
    sender = Sender()
    orders = [order(0.0), order(0.01), order(0.02)]
    running = asyncio.create_task(on_schedule(sender.send, orders))
    await sender.wait_for(3)
    sender.released.set()
    calls = await running
    assert [call.order for call in calls] == orders
    assert [round(call.scheduled - calls[0].scheduled, 6) for call in calls] == [0.0, 0.01, 0.02]


async def test_latency_counts_from_the_scheduled_moment_of_a_late_sender():
    assert Call(order(), 1.0, 1.25, 0.0, grpc.StatusCode.OK, None).latency_ms == pytest.approx(250)


async def test_no_more_than_so_many_are_on_their_way():
    sender = Sender()
    running = asyncio.create_task(so_many_at_a_time(sender.send, [order(n) for n in range(5)], 2))
    await sender.wait_for(2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(sender.begun) == 2
    sender.released.set()
    assert len(await running) == 5


class Gateway(ocr_pb2_grpc.OcrServicer):
    """Echoes; a job called `wait` is never answered."""

    async def Recognize(self, request, context):
        self.headers = dict(context.invocation_metadata())
        if request.file == "wait":
            await asyncio.Event().wait()
        return pb.Result(file=request.file)


async def test_the_door_tells_answers_from_deadlines_and_asks_for_traces():
    server, gateway = grpc.aio.server(), Gateway()
    ocr_pb2_grpc.add_OcrServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Door(f"127.0.0.1:{port}") as door:
        answered = await door.send(order(trace="ab" * 16), 0.0)
        expired = await door.send(Order(0.0, pb.Job(file="wait"), timeout_s=0.05), 0.0)
    await server.stop(0)
    assert answered.status is grpc.StatusCode.OK
    assert answered.result.file == "0.0"
    assert expired.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert expired.expired_at <= time.time()


def test_a_trace_is_asked_for_in_the_header_of_w3c():
    assert trace_headers("ab" * 16) == (("traceparent", f"00-{'ab' * 16}-{'ab' * 8}-01"),)
    assert trace_headers("") == ()
