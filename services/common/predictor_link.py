"""What the two sides of a predictor share: the messages on the pipe and the memory beside it.

Pixels and probabilities never cross the pipe. They lie in two regions, one for each direction, made by the
host before the worker starts. A region is an anonymous file that both processes have mapped: it has no name,
so nothing is left behind however the processes end, and it does not count against the size of `/dev/shm`,
which containers keep at 64 MB. Whoever writes may grow a region; whoever reads notices and maps it anew.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.common.engines.base import EngineSpec

_ALIGNMENT = 64
"""Bytes: a cache line, and what vector instructions like best."""


@dataclass(frozen=True)
class Place:
    """Where an array lies in a region."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True)
class Start:
    """Host to worker, once: load this engine, warm it up."""

    spec: EngineSpec


@dataclass(frozen=True)
class Run:
    """Host to worker: run the batch whose pixels and sizes lie there."""

    pixels: Place
    sizes: Place


@dataclass(frozen=True)
class Ready:
    """Worker to host, once: loaded and warm."""

    engine: str
    version: str


@dataclass(frozen=True)
class Done:
    """Worker to host: the outputs lie there, the engine took so long and so much processor time."""

    outputs: tuple[Place, ...]
    model_ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Failed:
    """Worker to host: the engine raised. `setup` if it was the operator's to put right before the start."""

    reason: str
    setup: bool = False


class Region:
    """Shared memory behind a file descriptor; grows, never shrinks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    @classmethod
    def create(cls, size: int) -> "Region":
        """New memory of `size` bytes. Costs nothing until it is written to."""
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, max(size, mmap.PAGESIZE))
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def size(self) -> int:
        """Bytes that are mapped here."""
        return len(self._map)

    def reserve(self, *kinds: tuple[tuple[int, ...], Any]) -> tuple[Place, ...]:
        """Room for arrays of these shapes and types, from the start on; `read` gives them."""
        places, end = _layout(kinds)
        if end > self.size:
            os.ftruncate(self.fd, end)
            self._map = mmap.mmap(self.fd, end)
        return places

    def write(self, arrays: Sequence[NDArray[Any]]) -> tuple[Place, ...]:
        """Copy arrays in, and tell where they lie."""
        places = self.reserve(*((array.shape, array.dtype) for array in arrays))
        for place, array in zip(places, arrays, strict=True):
            np.copyto(self._view(place), array)
        return places

    def read(self, places: Sequence[Place]) -> tuple[NDArray[Any], ...]:
        """The arrays in place, not copied: good until the other side writes again."""
        size = os.fstat(self.fd).st_size
        if size > self.size:
            self._map = mmap.mmap(self.fd, size)
        return tuple(self._view(place) for place in places)

    def touch(self) -> None:
        """Have every page of it in memory now, and not when some large batch first needs it."""
        size = os.fstat(self.fd).st_size
        (whole,) = self.read([Place((size,), "|u1", 0)])
        whole[:: mmap.PAGESIZE].max(initial=0)

    def close(self) -> None:
        """Let go of the memory; it is freed once the other side has let go too."""
        with suppress(BufferError):  # a view is still in use: its last user frees the map
            self._map.close()
        os.close(self.fd)

    def _view(self, place: Place) -> NDArray[Any]:
        count = math.prod(place.shape)
        flat = np.frombuffer(self._map, dtype=place.dtype, count=count, offset=place.offset)
        return flat.reshape(place.shape)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ocr-predictor", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # elsewhere than on Linux
        return os.dup(file.fileno())


def _layout(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[tuple[Place, ...], int]:
    places, end = [], 0
    for shape, kind in kinds:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        dtype = np.dtype(kind)
        places.append(Place(shape, dtype.str, offset))
        end = offset + math.prod(shape) * dtype.itemsize
    return tuple(places), end
