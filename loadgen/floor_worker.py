"""One bare model in a tight loop: the process behind `loadgen/floor.py`.

    python -m loadgen.floor_worker SPEC.json

SPEC.json is a `Work` as JSON. Prints `ready` when every shape is warm; then, for each line on standard input,
0 or 1, runs every other batch, beginning with that one, and prints the seconds that took.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = NDArray[np.float32]
Pass = Callable[[Sequence[Batch]], None]

WARM_UPS = 2
"""Times that each stream meets each shape before anything is timed."""


@dataclass(frozen=True)
class Work:
    """What a worker does.

    `images` is a .npz of uint8 `(height, width, 3)` images. The worker takes share `share` of `shares` of the
    batches, runs `streams` of them side by side, with `threads` threads in all.
    """

    engine: str
    model: str
    params: str
    pir: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: str
    batch: int
    streams: int
    threads: int
    share: int
    shares: int


def batches(images: Sequence[NDArray[np.uint8]], size: int) -> list[list[NDArray[np.uint8]]]:
    """Images of equal shape, `size` together as long as there are as many; the largest first."""
    area = sorted(images, key=lambda image: (image.shape[0] * image.shape[1], image.shape), reverse=True)
    groups = itertools.groupby(area, key=lambda image: image.shape)
    return [chunk for _, group in groups for chunk in chunks(list(group), size)]


def chunks(items: list[NDArray[np.uint8]], size: int) -> Iterator[list[NDArray[np.uint8]]]:
    """Pieces of `size` items; the last may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))


def normalised(images: Sequence[NDArray[np.uint8]], work: Work) -> Batch:
    """Images of one shape as the model reads them: float32 `(n, 3, height, width)`."""
    pixels = np.stack(images).astype(np.float32) / 255
    values = (pixels - np.array(work.mean, np.float32)) / np.array(work.std, np.float32)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), dtype=np.float32)


def warm_up_set(todo: Sequence[Batch], streams: int) -> list[Batch]:
    """Each shape as often in a row as makes all streams meet it."""
    first = {batch.shape: batch for batch in todo}
    return [batch for batch in first.values() for _ in range(WARM_UPS * streams)]


def openvino_pass(work: Work) -> Pass:
    """A compiled model with a queue of requests, one a stream."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it reports each import
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": work.threads,
        "NUM_STREAMS": work.streams,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(work.model, "CPU", settings)
    waiting = openvino.AsyncInferQueue(compiled, work.streams)

    def run(todo: Sequence[Batch]) -> None:
        for batch in todo:
            waiting.start_async([batch], share_inputs=True)
        waiting.wait_all()

    return run


def paddle_pass(work: Work) -> Pass:
    """A Paddle predictor with oneDNN; it has one stream only."""
    from paddle import inference

    config = inference.Config(work.model, work.params)
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(work.threads)
    config.enable_mkldnn()
    config.set_mkldnn_cache_capacity(512)  # more than there are shapes; 10 by default
    config.enable_new_ir(work.pir)
    config.enable_new_executor()
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    given = predictor.get_input_handle(predictor.get_input_names()[0])
    wanted = predictor.get_output_handle(predictor.get_output_names()[0])

    def run(todo: Sequence[Batch]) -> None:
        for batch in todo:
            given.reshape(list(batch.shape))
            given.copy_from_cpu(batch)
            predictor.run()
            wanted.copy_to_cpu()

    return run


PASSES: dict[str, Callable[[Work], Pass]] = {"openvino": openvino_pass, "paddle": paddle_pass}


def serve(work: Work, say: Callable[[object], None]) -> None:
    """Load, warm up, and run whenever a line comes in."""
    with np.load(work.images) as stored:
        images = [stored[name] for name in stored.files]
    mine = batches(images, work.batch)[work.share :: work.shares]
    todo = [normalised(batch, work) for batch in mine]
    run: Any = PASSES[work.engine](work)
    run(warm_up_set(todo, work.streams))
    say("ready")
    for half in sys.stdin:
        some = todo[int(half) :: 2]
        start = time.perf_counter()
        run(some)
        say(time.perf_counter() - start)


def main() -> None:
    """Command line."""
    work = Work(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print
    with contextlib.closing(answers):
        serve(work, lambda value: answers.write(f"{value}\n"))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
