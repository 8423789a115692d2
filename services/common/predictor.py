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

A worker that dies between batches is started again at once. If it cannot be started several times in a row,
the host gives up: `state` is "failed", `run` raises `Unavailable`.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from services.common.engines.base import Batch, EngineSpec, EngineUnavailable, Outputs, check_batch
from services.common.errors import OcrError, PredictorFailed, ShuttingDown, Unavailable
from services.common.predictor_link import Done, Failed, Ready, Region, Run, Start

log = logging.getLogger(__name__)

State = Literal["new", "starting", "ready", "restarting", "failed", "closed"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
"""Between attempts to start: doubled each time, so that a broken driver is not hammered."""

_DEATH_S = 10.0
"""How long a killed process may take to vanish. One stuck in a driver may never; it is left to the kernel."""


@dataclass(frozen=True)
class PredictorResult:
    """One answer for each item of the batch, in order: its outputs without the batch axis, or its failure.

    `model_ms` is the time inside the engine; after a failure, of all that ran again.
    """

    items: list[Outputs | PredictorFailed]
    model_ms: float


class PredictorHost:
    """Runs batches in a process of its own. `start` before the first `run`, `close` at the end.

    `run_timeout_s` is how long one batch may take before the worker counts as stuck; `start_timeout_s` how
    long loading and warm-up may take; `start_attempts` how many failed starts in a row are given up at.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        run_timeout_s: float = 60.0,
        start_timeout_s: float = 300.0,
        start_attempts: int = 3,
    ) -> None:
        self._spec = spec
        self._run_timeout_s = run_timeout_s
        self._start_timeout_s = start_timeout_s
        self._start_attempts = start_attempts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictor")
        self._closing = threading.Event()
        self._state: State = "new"
        self._worker: _Worker | None = None
        self._engine = Ready(spec.engine, "")
        self.restarts = 0

    @property
    def state(self) -> State:
        """What it is doing; a worker found dead counts as restarting before anyone noticed."""
        if self._closing.is_set():
            return "closed"
        if self._state == "ready" and not self._alive():
            return "restarting"
        return self._state

    @property
    def ready(self) -> bool:
        """Whether a batch would run now."""
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
        await asyncio.get_running_loop().run_in_executor(self._thread, self._first_start)

    async def run(self, batch: Batch) -> PredictorResult:
        """Run one float32 batch (N, 3, H, W). Calls queue up in order; during a restart they wait for it.

        Raises `ValueError` for a wrong type or shape, `Unavailable` when the worker cannot be started,
        `ShuttingDown` when closed.
        """
        check_batch(batch)
        self._refuse_unless_running()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, batch)

    async def close(self) -> None:
        """End the worker and free the memory. A batch that still runs is abandoned: drain first."""
        self._closing.set()
        if worker := self._worker:
            worker.kill()
        await asyncio.to_thread(self._thread.shutdown)
        self._bury()

    def _alive(self) -> bool:
        return self._worker is not None and self._worker.alive

    def _refuse_unless_running(self) -> None:
        if self._closing.is_set():
            raise ShuttingDown("the predictor is closed")
        if self._state == "new":
            raise Unavailable("the predictor was not started")

    # ------------------------------------------------------------ below here: in the thread

    def _run(self, batch: Batch) -> PredictorResult:
        try:
            outputs, model_ms = self._attempt(batch)
        except _BatchError as error:
            log.warning("batch of %d failed, running its items one by one: %s", len(batch), error)
            return self._run_one_by_one(batch)
        return PredictorResult(_split(outputs, len(batch)), model_ms)

    def _run_one_by_one(self, batch: Batch) -> PredictorResult:
        items: list[Outputs | PredictorFailed] = []
        total_ms = 0.0
        for index in range(len(batch)):
            try:
                outputs, model_ms = self._attempt(batch[index : index + 1])
                items += _split(outputs, 1)
                total_ms += model_ms
            except _BatchError as error:
                log.warning("item %d of %d failed alone: %s", index, len(batch), error)
                items.append(PredictorFailed(f"the model failed on this item, also alone: {error}"))
        return PredictorResult(items, total_ms)

    def _attempt(self, batch: Batch) -> tuple[Outputs, float]:
        worker = self._living_worker()
        try:
            return worker.run(batch, self._run_timeout_s)
        except _WorkerLost:
            self._bury()
            raise

    def _living_worker(self) -> "_Worker":
        self._refuse_unless_running()
        if self._state == "failed":
            raise Unavailable("the predictor process could not be started again; see the log")
        if self._worker and self._worker.alive:
            return self._worker
        return self._restart()

    def _restart(self) -> "_Worker":
        self._bury()
        self._state = "restarting"
        for attempt in range(self._start_attempts):
            self.restarts += 1
            try:
                return self._launch()
            except (_WorkerLost, EngineUnavailable) as error:
                log.warning("start %d of %d failed: %s", attempt + 1, self._start_attempts, error)
            self._closing.wait(min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S))
            self._refuse_unless_running()
        self._state = "failed"
        raise Unavailable(f"the predictor process failed to start {self._start_attempts} times in a row")

    def _first_start(self) -> None:
        try:
            self._launch()
        except (_WorkerLost, EngineUnavailable) as error:
            self._state = "failed"
            if isinstance(error, EngineUnavailable):
                raise
            raise Unavailable(f"the predictor process did not start: {error}") from error

    def _launch(self) -> "_Worker":
        self._worker = worker = _Worker(self._spec)
        if self._closing.is_set():
            worker.kill()
        threading.Thread(target=self._watch, args=(worker,), name="predictor-watch", daemon=True).start()
        try:
            self._engine = worker.wait_until_ready(self._start_timeout_s)
        except (_WorkerLost, EngineUnavailable):
            self._bury()
            self._refuse_unless_running()
            raise
        self._state = "ready"
        return worker

    def _watch(self, worker: "_Worker") -> None:
        """In a thread for each worker: when it has ended, see that there is another one."""
        worker.process.wait()
        # Closing may win the race to the executor, and then there is nothing to revive.
        with suppress(RuntimeError):
            self._thread.submit(self._revive)

    def _revive(self) -> None:
        """Restart unless a batch saw to it already, so that readiness does not wait for the next batch."""
        if self._state == "ready" and not self._alive() and not self._closing.is_set():
            log.warning("the predictor process %s", self._worker.end() if self._worker else "was lost")
            with suppress(OcrError):  # logged where it was raised
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
    """The worker died, or was silent for too long; it is of no more use."""


class _Worker:
    """One worker process with its pipe and its memory. Used by one thread; only `kill` is for any."""

    def __init__(self, spec: EngineSpec) -> None:
        largest = max((int(np.prod(shape)) for shape in spec.shapes), default=0)
        self._inputs = Region.create(largest * np.dtype(np.float32).itemsize)
        self._outputs = Region.create(0)  # the worker grows it while it warms up
        self._link, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = _spawn(spec, [theirs.fileno(), self._inputs.fd, self._outputs.fd])
        self._spec = spec

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self, timeout_s: float) -> Ready:
        answer = self._ask(Start(self._spec), timeout_s)
        if isinstance(answer, Failed):
            raise EngineUnavailable(answer.reason) if answer.setup else _WorkerLost(answer.reason)
        assert isinstance(answer, Ready)
        return answer

    def run(self, batch: Batch, timeout_s: float) -> tuple[Outputs, float]:
        (place,) = self._inputs.write([batch])
        answer = self._ask(Run(place), timeout_s)
        if isinstance(answer, Failed):
            raise _EngineRaised(answer.reason)
        assert isinstance(answer, Done)
        return tuple(array.copy() for array in self._outputs.read(answer.outputs)), answer.model_ms

    def _ask(self, message: object, timeout_s: float) -> object:
        try:
            self._link.send(message)
            if not self._link.poll(timeout_s):
                raise _WorkerLost(f"the predictor process gave no answer for {timeout_s:g} s")
            return self._link.recv()
        except (EOFError, OSError) as error:
            raise _WorkerLost(f"the predictor process {self.end()}") from error

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
    return [tuple(output[index] for output in outputs) for index in range(items)]
