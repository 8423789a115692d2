"""The host of a predictor process: arrays in, arrays out, and every item answered whatever the process does.

Why a process: Paddle holds the GIL while it runs, so in a thread it would make the whole server deaf for the
length of a batch; and a crash, an out-of-memory or a hang costs one batch here, not the server.

Three parties. The *worker* (`predictor_worker.py`) runs batches. One *thread* of ours does all the waiting:
it starts the worker, writes to it, waits for it, kills it. It also stays the worker's parent in the eyes of
the kernel, which ends the worker with it. The *event loop* only hands batches to that thread.

What happens when a batch goes wrong:

1. The engine raises, or the worker dies, or it says nothing for `run_timeout_s` and is killed.
2. A worker that is gone is started again and warmed up.
3. The items of the batch run again one by one. Those that fail alone, and only those, get `PredictorFailed`.
   A batch of one was alone already, and has failed; only after a death it runs once more, since whoever ends
   processes (the kernel short of memory, an operator) does not choose them by what they read.

So an item that hangs the engine is answered within two `run_timeout_s` and two restarts. Half-way to that
timeout the state is "stuck", which keeps new work away.

A worker that dies between batches is started again at once. If it cannot be started several times in a row,
`state` is "failed" and `run` raises `Unavailable`, until one of the further attempts, which are made for as
long as the host lives, succeeds. A first start that fails is the caller's to judge, and not tried again.
"""

import asyncio
import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.common.engines.base import EngineSpec, EngineUnavailable, Outputs
from services.common.errors import OcrError, PredictorFailed, ShuttingDown, Unavailable
from services.common.predictor_link import Done, Failed, Ready, Region, Run, Start
from services.common.threads import Threads

log = logging.getLogger(__name__)

State = Literal["new", "starting", "ready", "stuck", "restarting", "failed", "closed"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
"""Between attempts to start: doubled each time, so that a broken driver is not hammered."""

_DEATH_S = 10.0
"""How long a killed process may take to vanish. One stuck in a driver may never; it is left to the kernel."""


@dataclass(frozen=True)
class Batch:
    """Images that run together: uint8 (h, w, 3), blue green red, each laid at the top left of a canvas.

    `canvas` is (height, width), the same for all. Raises `ValueError` for an image of another kind or one
    that does not fit, and for no image at all.
    """

    images: Sequence[NDArray[np.uint8]]
    canvas: tuple[int, int]

    def __post_init__(self) -> None:
        """Refuse here what would make the engine fail for everybody."""
        if not self.images:
            raise ValueError("a batch needs an image")
        for image in self.images:
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
                raise ValueError(f"an image is uint8 (h, w, 3), not {image.dtype} {image.shape}")
            if image.shape[0] > self.canvas[0] or image.shape[1] > self.canvas[1]:
                raise ValueError(f"an image {image.shape} does not fit the canvas {self.canvas}")

    def __len__(self) -> int:
        """Images in it."""
        return len(self.images)

    def alone(self, index: int) -> "Batch":
        """One of its images as a batch."""
        return Batch([self.images[index]], self.canvas)


@dataclass(frozen=True)
class PredictorResult:
    """One answer for each item of the batch, in order: its outputs without the batch axis, or its failure.

    `model_ms` is the time inside the engine, `cpu_ms` what all of its threads spent of a processor meanwhile;
    after a failure, of all that ran again.
    """

    items: list[Outputs | PredictorFailed]
    model_ms: float
    cpu_ms: float = 0.0


class PredictorHost:
    """Runs batches in a process of its own. `start` before the first `run`, `close` at the end.

    `run_timeout_s` is how long one batch may take before the worker counts as stuck; `start_timeout_s` how
    long loading and warm-up may take; `start_attempts` after how many failed starts in a row batches are
    refused rather than kept waiting. `on_restart` is called, in the thread, at each attempt to replace a
    worker.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        run_timeout_s: float = 20.0,
        start_timeout_s: float = 300.0,
        start_attempts: int = 3,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._run_timeout_s = run_timeout_s
        self._start_timeout_s = start_timeout_s
        self._start_attempts = start_attempts
        self._on_restart = on_restart
        self._thread = Threads("predictor")
        self._closing = threading.Event()
        self._state: State = "new"
        self._worker: _Worker | None = None
        self._engine = Ready(spec.engine, "")
        self._run_since: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.restarts = 0

    @property
    def state(self) -> State:
        """What it is doing; a worker found dead counts as restarting before anyone noticed."""
        if self._closing.is_set():
            return "closed"
        if self._state == "ready" and not self._alive():
            return "restarting"
        return "stuck" if self._state == "ready" and self._stuck() else self._state

    @property
    def ready(self) -> bool:
        """Whether a batch would run now, or soon."""
        return self.state == "ready"

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        worker = self._worker
        return worker.process.pid if worker and worker.alive else None

    @property
    def engine_name(self) -> str:
        """The engine that runs, for results."""
        return self._engine.engine

    @property
    def engine_version(self) -> str:
        """Its version, for results; empty before the first start."""
        return self._engine.version

    async def start(self) -> None:
        """Start the worker, and return once it is warm.

        Raises `EngineUnavailable` (the operator's to put right) or `Unavailable` (it crashed or hung).
        """
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        await self._thread.run(self._first_start)

    async def run(self, batch: Batch) -> PredictorResult:
        """Run one batch. Calls queue up in order; during a restart they wait for it.

        Raises `Unavailable` while the worker cannot be started, `ShuttingDown` when closed.
        """
        self._refuse_unless_running()
        self._refuse_if_failed()
        return await self._thread.run(self._run, batch)

    async def close(self) -> None:
        """End the worker and free the memory. A batch that still runs is abandoned: drain first."""
        self._closing.set()
        if worker := self._worker:
            worker.kill()
        self._thread.close()
        await asyncio.to_thread(self._thread.join)
        self._bury()

    def _alive(self) -> bool:
        return self._worker is not None and self._worker.alive

    def _stuck(self) -> bool:
        since = self._run_since
        return since is not None and time.monotonic() - since > self._run_timeout_s / 2

    def _refuse_unless_running(self) -> None:
        if self._closing.is_set():
            raise ShuttingDown("the predictor is closed")
        if self._state == "new":
            raise Unavailable("the predictor was not started")

    def _refuse_if_failed(self) -> None:
        """Before a batch waits for the thread, which may be busy with an attempt to start for minutes."""
        if self._state == "failed":
            raise Unavailable("the predictor process could not be started again; it is tried further")

    # ------------------------------------------------------------ below here: in the thread

    def _run(self, batch: Batch) -> PredictorResult:
        try:
            outputs, done = self._attempt(batch)
        except _BatchError as error:
            if len(batch) == 1 and not isinstance(error, _WorkerDied):
                log.warning("a batch of one failed: %s", error)
                return PredictorResult([_failed_alone(error)], 0.0)
            log.warning("batch of %d failed, running its items one by one: %s", len(batch), error)
            return self._run_one_by_one(batch)
        return PredictorResult(_split(outputs, len(batch)), done.model_ms, done.cpu_ms)

    def _run_one_by_one(self, batch: Batch) -> PredictorResult:
        items: list[Outputs | PredictorFailed] = []
        model_ms = cpu_ms = 0.0
        for index in range(len(batch)):
            try:
                outputs, done = self._attempt(batch.alone(index))
                items += _split(outputs, 1)
                model_ms, cpu_ms = model_ms + done.model_ms, cpu_ms + done.cpu_ms
            except _BatchError as error:
                log.warning("item %d of %d failed alone: %s", index, len(batch), error)
                items.append(_failed_alone(error))
        return PredictorResult(items, model_ms, cpu_ms)

    def _attempt(self, batch: Batch) -> tuple[Outputs, Done]:
        worker = self._living_worker()
        self._run_since = time.monotonic()
        try:
            return worker.run(batch, self._run_timeout_s)
        except _WorkerLost:
            self._bury()
            raise
        finally:
            self._run_since = None

    def _living_worker(self) -> "_Worker":
        self._refuse_unless_running()
        self._refuse_if_failed()
        if self._worker and self._worker.alive:
            return self._worker
        return self._restart()

    def _restart(self) -> "_Worker":
        self._bury()
        self._state = "restarting"
        for attempt in range(self._start_attempts):
            try:
                return self._relaunch()
            except (_WorkerLost, EngineUnavailable) as error:
                log.warning("start %d of %d failed: %s", attempt + 1, self._start_attempts, error)
            self._closing.wait(_pause_s(attempt))
            self._refuse_unless_running()
        self._state = "failed"
        self._retry_later(self._start_attempts)
        raise Unavailable(f"the predictor process failed to start {self._start_attempts} times in a row")

    def _retry_later(self, attempt: int) -> None:
        """Once more after a pause, in which the thread is free to refuse what waits for it."""
        loop = self._loop
        assert loop is not None

        def begin_pause() -> None:
            loop.call_later(_pause_s(attempt), self._in_thread, self._retry, attempt)

        with suppress(RuntimeError):  # the loop is closed, so nobody will ask again
            loop.call_soon_threadsafe(begin_pause)

    def _retry(self, attempt: int) -> None:
        try:
            self._relaunch()
        except (_WorkerLost, EngineUnavailable) as error:
            log.warning("start %d failed, trying further: %s", attempt + 1, error)
            self._retry_later(attempt + 1)

    def _relaunch(self) -> "_Worker":
        self.restarts += 1
        self._on_restart()
        return self._launch()

    def _first_start(self) -> None:
        try:
            self._launch()
        except (_WorkerLost, EngineUnavailable) as error:
            self._state = "failed"
            if isinstance(error, EngineUnavailable):
                raise
            raise Unavailable(f"the predictor process did not start: {error}") from error

    def _launch(self) -> "_Worker":
        worker = self._new_worker()
        if self._closing.is_set():
            worker.kill()
        try:
            self._engine = worker.wait_until_ready(self._start_timeout_s)
        except (_WorkerLost, EngineUnavailable):
            self._bury()
            self._refuse_unless_running()
            raise
        self._state = "ready"
        return worker

    def _new_worker(self) -> "_Worker":
        try:
            self._worker = worker = _Worker(self._spec)
            threading.Thread(target=self._watch, args=(worker,), name="predictor-watch", daemon=True).start()
        except (OSError, RuntimeError) as error:  # no process, memory, descriptor or thread to be had
            self._bury()
            raise _WorkerDied(f"the predictor process cannot be created: {error}") from error
        return worker

    def _watch(self, worker: "_Worker") -> None:
        """In a thread for each worker: when it has ended, see that there is another one."""
        worker.process.wait()
        self._in_thread(self._revive)

    def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        """Have the thread do what nobody waits for; a defect shows in the log."""

        def logged() -> None:
            try:
                work(*arguments)
            except OcrError:  # logged where it was raised
                pass
            except Exception:
                log.exception("the predictor's thread failed")

        # Closing may win the race to the thread, and then there is nothing to do.
        with suppress(RuntimeError):
            self._thread.submit(logged)

    def _revive(self) -> None:
        """Restart unless a batch saw to it already, so that readiness does not wait for the next batch."""
        if self._state == "ready" and not self._alive() and not self._closing.is_set():
            log.warning("the predictor process %s", self._worker.end() if self._worker else "was lost")
            self._restart()

    def _bury(self) -> None:
        if worker := self._worker:
            worker.close()
        self._worker = None


class _BatchError(Exception):
    """A batch did not come back; `str()` says why."""


class _EngineRaised(_BatchError):
    """The engine raised; the worker lives."""


class _WorkerLost(_BatchError):
    """The worker is of no more use."""


class _WorkerDied(_WorkerLost):
    """It ended, by itself or by a signal from anywhere, or did not come to life."""


class _WorkerHung(_WorkerLost):
    """It was silent for too long."""


def _failed_alone(error: _BatchError) -> PredictorFailed:
    return PredictorFailed(f"the model failed on this item, also alone: {error}")


def _pause_s(attempt: int) -> float:
    return float(min(_FIRST_PAUSE_S * 2 ** min(attempt, 16), _LONGEST_PAUSE_S))


class _Worker:
    """One worker process with its pipe and its memory. Used by one thread; only `kill` is for any."""

    def __init__(self, spec: EngineSpec) -> None:
        largest = max((int(np.prod(shape)) for shape in spec.shapes), default=0)
        with ExitStack() as undo:
            self._inputs = Region.create(largest)
            undo.callback(self._inputs.close)
            self._outputs = Region.create(0)  # the worker grows it while it warms up
            undo.callback(self._outputs.close)
            self._link, theirs = multiprocessing.Pipe()
            undo.callback(self._link.close)
            # Made once: `Connection.poll` makes a selector each time, which costs as much as to lay a batch.
            self._answers = select.poll()
            self._answers.register(self._link.fileno(), select.POLLIN)
            with theirs:
                self.process = _spawn(spec, [theirs.fileno(), self._inputs.fd, self._outputs.fd])
            undo.pop_all()
        self._spec = spec

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self, timeout_s: float) -> Ready:
        answer = self._ask(Start(self._spec), timeout_s)
        if isinstance(answer, Failed):
            raise EngineUnavailable(answer.reason) if answer.setup else _WorkerDied(answer.reason)
        assert isinstance(answer, Ready)
        self._inputs.touch()  # the worker has been everywhere in them: it costs a look
        self._outputs.touch()
        return answer

    def run(self, batch: Batch, timeout_s: float) -> tuple[Outputs, Done]:
        try:
            request = _lay(batch, self._inputs)
        except OSError as error:
            raise _EngineRaised(f"no memory for {len(batch)} images of {batch.canvas}: {error}") from error
        answer = self._ask(request, timeout_s)
        if isinstance(answer, Failed):
            raise _EngineRaised(answer.reason)
        assert isinstance(answer, Done)
        return tuple([array.copy() for array in self._outputs.read(answer.outputs)]), answer

    def _ask(self, message: object, timeout_s: float) -> object:
        try:
            self._link.send(message)
            if not self._answers.poll(timeout_s * 1000):
                raise _WorkerHung(f"the predictor process gave no answer for {timeout_s:g} s")
            return self._link.recv()
        except (EOFError, OSError) as error:
            raise _WorkerDied(f"the predictor process {self.end()}") from error

    def end(self) -> str:
        """How the process ended, in words."""
        try:
            status = self.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe but lives on"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.kill()
        try:
            self.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            log.exception("predictor process %d does not vanish after SIGKILL", self.process.pid)
        self._link.close()
        self._inputs.close()
        self._outputs.close()


def _lay(batch: Batch, inputs: Region) -> Run:
    """Each image into its place in shared memory. The padding keeps what was there: the engine masks it."""
    request = Run(*inputs.reserve(((len(batch), *batch.canvas, 3), np.uint8), ((len(batch), 2), np.int32)))
    pixels, sizes = inputs.read((request.pixels, request.sizes))
    sizes[:] = [image.shape[:2] for image in batch.images]
    for place, image in zip(pixels, batch.images, strict=True):
        height, width, _ = image.shape
        place[:height, :width] = image
    return request


def _spawn(spec: EngineSpec, descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Start the worker module with our search path.

    Not by `multiprocessing.Process`: that would run the caller's main module a second time. Its output goes
    to stderr, since engines print and stdout may carry results; a process group of its own keeps Ctrl-C away.
    """
    words = [str(number) for number in (*descriptors, os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "services.common.predictor_worker", *words],
        pass_fds=descriptors,
        env=_environment(spec),
        stdin=subprocess.DEVNULL,
        stdout=2,
        process_group=0,
    )


def _environment(spec: EngineSpec) -> dict[str, str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - text is what is needed
    threads = {"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {}
    return {"GLOG_minloglevel": "2", **os.environ, **threads, "PYTHONPATH": path}


def _split(outputs: Outputs, items: int) -> list[Outputs | PredictorFailed]:
    return list(zip(*outputs, strict=True)) if outputs else [()] * items
