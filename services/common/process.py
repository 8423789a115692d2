"""The first lines of each service's process: read the settings, serve, leave with an exit status."""

import asyncio
import ctypes
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import cv2

from services.common.errors import SetupError
from services.common.settings import ServerSettings, load

S = TypeVar("S", bound=ServerSettings)

_MALLOC_OPTIONS = {-8: 2, -3: 8 << 20, -1: 32 << 20}
"""For glibc: M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes. Left to itself it keeps an arena
for each thread and ever larger blocks in them, so that memory creeps upwards over thousands of pages. What an
ordinary page needs stays, though: to hand it back at each page costs the gateway 15 ms of processor time."""


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
    """Have pages that were freed return to the system, where the allocator can be told to."""
    with suppress(OSError, AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)
