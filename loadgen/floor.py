"""The floor: what the bare models take for the same pages, with nothing around them.

All pages and lines are at hand, decoded, resized and normalised; lines are as wide as the next multiple of 32
and batched with their equals. The models run in a tight loop with the best of a few settings of batch size,
streams and threads. Nothing that serves documents can be faster with these models.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from loadgen.corpus import Document
from loadgen.errors import FloorFailed
from loadgen.floor_worker import Work
from services.common.models import ModelFiles, resolve
from services.common.page_size import GRID, shrink
from services.gateway.crops import crop
from services.recognizer.preprocess import HEIGHT

Image = NDArray[np.uint8]
Role = Literal["det", "rec"]
Lines = Mapping[str, Sequence[Mapping[str, Any]]]

MAX_SIDE = 960
WIDEST = 3200
ROLES: tuple[Role, Role] = ("det", "rec")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """How a bare model is run: items in a batch, batches side by side, threads of all together."""

    batch: int
    streams: int
    threads: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.streams} x {self.threads // self.streams} threads"


def candidates(role: Role, cores: int) -> tuple[Setting, ...]:
    """What is tried, the likeliest first: a stream a core, lines in larger batches too, and one stream."""
    size = 1 if role == "det" else 4
    tried = [Setting(size, cores, cores), Setting(size, 1, cores)]
    if role == "rec":
        tried.insert(1, Setting(2 * size, cores, cores))
    return tuple(dict.fromkeys(tried))


def page_image(document: Document) -> Image:
    """The page in its own size, BGR.

    Raises:
        FloorFailed: it cannot be decoded.
    """
    page = cv2.imdecode(np.frombuffer(document.content, np.uint8), cv2.IMREAD_COLOR)
    if page is None:
        raise FloorFailed(f"{document.path} cannot be decoded: take it out of the folder")
    return np.asarray(page, np.uint8)


def line_image(page: Image, points: Sequence[Sequence[float]]) -> Image:
    """A line cut out of its page, 48 rows high and a multiple of 32 wide."""
    line = crop(page, np.asarray(points, np.float32))
    width = min(WIDEST, GRID * -(-HEIGHT * line.shape[1] // (line.shape[0] * GRID)))
    return np.asarray(cv2.resize(line, (width, HEIGHT)), np.uint8)


@dataclass(frozen=True)
class Inputs:
    """What the two models are given: pages as the detector sees them, and all lines of all pages."""

    det: tuple[Image, ...]
    rec: tuple[Image, ...]

    @classmethod
    def of(cls, documents: Sequence[Document], lines: Lines) -> Self:
        """Of these documents, with the lines that the product found on each."""
        pages = [page_image(document) for document in documents]
        cut = [
            line_image(page, line["points"])
            for document, page in zip(documents, pages, strict=True)
            for line in lines.get(document.name, ())
        ]
        return cls(tuple(shrink(page, MAX_SIDE) for page in pages), tuple(cut))


@dataclass(frozen=True)
class Bare:
    """The models of a floor: the engine and the model set."""

    engine: str
    models: str

    def files(self, role: Role) -> ModelFiles:
        """Its model of this role. Raises `SetupError` when it is not in the cache."""
        return resolve(self.models, role)


class Loop:
    """A bare model, loaded and warm, that runs a half of its inputs whenever it is told to."""

    def __init__(
        self, bare: Bare, role: Role, images: Sequence[Image], setting: Setting, folder: Path
    ) -> None:
        self.setting = setting
        stored = folder / f"{role}.npz"
        if not stored.exists():
            np.savez(stored, *images)
        works = _works(bare, bare.files(role), str(stored), setting)
        self._workers = [_start(work, folder / f"{role}-{setting.batch}-{work.share}.json") for work in works]
        for worker in self._workers:
            self._read(worker)

    def seconds(self, half: int) -> float:
        """Run every other batch once, from number `half` on, 0 or 1; how long that took."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{half}\n")
            worker.stdin.flush()
        return max(float(self._read(worker)) for worker in self._workers)

    def close(self) -> None:
        """End its processes."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()

    def _read(self, worker: "subprocess.Popen[str]") -> str:
        assert worker.stdout is not None
        if not (said := worker.stdout.readline().strip()):
            self.close()
            raise FloorFailed(f"the bare model ended with status {worker.returncode}; its reason is above")
        return said


def _works(bare: Bare, files: ModelFiles, images: str, setting: Setting) -> list[Work]:
    """OpenVINO has streams of its own; Paddle holds the interpreter, so its streams are processes."""
    processes = setting.streams if bare.engine == "paddle" else 1
    return [
        Work(
            engine=bare.engine,
            model=str(files.model),
            params=str(files.params or ""),
            pir=files.format == "pir",
            mean=files.mean,
            std=files.std,
            images=images,
            batch=setting.batch,
            streams=setting.streams // processes,
            threads=setting.threads // processes,
            share=share,
            shares=processes,
        )
        for share in range(processes)
    ]


def _start(work: Work, file: Path) -> "subprocess.Popen[str]":
    file.write_text(json.dumps(asdict(work)), encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": str(work.threads), "GLOG_minloglevel": "2"}
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen.floor_worker", str(file)],
        cwd=Path(__file__).parents[1],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@dataclass(frozen=True)
class Pass:
    """What a run over a half of the batches took: seconds for each of all pages, so that two make a whole."""

    det_s: float
    rec_s: float


class Floor:
    """Both models, each with its best setting."""

    def __init__(self, loops: Mapping[Role, Loop], pages: int) -> None:
        self._loops = loops
        self._pages = pages
        self.settings = {role: loop.setting for role, loop in loops.items()}

    def measure(self, half: int) -> Pass:
        """Every other batch of each model, from number `half` on, 0 or 1."""
        found = {role: loop.seconds(half) / self._pages for role, loop in self._loops.items()}
        log.info("floor, one half: det %.3f and rec %.3f s a page", found["det"], found["rec"])
        return Pass(found["det"], found["rec"])


@contextlib.contextmanager
def warm(bare: Bare, inputs: Inputs, *, cores: int, choose_from: int) -> Iterator[Floor]:
    """Both models, loaded and warm, each with the fastest of its settings.

    The settings are compared on the first `choose_from` pages and as great a share of the lines; 0 takes the
    likeliest.

    Raises:
        SetupError: the model set is not in the cache, its engine is missing, or a page cannot be decoded.
    """
    with tempfile.TemporaryDirectory(prefix="ocr-floor-") as scratch, contextlib.ExitStack() as ending:
        loops: dict[Role, Loop] = {}
        for role in ROLES:
            images = inputs.det if role == "det" else inputs.rec
            some = images[: ceil(len(images) * choose_from / len(inputs.det))]
            setting = _best(bare, role, some, cores, Path(tempfile.mkdtemp(dir=scratch)))
            loops[role] = Loop(bare, role, images, setting, Path(tempfile.mkdtemp(dir=scratch)))
            ending.callback(loops[role].close)
        yield Floor(loops, len(inputs.det))


def _best(bare: Bare, role: Role, images: Sequence[Image], cores: int, folder: Path) -> Setting:
    times = dict.fromkeys(candidates(role, cores), 0.0)
    for setting in times if images else ():
        with contextlib.closing(Loop(bare, role, images, setting, folder)) as loop:
            times[setting] = loop.seconds(0) + loop.seconds(1)
        log.info("floor %s %s %s: %.3f s", bare.models, role, setting, times[setting])
    return min(times, key=lambda setting: times[setting])
