"""The first lines of each service's process: read the settings, serve, leave with an exit status."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import cv2

from services.common.errors import SetupError
from services.common.settings import ServerSettings, load

S = TypeVar("S", bound=ServerSettings)


def run(kind: type[S], serve: Callable[[S], Awaitable[int]], argv: Sequence[str] | None, *, prog: str) -> int:
    """Serve with the settings in `argv`, None for those of the command line; the exit status.

    What the operator has to put right is one sentence on standard error, and status 1.
    """
    settings = load(kind, sys.argv[1:] if argv is None else argv, prog=prog)
    # Images are worked on side by side in threads; more threads inside of each would only get in the way.
    cv2.setNumThreads(1)

    async def served() -> int:
        return await serve(settings)

    try:
        return asyncio.run(served())
    except SetupError as error:
        print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201
        return 1
