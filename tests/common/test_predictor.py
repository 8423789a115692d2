"""The promises of the predictor host, with real worker processes and engines that misbehave on demand."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common.engines.base import EngineSpec, EngineUnavailable, Head, SimulatedCost
from services.common.errors import PredictorFailed, ShuttingDown, Unavailable
from services.common.models import fetch, resolve
from services.common.predictor import Batch, PredictorHost, PredictorResult
from tests.fakes.engines import DIE, EXIT, HANG, LARGE, RAISE

SHAPE = (4, 8, 16, 3)


@asynccontextmanager
async def running(
    engine: str = "marked", *, run_timeout_s: float = 30, **more: Any
) -> AsyncIterator[PredictorHost]:
    spec = EngineSpec(engine=f"tests.fakes.engines:{engine}", model=None, head=Head.RAW, shapes=(SHAPE,))
    host = PredictorHost(spec, run_timeout_s=run_timeout_s, start_timeout_s=60, **more)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


def filled(value: int, height: int = 8, width: int = 16) -> Any:
    return np.full((height, width, 3), value, np.uint8)


def batch(*marks: int) -> Batch:
    """A batch whose i-th item is filled with i, its first value with the mark if there is one."""
    images = [filled(index) for index in range(len(marks))]
    for image, mark in zip(images, marks, strict=True):
        image[0, 0, 0] = mark or image[0, 0, 0]
    return Batch(images, (8, 16))


def answers(result: PredictorResult) -> list[float | None]:
    """What each item got: its number, None for a failure."""
    return [None if isinstance(item, PredictorFailed) else float(np.rint(item[0])) for item in result.items]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_memory_kb(pid: int | str) -> int:
    """Resident kilobytes of the memory shared with a predictor, in the process `pid`."""
    resident, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = "memfd:ocr-predictor" in line
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; elsewhere nothing tells")
async def test_no_batch_needs_more_shared_memory_than_there_was_at_the_start() -> None:
    shape = (4, 400, 900, 3)
    spec = EngineSpec(engine="tests.fakes.engines:marked", model=None, head=Head.RAW, shapes=(shape,))
    host = PredictorHost(spec, run_timeout_s=30, start_timeout_s=60)
    before = shared_memory_kb("self")
    await host.start()
    try:
        processes = ("self", host.worker_pid or 0)
        ready = [shared_memory_kb(pid) for pid in processes]
        assert ready[0] - before >= np.prod(shape) // 1024
        await host.run(Batch([filled(1, 400, 900)] * 4, (400, 900)))
        assert [shared_memory_kb(pid) for pid in processes] == ready
    finally:
        await host.close()


async def test_every_item_gets_its_own_answer_in_order() -> None:
    async with running() as host:
        result = await host.run(batch(0, 0, 0, 0))
        assert answers(result) == [0, 1, 2, 3]
        assert result.model_ms > 0
        assert (host.state, host.ready, host.restarts) == ("ready", True, 0)
        assert (host.engine_name, host.engine_version) == ("marked", "7")


@pytest.mark.parametrize("mark", [DIE, EXIT])
async def test_an_item_that_kills_the_worker_fails_alone_and_its_neighbours_are_answered(mark: float) -> None:
    async with running() as host:
        result = await host.run(batch(0, mark, 0, 0))
        assert answers(result) == [0, None, 2, 3]
        assert "ended" in str(result.items[1])
        assert host.restarts == 2  # once for the batch, once for the item alone
        assert answers(await host.run(batch(0, 0))) == [0, 1]


async def test_an_item_that_makes_the_engine_raise_fails_alone_without_a_restart() -> None:
    async with running() as host:
        result = await host.run(batch(0, 0, RAISE, 0))
        assert answers(result) == [0, 1, None, 3]
        assert "marked to raise" in str(result.items[2])
        assert host.restarts == 0


async def test_a_worker_that_hangs_is_killed_and_only_the_item_that_hangs_it_fails() -> None:
    async with running(run_timeout_s=1) as host:
        first = host.worker_pid
        result = await host.run(batch(HANG, 0))
        assert answers(result) == [None, 1]
        assert "no answer for 1 s" in str(result.items[0])
        assert first is not None
        assert not lives(first)


async def test_a_batch_of_one_that_hangs_is_not_run_again() -> None:
    async with running(run_timeout_s=1) as host:
        began = time.monotonic()
        result = await host.run(batch(HANG))
        assert time.monotonic() - began < 2
        assert answers(result) == [None]
        await until(lambda: host.ready)  # replaced without waiting for the next batch
        assert host.restarts == 1


async def test_a_batch_of_one_that_makes_the_engine_raise_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTING_ENGINE_FILE", str(tmp_path / "runs"))
    async with running("counting") as host:
        assert answers(await host.run(batch(RAISE))) == [None]
    assert len((tmp_path / "runs").read_text()) == 2  # the warm-up and the batch


async def test_a_batch_of_one_whose_worker_was_killed_from_outside_is_answered() -> None:
    async with running("slow") as host:
        waiting = asyncio.create_task(host.run(batch(0)))
        pid = host.worker_pid
        assert pid is not None
        await asyncio.to_thread(busy, pid)
        os.kill(pid, signal.SIGKILL)
        assert answers(await waiting) == [0]


async def test_a_host_is_not_ready_while_a_batch_is_stuck_and_ready_again_afterwards() -> None:
    async with running(run_timeout_s=2) as host:
        stuck = asyncio.create_task(host.run(batch(HANG)))
        await until(lambda: not host.ready)
        assert host.state == "stuck"
        assert not stuck.done()
        await stuck
        await until(lambda: host.ready)


async def test_a_worker_killed_in_the_middle_of_a_batch_costs_nobody_an_answer() -> None:
    async with running("slow") as host:
        waiting = [asyncio.create_task(host.run(batch(0, 0, 0))) for _ in range(4)]
        first = host.worker_pid
        assert first is not None
        await asyncio.to_thread(busy, first)
        os.kill(first, signal.SIGKILL)
        assert [answers(result) for result in await asyncio.gather(*waiting)] == [[0, 1, 2]] * 4
        assert host.restarts == 1
        assert host.worker_pid != first


def busy(pid: int) -> None:
    """Return once the process has used the processor for a while: it is inside a batch."""

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    before = ticks()
    while ticks() < before + 3:
        os.sched_yield()


async def test_a_worker_that_dies_between_batches_is_replaced_before_the_next_batch() -> None:
    async with running() as host:
        first = host.worker_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: not host.ready or host.restarts == 1)  # readiness notices
        await until(lambda: host.ready and host.restarts == 1)
        assert host.worker_pid != first
        assert answers(await host.run(batch(0, 0))) == [0, 1]
        assert host.restarts == 1


async def test_after_failed_starts_in_a_row_batches_are_refused_until_a_later_start_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASHING_ENGINE_TOKENS", str(tmp_path))
    (tmp_path / "one").touch()
    counted: list[str] = []
    async with running("crashing", start_attempts=2, on_restart=lambda: counted.append("x")) as host:
        with pytest.raises(Unavailable, match="failed to start 2 times"):
            await host.run(batch(DIE))
        assert (host.state, host.ready) == ("failed", False)
        with pytest.raises(Unavailable, match="could not be started"):
            await host.run(batch(0))
        await until(lambda: host.restarts >= 3)  # an attempt in vain
        assert host.state == "failed"
        (tmp_path / "two").touch()
        await until(lambda: host.ready)
        assert answers(await host.run(batch(0, 0))) == [0, 1]
        assert len(counted) == host.restarts


@pytest.mark.parametrize("missing", ["memory", "process", "thread"])
async def test_a_worker_for_which_the_system_has_no_room_is_a_failed_start(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    refusals = 2
    module, name = {
        "memory": (os, "memfd_create"),
        "process": (subprocess, "Popen"),
        "thread": (threading.Thread, "start"),
    }[missing]
    real = getattr(module, name)

    def refuse(*arguments: object, **options: object) -> object:
        nonlocal refusals
        if refusals == 0:
            return real(*arguments, **options)
        refusals -= 1
        raise RuntimeError("no thread") if missing == "thread" else OSError("no room")

    async with running() as host:
        pid, before = host.worker_pid, open_descriptors()
        assert pid is not None
        monkeypatch.setattr(module, name, refuse)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: host.ready and host.restarts == 3)
        assert open_descriptors() == before
        assert answers(await host.run(batch(0, 0))) == [0, 1]


async def test_a_first_start_without_room_fails_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> object:
        raise OSError("no room")

    before = open_descriptors()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(Unavailable, match="no room"):
        async with running():
            pass
    assert open_descriptors() == before


async def test_a_start_that_the_operator_must_put_right_says_how() -> None:
    with pytest.raises(EngineUnavailable, match="install the thing"):
        async with running("not_here"):
            pass


async def test_an_engine_that_never_gets_ready_fails_the_start() -> None:
    spec = EngineSpec(engine="tests.fakes.engines:never_ready", model=None, head=Head.RAW)
    host = PredictorHost(spec, start_timeout_s=2)
    with pytest.raises(Unavailable, match="gave no answer for 2 s"):
        await host.start()
    assert host.state == "failed"
    await host.close()


async def test_a_run_before_the_start_and_after_the_end_is_refused() -> None:
    async with running() as host:
        pass
    with pytest.raises(ShuttingDown):
        await host.run(batch(0))
    fresh = PredictorHost(EngineSpec(engine="simulated", model=None, head=Head.RAW))
    with pytest.raises(Unavailable, match="not started"):
        await fresh.run(batch(0))
    assert fresh.state == "new"
    await fresh.close()


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        ([], "needs an image"),
        ([np.zeros((8, 8, 3))], "not float64"),
        ([np.zeros((8, 8), np.uint8)], "not uint8 \\(8, 8\\)"),
        ([np.zeros((8, 0, 3), np.uint8)], "not uint8 \\(8, 0, 3\\)"),
        ([filled(0), filled(0, 9)], "does not fit the canvas"),
        ([filled(0), filled(0, 8, 17)], "does not fit the canvas"),
    ],
)
def test_a_batch_that_no_engine_could_run_cannot_be_made(images: list[Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Batch(images, (8, 16))


async def test_the_engine_gets_each_image_at_the_top_left_of_its_place_and_its_size() -> None:
    """The first value of an image marks it: seen only if it lies where it should."""
    spec = EngineSpec(engine="tests.fakes.engines:telling", model=None, head=Head.RAW, shapes=(SHAPE,))
    host = PredictorHost(spec)
    await host.start()
    images = [filled(7, 8, 16), filled(9, 3, 5)]
    result = await host.run(Batch(images, (8, 16)))
    await host.close()
    found = [item for item in result.items if not isinstance(item, PredictorFailed)]
    assert [item[1].tolist() for item in found] == [[8, 16], [3, 5]]
    for (pixels, (height, width)), image in zip(found, images, strict=True):
        assert (pixels[:height, :width] == image).all()


async def test_batches_and_outputs_larger_than_the_closed_set_are_answered() -> None:
    async with running() as host:
        large = [filled(value, 512, 640) for value in (1, 2)]
        assert answers(await host.run(Batch(large, (512, 640)))) == [1, 2]
        result = await host.run(batch(0, LARGE))
        outputs = result.items[1]
        assert not isinstance(outputs, PredictorFailed)
        assert outputs[1].shape == (1_000_000,)
        assert (outputs[1] == outputs[0]).all()


async def test_an_answer_lasts_after_later_batches() -> None:
    async with running() as host:
        first = await host.run(batch(0, 0, 0, 0))
        await host.run(Batch([filled(9)] * 4, (8, 16)))
        assert answers(first) == [0, 1, 2, 3]


async def test_concurrent_runs_each_get_their_own_answers() -> None:
    async with running() as host:
        batches = [Batch([filled(number)] * 4, (8, 16)) for number in range(40)]
        results = await asyncio.gather(*map(host.run, batches))
        assert [answers(result) for result in results] == [[number] * 4 for number in range(40)]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = open_descriptors()
    async with running() as host:
        pid = host.worker_pid
        await host.run(batch(0, DIE))
    assert host.state == "closed"
    assert pid is not None
    assert not lives(pid)
    assert host.worker_pid is None
    assert open_descriptors() == before


async def test_closing_during_a_batch_ends_it_soon() -> None:
    async with running() as host:
        stuck = asyncio.create_task(host.run(batch(HANG)))
        await asyncio.sleep(0)
        await host.close()
        with pytest.raises(ShuttingDown):
            await stuck


async def test_signals_meant_for_the_service_do_not_end_the_worker() -> None:
    async with running() as host:
        pid = host.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert answers(await host.run(batch(0, 0))) == [0, 1]
        assert host.worker_pid == pid


PARENT = """
import asyncio, sys
from services.common.engines.base import EngineSpec, Head
from services.common.predictor import Batch, PredictorHost
import numpy as np
from tests.fakes.engines import HANG

async def main():
    host = PredictorHost(EngineSpec(engine="tests.fakes.engines:marked", model=None, head=Head.RAW))
    await host.start()
    batch = Batch([np.full((8, 8, 3), HANG, np.uint8)], (8, 8))
    task = asyncio.create_task(host.run(batch))
    print(host.worker_pid, flush=True)
    await task

asyncio.run(main())
"""


async def test_the_worker_dies_with_its_parent_even_inside_a_batch() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert lives(pid)
    parent.kill()
    await until(lambda: not lives(pid))
    await parent.wait()


@pytest.mark.model
async def test_the_event_loop_goes_on_while_paddle_runs() -> None:
    """Paddle holds the GIL of its process for a whole batch; ours must not notice."""
    fetch("ppocr-v4-mobile")
    shape = (8, 48, 640, 3)
    spec = EngineSpec(
        engine="paddle", model=resolve("ppocr-v4-mobile", "rec"), head=Head.CTC, threads=1, shapes=(shape,)
    )
    host = PredictorHost(spec)
    await host.start()
    try:
        run = asyncio.create_task(host.run(Batch([filled(0, 48, 640)] * 8, (48, 640))))
        steps = 0
        while not run.done():
            await asyncio.sleep(0)
            steps += 1
        assert steps > 500, "a thread beside Paddle would get a handful of steps"
    finally:
        await host.close()


async def test_a_simulated_batch_takes_at_least_its_cost() -> None:
    cost = SimulatedCost(fixed_ms=30, ms_per_megapixel=0)
    host = PredictorHost(EngineSpec(engine="simulated", model=None, head=Head.RAW, simulated=cost))
    await host.start()
    result = await host.run(Batch([filled(0, 32, 32)], (32, 32)))
    await host.close()
    assert result.model_ms >= 30
