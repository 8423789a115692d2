"""`python -m services.detector`: the detector as a process."""

import sys
from collections.abc import Sequence

from services.common.model_service import plan
from services.common.process import run
from services.common.rpc import run_service
from services.detector.model import serve_model
from services.detector.service import DetectorService
from services.detector.settings import DetectorSettings


async def serve(settings: DetectorSettings) -> int:
    """Run until a signal comes; the exit status."""
    service = DetectorService(serve_model(plan(settings, "det"), settings), settings)
    return await run_service(service, settings, name="detector")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings and serve."""
    return run(DetectorSettings, serve, argv, prog="ocr-detector")


if __name__ == "__main__":
    sys.exit(main())
