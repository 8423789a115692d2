"""Work that is handed to threads comes back to its caller, whatever becomes of either."""

import asyncio
import threading

import pytest

from services.common.threads import Threads


@pytest.fixture
def threads():
    made = Threads("test")
    yield made
    made.close()
    made.join()


async def test_work_is_done_in_a_thread_and_its_result_comes_back(threads) -> None:
    def work(left, *, right):
        return left + right, threading.current_thread()

    total, thread = await threads.run(work, 1, right=2)
    assert total == 3
    assert thread is not threading.current_thread()


async def test_what_work_raises_is_raised_at_its_caller_and_the_thread_goes_on(threads) -> None:
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: "still here") == "still here"


async def test_work_is_done_in_the_order_in_which_it_came(threads) -> None:
    done: list[int] = []
    await asyncio.gather(*(threads.run(done.append, number) for number in range(20)))
    assert done == list(range(20))


async def test_a_cancelled_caller_withdraws_what_has_not_begun(threads) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go_on.wait()

    running = asyncio.create_task(threads.run(first))
    await asyncio.to_thread(begun.wait)
    done: list[str] = []
    waiting = asyncio.create_task(threads.run(done.append, "never"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await running
    await threads.run(done.append, "later")
    assert done == ["later"]


async def test_a_caller_who_left_in_the_middle_harms_nobody(threads) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    leaving = asyncio.create_task(threads.run(work))
    await asyncio.to_thread(begun.wait)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go_on.set()
    assert await threads.run(lambda: 1) == 1


def test_a_loop_that_ended_in_the_middle_harms_nobody(threads) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    async def leave() -> None:
        asyncio.get_running_loop().create_task(threads.run(work))
        await asyncio.to_thread(begun.wait)

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(threads.run(lambda: 1)) == 1


async def test_closed_threads_finish_what_they_took_and_refuse_the_rest() -> None:
    threads = Threads("test", 2)
    done: list[int] = []
    for number in range(10):
        threads.submit(lambda number=number: done.append(number))
    threads.close()
    await asyncio.to_thread(threads.join)
    assert sorted(done) == list(range(10))
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run(done.append, 11)


async def test_there_are_no_more_threads_than_work_asked_for() -> None:
    def begun() -> int:
        return sum(thread.name.startswith("counted") for thread in threading.enumerate())

    threads = Threads("counted", 2)
    assert begun() == 0
    await threads.run(lambda: None)
    assert begun() == 1
    for _ in range(3):
        await threads.run(lambda: None)
    assert begun() == 2
    threads.close()
    await asyncio.to_thread(threads.join)
    assert begun() == 0


async def test_work_that_nobody_waits_for_may_fail(threads, caplog) -> None:
    threads.submit(lambda: 1 / 0)
    assert await threads.run(lambda: "still here") == "still here"
    assert "ZeroDivisionError" in caplog.text
