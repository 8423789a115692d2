import asyncio
import threading

import pytest

from services.gateway.kafka_client import OwnerThread


async def test_a_call_that_was_given_up_before_its_turn_is_not_made():
    """An offset that was to be committed before a rebalance may be wrong after it."""
    thread, go, made = OwnerThread("test"), threading.Event(), []
    first = asyncio.create_task(thread.call(go.wait, 10))
    second = asyncio.create_task(thread.call(made.append, "second"))
    third = asyncio.create_task(thread.call(made.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    go.set()
    assert await first
    await third
    thread.stop()
    assert made == ["third"]


async def test_what_a_call_raises_is_raised_where_it_was_awaited():
    thread = OwnerThread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    thread.stop()
