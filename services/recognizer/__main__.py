"""`python -m services.recognizer`: the recognizer as a process."""

import asyncio
import sys
from collections.abc import Sequence

import cv2

from services.common.errors import SetupError
from services.common.model_service import plan
from services.common.rpc import run_service
from services.common.settings import load
from services.recognizer.model import serve_model
from services.recognizer.service import RecognizerService
from services.recognizer.settings import RecognizerSettings


async def serve(settings: RecognizerSettings) -> int:
    """Run until a signal comes; the exit status."""
    chosen = plan(settings, "rec")
    service = RecognizerService(serve_model(chosen, settings), chosen.files.charset, settings)
    return await run_service(service, settings, name="recognizer")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings and serve."""
    settings = load(RecognizerSettings, sys.argv[1:] if argv is None else argv, prog="ocr-recognizer")
    # Lines are worked on side by side in threads; more threads inside of each would only get in the way.
    cv2.setNumThreads(1)
    try:
        return asyncio.run(serve(settings))
    except SetupError as error:
        print(f"ocr-recognizer: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
