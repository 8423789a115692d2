"""The first lines of each service's process: read the settings, serve, leave with an exit status."""

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import cv2

from services.common.errors import SetupError
from services.common.settings import ServerSettings, load

S = TypeVar("S", bound=ServerSettings)

TRIM_EVERY_S = 5.0
"""Seconds between two looks for freed memory that can go back to the system, if little was done meanwhile."""
_TRIM_BUSY_EVERY = 12
"""Looks after which a busy process hands it back nevertheless."""
_IDLE_SHARE = 0.1
"""Of one core, below which a process counts as idle."""

_MALLOC_OPTIONS = {-8: 2, -3: 8 << 20, -1: 32 << 20}
"""For glibc: M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes. Left to itself it keeps an arena
for each thread and ever larger blocks in them, so that memory creeps upwards over thousands of pages. What an
ordinary page needs stays, though: to hand it back at each page costs the gateway 15 ms of processor time.
Handing back what lies free when there is nothing else to do leaves only what is in use. While pages come
they would soon take all of it again, at some 3 µs for each 4 KiB, so then it is done once a minute."""


def run(kind: type[S], serve: Callable[[S], Awaitable[int]], argv: Sequence[str] | None, *, prog: str) -> int:
    """Serve with the settings in `argv`, None for those of the command line; the exit status.

    What the operator has to put right is one sentence on standard error, and status 1.
    """
    settings = load(kind, sys.argv[1:] if argv is None else argv, prog=prog)
    _give_memory_back()
    # Images are worked on side by side in threads; more threads inside of each would only get in the way.
    cv2.setNumThreads(1)

    async def served() -> int:
        return await serve(settings)

    try:
        return asyncio.run(served())
    except SetupError as error:
        print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _give_memory_back() -> None:
    """Have memory that was freed return to the system, where the allocator can be told to."""
    with suppress(OSError, AttributeError):  # another C library has its own ways
        library = ctypes.CDLL(None)
        for option, value in _MALLOC_OPTIONS.items():
            library.mallopt(option, value)
        threading.Thread(target=_trim, args=(library.malloc_trim,), name="malloc-trim", daemon=True).start()


def trims(busy: Sequence[float]) -> bool:
    """Whether to hand memory back now. Pure.

    `busy` has, for each look since it was last done, how many cores this process kept at work before it.
    """
    return busy[-1] < _IDLE_SHARE or len(busy) >= _TRIM_BUSY_EVERY


def _trim(malloc_trim: Callable[[int], object]) -> None:
    busy: list[float] = []
    while True:
        spent, since = time.process_time(), time.monotonic()
        time.sleep(TRIM_EVERY_S)
        busy.append((time.process_time() - spent) / (time.monotonic() - since))
        if trims(busy):
            malloc_trim(0)
            busy.clear()
