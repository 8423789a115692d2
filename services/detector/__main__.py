"""`python -m services.detector`: the detector as a process."""

import asyncio
import sys
from collections.abc import Sequence

import cv2

from services.common.errors import SetupError
from services.common.model_service import plan
from services.common.rpc import run_service
from services.common.settings import load
from services.detector.model import serve_model
from services.detector.service import DetectorService
from services.detector.settings import DetectorSettings


async def serve(settings: DetectorSettings) -> int:
    """Run until a signal comes; the exit status."""
    service = DetectorService(serve_model(plan(settings, "det"), settings), settings)
    return await run_service(service, settings, name="detector")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings and serve."""
    settings = load(DetectorSettings, sys.argv[1:] if argv is None else argv, prog="ocr-detector")
    # Pages are worked on side by side in threads; more threads inside of each would only get in the way.
    cv2.setNumThreads(1)
    try:
        return asyncio.run(serve(settings))
    except SetupError as error:
        print(f"ocr-detector: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
