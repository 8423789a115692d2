"""The predictor process: loads one engine, warms it up, runs one batch after the other.

Started by `PredictorHost` and by nobody else, as `python -m services.common.predictor_worker` with the
descriptors of the pipe and of the two regions, and the id of its parent. It never outlives that parent, and
leaves it to the parent when to stop: signals meant for the whole group (Ctrl-C) do not reach a running batch.
"""

import contextlib
import os
import signal
import sys
import time
from multiprocessing.connection import Connection

import numpy as np

from services.common.engines.base import Engine, EngineSpec, Outputs, create_engine
from services.common.errors import SetupError
from services.common.parent import end_with_parent
from services.common.predictor_link import Done, Failed, Ready, Region, Run, Start


def main(arguments: list[str]) -> int:
    """Serve until the pipe ends. Returns the exit status."""
    pipe, input_fd, output_fd, parent = (int(argument) for argument in arguments)
    _ignore_signals()
    _die_with(parent)
    link: Connection[object, object] = Connection(pipe)
    # The pipe ends when the host closes it or is gone: nothing is left to do, and nobody to tell.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(link, Region(input_fd), Region(output_fd))
    return 0


def _ignore_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent, even in the middle of a batch."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel was told
        os._exit(1)


def _serve(link: "Connection[object, object]", inputs: Region, outputs: Region) -> None:
    start = link.recv()
    assert isinstance(start, Start)
    try:
        engine = create_engine(start.spec)
        _warm_up(engine, start.spec, inputs, outputs)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the host's to judge
        link.send(Failed(_reason(error), setup=isinstance(error, SetupError)))
        return
    link.send(Ready(engine.name, engine.version))
    while True:
        request = link.recv()
        assert isinstance(request, Run)
        link.send(_answer(engine, request, inputs, outputs))


def _warm_up(engine: Engine, spec: EngineSpec, inputs: Region, outputs: Region) -> None:
    """Meet every shape of the closed set, largest first, so that memory is asked for once, the shared too."""
    for shape in sorted(spec.shapes, key=np.prod, reverse=True):
        pixels, sizes = inputs.read(inputs.reserve((shape, np.uint8), ((shape[0], 2), np.int32)))
        pixels[:], sizes[:] = 0, shape[1:3]
        outputs.write(_checked(engine.run(pixels, sizes), shape[0]))


def _answer(engine: Engine, request: Run, inputs: Region, outputs: Region) -> Done | Failed:
    try:
        pixels, sizes = inputs.read([request.pixels, request.sizes])
        began, cpu_before = time.perf_counter(), time.process_time()
        found = engine.run(pixels, sizes)
        model_ms = (time.perf_counter() - began) * 1e3
        cpu_ms = (time.process_time() - cpu_before) * 1e3
        return Done(outputs.write(_checked(found, len(pixels))), model_ms, cpu_ms)
    except Exception as error:  # noqa: BLE001 - one batch failed, not the process
        return Failed(_reason(error))


def _checked(outputs: Outputs, items: int) -> Outputs:
    for output in outputs:
        if output.shape[:1] != (items,):
            raise ValueError(f"the engine answered a batch of {items} with an array of {output.shape}")
    return outputs


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
